// The policies that are known from caches of other kinds. Each keeps its candidates in heaps whose
// ranks say the order of its queues, so that a block which becomes a candidate late, since others
// built upon it, takes the place that it has in the queue.

#include "kvblocks/block_pool/eviction_policy.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool/block_heap.h"
#include "kvblocks/block_pool/evicted_keys.h"
#include "kvblocks/block_pool/hazard_policy.h"
#include "kvblocks/block_pool/lirs_policy.h"
#include "kvblocks/block_pool/ranked_policies.h"
#include "kvblocks/block_pool/slru_policy.h"
#include "kvblocks/block_pool/tiny_lfu_policy.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks {
namespace {

struct NamedKind {
  std::string_view name;
  EvictionPolicyKind kind;
};
constexpr std::array<NamedKind, 13> kNames = {{
    {"arc", EvictionPolicyKind::kArc},
    {"fifo", EvictionPolicyKind::kFifo},
    {"gdsf", EvictionPolicyKind::kGdsf},
    {"hazard", EvictionPolicyKind::kHazard},
    {"lfu", EvictionPolicyKind::kLfu},
    {"lirs", EvictionPolicyKind::kLirs},
    {"lru", EvictionPolicyKind::kLru},
    {"priority", EvictionPolicyKind::kPriority},
    {"s3fifo", EvictionPolicyKind::kS3Fifo},
    {"sieve", EvictionPolicyKind::kSieve},
    {"slru", EvictionPolicyKind::kSlru},
    {"ttl", EvictionPolicyKind::kTtl},
    {"w-tinylfu", EvictionPolicyKind::kWTinyLfu},
}};

absl::Status CheckHeap(const BlockHeap& heap) {
  return heap.IsConsistent() ? absl::OkStatus()
                             : BrokenInvariant("a heap of eviction candidates is out of order");
}

class FifoPolicy final : public EvictionPolicy {
 public:
  explicit FifoPolicy(int32_t num_blocks)
      : number_(static_cast<size_t>(num_blocks)), heap_(num_blocks) {}

  void Insert(BlockId id, uint64_t, int64_t) override { number_[static_cast<size_t>(id)] = ++last_; }
  void Hit(BlockId) override {}
  void Release(absl::Span<const BlockId>) override {}
  void Enter(BlockId id) override { heap_.Add(id, {.first = number_[static_cast<size_t>(id)]}); }
  void Leave(BlockId id) override { heap_.Remove(id); }
  BlockId Victim() override { return heap_.empty() ? kNullBlockId : heap_.top(); }
  void Remove(BlockId, bool) override {}
  void Clear() override { heap_.Clear(); }
  absl::Status CheckInvariants() const override { return CheckHeap(heap_); }

 private:
  int64_t last_ = 0;
  std::vector<int64_t> number_;  // of the insertion
  BlockHeap heap_;
};

class LfuPolicy final : public EvictionPolicy {
 public:
  explicit LfuPolicy(int32_t num_blocks)
      : ranks_(static_cast<size_t>(num_blocks)), heap_(num_blocks) {}

  void Insert(BlockId id, uint64_t, int64_t) override {
    ranks_[static_cast<size_t>(id)] = {.first = 1, .second = ++last_};
  }
  void Hit(BlockId id) override { ++ranks_[static_cast<size_t>(id)].first; }
  void Release(absl::Span<const BlockId> deepest_first) override {
    for (const BlockId id : deepest_first) ranks_[static_cast<size_t>(id)].second = ++last_;
  }
  void Enter(BlockId id) override { heap_.Add(id, ranks_[static_cast<size_t>(id)]); }
  void Leave(BlockId id) override { heap_.Remove(id); }
  BlockId Victim() override { return heap_.empty() ? kNullBlockId : heap_.top(); }
  void Remove(BlockId, bool) override {}
  void Clear() override { heap_.Clear(); }
  absl::Status CheckInvariants() const override { return CheckHeap(heap_); }

 private:
  int64_t last_ = 0;
  std::vector<BlockRank> ranks_;  // uses, then last release
  BlockHeap heap_;
};

class S3FifoPolicy final : public EvictionPolicy {
 public:
  explicit S3FifoPolicy(int32_t num_blocks)
      : most_small_(std::max(1, num_blocks / 10)),
        states_(static_cast<size_t>(num_blocks)),
        small_(num_blocks),
        main_(num_blocks),
        evicted_(num_blocks - most_small_) {}

  void Insert(BlockId id, uint64_t key, int64_t) override {
    State& state = At(id);
    state = {.number = ++last_, .key = key, .is_main = evicted_.Take(key)};
    if (!state.is_main) ++num_small_;
  }
  void Hit(BlockId id) override { At(id).uses = std::min(At(id).uses + 1, 3); }
  void Release(absl::Span<const BlockId>) override {}
  void Enter(BlockId id) override {
    (At(id).is_main ? main_ : small_).Add(id, {.first = At(id).number});
  }
  void Leave(BlockId id) override { (At(id).is_main ? main_ : small_).Remove(id); }
  BlockId Victim() override {
    while (!small_.empty() || !main_.empty()) {
      const bool from_small = !small_.empty() && (num_small_ >= most_small_ || main_.empty());
      const BlockId id = from_small ? small_.top() : main_.top();
      State& state = At(id);
      if (state.uses <= (from_small ? 1 : 0)) return id;
      Leave(id);
      state.number = ++last_;
      if (from_small) {
        state.is_main = true;
        state.uses = 0;
        --num_small_;
      } else {
        --state.uses;
      }
      Enter(id);
    }
    return kNullBlockId;
  }
  void Remove(BlockId id, bool was_evicted) override {
    State& state = At(id);
    if (state.is_main) return;
    --num_small_;
    if (was_evicted) evicted_.Add(state.key);
  }
  void Clear() override {
    small_.Clear();
    main_.Clear();
    evicted_.Clear();
    num_small_ = 0;
  }
  absl::Status CheckInvariants() const override {
    if (num_small_ < small_.size()) {
      return BrokenInvariant("s3fifo counts ", num_small_, " blocks in its small queue, ",
                             small_.size(), " of them are candidates");
    }
    absl::Status status = CheckHeap(small_);
    status.Update(CheckHeap(main_));
    return status;
  }

 private:
  struct State {
    int64_t number = 0;  // place in its queue
    uint64_t key = 0;
    int uses = 0;  // hits since it entered its queue, at most 3
    bool is_main = false;
  };
  State& At(BlockId id) { return states_[static_cast<size_t>(id)]; }

  int32_t most_small_;
  int32_t num_small_ = 0;
  int64_t last_ = 0;
  std::vector<State> states_;
  BlockHeap small_;
  BlockHeap main_;
  EvictedKeys evicted_;  // from the small queue
};

// The hand goes from old to new, lap by lap. A candidate's rank is the lap in which the hand comes
// to it next, and its place.
class SievePolicy final : public EvictionPolicy {
 public:
  explicit SievePolicy(int32_t num_blocks)
      : states_(static_cast<size_t>(num_blocks)), heap_(num_blocks) {}

  void Insert(BlockId id, uint64_t, int64_t) override { At(id) = {.number = ++last_}; }
  void Hit(BlockId id) override { At(id).was_used = true; }
  void Release(absl::Span<const BlockId>) override {}
  void Enter(BlockId id) override {
    const int64_t number = At(id).number;
    heap_.Add(id, {.first = number > hand_.second ? hand_.first : hand_.first + 1,
                   .second = number});
  }
  void Leave(BlockId id) override { heap_.Remove(id); }
  BlockId Victim() override {
    while (!heap_.empty()) {
      const BlockId id = heap_.top();
      hand_ = heap_.rank(id);
      if (!At(id).was_used) return id;
      At(id).was_used = false;
      heap_.Remove(id);
      heap_.Add(id, {.first = hand_.first + 1, .second = hand_.second});
    }
    return kNullBlockId;
  }
  void Remove(BlockId, bool) override {}
  void Clear() override { heap_.Clear(); }
  absl::Status CheckInvariants() const override { return CheckHeap(heap_); }

 private:
  struct State {
    int64_t number = 0;
    bool was_used = false;
  };
  State& At(BlockId id) { return states_[static_cast<size_t>(id)]; }

  int64_t last_ = 0;
  BlockRank hand_;
  std::vector<State> states_;
  BlockHeap heap_;
};

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
  absl::Status CheckInvariants() const override {
    if (target_ < 0 || target_ > capacity_ || num_recent_ < heaps_[0].size()) {
      return BrokenInvariant("arc counts ", num_recent_, " blocks used once, ", heaps_[0].size(),
                             " of them candidates, and wants ", target_, " of ", capacity_);
    }
    absl::Status status = CheckHeap(heaps_[0]);
    status.Update(CheckHeap(heaps_[1]));
    return status;
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

}  // namespace

std::string_view EvictionPolicyName(EvictionPolicyKind kind) {
  for (const NamedKind& named : kNames) {
    if (named.kind == kind) return named.name;
  }
  return "?";
}

absl::StatusOr<EvictionPolicyKind> ParseEvictionPolicy(std::string_view name) {
  for (const NamedKind& named : kNames) {
    if (named.name == name) return named.kind;
  }
  return InvalidArgument("eviction_policy is \"", std::string(name), "\", expected ",
                         EvictionPolicyNames());
}

std::string EvictionPolicyNames() {
  std::string names;
  for (const NamedKind& named : kNames) {
    absl::StrAppend(&names, names.empty() ? "" : "|", std::string(named.name));
  }
  return names;
}

std::unique_ptr<EvictionPolicy> MakeEvictionPolicy(EvictionPolicyKind kind, int32_t num_blocks,
                                                   const CachedPrefixes* prefixes) {
  switch (kind) {
    case EvictionPolicyKind::kLru:
      return std::make_unique<LruPolicy>(num_blocks);
    case EvictionPolicyKind::kFifo:
      return std::make_unique<FifoPolicy>(num_blocks);
    case EvictionPolicyKind::kLfu:
      return std::make_unique<LfuPolicy>(num_blocks);
    case EvictionPolicyKind::kSlru:
      return std::make_unique<SlruPolicy>(num_blocks);
    case EvictionPolicyKind::kS3Fifo:
      return std::make_unique<S3FifoPolicy>(num_blocks);
    case EvictionPolicyKind::kSieve:
      return std::make_unique<SievePolicy>(num_blocks);
    case EvictionPolicyKind::kArc:
      return std::make_unique<ArcPolicy>(num_blocks);
    case EvictionPolicyKind::kLirs:
      return std::make_unique<LirsPolicy>(num_blocks);
    case EvictionPolicyKind::kWTinyLfu:
      return std::make_unique<TinyLfuPolicy>(num_blocks);
    case EvictionPolicyKind::kGdsf:
      return std::make_unique<GdsfPolicy>(num_blocks, prefixes);
    case EvictionPolicyKind::kPriority:
      return std::make_unique<PriorityPolicy>(num_blocks);
    case EvictionPolicyKind::kTtl:
      return std::make_unique<TtlPolicy>(num_blocks);
    case EvictionPolicyKind::kHazard:
      return std::make_unique<HazardPolicy>(num_blocks, prefixes);
  }
  return nullptr;
}

bool RanksRetainedBlocks(EvictionPolicyKind kind) {
  return kind == EvictionPolicyKind::kPriority || kind == EvictionPolicyKind::kTtl;
}

int64_t EvictionPolicyBytes(EvictionPolicyKind kind, int64_t num_blocks) {
  if (kind == EvictionPolicyKind::kHazard) return HazardPolicy::BytesFor(num_blocks);
  // Up to three heaps, a state per block, and the keys of as many evicted blocks in each of two
  // lists or counters of their uses.
  return num_blocks * 112 + 2 * EvictedKeys::BytesFor(num_blocks);
}

}  // namespace kvblocks
