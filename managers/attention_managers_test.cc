#include <algorithm>
#include <memory>
#include <numeric>
#include <tuple>
#include <vector>

#include "block_pool/testing/get_new_blocks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/lookup_explanation.h"
#include "kvblocks/single_type_manager.h"
#include "managers/testing/test_models.h"

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
            // What is there, from the first token, is less than a window and the block to drop
            // (V-36).
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
    if (Searches() == 0)
      GTEST_SKIP() << "counted in debug builds only, such as ./test.sh runs unit tests in";
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

TEST(SlidingWindowManagerTest, CommonPrefixIsAlwaysZero) {
  const auto manager = Manager(12, {Window(4, 100)});
  const auto request = NewRequest(*manager, Tokens(12));
  ASSERT_TRUE(Step(*manager, *request, 12));
  EXPECT_THAT(manager->GetNumCommonPrefixBlocks(*request), ElementsAre(0));
}

// Every pattern of cached positions and every length: nulls up to the last chunk, then the cached
// run of that chunk.
TEST(ChunkedLocalAttentionManagerTest, EveryPatternGivesTheRunOfTheLastChunk) {
  constexpr int64_t kBlock = 2;
  constexpr int kPositions = 8;
  const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kXxh3_128, "seed"), kBlock});
  const PrefixContent content =
      PrefixContent::FromTokens({.token_ids = Tokens(kPositions * kBlock + 1)}, hashing).value();
  for (int64_t chunk : {2, 4, 6, 16, 64}) {
    auto pool = BlockPool::Create({.num_blocks = kPositions + 1}).value();
    const auto manager =
        SingleTypeManager::Create(Chunked(kBlock, chunk), {.hash_block_size = kBlock}, pool.get())
            .value();
    const auto table = GetNewBlocks(*pool, kPositions).value();
    for (unsigned bits = 0; bits < 1u << kPositions; ++bits) {
      std::vector<uint8_t> mask(kPositions);
      for (int i = 0; i < kPositions; ++i) mask[static_cast<size_t>(i)] = bits >> i & 1;
      pool->CacheFullBlocks(content, table, 0, kPositions, kBlock, 0, mask);
      for (int64_t max_tokens = 0; max_tokens <= 16; ++max_tokens) {
        std::vector<BlockId> list(static_cast<size_t>(max_tokens / chunk * chunk / kBlock),
                                  kNullBlockId);
        while (static_cast<int64_t>(list.size()) < max_tokens / kBlock && mask[list.size()]) {
          list.push_back(table[list.size()]);
        }
        HitLists lists(1);
        static constexpr GroupId kGroup[] = {0};
        ASSERT_EQ(manager->FindLongestCacheHit({.content = &content,
                                                .groups = kGroup,
                                                .max_tokens = max_tokens,
                                                .alignment = kBlock},
                                               lists),
                  static_cast<int64_t>(list.size()) * kBlock);
        ASSERT_EQ(lists[0], list) << "chunk " << chunk << " bits " << bits << " of " << max_tokens;
      }
      ASSERT_TRUE(pool->EvictBlocks(table).ok());
    }
  }
}

// With look-ahead hashes the last whole chunk may have no hash yet. It counts as computed all the
// same, as in vLLM 0.33; a position inside the last chunk counts only if it is hashed and cached.
TEST(ChunkedLocalAttentionManagerTest, ChunksThatAreNotHashedYetAreHit) {
  for (const auto& [chunk, num_tokens, hit] :
       {std::tuple{4, 18, 16}, {4, 17, 16}, {4, 16, 12}, {8, 18, 16}, {8, 15, 8}, {8, 23, 16}}) {
    const auto manager = Manager(40, {Chunked(4, chunk)}, {.num_hash_lookahead_tokens = 6});
    const auto request = NewRequest(*manager, Tokens(num_tokens));
    EXPECT_EQ(Hits(*manager, *request).num_tokens(), hit) << chunk << " of " << num_tokens;
    const LookupExplanation why = ExplainLookup(*manager, *request).value();
    EXPECT_EQ(why.num_hit_tokens, hit);
    int64_t missed = 0;
    for (const MissedRun& run : why.missed) missed += run.num_tokens;
    EXPECT_EQ(hit + missed, num_tokens);
    EXPECT_TRUE(Step(*manager, *request, num_tokens - hit)) << chunk << " of " << num_tokens;
  }
}

// V-1: sparse retention is for windows and states. A chunk's blocks are registered whatever the
// interval, as are those of full attention, and such groups alone are no reason to set one.
TEST(ChunkedLocalAttentionManagerTest, RetentionIntervalIsIgnored) {
  const auto keyed = [](const KvCacheManager& manager, const Request& request, GroupId g) {
    int64_t count = 0;
    for (BlockId id : manager.GetBlocks(request, g)) count += manager.pool().block(id).has_key();
    return count;
  };
  for (int64_t interval : {0, 16}) {
    KvCacheManagerOptions options{.max_model_len = 100};
    options.semantics.retention_interval = interval;
    const auto manager =
        KvCacheManager::Create(Config(60, {Full(4), Window(4, 5), Chunked(4, 8)}), options).value();
    const auto request = NewRequest(*manager, Tokens(33), "r", /*skip_reading=*/true);
    ASSERT_TRUE(Step(*manager, *request, 33));
    EXPECT_EQ(keyed(*manager, *request, 0), 8);
    EXPECT_EQ(keyed(*manager, *request, 1), interval == 0 ? 1 : 2);
    EXPECT_EQ(keyed(*manager, *request, 2), 8);
    // Nor do hits within the prompt end earlier for the chunks' sake.
    const auto alone = KvCacheManager::Create(Config(60, {Full(4), Chunked(4, 8)}),
                                              {.max_model_len = 100}).value();
    ASSERT_TRUE(Step(*alone, *NewRequest(*alone, Tokens(33)), 33));
    EXPECT_EQ(Hits(*alone, *NewRequest(*alone, Tokens(23))).num_tokens(), 20);
  }
  KvCacheManagerOptions options{.max_model_len = 100};
  options.semantics.retention_interval = 16;
  EXPECT_THAT(std::string(KvCacheManager::Create(Config(60, {Full(4), Chunked(4, 8)}), options)
                              .status()
                              .message()),
              testing::HasSubstr("expected 0 or none without a window or Mamba group"));
}

TEST(FullAttentionManagerTest, LookupProbesTheHitsAndOneMore) {
  const auto manager = Manager(40, {Full(4)});
  const auto donor = NewRequest(*manager, Tokens(20));
  ASSERT_TRUE(Step(*manager, *donor, 20));
  const auto request = NewRequest(*manager, Tokens(100));
  const int64_t before = PrefixHashTable::NumSearchesForTest();
  if (before == 0)
    GTEST_SKIP() << "counted in debug builds only, such as ./test.sh runs unit tests in";
  EXPECT_EQ(Hits(*manager, *request).num_tokens(), 20);
  EXPECT_EQ(PrefixHashTable::NumSearchesForTest() - before, 6);
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

}  // namespace
}  // namespace kvblocks
