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
#include "kvblocks/block_pool/eviction_policy.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks {

// Segments are told apart by the first part of a rank: 0 on probation, 1 protected.
class SlruPolicy final : public EvictionPolicy {
 public:
  explicit SlruPolicy(int32_t num_blocks)
      : most_protected_(num_blocks / 5 * 4),
        ranks_(static_cast<size_t>(num_blocks)),
        links_(static_cast<size_t>(num_blocks)),
        heap_(num_blocks) {}

  void Insert(BlockId id, uint64_t, int64_t) override {
    ranks_[static_cast<size_t>(id)] = {.first = 0, .second = ++last_};
  }
  // A hit block is in use, hence no candidate.
  void Hit(BlockId id) override {
    BlockRank& rank = ranks_[static_cast<size_t>(id)];
    if (rank.first == 1) Unlink(id);
    rank = {.first = 1, .second = ++last_};
    LinkBack(id);
    while (num_protected_ > most_protected_) {
      const BlockId demoted = links_[0].next;
      Unlink(demoted);
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
    if (ranks_[static_cast<size_t>(id)].first == 1) Unlink(id);
    ranks_[static_cast<size_t>(id)].first = 0;
  }
  void Clear() override {
    heap_.Clear();
    links_[0] = {};
    num_protected_ = 0;
    std::fill(ranks_.begin(), ranks_.end(), BlockRank{});
  }
  absl::Status CheckInvariants() const override {
    int32_t walked = 0;
    for (BlockId id = links_[0].next; id != 0 && walked <= num_protected_; ++walked) {
      if (ranks_[static_cast<size_t>(id)].first != 1) {
        return BrokenInvariant("slru: block ", id, " is in the protected list, not by its rank");
      }
      id = links_[static_cast<size_t>(id)].next;
    }
    if (walked != num_protected_ || num_protected_ > most_protected_) {
      return BrokenInvariant("slru counts ", num_protected_, " protected blocks of at most ",
                             most_protected_, ", a walk visits ", walked);
    }
    return heap_.IsConsistent()
               ? absl::OkStatus()
               : BrokenInvariant("a heap of eviction candidates is out of order");
  }

 private:
  struct Links {  // of the protected blocks, least recently hit first; block 0 closes the circle
    BlockId prev = 0;
    BlockId next = 0;
  };
  void Unlink(BlockId id) {
    Links& links = links_[static_cast<size_t>(id)];
    links_[static_cast<size_t>(links.prev)].next = links.next;
    links_[static_cast<size_t>(links.next)].prev = links.prev;
    --num_protected_;
  }
  void LinkBack(BlockId id) {
    const BlockId last = links_[0].prev;
    links_[static_cast<size_t>(id)] = {.prev = last, .next = 0};
    links_[static_cast<size_t>(last)].next = id;
    links_[0].prev = id;
    ++num_protected_;
  }

  int32_t most_protected_;
  int32_t num_protected_ = 0;
  int64_t last_ = 0;
  std::vector<BlockRank> ranks_;
  std::vector<Links> links_;
  BlockHeap heap_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_SLRU_POLICY_H_
