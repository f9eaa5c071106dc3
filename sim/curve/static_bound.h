// StaticBound: the most blocks that a fixed set of so many hits, chosen in hindsight and never
// changed.
//
//   StaticBound bound;
//   for (...) { curve.Add(request); bound.Add(request, curve.segments()); }
//   bound.Prepare();
//   bound.Hits(10'000)
//
// A kept block is computed once and hit by every later request that may hit it. Who uses a block
// uses all blocks before it, so a block's uses are never more than those of its parent, and the most
// used blocks, the shallowest first among equals, are closed under "parent of": no set of that size
// hits more. Requests compute their other blocks in room that does not count, so this is no more
// than Belady's bound with bypass. It says how much of the hits is due to blocks that are always
// worth keeping, such as system prompts: what pinning could bring.
//
// Cost: O(1) per segment added, O(n log n) to prepare, O(log n) per size. Memory: 8 bytes per piece
// of the paths and per segment that leaves a piece inside.

#ifndef KVBLOCKS_SIM_CURVE_STATIC_BOUND_H_
#define KVBLOCKS_SIM_CURVE_STATIC_BOUND_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kvblocks/sim/curve/block_paths.h"
#include "kvblocks/sim/curve/request_blocks.h"

namespace kvblocks::sim {

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

#endif  // KVBLOCKS_SIM_CURVE_STATIC_BOUND_H_
