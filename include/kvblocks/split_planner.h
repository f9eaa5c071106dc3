// How rows of a batch are split over workers.

#ifndef KVBLOCKS_SPLIT_PLANNER_H_
#define KVBLOCKS_SPLIT_PLANNER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"

// SplitPlanner: cuts the keys of a decode batch into parts of equal work.
//
// Keys of a request are counted in tiles, at least one. Requests are assigned to parts in order; a
// part takes up to payload = ceil(sum(tiles + overhead) / parts) + overhead tiles, and pays the
// overhead for every request it begins or continues. A request that does not fit is cut at a tile
// boundary if a tile fits after paying. Whole requests write their output; pieces write float32
// states that a reduction merges.
//
// Always: the ranges of a plan cover every request's tiles exactly once, in order; splits are at
// most requests + parts; a part's load is at most the payload, so loads differ by at most that.
// Fixed, Count and None make one part per range; Fixed depends on no other request, so that results
// do not depend on the batch.
//
// With a window, keys count from the block that the window of the newest token begins in: tile 0
// begins at FirstKey. Lists that hold nothing but visible keys are planned by their lengths.
//
// Cost: O(requests + splits), 10 to 20 ns per request; nothing is allocated once a batch of that
// size was planned. Thread-compatible.

namespace kvblocks::attention {

// A piece of a request: tiles [begin_tile, end_tile).
struct SplitRange {
  int32_t request = 0;
  int32_t begin_tile = 0, end_tile = 0;

  friend bool operator==(const SplitRange&, const SplitRange&) = default;
};

// What one part does: from a tile of the first request through a tile of the last. Idle if
// begin_range == end_range; the other fields are then 0.
struct SplitPart {
  int32_t first_request = 0, first_tile = 0;
  int32_t first_split = 0;  // which piece of the first request it begins with
  int32_t last_request = 0, last_end_tile = 0;
  int32_t first_is_cut = 0, last_is_cut = 0;  // the request has other pieces elsewhere
  int32_t begin_range = 0, end_range = 0;     // of SplitPlan::ranges

  bool idle() const { return begin_range == end_range; }
  friend bool operator==(const SplitPart&, const SplitPart&) = default;
};

// Views on the planner's memory, good until its next Plan that succeeds.
struct SplitPlan {
  KvGroupKey type;
  SplitPolicy policy;
  int64_t tile = 0;     // keys per tile; Fixed: the piece, Count: a block
  int64_t payload = 0;  // Auto only
  absl::Span<const SplitRange> ranges;
  absl::Span<const SplitPart> parts;
  absl::Span<const int32_t> split_offsets;  // [R + 1]: ranges of request b are [b], [b + 1)

  int32_t num_requests() const { return static_cast<int32_t>(split_offsets.size()) - 1; }
  int32_t num_splits(int64_t request) const {
    return split_offsets[request + 1] - split_offsets[request];
  }
};

// Where the tiles of a request begin: 0, or the first key of the block in which the window of its
// newest token begins.
constexpr int64_t FirstKey(int64_t seq_len, const KvGroupKey& type) {
  if (type.window <= 0 || type.block_size <= 0) return 0;
  return std::max<int64_t>(0, seq_len - type.window) / type.block_size * type.block_size;
}

// Where a plan of one list cuts the keys of a request: positions in (0, seq_len), ascending,
// appended.
void AppendCuts(const SplitPlan& plan, int64_t request, int64_t seq_len,
                std::vector<int64_t>& cuts);

struct SplitPlanInput {
  KvGroupKey type = {};  // block_size 0: lists of slots, which know no blocks
  absl::Span<const int32_t> seq_lens = {};
  // Lengths of a second list per request, which begins a tile of its own; or empty.
  absl::Span<const int32_t> extra_lens = {};
  SplitPolicy policy = {};
  int64_t tile = 64;
  int64_t overhead = 5;   // of beginning a request, in tiles
  int32_t num_parts = 1;  // see NumParts
};

// Parts that fill the device: one per multiprocessor and group of rows, where a request has `rows`
// query rows per KV head and a tile holds `rows_per_tile`. REQUIRES: positive arguments.
int32_t NumParts(int32_t num_multiprocessors, int64_t num_kv_heads, int64_t rows,
                 int64_t rows_per_tile);

class SplitPlanner {
 public:
  // Memory for plans within these bounds; larger ones allocate.
  SplitPlanner(int64_t max_num_reqs, int64_t max_num_parts);
  SplitPlanner(const SplitPlanner&) = delete;
  SplitPlanner& operator=(const SplitPlanner&) = delete;

  // InvalidArgument for bad lengths and parameters; the last plan then stays.
  absl::Status Plan(const SplitPlanInput& input);
  const SplitPlan& plan() const { return plan_; }

 private:
  void PlanParts(const SplitPlanInput& input);
  void PlanPieces(const SplitPlanInput& input);

  std::vector<SplitRange> ranges_;
  std::vector<SplitPart> parts_;
  std::vector<int32_t> split_offsets_;
  SplitPlan plan_;
};

// That a plan was made for layers of this type and for these lengths, else FailedPrecondition,
// naming the operation: what an operation asks that is handed a plan. InvalidArgument if extra_lens
// is neither empty nor as long as seq_lens. O(R).
absl::Status CheckPlanFits(const char* operation, const SplitPlan& plan, const KvGroupKey& type,
                           absl::Span<const int32_t> seq_lens,
                           absl::Span<const int32_t> extra_lens = {});

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_SPLIT_PLANNER_H_
