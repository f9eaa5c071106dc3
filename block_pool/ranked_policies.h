// Policies that give each block a rank when it becomes a candidate and take the lowest: lru,
// priority, ttl, gdsf. For the definitions see EvictionPolicyKind.
//
// Always: the ranks of candidates stand in the heap; those of other blocks are made up from what is
// known of them when they enter it. Cost: O(log n) per call.

#ifndef KVBLOCKS_BLOCK_POOL_RANKED_POLICIES_H_
#define KVBLOCKS_BLOCK_POOL_RANKED_POLICIES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvblocks/block_pool/block_heap.h"
#include "kvblocks/block_pool/eviction_policy.h"
#include "kvblocks/block_pool/retention.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks {

// Least recently released first; what the others fall back to.
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

// Lowest priority first, then least recently released. Who is not retained counts as
// kUnretainedPriority.
class PriorityPolicy final : public LruPolicy {
 public:
  explicit PriorityPolicy(int32_t num_blocks)
      : LruPolicy(num_blocks), priorities_(static_cast<size_t>(num_blocks), kUnretainedPriority) {}

  bool ranks_retained() const override { return true; }
  void SetRetention(BlockId id, const BlockRetention* retention) override {
    priorities_[At(id)] = retention == nullptr ? kUnretainedPriority : retention->priority;
  }
  void Clear() override {
    LruPolicy::Clear();
    std::fill(priorities_.begin(), priorities_.end(), kUnretainedPriority);
  }

 private:
  BlockRank RankOf(BlockId id) const override {
    return {.first = priorities_[At(id)], .second = released(id)};
  }

  std::vector<int32_t> priorities_;
};

// Earliest end first: that of the retention, or the time of the last release.
class TtlPolicy final : public LruPolicy {
 public:
  explicit TtlPolicy(int32_t num_blocks)
      : LruPolicy(num_blocks),
        released_at_(static_cast<size_t>(num_blocks)),
        expires_at_(static_cast<size_t>(num_blocks), kNotRetained) {}

  bool ranks_retained() const override { return true; }
  void SetRetention(BlockId id, const BlockRetention* retention) override {
    expires_at_[At(id)] = retention == nullptr ? kNotRetained : retention->expires_at;
  }
  void AdvanceTime(int64_t now) override { now_ = now; }
  void Insert(BlockId id, uint64_t key, int64_t num_tokens) override {
    LruPolicy::Insert(id, key, num_tokens);
    released_at_[At(id)] = now_;
  }
  void Release(absl::Span<const BlockId> deepest_first) override {
    LruPolicy::Release(deepest_first);
    for (const BlockId id : deepest_first) released_at_[At(id)] = now_;
  }
  void Clear() override {
    LruPolicy::Clear();
    std::fill(expires_at_.begin(), expires_at_.end(), kNotRetained);
  }

 private:
  static constexpr int64_t kNotRetained = std::numeric_limits<int64_t>::min();

  BlockRank RankOf(BlockId id) const override {
    return {.first = std::max(released_at_[At(id)], expires_at_[At(id)]), .second = released(id)};
  }

  int64_t now_ = 0;
  std::vector<int64_t> released_at_;
  std::vector<int64_t> expires_at_;
};

// Greedy dual, size and frequency: uses times the cost of computing the block again, on top of the
// value of what was evicted last, so that old uses fade. A token costs its share of the weights, the
// same for all, and its attention, which grows with the tokens before it.
class GdsfPolicy final : public LruPolicy {
 public:
  // Tokens of context whose attention costs as much as the weights: about 30,000 in a dense model of
  // 8 billion parameters and 32 layers.
  static constexpr int64_t kContextOfEqualCost = 32768;
  static constexpr int64_t kMostUses = 1000;

  GdsfPolicy(int32_t num_blocks, const CachedPrefixes* prefixes)
      : LruPolicy(num_blocks), prefixes_(prefixes), blocks_(static_cast<size_t>(num_blocks)) {}

  void Insert(BlockId id, uint64_t key, int64_t num_tokens) override {
    LruPolicy::Insert(id, key, num_tokens);
    const int64_t cost = num_tokens * (kContextOfEqualCost + prefixes_->NumTokensBefore(id));
    blocks_[At(id)] = {.uses = 1, .cost = cost, .value = floor_ + cost};
  }
  void Hit(BlockId id) override {
    Block& block = blocks_[At(id)];
    block.uses = std::min(block.uses + 1, kMostUses);
    block.value = floor_ + block.uses * block.cost;
  }
  void Remove(BlockId id, bool was_evicted) override {
    if (was_evicted) floor_ = std::max(floor_, blocks_[At(id)].value);
  }
  void Clear() override {
    LruPolicy::Clear();
    floor_ = 0;
  }

 private:
  struct Block {
    int64_t uses = 0;
    int64_t cost = 0;
    int64_t value = 0;
  };
  BlockRank RankOf(BlockId id) const override {
    return {.first = blocks_[At(id)].value, .second = released(id)};
  }

  const CachedPrefixes* prefixes_;
  int64_t floor_ = 0;  // the highest value that was evicted
  std::vector<Block> blocks_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_RANKED_POLICIES_H_
