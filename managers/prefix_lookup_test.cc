#include "kvblocks/managers/prefix_lookup.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

TEST(PrefixLookupTest, HitsEndOnABlockBoundaryOfEveryGroup) {
  const auto manager = Manager(60, {Full(4), Full(6)});
  EXPECT_EQ(manager->scheduler_block_size(), 12);
  EXPECT_EQ(manager->hash_block_size(), 2);
  const auto donor = NewRequest(*manager, Tokens(40));
  ASSERT_TRUE(Step(*manager, *donor, 40));
  const ComputedBlocks hits = Hits(*manager, *NewRequest(*manager, Tokens(40)));
  EXPECT_EQ(hits.num_tokens(), 36);
  EXPECT_EQ(hits.blocks(0).size(), 9u);
  EXPECT_EQ(hits.blocks(1).size(), 6u);
}

TEST(PrefixLookupTest, NothingIsRegisteredBehindTheLastCommonBoundary) {
  const auto manager = Manager(60, {Full(4), Full(6)});
  const auto donor = NewRequest(*manager, Tokens(23));
  ASSERT_TRUE(Step(*manager, *donor, 23));
  EXPECT_EQ(manager->pool().num_keyed_blocks(), 3 + 2);  // 12 tokens
}

TEST(PrefixLookupTest, EqualSpecsAreLookedUpTogether) {
  const auto manager = Manager(60, {Window(4, 5), Full(4), Window(4, 5)});
  const auto donor = NewRequest(*manager, Tokens(16));
  ASSERT_TRUE(Step(*manager, *donor, 16));
  // The block of position 1 in the third group.
  ASSERT_TRUE(manager->EvictBlocks({manager->GetBlocks(*donor, 2)[1]}).ok());
  const auto request = NewRequest(*manager, Tokens(9));
  const ComputedBlocks hits = Hits(*manager, *request);
  EXPECT_EQ(hits.num_tokens(), 4);
  for (GroupId g = 0; g < 3; ++g) EXPECT_EQ(hits.blocks(g).size(), 1u) << g;
  EXPECT_EQ(hits.shared_prefix_boundary(), 8);  // the full group could have served more
}

TEST(PrefixLookupTest, NoBoundaryWhereEveryGroupServesTheHit) {
  const auto manager = Manager(60, {Full(4), Window(4, 5)});
  const auto donor = NewRequest(*manager, Tokens(16));
  ASSERT_TRUE(Step(*manager, *donor, 16));
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(17))).shared_prefix_boundary(), 0);
}

TEST(PrefixLookupTest, DraftGroupRegistersTheBlockThatItsLookupDrops) {
  KvCacheConfig config = Config(60, {Full(4), Full(8)});
  config.groups[0].is_draft = true;
  const auto manager = Manager(config, {.use_eagle = true});
  const auto donor = NewRequest(*manager, Tokens(12));
  ASSERT_TRUE(Step(*manager, *donor, 12));
  EXPECT_EQ(manager->pool().num_keyed_blocks(), 3 + 1);
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(13))).num_tokens(), 8);
  ASSERT_TRUE(manager->EvictBlocks({manager->GetBlocks(*donor, 0)[2]}).ok());
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(13))).num_tokens(), 0);
}

// Whatever is evicted, the hit is the longest length at which every group holds all it needs.
TEST(PrefixLookupTest, HitIsTheLongestCommonOne) {
  const std::vector<std::vector<KvCacheSpec>> models = {
      {Full(4), Window(4, 5)},
      {Window(4, 9), Full(4), Window(4, 13)},
      {Window(2, 4), Window(4, 9)},
      {Full(8), Window(2, 6), Mla(4)},
      {Full(4), Chunked(4, 8), Window(4, 6)},
  };
  std::mt19937_64 random(5);
  for (const auto& specs : models) {
    for (int round = 0; round < 150; ++round) {
      const auto manager = Manager(200, specs);
      const auto donor = NewRequest(*manager, Tokens(64));
      ASSERT_TRUE(Step(*manager, *donor, 64));
      std::vector<BlockId> evicted;
      for (BlockId id = 1; id < 200; ++id) {
        if (random() % 8 == 0) evicted.push_back(id);
      }
      ASSERT_TRUE(manager->EvictBlocks(evicted).ok());
      const auto request = NewRequest(*manager, Tokens(40 + static_cast<int64_t>(random() % 26)));
      const auto usable = [&](int64_t length) {
        for (GroupId g = 0; g < manager->num_groups(); ++g) {
          const SingleTypeManager& group = manager->group(g);
          for (int64_t i = group.NumSkippedTokens(length) / group.block_size();
               i < length / group.block_size(); ++i) {
            const BlockId id = manager->GetBlocks(*donor, g)[static_cast<size_t>(i)];
            if (!manager->pool().block(id).has_key()) return false;
          }
        }
        return true;
      };
      int64_t longest = request->num_tokens() - 1;
      while (longest % manager->scheduler_block_size() != 0 || !usable(longest)) --longest;
      const ComputedBlocks hits = Hits(*manager, *request);
      ASSERT_EQ(hits.num_tokens(), longest);
      for (GroupId g = 0; g < manager->num_groups(); ++g) {
        ASSERT_EQ(static_cast<int64_t>(hits.blocks(g).size()),
                  longest / manager->group(g).block_size());
      }
      ASSERT_TRUE(Step(*manager, *request, 1).has_value());
    }
  }
}

}  // namespace
}  // namespace kvblocks
