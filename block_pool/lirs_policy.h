// LirsPolicy: low inter-reference recency. Blocks whose last two uses lay close together (LIR) have
// all but a small share of the pool; of the others (HIR) the one that came first goes.
//
// The stack of the algorithm is ordered by last use and ends at the LIR block that was used longest
// ago. So a block is in it iff it was used since then, and nothing is kept but times of use. A block
// that is used while in the stack, also after its eviction, becomes LIR; the last LIR block then
// becomes HIR.
//
// Always: at most `most_lir` blocks are LIR, cached ones all of them. Cost: O(log n) per call.

#ifndef KVBLOCKS_BLOCK_POOL_LIRS_POLICY_H_
#define KVBLOCKS_BLOCK_POOL_LIRS_POLICY_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvblocks/block_pool/block_heap.h"
#include "kvblocks/block_pool/block_list.h"
#include "kvblocks/block_pool/evicted_keys.h"
#include "kvblocks/block_pool/eviction_policy.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks {

class LirsPolicy final : public EvictionPolicy {
 public:
  explicit LirsPolicy(int32_t num_blocks)
      // The null block holds nothing.
      : most_lir_(std::max(0, num_blocks - 1 - std::max(1, num_blocks / 20))),
        states_(static_cast<size_t>(num_blocks)),
        lir_(num_blocks),
        lir_candidates_(num_blocks),
        hir_candidates_(num_blocks),
        evicted_(num_blocks) {}

  void Insert(BlockId id, uint64_t key, int64_t) override {
    int64_t used = 0;
    const bool was_in_stack = evicted_.Take(key, &used) && IsInStack(used);
    At(id) = {.used = ++last_, .queued = last_, .key = key};
    if (was_in_stack || lir_.size() < most_lir_) MakeLir(id);
  }
  // A hit block is in use, hence no candidate.
  void Hit(BlockId id) override {
    State& state = At(id);
    const bool becomes_lir = state.is_lir || IsInStack(state.used);
    lir_.Remove(id);
    state.used = state.queued = ++last_;
    if (becomes_lir) MakeLir(id);
  }
  void Release(absl::Span<const BlockId>) override {}
  void Enter(BlockId id) override {
    const State& state = At(id);
    (state.is_lir ? lir_candidates_ : hir_candidates_)
        .Add(id, {.first = state.is_lir ? state.used : state.queued});
  }
  void Leave(BlockId id) override {
    (At(id).is_lir ? lir_candidates_ : hir_candidates_).Remove(id);
  }
  BlockId Victim() override {
    if (!hir_candidates_.empty()) return hir_candidates_.top();
    return lir_candidates_.empty() ? kNullBlockId : lir_candidates_.top();
  }
  void Remove(BlockId id, bool was_evicted) override {
    State& state = At(id);
    if (was_evicted) evicted_.Add(state.key, state.used);
    lir_.Remove(id);
    state.is_lir = false;
  }
  void Clear() override {
    lir_.Clear();
    lir_candidates_.Clear();
    hir_candidates_.Clear();
    evicted_.Clear();
    std::fill(states_.begin(), states_.end(), State{});
  }
  absl::Status CheckInvariants() const override {
    if (!lir_.IsConsistent() || !lir_candidates_.IsConsistent() ||
        !hir_candidates_.IsConsistent()) {
      return BrokenInvariant("lirs: a list or a heap of blocks is out of order");
    }
    for (size_t i = 1; i < states_.size(); ++i) {
      const auto id = static_cast<BlockId>(i);
      if (lir_.contains(id) != states_[i].is_lir ||
          (lir_candidates_.contains(id) && !states_[i].is_lir) ||
          (hir_candidates_.contains(id) && states_[i].is_lir)) {
        return BrokenInvariant("lirs: block ", id, " is in the wrong list");
      }
    }
    return lir_.size() <= most_lir_
               ? absl::OkStatus()
               : BrokenInvariant("lirs has ", lir_.size(), " LIR blocks of at most ", most_lir_);
  }

 private:
  struct State {
    int64_t used = 0;
    int64_t queued = 0;  // became HIR, or was used as such
    uint64_t key = 0;
    bool is_lir = false;
  };
  State& At(BlockId id) { return states_[static_cast<size_t>(id)]; }
  bool IsInStack(int64_t used) const {
    return lir_.empty() || used > states_[static_cast<size_t>(lir_.front())].used;
  }
  void MakeLir(BlockId id) {
    At(id).is_lir = true;
    lir_.AddBack(id);
    if (lir_.size() <= most_lir_) return;
    const BlockId last = lir_.front();
    const bool is_candidate = lir_candidates_.contains(last);
    if (is_candidate) Leave(last);
    lir_.Remove(last);
    At(last).is_lir = false;
    At(last).queued = ++last_;
    if (is_candidate) Enter(last);
  }

  const int32_t most_lir_;
  int64_t last_ = 0;
  std::vector<State> states_;
  BlockList lir_;  // also those in use, by last use
  BlockHeap lir_candidates_;
  BlockHeap hir_candidates_;
  EvictedKeys evicted_;  // with their last use
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_LIRS_POLICY_H_
