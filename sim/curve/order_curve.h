// OrderCurve: the hits of pools of every size from one pass, for requests that run one after the
// other.
//
//   OrderCurve curve({.free_order = FreeOrder::kUnhashedFirst});
//   for (...) curve.Add(request);
//   HitCurve hits = curve.Finish();
//
// What a pool evicts first is what was released first, the deepest block of a request first. So in
// the order of release a block always stands behind those before it on its path, what a pool of C
// blocks holds are the first C of that order, and a look-up finds a block if and only if its place
// (its stack distance, Mattson 1970) never exceeded C. Paths are followed piece by piece and
// distances are kept per request (SizeHistory), so a run of blocks that were last used together
// costs as much as one block.
//
// Exact for every pool that can hold the largest request (below, a real pool never admits that
// request). Two things need care:
//  - Blocks without a key take room while the request runs. When it ends they go to the back of the
//    queue like others, or to the front and make room again.
//  - The last token of a prompt is always computed, so the block that holds it may be cached twice.
//    The old copy stays where it is. The next look-up takes the older copy where the pool still has
//    it and the newer one elsewhere: from then on large pools hold one block more in between, which
//    is kept as a correction for these sizes (SizeHistory).
//
// Cost: about 1 ns per block and 0.5 us per request; 4 bytes per distinct block. Single-threaded.

#ifndef KVBLOCKS_SIM_CURVE_ORDER_CURVE_H_
#define KVBLOCKS_SIM_CURVE_ORDER_CURVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/block_pool.h"
#include "sim/curve/belady_bound.h"
#include "sim/curve/hit_curve.h"
#include "sim/curve/request_blocks.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

// Over the requests that were added.
struct OrderSums {
  int64_t num_requests = 0;
  int64_t num_prompt_tokens = 0;
  int64_t num_prompt_blocks = 0;
  int64_t num_references = 0;  // blocks with a key
  int64_t num_distinct = 0;
  int64_t smallest_pool = 0;          // that admits every request
  int64_t num_requests_with_hit = 0;  // in an infinite pool
};

class OrderCurve {
 public:
  struct Options {
    FreeOrder free_order = FreeOrder::kUnhashedFirst;
    // The last block found is computed again: a look-up then hits one block less. That this leaves
    // a second copy of it behind is left out, so the curve is not exact.
    bool drops_last_hit = false;
  };
  // Blocks begin .. end - 1 of a request need pools of first_size, first_size + 1, ... blocks.
  struct FoundRun {
    int64_t begin;
    int64_t end;
    int64_t first_size;
  };

  explicit OrderCurve(const Options& options) : options_(options) {}

  void Add(const CurveRequest& request);
  // Of the request added last: what each of its hits needs, from the root on.
  absl::Span<const FoundRun> found() const { return found_; }
  // Its path; empty if none of its blocks has a key.
  absl::Span<const BlockPaths::Segment> segments() const { return segments_; }

  // Ends the counting.
  HitCurve Finish();

  // Sums over the requests added.
  const OrderSums& sums() const { return sums_; }
  BlockPaths TakePaths() { return std::move(paths_); }

 private:
  using Batch = SizeHistory::Batch;
  // Older copies of a block, newest first.
  struct Copies {
    int64_t depth;
    std::vector<Batch> older;
  };
  void TakeRun(const BlockPaths::Run& run);
  void TakeCopies(int64_t num_found);
  void LeaveCopies(int64_t begin, int64_t end);

  Options options_;
  BlockPaths paths_;
  SizeHistory history_;
  HitCurve curve_;
  absl::flat_hash_map<uint32_t, std::vector<Copies>> copies_;  // by piece
  std::vector<BlockPaths::Segment> segments_;
  std::vector<BlockPaths::Run> runs_;
  std::vector<FoundRun> found_;
  OrderSums sums_;
};

// An order-mode curve of a whole workload, with the bound beside it.
//
// Requests come from a feed, so that one decoded trace can serve several runs at once.

// The next request, valid until the next call, or null at the end.
using RequestFeed = std::function<absl::StatusOr<TraceRequest*>()>;

// As they come. `progress` is called for each request.
RequestFeed FeedFrom(TraceReader* reader, std::function<void()> progress = nullptr);
// Copies of the requests, in their order.
RequestFeed FeedFrom(const std::vector<TraceRequest>* requests);
// In random order; only the turns of a session keep theirs.
RequestFeed ShuffledFeedFrom(const std::vector<TraceRequest>* requests, uint64_t seed);

// With the reader that feeds it, ResourceExhausted as CheckHeldBytes says.
absl::StatusOr<std::vector<TraceRequest>> ReadAll(const RequestFeed& feed,
                                                  const TraceReader* reader = nullptr);

struct OrderRunOptions {
  RequestBlocksOptions blocks;
  FreeOrder free_order = FreeOrder::kUnhashedFirst;
  bool with_bound = false;
};

struct OrderRun : OrderSums {
  HitCurve curve;
  std::unique_ptr<BeladyBound> bound;         // with_bound
  std::unique_ptr<StaticBound> static_bound;  // with_bound
  int64_t num_left_out = 0;  // that never run, whatever the pool
  int64_t num_without_arrival =
      0;  // requests that only wait for others, and have no time of their own
};

absl::StatusOr<OrderRun> RunOrder(const TraceInfo& info, const RequestFeed& feed,
                                  const OrderRunOptions& options);

// What whole blocks lose of the prompt tokens that any earlier prompt shares, the last token's
// block included.
struct RoundingLoss {
  int64_t shared_tokens = 0;
  int64_t lost_tokens = 0;
  int64_t short_tokens = 0;  // of these, in prompts that share less than one block
  int64_t short_requests = 0;
};
RoundingLoss LossByRounding(const TraceInfo& info, const std::vector<TraceRequest>& requests,
                            int64_t block_tokens);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_ORDER_CURVE_H_
