#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block_pool/testing/get_new_blocks.h"
#include "kvblocks/managers/single_type_manager.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

int64_t Searches() { return PrefixHashTable::NumSearchesForTest(); }

// Every pattern of cached positions, against the rule as it is written: the largest aligned end
// whose window, and the dropped block behind it, are all cached.
TEST(SlidingWindowManagerTest, EveryPatternGivesTheRightMostReusableWindow) {
  constexpr int64_t kBlock = 2;
  constexpr int kPositions = 9;
  const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kXxh3_128, "seed"), kBlock});
  const PrefixContent content =
      PrefixContent::FromTokens({.token_ids = Tokens(kPositions * kBlock + 1)}, hashing).value();
  for (int64_t window : {1, 2, 3, 4, 5, 8, 9, 100}) {
    const int64_t need = std::max<int64_t>(1, (window - 1 + kBlock - 1) / kBlock);
    auto pool = BlockPool::Create({.num_blocks = kPositions + 1}).value();
    const auto manager =
        SingleTypeManager::Create(Window(kBlock, window), {.hash_block_size = kBlock}, pool.get())
            .value();
    const auto table = GetNewBlocks(*pool, kPositions).value();
    for (unsigned bits = 0; bits < 1u << kPositions; ++bits) {
      std::vector<uint8_t> mask(kPositions);
      for (int i = 0; i < kPositions; ++i) mask[static_cast<size_t>(i)] = bits >> i & 1;
      pool->CacheFullBlocks(content, table, 0, kPositions, kBlock, 0, mask);
      for (int64_t alignment : {2, 4, 6}) {
        for (bool drop : {false, true}) {
          for (int64_t max_tokens : {0, 1, 2, 11, 17, 18}) {
            const int64_t margin = drop ? 1 : 0;
            int64_t end = max_tokens / kBlock - margin;
            const auto usable = [&](int64_t e) {
              if (e * kBlock % alignment != 0) return false;
              for (int64_t i = std::max<int64_t>(0, e - need); i < e + margin; ++i) {
                if (!mask[static_cast<size_t>(i)]) return false;
              }
              return true;
            };
            while (end > 0 && !usable(end)) --end;
            end = std::max<int64_t>(end, 0);
            // What is there, from the first token, is less than a window and the block to drop (V-36).
            if (drop && alignment != kBlock && end > 0 && end < need) end -= alignment / kBlock;
            if (window == 1) end = 0;  // keeps nothing
            std::vector<BlockId> list;
            for (int64_t i = 0; i < end; ++i) {
              list.push_back(i < end - need ? kNullBlockId : table[static_cast<size_t>(i)]);
            }
            HitLists lists(1);
            static constexpr GroupId kGroup[] = {0};
            const int64_t before = Searches();
            ASSERT_EQ(manager->FindLongestCacheHit({.content = &content,
                                                    .groups = kGroup,
                                                    .max_tokens = max_tokens,
                                                    .drop_last_block = drop,
                                                    .alignment = alignment},
                                                   lists),
                      end * kBlock)
                << "window " << window << " bits " << bits << " alignment " << alignment << " drop "
                << drop << " of " << max_tokens;
            ASSERT_EQ(lists[0], list);
            ASSERT_LE(Searches() - before, max_tokens / kBlock);  // no position twice
          }
        }
      }
      ASSERT_TRUE(pool->EvictBlocks(table).ok());
    }
  }
}

class SlidingWindowProbesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Step(*manager_, *donor_, 256));
    if (Searches() == 0) GTEST_SKIP() << "counted in debug builds only, such as ./test.sh runs unit tests in";
  }
  int64_t ProbesFor(const std::vector<TokenId>& tokens) {
    const auto request = NewRequest(*manager_, tokens);
    const int64_t before = Searches();
    Hits(*manager_, *request);
    return Searches() - before;
  }
  // 64 positions, of which a hit needs 7.
  std::unique_ptr<KvCacheManager> manager_ = Manager(100, {Window(4, 29)});
  std::unique_ptr<Request> donor_ = NewRequest(*manager_, Tokens(256));
};

TEST_F(SlidingWindowProbesTest, EmptyCacheCostsOneProbePerWindow) {
  EXPECT_EQ(ProbesFor(Tokens(257, 1'000)), 10);
}

TEST_F(SlidingWindowProbesTest, WarmTailCostsItsOwnProbes) {
  EXPECT_EQ(ProbesFor(Tokens(257)), 7);
  EXPECT_EQ(ProbesFor(Tokens(256)), 7);
}

TEST_F(SlidingWindowProbesTest, OneMissDoesNotProbeAnythingTwice) {
  // Positions 57..63 are probed from the low end; position 63 misses after 6 hits, and ends up to
  // 63 then lack only position 56.
  ASSERT_TRUE(manager_->EvictBlocks({64}).ok());
  EXPECT_EQ(ProbesFor(Tokens(257)), 8);
  const auto request = NewRequest(*manager_, Tokens(257));
  EXPECT_EQ(Hits(*manager_, *request).num_tokens(), 63 * 4);
}

TEST(SlidingWindowManagerTest, SkipsWhatNoLaterTokenSees) {
  const auto manager = Manager(20, {Window(4, 6)}, {.max_model_len = 100});
  const SingleTypeManager& group = manager->group(0);
  for (int64_t n = 0; n < 40; ++n) {
    EXPECT_EQ(group.NumSkippedTokens(n), std::max<int64_t>(0, n - 5)) << n;
  }
  EXPECT_FALSE(group.is_full_type());
}

TEST(SlidingWindowManagerTest, StepsReturnBlocksDeepestFirstAndTableKeepsItsPositions) {
  const auto manager = Manager(12, {Window(2, 4)}, {.enable_caching = false});
  const auto request = NewRequest(*manager, Tokens(12));
  EXPECT_EQ(*Step(*manager, *request, 8), (Lists{{1, 2, 3, 4}}));
  EXPECT_EQ(*Step(*manager, *request, 4), (Lists{{2, 1}}));  // freed, then taken at once
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(0, 0, 3, 4, 2, 1));
  ASSERT_TRUE(manager->RemoveSkippedBlocks(*request, 12).ok());
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(0, 0, 0, 0, 2, 1));
  EXPECT_EQ(Queue(*manager).front(), 4);
  ASSERT_TRUE(manager->RemoveSkippedBlocks(*request, 12).ok());  // nothing left to return
  ASSERT_TRUE(manager->RemoveSkippedBlocks(*request, 1'000).ok());
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
  ASSERT_TRUE(manager->Free(*request).ok());
  EXPECT_EQ(manager->usage(), 0.0);
}

TEST(SlidingWindowManagerTest, TokensInFlightKeepTheirWindow) {
  const auto manager = Manager(12, {Window(2, 4)});
  const auto request = NewRequest(*manager, Tokens(12));
  ASSERT_TRUE(Step(*manager, *request, 8));
  request->set_num_inflight_tokens(8);
  ASSERT_TRUE(Step(*manager, *request, 2));
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(1, 2, 3, 4, 5));
  request->set_num_inflight_tokens(4);
  ASSERT_TRUE(Step(*manager, *request, 2));
  EXPECT_EQ(manager->GetBlocks(*request, 0)[0], kNullBlockId);
  EXPECT_EQ(manager->GetBlocks(*request, 0)[1], 2);
}

TEST(SlidingWindowManagerTest, CommonPrefixIsAlwaysZero) {
  const auto manager = Manager(12, {Window(4, 100)});
  const auto request = NewRequest(*manager, Tokens(12));
  ASSERT_TRUE(Step(*manager, *request, 12));
  EXPECT_THAT(manager->GetNumCommonPrefixBlocks(*request), ElementsAre(0));
}

}  // namespace
}  // namespace kvblocks
