#include "kvblocks/managers/kv_cache_coordinator.h"

#include <utility>

#include "kvblocks/managers/hybrid_kv_cache_coordinator.h"

namespace kvblocks {
namespace {

class NoPrefixCacheCoordinator : public KvCacheCoordinator {
 public:
  NoPrefixCacheCoordinator(Managers managers, int64_t scheduler_block_size, int64_t hash_block_size)
      : KvCacheCoordinator(std::move(managers), scheduler_block_size, hash_block_size,
                           scheduler_block_size) {}

  Hit FindLongestCacheHit(const PrefixContent&, int64_t, HitLists& lists) const override {
    for (std::vector<BlockId>& list : lists) list.clear();
    return {};
  }
  int64_t NumTokensToRegister(const SingleTypeManager&, int64_t) const override { return 0; }
};

class UnitaryKvCacheCoordinator : public KvCacheCoordinator {
 public:
  UnitaryKvCacheCoordinator(Managers managers, int64_t scheduler_block_size,
                            int64_t hash_block_size)
      : KvCacheCoordinator(std::move(managers), scheduler_block_size, hash_block_size,
                           scheduler_block_size) {}

  Hit FindLongestCacheHit(const PrefixContent& content, int64_t max_tokens,
                          HitLists& lists) const override {
    static constexpr GroupId kGroup[] = {0};
    const int64_t hit = group(0).FindLongestCacheHit({.content = &content,
                                                      .groups = kGroup,
                                                      .max_tokens = max_tokens,
                                                      .drop_last_block = group(0).is_draft(),
                                                      .alignment = group(0).block_size()},
                                                     lists);
    return {.num_tokens = hit, .longest_lookup = hit};
  }
  int64_t NumTokensToRegister(const SingleTypeManager&, int64_t n) const override { return n; }
};

}  // namespace

std::unique_ptr<KvCacheCoordinator> KvCacheCoordinator::Create(Managers managers,
                                                               bool enable_caching,
                                                               int64_t scheduler_block_size,
                                                               int64_t hash_block_size,
                                                               int64_t hit_alignment) {
  if (!enable_caching) {
    return std::make_unique<NoPrefixCacheCoordinator>(std::move(managers), scheduler_block_size,
                                                      hash_block_size);
  }
  if (managers.size() == 1) {
    return std::make_unique<UnitaryKvCacheCoordinator>(std::move(managers), scheduler_block_size,
                                                       hash_block_size);
  }
  return std::make_unique<HybridKvCacheCoordinator>(std::move(managers), scheduler_block_size,
                                                    hash_block_size, hit_alignment);
}

}  // namespace kvblocks
