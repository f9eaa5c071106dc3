// ArcPolicy: adaptive replacement (Megiddo and Modha). Blocks used once and blocks used more often
// have a list each, and what was evicted too early moves the balance between them.
//
// A block that becomes a candidate late, since others built upon it, takes the place that its last
// release gives it. Cost: O(log n) per call; keys of evicted blocks are remembered, as many as the
// pool has blocks in each list.

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_ARC_POLICY_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_ARC_POLICY_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kvblocks/block_pool/eviction/block_heap.h"
#include "kvblocks/block_pool/eviction/evicted_keys.h"
#include "kvblocks/block_pool/eviction_policy.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks {

class ArcPolicy final : public EvictionPolicy {
 public:
  explicit ArcPolicy(int32_t num_blocks)
      : capacity_(std::max(1, num_blocks - 1)),
        states_(static_cast<size_t>(num_blocks)),
        heaps_{BlockHeap(num_blocks), BlockHeap(num_blocks)},
        evicted_{EvictedKeys(capacity_), EvictedKeys(capacity_)} {}

  void Insert(BlockId id, uint64_t key, int64_t) override {
    const int64_t sizes[2] = {evicted_[0].size(), evicted_[1].size()};
    int list = 0;
    if (evicted_[0].Take(key)) {
      target_ = std::min(capacity_, target_ + std::max<int64_t>(1, sizes[1] / sizes[0]));
      list = 1;
    } else if (evicted_[1].Take(key)) {
      target_ = std::max<int64_t>(0, target_ - std::max<int64_t>(1, sizes[0] / sizes[1]));
      list = 1;
    }
    At(id) = {.number = ++last_, .key = key, .list = list};
    if (list == 0) ++num_recent_;
  }
  void Hit(BlockId id) override {
    if (At(id).list == 0) --num_recent_;
    At(id).list = 1;
  }
  void Release(absl::Span<const BlockId> deepest_first) override {
    for (const BlockId id : deepest_first) At(id).number = ++last_;
  }
  void Enter(BlockId id) override { heaps_[At(id).list].Add(id, {.first = At(id).number}); }
  void Leave(BlockId id) override { heaps_[At(id).list].Remove(id); }
  BlockId Victim() override {
    const int wanted = num_recent_ > target_ ? 0 : 1;
    for (const int list : {wanted, 1 - wanted}) {
      if (!heaps_[list].empty()) return heaps_[list].top();
    }
    return kNullBlockId;
  }
  void Remove(BlockId id, bool was_evicted) override {
    if (At(id).list == 0) --num_recent_;
    if (was_evicted) evicted_[At(id).list].Add(At(id).key);
  }
  void Clear() override {
    for (BlockHeap& heap : heaps_) heap.Clear();
    for (EvictedKeys& keys : evicted_) keys.Clear();
    num_recent_ = 0;
    target_ = 0;
  }
  static int64_t BytesFor(int64_t num_blocks) {
    return num_blocks * static_cast<int64_t>(sizeof(State)) +
           2 * (BlockHeap::BytesFor(num_blocks) + EvictedKeys::BytesFor(num_blocks));
  }
  absl::Status CheckInvariants() const override {
    if (target_ < 0 || target_ > capacity_ || num_recent_ < heaps_[0].size()) {
      return BrokenInvariant("arc counts ", num_recent_, " blocks used once, ", heaps_[0].size(),
                             " of them candidates, and wants ", target_, " of ", capacity_);
    }
    return heaps_[0].IsConsistent() && heaps_[1].IsConsistent()
               ? absl::OkStatus()
               : BrokenInvariant("a heap of eviction candidates is out of order");
  }

 private:
  struct State {
    int64_t number = 0;  // of the last release
    uint64_t key = 0;
    int list = 0;  // 0: used once, 1: more often, evicted blocks of the same key included
  };
  State& At(BlockId id) { return states_[static_cast<size_t>(id)]; }

  int64_t capacity_;
  int64_t target_ = 0;  // blocks used once that may stay
  int64_t num_recent_ = 0;
  int64_t last_ = 0;
  std::vector<State> states_;
  std::array<BlockHeap, 2> heaps_;
  std::array<EvictedKeys, 2> evicted_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_ARC_POLICY_H_
