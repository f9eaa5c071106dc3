#include <memory>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block_pool/testing/get_new_blocks.h"
#include "kvblocks/managers/explain/lookup_explanation.h"
#include "kvblocks/managers/single_type_manager.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

TEST(ChunkedLocalAttentionManagerTest, SkipsWholeChunksOnly) {
  const auto manager = Manager(20, {Chunked(4, 12)});
  const SingleTypeManager& group = manager->group(0);
  for (int64_t n = 0; n < 50; ++n) EXPECT_EQ(group.NumSkippedTokens(n), n / 12 * 12) << n;
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

TEST(ChunkedLocalAttentionManagerTest, FinishedChunkReturnsItsBlocks) {
  const auto manager = Manager(12, {Chunked(4, 8)}, {.enable_caching = false});
  const auto request = NewRequest(*manager, Tokens(20));
  ASSERT_TRUE(Step(*manager, *request, 15));
  ASSERT_TRUE(Step(*manager, *request, 1));
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(0, 0, 3, 4));
  ASSERT_TRUE(Step(*manager, *request, 1));
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(0, 0, 0, 0, 4));
}

TEST(ChunkedLocalAttentionManagerTest, HitOfNullsCanBeAdopted) {
  const auto manager = Manager(12, {Chunked(4, 8)});
  const auto request = NewRequest(*manager, Tokens(17));
  const ComputedBlocks hits = Hits(*manager, *request);
  EXPECT_EQ(hits.num_tokens(), 16);
  EXPECT_EQ(*Step(*manager, *request, 1), (Lists{{1}}));
  EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(0, 0, 0, 0, 1));
  EXPECT_THAT(manager->GetNumCommonPrefixBlocks(*request), ElementsAre(0));
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

}  // namespace
}  // namespace kvblocks
