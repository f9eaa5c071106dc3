// RequestBlocks: what a request comes to for a curve: the keys of its blocks, how many of them a
// look-up may find, and how many blocks without a key it holds beside them.
//
// Which blocks count is a choice, since publications differ:
//   kEngine  what an engine's pool holds when the request ends: the full blocks of prompt and
//            output, and a block without a key if a part of one remains. The last token of the
//            prompt is always computed, that of the output never.
//   kPrompt  the full blocks of prompts and nothing else.
//   kIds     one block per content id of the trace, a partial last one included.
//
// Cost: 20 to 30 ns per block. Reuses its memory; single-threaded.

#ifndef KVBLOCKS_SIM_CURVE_REQUEST_BLOCKS_H_
#define KVBLOCKS_SIM_CURVE_REQUEST_BLOCKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"
#include "sim/simulation_config.h"
#include "sim/trace/content_paths.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

enum class CountedBlocks { kEngine, kPrompt, kIds };

// Which requests may hit a block: those that the trace says, all whatever their cache salts, or
// only requests of the same tenant, or of the same session.
enum class ContentSharing { kAsTraced, kWithoutSalts, kPerTenant, kPerSession };

struct RequestBlocksOptions {
  int64_t block_tokens = 16;  // with kIds the trace's
  CountedBlocks counted = CountedBlocks::kEngine;
  ContentSharing sharing = ContentSharing::kAsTraced;
  int64_t hash_lookahead_tokens = 0;  // see ContentKeys
  // The last block that a look-up finds is computed again, as drafters without such hashes need it.
  bool drops_last_hit = false;
  int64_t max_model_len = int64_t{1} << 30;
  ZeroOutput zero_output = ZeroOutput::kOne;
};

struct CurveRequest {
  absl::Span<const uint64_t> keys;  // of its blocks with a key, from the root on
  int64_t num_eligible = 0;         // the first so many may be hit
  int64_t num_unkeyed = 0;
  int64_t smallest_pool = 0;  // that admits it
  int64_t num_prompt_tokens = 0;
  int64_t num_prompt_blocks = 0;  // that count: the denominator of a hit rate

  int64_t num_blocks() const { return static_cast<int64_t>(keys.size()) + num_unkeyed; }
};

class RequestBlocks {
 public:
  RequestBlocks(const TraceInfo& info, const RequestBlocksOptions& options)
      : info_(info), options_(options) {}

  // False: the request never runs, whatever the pool: its prompt is empty or as long as the longest
  // sequence, or it has no output and such are left out. `out` is valid until the next call.
  // Sharing without salts clears the request's.
  bool Make(TraceRequest& request, CurveRequest* out);

 private:
  void MakeKeys(const TraceRequest& request, int64_t num_tokens);
  void MakeIdKeys(const TraceRequest& request);

  const TraceInfo info_;
  const RequestBlocksOptions options_;
  std::vector<absl::uint128> wide_;
  std::vector<uint64_t> keys_;
};

// BlockPaths: ContentPaths, and for each block a number that says when it was used last.
//
// A request that uses a block uses all blocks before it. So along a piece the numbers never grow,
// and they are kept as a few runs: a use of the first m blocks of a piece replaces the runs inside
// m by one.
//
// Always: the runs of a piece cover it, the latest use first. Cost and memory: as ContentPaths, and
// 32 bytes per piece more. Single-threaded.

class BlockPaths {
 public:
  using Use = uint32_t;
  using Segment = ContentPaths::Segment;
  // Blocks [begin, end) of a path, counted from its start, used last at `use`.
  struct Run {
    int64_t begin;
    int64_t end;
    Use use;
  };

  // Follows the path as far as its blocks were seen: writes its segments and returns the number of
  // blocks in them.
  int64_t Follow(absl::Span<const uint64_t> keys, std::vector<Segment>* segments) const;

  // Lays down the blocks behind those that Follow found; then `segments` cover the path.
  void Append(absl::Span<const uint64_t> keys, std::vector<Segment>* segments);

  // visit(run) for the path's blocks before `end`, from the root on. REQUIRES: they were used.
  template <typename Visitor>
  void ForEachRun(absl::Span<const Segment> segments, int64_t end, Visitor&& visit) const {
    for (const Segment& segment : segments) {
      const std::vector<Step>& steps = steps_[segment.piece];
      const int64_t first = depth(segment.piece);
      const int64_t stop = std::min(first + int64_t{segment.num_blocks}, end);
      int64_t begin = first;
      for (size_t i = steps.size(); i > 0 && begin < stop; --i) {
        const Step& step = steps[i - 1];
        const int64_t step_end = first + int64_t{step.end};
        const int64_t run_end = step_end < stop ? step_end : stop;
        if (run_end > begin) visit(Run{begin, run_end, step.use});
        begin = run_end;
      }
      if (first + int64_t{segment.num_blocks} >= end) return;
    }
  }

  // The path's blocks are used now. Uses need not ascend.
  void Touch(absl::Span<const Segment> segments, Use use);

  // Forgets all uses, not the blocks: every block was used at `use`.
  void ResetUses(Use use);

  int64_t num_blocks() const { return paths_.num_blocks(); }
  // How deep on its paths the piece begins.
  int64_t depth(uint32_t piece) const { return paths_.depth(piece); }

 private:
  // The blocks from the end of the step before (the next one in the list) to `end`.
  struct Step {
    uint32_t end;  // within the piece
    Use use;
  };

  ContentPaths paths_;
  std::vector<std::vector<Step>> steps_;  // by piece, the deepest first
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_REQUEST_BLOCKS_H_
