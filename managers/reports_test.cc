// What a manager reports besides registrations: reused blocks as events (BM-53, V-62), and the ids
// of fresh blocks (BM-115).

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/explain/lookup_explanation.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<Request> Reporting(const KvCacheManager& manager, std::vector<TokenId> tokens) {
  return manager
      .NewRequest({.id = "reporting",
                   .content = {.token_ids = std::move(tokens), .session_id = "s"},
                   .report_reused_blocks = true})
      .value();
}

KvCacheSpec States(int64_t block_size) {
  return MambaSpec::Create({.block_size = block_size,
                            .states = {{.shape = {4}}},
                            .cache_mode = MambaCacheMode::kAlign})
      .value();
}

std::vector<BlockStored> TakeStored(KvCacheManager& manager) {
  std::vector<BlockStored> stored;
  for (const KvEvent& event : manager.TakeEvents()) {
    stored.push_back(std::get<BlockStored>(event));
  }
  return stored;
}

TEST(ReusedBlocksTest, AHitIsReportedPerGroupAndRun) {
  const auto manager = Manager(50, {Full(8), Window(4, 9)}, {.enable_events = true});
  ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(33)), 33));
  manager->TakeEvents();
  const auto request = Reporting(*manager, Tokens(40));
  const std::string before = State(*manager);
  const ComputedBlocks hits = Hits(*manager, *request);
  ASSERT_EQ(hits.num_tokens(), 32);
  EXPECT_EQ(State(*manager), before);
  const auto stored = TakeStored(*manager);
  ASSERT_EQ(stored.size(), 2u);
  const auto hashes = request->content().hashes();
  EXPECT_EQ(stored[0].group_idx, 0);
  EXPECT_EQ(stored[0].block_size, 8);
  EXPECT_EQ(stored[0].parent_block_hash, std::nullopt);
  EXPECT_EQ(stored[0].token_ids, Tokens(32));
  EXPECT_THAT(stored[0].block_hashes, ElementsAre(hashes[1], hashes[3], hashes[5], hashes[7]));
  EXPECT_EQ(stored[0].kv_cache_spec_kind, "full_attention");
  EXPECT_EQ(stored[0].session_id, "s");
  // A window has its last blocks only.
  EXPECT_EQ(stored[1].group_idx, 1);
  EXPECT_EQ(stored[1].parent_block_hash, hashes[5]);
  EXPECT_EQ(stored[1].token_ids, Tokens(8, 24));
  EXPECT_THAT(stored[1].block_hashes, ElementsAre(hashes[6], hashes[7]));
  // Each look-up is reported, an explanation is none.
  Hits(*manager, *request);
  EXPECT_EQ(TakeStored(*manager), stored);
  ASSERT_TRUE(ExplainLookup(*manager, *request).ok());
  EXPECT_THAT(manager->TakeEvents(), IsEmpty());
  // The allocation reports what it registers, as ever.
  ASSERT_TRUE(Step(*manager, *request, 8, {.computed_blocks = &hits}));
  EXPECT_EQ(TakeStored(*manager).size(), 2u);
}

TEST(ReusedBlocksTest, NothingIsReportedUnasked) {
  const auto manager = Manager(50, {Full(4)}, {.enable_events = true});
  ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(9)), 9));
  manager->TakeEvents();
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(9))).num_tokens(), 8);
  EXPECT_EQ(Hits(*manager, *Reporting(*manager, Tokens(9, 100))).num_tokens(), 0);
  EXPECT_THAT(manager->TakeEvents(), IsEmpty());
}

// As vLLM has it: one event with the tokens of all positions, whatever there is of them.
TEST(ReusedBlocksTest, OneEventPerGroupWithItsSwitch) {
  KvCacheManagerOptions options{.enable_events = true};
  options.semantics.one_event_per_registration = true;
  options.semantics.retention_interval = std::nullopt;
  const auto manager = Manager(50, {Window(4, 9), Chunked(4, 8)}, options);
  ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(17)), 17));
  manager->TakeEvents();
  const auto request = Reporting(*manager, Tokens(17));
  ASSERT_EQ(ListsOf(Hits(*manager, *request)), (Lists{{0, 0, 3, 4}, {0, 0, 0, 0}}));
  const auto stored = TakeStored(*manager);
  ASSERT_EQ(stored.size(), 2u);
  const auto hashes = request->content().hashes();
  EXPECT_THAT(stored[0].block_hashes, ElementsAre(hashes[0], hashes[1], hashes[2], hashes[3]));
  EXPECT_EQ(stored[0].parent_block_hash, std::nullopt);
  EXPECT_EQ(stored[0].token_ids, Tokens(16));
  EXPECT_EQ(stored[1].block_hashes, stored[0].block_hashes);
  EXPECT_EQ(stored[1].token_ids, Tokens(16));
}

// Over two ranks a block covers twice its tokens; the engine's report counts one rank's (V-62).
TEST(ReusedBlocksTest, OverRanksTheReportCountsOneRanksTokens) {
  KvCacheConfig config = Config(20, {Full(4), Full(4)});
  config.hash_block_size = 4;
  KvCacheManagerOptions options{.enable_events = true, .decode_context_parallel = 2};
  for (const bool exactly : {false, true}) {
    options.semantics.one_event_per_registration = exactly;
    const auto manager = Manager(config, options);
    ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(17)), 17));
    manager->TakeEvents();
    const auto request = Reporting(*manager, Tokens(17));
    ASSERT_EQ(Hits(*manager, *request).num_tokens(), 16);
    const auto stored = TakeStored(*manager);
    ASSERT_EQ(stored.size(), 2u);
    const auto hashes = request->content().hashes();
    EXPECT_EQ(stored[0].block_size, exactly ? 4 : 8);
    EXPECT_EQ(stored[0].token_ids, Tokens(exactly ? 8 : 16));
    EXPECT_THAT(stored[0].block_hashes, ElementsAre(hashes[exactly ? 0 : 1], hashes[exactly ? 1 : 3]));
  }
}

TEST(ReusedBlocksTest, ATailIsReportedAsItIsCached) {
  KvCacheConfig config = Config(20, {Full(4), States(4)});
  config.hash_block_size = 2;
  const auto manager = Manager(config, {.enable_events = true, .partial_hits = true});
  const auto first = NewRequest(*manager, Tokens(7));
  ASSERT_TRUE(Step(*manager, *first, 6));
  manager->NewStepStarts();
  ASSERT_TRUE(first->AppendOutputTokens({7}).ok());
  manager->TakeEvents();
  const auto request = Reporting(*manager, Tokens(8));
  ASSERT_EQ(Hits(*manager, *request).num_tokens(), 6);
  const auto hashes = request->content().hashes();
  auto stored = TakeStored(*manager);
  ASSERT_EQ(stored.size(), 3u);
  EXPECT_THAT(stored[0].block_hashes, ElementsAre(hashes[1]));
  for (size_t i : {1, 2}) {
    EXPECT_EQ(stored[i].group_idx, static_cast<GroupId>(i) - 1);
    EXPECT_EQ(stored[i].block_size, 2);
    EXPECT_EQ(stored[i].parent_block_hash, hashes[1]);
    EXPECT_EQ(stored[i].token_ids, Tokens(2, 4));
    EXPECT_THAT(stored[i].block_hashes, ElementsAre(hashes[2]));
  }
  // A row block that is registered as a whole in the meantime is the end of its run, unless the
  // tail is a key of it.
  ASSERT_TRUE(Step(*manager, *first, 2));
  manager->TakeEvents();
  ASSERT_EQ(Hits(*manager, *request).num_tokens(), 6);
  stored = TakeStored(*manager);
  ASSERT_EQ(stored.size(), 3u);
  EXPECT_THAT(stored[1].block_hashes, ElementsAre(hashes[2]));
}

TEST(ReusedBlocksTest, RefusedWithoutEvents) {
  const auto manager = Manager(20, {Full(4)});
  EXPECT_THAT(
      std::string(
          manager->NewRequest({.id = "r", .report_reused_blocks = true}).status().message()),
      HasSubstr("NewRequest(r): report_reused_blocks is set, expected enable_events with it"));
}

TEST(NewBlockReportTest, ExternalNewAndCopiedBlocksAreCollected) {
  const auto manager = Manager(50, {Full(4), Window(4, 5)}, {.report_new_blocks = true});
  const auto request = NewRequest(*manager, Tokens(20));
  ASSERT_TRUE(Step(*manager, *request, 4, {.num_external_computed_tokens = 8}));
  EXPECT_EQ(manager->GetBlockIds(*request), (Lists{{1, 2, 4}, {0, 3, 5}}));
  EXPECT_THAT(manager->TakeNewBlockIds(), testing::UnorderedElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(manager->TakeNewBlockIds(), IsEmpty());
  ASSERT_TRUE(Step(*manager, *request, 4));
  ASSERT_TRUE(Step(*manager, *request, 4));
  EXPECT_EQ(manager->TakeNewBlockIds().size(), 4u);
  ASSERT_TRUE(manager->Free(*request).ok());
  EXPECT_THAT(manager->TakeNewBlockIds(), IsEmpty());
  // Hits are not new.
  const auto again = NewRequest(*manager, Tokens(20));
  ASSERT_TRUE(Step(*manager, *again, 4));
  EXPECT_EQ(manager->TakeNewBlockIds(), (std::vector<BlockId>{manager->GetBlocks(*again, 0).back(),
                                                              manager->GetBlocks(*again, 1).back()}));
}

TEST(NewBlockReportTest, CopiesOfRowsAreNewBlocksOfStatesAreNot) {
  KvCacheConfig config = Config(20, {Full(4), States(4)});
  config.hash_block_size = 2;
  const auto manager = Manager(config, {.partial_hits = true, .report_new_blocks = true});
  const auto first = NewRequest(*manager, Tokens(7));
  ASSERT_TRUE(Step(*manager, *first, 6));
  EXPECT_THAT(manager->TakeNewBlockIds(), ElementsAre(1, 2));
  manager->NewStepStarts();
  const auto second = NewRequest(*manager, Tokens(8));
  ASSERT_TRUE(Step(*manager, *second, 2));
  const auto copies = manager->TakeBlockCopies();
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_THAT(manager->TakeNewBlockIds(), ElementsAre(copies[0].target));
}

TEST(NewBlockReportTest, OffByDefault) {
  const auto manager = Manager(50, {Full(4)});
  ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(20)), 20));
  EXPECT_THAT(manager->TakeNewBlockIds(), IsEmpty());
}

}  // namespace
}  // namespace kvblocks
