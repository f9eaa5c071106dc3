#include "kvblocks/eviction.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "block_pool/eviction/block_heap.h"
#include "block_pool/eviction/evicted_keys.h"
#include "block_pool/eviction/eviction_index.h"
#include "block_pool/eviction/hazard_policy.h"
#include "block_pool/eviction/lru_policy.h"
#include "kvblocks/check.h"

namespace kvblocks {
namespace {

// ArcPolicy: adaptive replacement (Megiddo and Modha). Blocks used once and blocks used more often
// have a list each, and what was evicted too early moves the balance between them.
//
// A block that becomes a candidate late, since others built upon it, takes the place that its last
// release gives it. Cost: O(log n) per call; keys of evicted blocks are remembered, as many as the
// pool has blocks in each list.
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

// PriorityPolicy and TtlPolicy: retained blocks are ranked among the others (see Retention).
//
// Lowest priority first, then least recently released. A block that is not retained counts
// as kUnretainedPriority.
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

template <typename Policy>
std::unique_ptr<EvictionPolicy> Make(int32_t num_blocks, const CachedPrefixes&) {
  return std::make_unique<Policy>(num_blocks);
}

std::unique_ptr<EvictionPolicy> MakeHazard(int32_t num_blocks, const CachedPrefixes& prefixes) {
  return std::make_unique<HazardPolicy>(num_blocks, &prefixes);
}

std::unique_ptr<EvictionOrder> MakeIndex(const EvictionPolicyFactory& policy,
                                         std::vector<uint8_t> is_chained_group,
                                         const BlockRecords* records, int32_t most_retained) {
  return std::make_unique<EvictionIndex>(policy, std::move(is_chained_group), records,
                                         most_retained);
}

EvictionPolicyFactory WithIndex(EvictionPolicyFactory policy) {
  policy.make_order = MakeIndex;
  policy.order_bytes = EvictionIndex::BytesFor;
  return policy;
}

const std::array<EvictionPolicyFactory, 5>& Known() {
  static const auto* const known = new std::array<EvictionPolicyFactory, 5>{{
      WithIndex({.name = "arc", .make = Make<ArcPolicy>, .policy_bytes = ArcPolicy::BytesFor}),
      WithIndex({.name = "hazard",
                 .make = MakeHazard,
                 .may_follow_queue = true,
                 .policy_bytes = HazardPolicy::BytesFor}),
      WithIndex({.name = "lru"}),
      WithIndex({.name = "priority",
                 .make = Make<PriorityPolicy>,
                 .ranks_retained = true,
                 .policy_bytes = PriorityPolicy::BytesFor}),
      WithIndex({.name = "ttl",
                 .make = Make<TtlPolicy>,
                 .ranks_retained = true,
                 .policy_bytes = TtlPolicy::BytesFor}),
  }};
  return *known;
}

}  // namespace

EvictionPolicyFactory CustomEvictionPolicy(std::string name, EvictionPolicyFactory::Make make) {
  return WithIndex({.name = std::move(name), .make = std::move(make)});
}

absl::StatusOr<EvictionPolicyFactory> ParseEvictionPolicy(std::string_view name) {
  for (const EvictionPolicyFactory& factory : Known()) {
    if (factory.name == name) return factory;
  }
  return InvalidArgument("eviction_policy is \"", std::string(name), "\", expected ",
                         EvictionPolicyNames());
}

std::string EvictionPolicyNames(bool with_retention) {
  std::string names;
  for (const EvictionPolicyFactory& factory : Known()) {
    if (factory.ranks_retained && !with_retention) continue;
    absl::StrAppend(&names, names.empty() ? "" : "|", factory.name);
  }
  return names;
}

}  // namespace kvblocks
