// LruPolicy: least recently released first, the order of the pool's queue.
//
// For users that cannot take the queue itself: tiers, and pools whose retained blocks are in it,
// too. Policies that rank by more than the last release derive from it. Always: the ranks of
// candidates stand in the heap; those of other blocks are made up when they enter it. Cost: O(log
// n) per call.

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_LRU_POLICY_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_LRU_POLICY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "block_pool/eviction/block_heap.h"
#include "kvblocks/check.h"
#include "kvblocks/eviction.h"
#include "kvblocks/eviction_policy.h"

namespace kvblocks {

class LruPolicy : public EvictionPolicy {
 public:
  explicit LruPolicy(int32_t num_blocks)
      : released_(static_cast<size_t>(num_blocks)), heap_(num_blocks) {}

  void Insert(BlockId id, uint64_t, int64_t) override { released_[At(id)] = ++last_; }
  void Hit(BlockId) override {}
  void Release(absl::Span<const BlockId> deepest_first) override {
    for (const BlockId id : deepest_first) released_[At(id)] = ++last_;
  }
  void Enter(BlockId id) override { heap_.Add(id, RankOf(id)); }
  void Leave(BlockId id) override { heap_.Remove(id); }
  BlockId Victim() override { return heap_.empty() ? kNullBlockId : heap_.top(); }
  void Remove(BlockId, bool) override {}
  void Clear() override { heap_.Clear(); }
  static int64_t BytesFor(int64_t num_blocks) {
    return num_blocks * static_cast<int64_t>(sizeof(int64_t)) + BlockHeap::BytesFor(num_blocks);
  }
  absl::Status CheckInvariants() const override {
    return heap_.IsConsistent()
               ? absl::OkStatus()
               : BrokenInvariant("a heap of eviction candidates is out of order");
  }

 protected:
  static size_t At(BlockId id) { return static_cast<size_t>(id); }
  virtual BlockRank RankOf(BlockId id) const { return {.first = released_[At(id)]}; }
  int64_t released(BlockId id) const { return released_[At(id)]; }

 private:
  int64_t last_ = 0;
  std::vector<int64_t> released_;  // number of the last release
  BlockHeap heap_;
};

// The policy that a factory makes, or this one.
inline std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(const EvictionPolicyFactory& factory,
                                                          int32_t num_blocks,
                                                          const CachedPrefixes& prefixes) {
  if (factory.make == nullptr) return std::make_unique<LruPolicy>(num_blocks);
  return factory.make(num_blocks, prefixes);
}

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_LRU_POLICY_H_
