// Spec kinds beside those of attention: hidden states, which are managed as full attention is, and
// rings, for which there is no manager yet.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/kv_cache_manager.h"

namespace kvblocks {
namespace {

KvCacheConfig FullAnd(const KvCacheSpec& other) {
  const auto full =
      FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 1, .head_size = 8});
  return {.num_blocks = 20, .groups = {{*full, {"full"}}, {other, {"other"}}}};
}

TEST(NewKindsTest, RingsAreRefusedByName) {
  // V-46
  const KvCacheConfig config = FullAnd(*RingSpec::Create({.block_size = 8, .head_size = 8}));
  const auto manager = KvCacheManager::Create(config, {.max_model_len = 100});
  ASSERT_FALSE(manager.ok());
  EXPECT_THAT(manager.status().message(),
              ::testing::HasSubstr("spec kind ring has no block manager"));
}

TEST(NewKindsTest, HiddenStatesAreKeptAndReusedLikeFullAttention) {
  // V-94
  const KvCacheConfig config =
      FullAnd(*HiddenStateSpec::Create({.block_size = 16, .head_size = 64}));
  auto manager = KvCacheManager::Create(config, {.max_model_len = 100});
  ASSERT_TRUE(manager.ok()) << manager.status();
  const std::vector<TokenId> prompt(40, 7);
  auto first = (*manager)->NewRequest({.id = "first", .content = {.token_ids = prompt}});
  const auto slots = (*manager)->AllocateSlots(**first, {.num_new_tokens = 40});
  ASSERT_TRUE(slots.ok() && slots->has_value());
  (*first)->set_num_computed_tokens(40);
  auto second = (*manager)->NewRequest({.id = "second", .content = {.token_ids = prompt}});
  EXPECT_EQ((*manager)->GetComputedBlocks(**second)->num_tokens(), 32);
}

}  // namespace
}  // namespace kvblocks
