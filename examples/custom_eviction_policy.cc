// An eviction policy that the library does not have, added without editing it: SIEVE (Zhang et al.,
// NSDI 2024). A hand goes from the oldest block to the newest and spares each that was hit since it
// passed. The manager says which blocks may go; the policy says which of them goes.
#include <cstdio>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/kv_cache.h"

namespace {

using namespace kvblocks;

class SievePolicy : public EvictionPolicy {
 public:
  explicit SievePolicy(int32_t num_blocks) : blocks_(static_cast<size_t>(num_blocks)) {}

  void Insert(BlockId id, uint64_t /*key*/, int64_t /*num_tokens*/) override {
    At(id) = {.number = ++last_};
  }
  void Hit(BlockId id) override { At(id).was_hit = true; }
  void Release(absl::Span<const BlockId>) override {}
  void Enter(BlockId id) override { candidates_.emplace(At(id).number, id); }
  void Leave(BlockId id) override { candidates_.erase({At(id).number, id}); }
  BlockId Victim() override {
    if (candidates_.empty()) return kNullBlockId;
    for (auto next = candidates_.lower_bound({hand_, 0});; ++next) {
      if (next == candidates_.end()) next = candidates_.begin();
      hand_ = next->first;
      if (!std::exchange(At(next->second).was_hit, false)) return next->second;
    }
  }
  void Remove(BlockId, bool /*was_evicted*/) override {}
  void Clear() override { candidates_.clear(); }

 private:
  struct Block {
    int64_t number = 0;  // of its insertion
    bool was_hit = false;
  };
  Block& At(BlockId id) { return blocks_[static_cast<size_t>(id)]; }

  std::vector<Block> blocks_;
  std::set<std::pair<int64_t, BlockId>> candidates_;  // oldest first
  int64_t last_ = 0;
  int64_t hand_ = 0;
};

// Four short prompts that come again and again, between long ones that come once. Returns the
// tokens hit, or -1.
int64_t Replay(const EvictionPolicyFactory& policy) {
  const auto spec =
      FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
  auto manager = KvCacheManager::Create({.num_blocks = 33, .groups = {{.spec = *spec}}},
                                        {.max_model_len = 1024, .eviction_policy = policy});
  if (!manager.ok()) {
    std::puts(std::string(manager.status().message()).c_str());
    return -1;
  }
  int64_t num_hits = 0;
  for (int i = 0; i < 120; ++i) {
    const bool is_long = i % 3 == 2;
    std::vector<TokenId> prompt(is_long ? 161 : 65);
    std::iota(prompt.begin(), prompt.end(), is_long ? 1000 * i : 100'000'000 + i % 4 * 1000);
    auto request =
        (*manager)->NewRequest({.id = std::to_string(i), .content = {.token_ids = prompt}});
    const auto hits = (*manager)->GetComputedBlocks(**request);
    const auto slots = (*manager)->AllocateSlots(
        **request, {.num_new_tokens = (*request)->num_tokens() - hits->num_tokens(),
                    .computed_blocks = &*hits});
    if (!slots.ok() || !slots->has_value()) return -1;
    num_hits += hits->num_tokens();
    if (!(*manager)->Free(**request).ok()) return -1;
  }
  return num_hits;
}

}  // namespace

int main() {
  const auto sieve = CustomEvictionPolicy("sieve", [](int32_t num_blocks, const CachedPrefixes&) {
    return std::make_unique<SievePolicy>(num_blocks);
  });
  for (const auto& policy : {*ParseEvictionPolicy("lru"), *ParseEvictionPolicy("arc"), sieve}) {
    const int64_t num_hits = Replay(policy);
    if (num_hits < 0) return 1;
    std::printf("%-5s %5lld tokens hit\n", policy.name.c_str(), static_cast<long long>(num_hits));
  }
  return 0;
}
