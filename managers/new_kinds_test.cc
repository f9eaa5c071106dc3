// Groups whose blocks no other request can hit, beside those whose blocks one can: rings, windows
// that are computed again, encoders; and hidden states, which are managed as full attention is.

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/managers/explain/lookup_explanation.h"

namespace kvblocks {
namespace {

KvCacheConfig FullAnd(const KvCacheSpec& other) {
  const auto full =
      FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 1, .head_size = 8});
  return {.num_blocks = 20, .groups = {{*full, {"full"}}, {other, {"other"}}}};
}

constexpr int kMost = 100;

std::vector<TokenId> Prompt(int64_t count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::unique_ptr<Request> New(const KvCacheManager& manager, int64_t num_tokens,
                             std::string salt = "") {
  auto request = manager.NewRequest(
      {.id = "r", .content = {.token_ids = Prompt(num_tokens), .cache_salt = std::move(salt)}});
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

std::vector<std::vector<BlockId>> Hits(const ComputedBlocks& hits) {
  std::vector<std::vector<BlockId>> lists;
  for (GroupId g = 0; g < static_cast<GroupId>(hits.num_groups()); ++g) {
    lists.emplace_back(hits.blocks(g).begin(), hits.blocks(g).end());
  }
  return lists;
}

// Look-up and allocation of the rest.
std::vector<std::vector<BlockId>> Admit(KvCacheManager& manager, Request& request) {
  const ComputedBlocks hits = *manager.GetComputedBlocks(request);
  const auto slots =
      manager.AllocateSlots(request, {.num_new_tokens = request.num_tokens() - hits.num_tokens(),
                                      .computed_blocks = &hits});
  EXPECT_TRUE(slots.ok() && slots->has_value()) << slots.status();
  request.set_num_computed_tokens(request.num_tokens());
  EXPECT_TRUE(manager.CheckInvariants().ok()) << manager.CheckInvariants();
  return manager.GetBlockIds(request);
}

// VE-46: one block for the request's whole life, which no other request can hit.
TEST(NewKindsTest, ARingIsOneBlock) {
  const KvCacheConfig config = FullAnd(*RingSpec::Create({.block_size = 8, .head_size = 8}));
  const auto manager = *KvCacheManager::Create(config, {.max_model_len = kMost});
  EXPECT_EQ(manager->hash_block_size(), 16);
  const auto a = New(*manager, 40);
  EXPECT_EQ(Admit(*manager, *a), (std::vector<std::vector<BlockId>>{{1, 2, 3}, {4}}));
  const auto b = New(*manager, 40);
  EXPECT_EQ(Hits(*manager->GetComputedBlocks(*b)),
            (std::vector<std::vector<BlockId>>{{1, 2}, {}}));
  EXPECT_EQ(Admit(*manager, *b), (std::vector<std::vector<BlockId>>{{1, 2, 5}, {6}}));
  // No further one for more tokens.
  const int64_t free = manager->num_free_blocks();
  ASSERT_TRUE((*manager->AllocateSlots(*b, {.num_new_tokens = 10})).has_value());
  EXPECT_EQ(manager->num_free_blocks(), free - 1);
  EXPECT_EQ(manager->GetBlocks(*b, 1).size(), 1u);
  ASSERT_TRUE(manager->Free(*a).ok());
  const std::vector<BlockId> queue = manager->pool().free_queue().Walk();
  EXPECT_EQ(std::vector<BlockId>(queue.begin(), queue.begin() + 3), (std::vector<BlockId>{4, 3, 8}));
}

// BM-103: how many tokens can be registered is said by the tables of groups that are registered. A ring's
// has one block, and an encoder's as many as its input needs.
TEST(NewKindsTest, TablesOfGroupsThatAreNeverHitBoundNoRegistration) {
  const auto cross =
      CrossAttentionSpec::Create({.block_size = 16, .num_kv_heads = 1, .head_size = 8});
  for (const KvCacheSpec& other :
       {*RingSpec::Create({.block_size = 8, .head_size = 8}), *cross}) {
    SCOPED_TRACE(std::string(other.kind_name()));
    const auto manager = *KvCacheManager::Create(FullAnd(other), {.max_model_len = kMost});
    const auto request = New(*manager, 40, "salt");
    const auto slots = manager->AllocateSlots(
        *request, {.num_new_tokens = 40,
                   .delay_cache_blocks = true,
                   .num_encoder_tokens = other.kind() == KvCacheSpecKind::kRing ? 0 : 16});
    ASSERT_TRUE(slots.ok() && slots->has_value()) << slots.status();
    ASSERT_EQ(manager->GetBlocks(*request, 1).size(), 1u);
    request->set_num_computed_tokens(40);
    const absl::Status status = manager->CacheBlocks(*request, 40);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(manager->GetComputedBlocks(*New(*manager, 40, "salt"))->num_tokens(), 32);
    EXPECT_FALSE(manager->CacheBlocks(*request, 41).ok());
  }
}

// V-46: without a group of full type, each group that is looked up says what it lacks; a ring has
// nothing to say.
TEST(NewKindsTest, ARingExplainsNoMiss) {
  const auto window = SlidingWindowSpec::Create(
      {.block_size = 16, .num_kv_heads = 1, .head_size = 8, .sliding_window = 16});
  const KvCacheConfig config{
      .num_blocks = 20,
      .groups = {{*RingSpec::Create({.block_size = 8, .head_size = 8}), {"ring"}},
                 {*window, {"window"}}}};
  const auto manager = *KvCacheManager::Create(config, {.max_model_len = kMost});
  const auto explanation = ExplainLookup(*manager, *New(*manager, 40));
  ASSERT_TRUE(explanation.ok()) << explanation.status();
  ASSERT_EQ(explanation->missed.size(), 2u);
  EXPECT_EQ(explanation->missed[0].group, 1);
  EXPECT_EQ(explanation->missed[0].num_tokens, 32);
  EXPECT_EQ(explanation->missed[1].reason, MissReason::kPartialBlock);
}

// V-46: of a hit its last W tokens are computed again, and a hit of no more is none.
TEST(NewKindsTest, AReplayedWindowShortensHits) {
  const auto window = SlidingWindowMlaSpec::Create(
      {.block_size = 8, .head_size = 64, .sliding_window = 24, .bounded_replay = true});
  ASSERT_TRUE(window.ok()) << window.status();
  KvCacheConfig config = FullAnd(*window);
  config.num_blocks = 60;
  const auto manager = *KvCacheManager::Create(config, {.max_model_len = kMost});
  const auto a = New(*manager, 70);
  Admit(*manager, *a);
  const auto b = New(*manager, 70);
  const ComputedBlocks hits = *manager->GetComputedBlocks(*b);
  EXPECT_EQ(hits.num_tokens(), 32);  // 64 less 24, in whole blocks
  EXPECT_EQ(Hits(hits), (std::vector<std::vector<BlockId>>{{1, 2}, {}}));
  const std::vector<std::vector<BlockId>> tables = Admit(*manager, *b);
  EXPECT_EQ(std::count(tables[1].begin(), tables[1].begin() + 4, kNullBlockId), 4);
  EXPECT_NE(tables[1][4], kNullBlockId);
  EXPECT_EQ(manager->GetComputedBlocks(*New(*manager, 33))->num_tokens(), 0);
}

// V-46: the tokens computed again are those of the window's group.
TEST(NewKindsTest, AReplayedWindowExplainsWhatItTakesOffHits) {
  const auto window = SlidingWindowMlaSpec::Create(
      {.block_size = 8, .head_size = 64, .sliding_window = 24, .bounded_replay = true});
  for (const bool drops : {false, true}) {
    KvCacheConfig config = FullAnd(*window);
    config.num_blocks = 60;
    config.groups[0].is_draft = drops;
    const auto manager =
        *KvCacheManager::Create(config, {.max_model_len = kMost, .use_eagle = drops});
    const auto a = New(*manager, 70);
    Admit(*manager, *a);
    const auto explanation = ExplainLookup(*manager, *New(*manager, 70));
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    const int64_t hit = drops ? 16 : 32;
    EXPECT_EQ(explanation->num_hit_tokens, hit);
    ASSERT_GE(explanation->missed.size(), 2u);
    const MissedRun& replayed = explanation->missed[0];
    EXPECT_EQ(replayed.reason, MissReason::kGroupVeto);
    EXPECT_EQ(replayed.group, 1);
    EXPECT_EQ(replayed.first_token, hit);
    EXPECT_EQ(replayed.num_tokens, 32);
    ASSERT_TRUE(replayed.absence.has_value());
    EXPECT_EQ(replayed.absence->reason, MissReason::kNotKept);
    const MissedRun& next = explanation->missed[1];
    EXPECT_EQ(next.reason, drops ? MissReason::kDraftDrop : MissReason::kPartialBlock);
    EXPECT_EQ(next.first_token, hit + 32);
  }
}

// A decoder's prefix is that of one input of the encoder.
TEST(NewKindsTest, DecodersCachePrefixesPerInputOfTheEncoder) {
  const auto cross =
      CrossAttentionSpec::Create({.block_size = 16, .num_kv_heads = 1, .head_size = 8});
  const auto manager = *KvCacheManager::Create(FullAnd(*cross), {.max_model_len = kMost});
  EXPECT_THAT(manager->NewRequest({.id = "r", .content = {.token_ids = Prompt(40)}})
                  .status()
                  .message(),
              ::testing::HasSubstr("cache_salt is empty"));
  const auto a = New(*manager, 40, "picture");
  const ComputedBlocks none;
  ASSERT_TRUE((*manager->AllocateSlots(*a, {.num_new_tokens = 40, .num_encoder_tokens = 20}))
                  .has_value());
  EXPECT_EQ(manager->GetComputedBlocks(*New(*manager, 40, "picture"))->num_tokens(), 32);
  EXPECT_EQ(manager->GetComputedBlocks(*New(*manager, 40, "other"))->num_tokens(), 0);
}

TEST(NewKindsTest, SomeGroupMustBeCacheable) {
  const KvCacheConfig config{
      .num_blocks = 20, .groups = {{*RingSpec::Create({.block_size = 8, .head_size = 8}), {"r"}}}};
  EXPECT_THAT(KvCacheManager::Create(config, {.max_model_len = kMost}).status().message(),
              ::testing::HasSubstr("set enable_caching to false"));
  EXPECT_TRUE(
      KvCacheManager::Create(config, {.max_model_len = kMost, .enable_caching = false}).ok());
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
