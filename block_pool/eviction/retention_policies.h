// PriorityPolicy and TtlPolicy: retained blocks are ranked among the others (see Retention).

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_RETENTION_POLICIES_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_RETENTION_POLICIES_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kvblocks/block_pool/eviction/lru_policy.h"
#include "kvblocks/block_pool/eviction/retention.h"

namespace kvblocks {

// Lowest priority first, then least recently released. Who is not retained counts as
// kUnretainedPriority.
class PriorityPolicy final : public LruPolicy {
 public:
  explicit PriorityPolicy(int32_t num_blocks)
      : LruPolicy(num_blocks), priorities_(static_cast<size_t>(num_blocks), kUnretainedPriority) {}

  static int64_t BytesFor(int64_t num_blocks) {
    return LruPolicy::BytesFor(num_blocks) + num_blocks * static_cast<int64_t>(sizeof(int32_t));
  }
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

  static int64_t BytesFor(int64_t num_blocks) {
    return LruPolicy::BytesFor(num_blocks) + num_blocks * static_cast<int64_t>(2 * sizeof(int64_t));
  }
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

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_RETENTION_POLICIES_H_
