// SlidingWindowManager: groups where query i sees tokens [i - W + 1, i] - sliding window and
// sliding-window MLA.
//
// A block table is nulls, then the blocks still inside the window. A hit is the right-most reusable
// window: the longest prefix whose last W - 1 tokens are cached, whatever lies before them.

#ifndef KVBLOCKS_MANAGERS_SLIDING_WINDOW_MANAGER_H_
#define KVBLOCKS_MANAGERS_SLIDING_WINDOW_MANAGER_H_

#include <vector>

#include "kvblocks/managers/single_type_manager.h"

namespace kvblocks {

class SlidingWindowManager : public SingleTypeManager {
 public:
  SlidingWindowManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool);

  // Probes each position at most once: a miss rules out every hit whose window contains it. At most
  // as many probes as the window has blocks when the tail is cached; about one per window when
  // nothing is.
  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override;

 protected:
  int64_t NumSkippedTokensImpl(int64_t n) const override {
    return std::max<int64_t>(0, n - window_ + 1);
  }
  int64_t NumTailBlocksNeeded() const override { return tail_blocks_; }

 private:
  const int64_t window_;
  // Blocks before a hit's end that hold its last W - 1 tokens; at least 1.
  const int64_t tail_blocks_;
  mutable std::vector<BlockId> found_;  // scratch: a ring of probed positions, per group
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_SLIDING_WINDOW_MANAGER_H_
