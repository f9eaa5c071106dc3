#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/single_type_manager.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

TEST(FullAttentionManagerTest, LookupStopsAtTheFirstMiss) {
  for (const KvCacheSpec& spec : {Full(4), Mla(4)}) {
    const auto manager = Manager(20, {spec});
    const auto donor = NewRequest(*manager, Tokens(24));
    ASSERT_TRUE(Step(*manager, *donor, 24));  // blocks 1 to 6
    for (BlockId missing = 6; missing >= 1; --missing) {
      const auto request = NewRequest(*manager, Tokens(40));
      ASSERT_TRUE(manager->EvictBlocks({missing}).ok());
      EXPECT_EQ(Hits(*manager, *request).num_tokens(), (missing - 1) * 4);
    }
  }
}

TEST(FullAttentionManagerTest, LookupProbesTheHitsAndOneMore) {
  const auto manager = Manager(40, {Full(4)});
  const auto donor = NewRequest(*manager, Tokens(20));
  ASSERT_TRUE(Step(*manager, *donor, 20));
  const auto request = NewRequest(*manager, Tokens(100));
  const int64_t before = PrefixHashTable::NumSearchesForTest();
  if (before == 0) GTEST_SKIP() << "counted in debug builds only, such as ./test.sh runs unit tests in";
  EXPECT_EQ(Hits(*manager, *request).num_tokens(), 20);
  EXPECT_EQ(PrefixHashTable::NumSearchesForTest() - before, 6);
}

TEST(FullAttentionManagerTest, DraftGroupDropsOneBlockOfEveryHit) {
  const auto manager = Manager(20, {Full(4)}, {.use_eagle = true});
  const auto donor = NewRequest(*manager, Tokens(16));
  ASSERT_TRUE(Step(*manager, *donor, 16));
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(40))).num_tokens(), 12);
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(5))).num_tokens(), 0);
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(4))).num_tokens(), 0);
}

TEST(FullAttentionManagerTest, NothingIsTrimmedOrCapped) {
  const auto manager = Manager(20, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(40));
  ASSERT_TRUE(Step(*manager, *request, 40));
  ASSERT_TRUE(manager->RemoveSkippedBlocks(*request, 40).ok());
  EXPECT_EQ(manager->GetBlocks(*request, 0).size(), 10u);
  EXPECT_EQ(manager->group(0).NumSkippedTokens(1'000), 0);
  EXPECT_EQ(manager->group(0).admission_cap(), std::nullopt);
}

TEST(FullAttentionManagerTest, CommonPrefixCountsTablesNotReferences) {
  const auto manager = Manager(20, {Full(4)});
  const auto common = [&](const Request& r) { return manager->GetNumCommonPrefixBlocks(r)[0]; };
  const auto a = NewRequest(*manager, Tokens(12), "a");
  const auto b = NewRequest(*manager, Tokens(8) + Tokens(5, 50), "b");
  EXPECT_EQ(common(*a), 0);  // holds nothing yet
  ASSERT_TRUE(Step(*manager, *a, 12));
  EXPECT_EQ(common(*a), 3);  // alone, it shares everything with everybody
  ASSERT_TRUE(Step(*manager, *b, 5));
  EXPECT_EQ(common(*a), 2);
  EXPECT_EQ(common(*b), 2);
  // A pin is no table: it neither makes a block common nor stops it from being so.
  ASSERT_TRUE(manager->PinBlocks({1, 3}).ok());
  EXPECT_EQ(common(*a), 2);
  ASSERT_TRUE(manager->FreeBlocks({3, 1}).ok());
  ASSERT_TRUE(manager->Free(*a).ok());
  EXPECT_EQ(common(*b), 4);
}

TEST(FullAttentionManagerTest, SinkBlocksArePermanentAndReadable) {
  const auto manager = Manager(10, {Full(4), Sink(4, 8), Sink(4, 4)});
  EXPECT_THAT(manager->group(0).sink_blocks(), ElementsAre());
  EXPECT_THAT(manager->group(1).sink_blocks(), ElementsAre(1, 2));
  EXPECT_THAT(manager->group(2).sink_blocks(), ElementsAre(3));
  EXPECT_EQ(manager->pool().num_permanent(), 3);
  EXPECT_EQ(manager->usage(), 0.0);
  const auto request = NewRequest(*manager, Tokens(4));
  EXPECT_EQ(*Step(*manager, *request, 4), (Lists{{4}, {5}, {6}}));
  for (BlockId id : {1, 2, 3}) {
    EXPECT_EQ(manager->PinBlocks({id}).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(manager->FreeBlocks({id}).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace kvblocks
