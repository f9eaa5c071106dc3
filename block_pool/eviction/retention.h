// Retention: which cached blocks a caller asked to keep, with which priority and until when.
//
// A preference among blocks that may be reused, never a claim: retained blocks stay free, count as
// free, and are taken when nothing else is left. At most `most` blocks are retained. One more
// takes the place of a retention of lower priority, or of the same priority and older; where there
// is none it is refused.
//
// One call retains the blocks of a prefix, the first block first. Of these an earlier block has a
// higher number than a later one, and a block that is retained again keeps the higher priority and
// the later end. So a block is never behind one that builds upon it, neither in the order of giving
// up nor in that of ending.
//
// Time is the caller's, in its unit, and never goes back. Cost: O(log n) per block; 84 bytes per
// block of the pool, taken at construction, and nothing after it. Single-threaded (see BlockPool).

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_RETENTION_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_RETENTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "block_pool/eviction/block_heap.h"
#include "kvblocks/block.h"
#include "kvblocks/eviction.h"

namespace kvblocks {

class Retention {
 public:
  Retention(int32_t num_blocks, int32_t most)
      : most_(most),
        items_(static_cast<size_t>(num_blocks)),
        by_rank_(num_blocks),
        by_end_(num_blocks),
        candidates_(num_blocks) {}

  int32_t size() const { return by_rank_.size(); }
  int32_t most() const { return most_; }
  bool is_full() const { return size() >= most_; }
  bool contains(BlockId id) const { return by_rank_.contains(id); }
  // REQUIRES: contains(id).
  const BlockRetention& item(BlockId id) const { return items_[static_cast<size_t>(id)]; }
  const RetentionTotals& totals() const { return totals_; }
  RetentionTotals& totals() { return totals_; }

  // Numbers for a call with so many blocks: the i-th block gets the result less i, and all of them
  // are above `lowest_of_call`.
  int64_t TakeNumbers(int64_t count, int64_t* lowest_of_call) {
    *lowest_of_call = last_number_;
    return last_number_ += count;
  }
  // Whether a call that began above this number may take the place of the lowest one.
  bool MayDisplaceLowest(int32_t priority, int64_t lowest_of_call) const {
    if (by_rank_.empty()) return false;
    const BlockRank& rank = by_rank_.rank(by_rank_.top());
    return rank.first <= priority && rank.second <= lowest_of_call;
  }
  // REQUIRES: not empty.
  BlockId lowest() const { return by_rank_.top(); }

  // Adds a block, or renews it. REQUIRES: contained, or not full; no candidate.
  void Set(BlockId id, int32_t priority, int64_t expires_at, int64_t number);
  // REQUIRES: contained; no candidate.
  void Drop(BlockId id) {
    by_rank_.Remove(id);
    by_end_.Remove(id);
  }
  // The block whose retention ended first by `now`; kNullBlockId: none did.
  BlockId FirstExpired(int64_t now) const {
    return !by_end_.empty() && by_end_.rank(by_end_.top()).first <= now ? by_end_.top()
                                                                        : kNullBlockId;
  }

  // Of blocks that could be reused: the lowest goes first.
  void Enter(BlockId id) { candidates_.Add(id, by_rank_.rank(id)); }
  void Leave(BlockId id) { candidates_.Remove(id); }
  BlockId Victim() const { return candidates_.empty() ? kNullBlockId : candidates_.top(); }
  bool is_candidate(BlockId id) const { return candidates_.contains(id); }

  void Clear();
  absl::Status CheckInvariants() const;

  static int64_t BytesFor(int64_t num_blocks) { return num_blocks * 84; }

 private:
  const int32_t most_;
  int64_t last_number_ = 0;
  std::vector<BlockRetention> items_;
  BlockHeap by_rank_;     // of all retained blocks: priority, number
  BlockHeap by_end_;      // of those that end: when, number
  BlockHeap candidates_;  // as by_rank_
  RetentionTotals totals_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_RETENTION_H_
