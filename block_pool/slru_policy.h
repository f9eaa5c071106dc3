// SlruPolicy: segmented LRU. What was hit has up to 4/5 of the blocks, least recently hit out first;
// the rest is on probation, and the least recently released of it goes.
//
// Cost: O(log n) per call, O(1) per hit but for those that push others out.

#ifndef KVBLOCKS_BLOCK_POOL_SLRU_POLICY_H_
#define KVBLOCKS_BLOCK_POOL_SLRU_POLICY_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvblocks/block_pool/block_heap.h"
#include "kvblocks/block_pool/block_list.h"
#include "kvblocks/block_pool/eviction_policy.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks {

// Segments are told apart by the first part of a rank: 0 on probation, 1 protected.
class SlruPolicy final : public EvictionPolicy {
 public:
  explicit SlruPolicy(int32_t num_blocks)
      : most_protected_(num_blocks / 5 * 4),
        ranks_(static_cast<size_t>(num_blocks)),
        protected_(num_blocks),
        heap_(num_blocks) {}

  void Insert(BlockId id, uint64_t, int64_t) override {
    ranks_[static_cast<size_t>(id)] = {.first = 0, .second = ++last_};
  }
  // A hit block is in use, hence no candidate.
  void Hit(BlockId id) override {
    protected_.Remove(id);
    protected_.AddBack(id);
    ranks_[static_cast<size_t>(id)] = {.first = 1, .second = ++last_};
    while (protected_.size() > most_protected_) {
      const BlockId demoted = protected_.front();
      protected_.Remove(demoted);
      const bool is_candidate = heap_.contains(demoted);
      if (is_candidate) heap_.Remove(demoted);
      ranks_[static_cast<size_t>(demoted)] = {.first = 0, .second = ++last_};
      if (is_candidate) Enter(demoted);
    }
  }
  void Release(absl::Span<const BlockId> deepest_first) override {
    for (const BlockId id : deepest_first) ranks_[static_cast<size_t>(id)].second = ++last_;
  }
  void Enter(BlockId id) override { heap_.Add(id, ranks_[static_cast<size_t>(id)]); }
  void Leave(BlockId id) override { heap_.Remove(id); }
  BlockId Victim() override { return heap_.empty() ? kNullBlockId : heap_.top(); }
  void Remove(BlockId id, bool) override {
    protected_.Remove(id);
    ranks_[static_cast<size_t>(id)].first = 0;
  }
  void Clear() override {
    heap_.Clear();
    protected_.Clear();
    std::fill(ranks_.begin(), ranks_.end(), BlockRank{});
  }
  absl::Status CheckInvariants() const override {
    for (size_t i = 1; i < ranks_.size(); ++i) {
      if (protected_.contains(static_cast<BlockId>(i)) != (ranks_[i].first == 1)) {
        return BrokenInvariant("slru: block ", i, " is protected by its rank or by the list alone");
      }
    }
    if (!protected_.IsConsistent() || protected_.size() > most_protected_) {
      return BrokenInvariant("slru counts ", protected_.size(), " protected blocks of at most ",
                             most_protected_, ", or their links disagree");
    }
    return heap_.IsConsistent()
               ? absl::OkStatus()
               : BrokenInvariant("a heap of eviction candidates is out of order");
  }

 private:
  int32_t most_protected_;
  int64_t last_ = 0;
  std::vector<BlockRank> ranks_;
  BlockList protected_;  // least recently hit first
  BlockHeap heap_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_SLRU_POLICY_H_
