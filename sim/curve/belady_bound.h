// BeladyBound: the most blocks that a pool of a size can hit, whatever it evicts.
//
//   BeladyBound bound;
//   for (...) { curve.Add(request); bound.Add(request, curve.segments()); }
//   bound.Prepare(curve.TakePaths());
//   bound.Hits(10'000, Bypass::kNo)
//
// Evict the block whose next use is farthest, the deepest first among equals. A block's next use is
// never earlier than that of the blocks before it on its path, so what remains is closed under
// "parent of", and for blocks of one size nothing hits more. Blocks of the running request stay.
// With bypass they need not: what is used later than all that is resident is not kept at all, a
// slightly higher bound than any pool can reach. Blocks that their next request computes anyway
// (the last token's) have no next use.
//
// Blocks of a path that have the same next use are handled as one run, so a size costs O(log) per
// run and no keys. Memory: 16 bytes per run, 24 per request. Prepare once; then Hits may be called
// from several threads.

#ifndef KVBLOCKS_SIM_CURVE_BELADY_BOUND_H_
#define KVBLOCKS_SIM_CURVE_BELADY_BOUND_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "sim/curve/request_blocks.h"

namespace kvblocks::sim {

enum class Bypass { kNo, kYes };

class BeladyBound {
 public:
  // Requests in order; `segments` is the path of its blocks with a key.
  void Add(const CurveRequest& request, absl::Span<const BlockPaths::Segment> segments);
  // Finds all next uses. `paths` has the segments added.
  void Prepare(BlockPaths paths);

  // REQUIRES: Prepare was called.
  int64_t Hits(int64_t num_blocks, Bypass bypass) const;

 private:
  struct Request {
    size_t first_segment;  // its segments end where those of the next request begin
    size_t first_run = 0;  // its runs begin where those of the next request end: found backwards
    uint32_t num_eligible;
    uint32_t num_keyed;
    uint32_t num_blocks;
  };
  // Blocks of a request that the same later request uses next, from the root on.
  struct Run {
    uint32_t begin;
    uint32_t count;
    uint32_t next_request;
  };

  absl::Span<const Run> RunsOf(size_t request) const;

  std::vector<Request> requests_;
  std::vector<BlockPaths::Segment> segments_;
  std::vector<Run> runs_;  // of the last request first; only those with a next use
  // Runs by the request that uses them next: uses_[first_use_[r]] .. are those of request r.
  std::vector<uint32_t> uses_;
  std::vector<uint32_t> first_use_;
};

// StaticBound: the most blocks that a fixed set of so many hits, chosen in hindsight and never
// changed.
//
//   StaticBound bound;
//   for (...) { curve.Add(request); bound.Add(request, curve.segments()); }
//   bound.Prepare();
//   bound.Hits(10'000)
//
// A kept block is computed once and hit by every later request that may hit it. Who uses a block
// uses all blocks before it, so a block's uses are never more than those of its parent, and the
// most used blocks, the shallowest first among equals, are closed under "parent of": no set of that
// size hits more. Requests compute their other blocks in room that does not count, so this is no
// more than Belady's bound with bypass. It says how much of the hits is due to blocks that are
// always worth keeping, such as system prompts: what pinning could bring.
//
// Cost: O(1) per segment added, O(n log n) to prepare, O(log n) per size. Memory: 8 bytes per piece
// of the paths and per segment that leaves a piece inside.

class StaticBound {
 public:
  // Requests in order; `segments` is the path of its blocks with a key.
  void Add(const CurveRequest& request, absl::Span<const BlockPaths::Segment> segments);
  // Ranks the blocks by their uses.
  void Prepare();

  // REQUIRES: Prepare was called.
  int64_t Hits(int64_t num_blocks) const;

 private:
  struct Piece {
    uint32_t num_blocks = 0;
    uint32_t num_uses = 0;  // as a whole, the first not counted
  };
  // The blocks that are hit at least `num_hits` times, all of the levels before included.
  struct Level {
    int64_t num_hits;
    int64_t num_blocks;
    int64_t sum_hits;
  };

  std::vector<Piece> pieces_;
  std::vector<BlockPaths::Segment> partial_uses_;
  std::vector<Level> levels_;  // most hits first
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_BELADY_BOUND_H_
