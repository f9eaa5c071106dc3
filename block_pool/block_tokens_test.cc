#include "kvblocks/prefix_content.h"

#include <rapidcheck.h>

#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "block_pool/testing/pool_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block_pool.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const PrefixHashing> SomeHashing() {
  return std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kXxh3_128, "seed"), 4});
}

PrefixContent ContentOf(std::vector<TokenId> tokens, std::string salt = "") {
  return PrefixContent::FromTokens({.token_ids = std::move(tokens), .cache_salt = std::move(salt)},
                                   SomeHashing())
      .value();
}

std::vector<TokenId> Consecutive(TokenId first, size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// V-10: what the hash covers is compared.
TEST(BlockTokensTest, LookaheadTokensAndTheirExtraKeysAreCompared) {
  const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(HashAlgorithm::kXxh3_128, "seed"),
                    .hash_block_size = 4,
                    .num_lookahead_tokens = 2});
  const auto content = [&](TokenId sixth, TokenId seventh, int64_t image_at) {
    return PrefixContent::FromTokens(
               {.token_ids = {0, 1, 2, 3, 4, sixth, seventh}, .features = {{"image", image_at, 1}}},
               hashing)
        .value();
  };
  BlockTokens blocks(2, 6);
  blocks.Store(1, content(5, 6, 6), 0, 4);
  EXPECT_TRUE(blocks.Matches(1, content(5, 6, 6), 0, 4));
  EXPECT_TRUE(blocks.Matches(1, content(5, 9, 6), 0, 4));
  EXPECT_FALSE(blocks.Matches(1, content(9, 6, 6), 0, 4));
  EXPECT_FALSE(blocks.Matches(1, content(5, 6, 5), 0, 4));
}

TEST(BlockTokensTest, ContentWithoutTokensMatchesNothing) {
  BlockTokens blocks(2, 4);
  const PrefixContent stored = ContentOf(Consecutive(0, 4));
  blocks.Store(1, stored, 0, 4);
  const auto hashed =
      PrefixContent::FromHashes(4, {stored.hashes().begin(), stored.hashes().end()}, SomeHashing());
  EXPECT_FALSE(blocks.Matches(1, hashed.value(), 0, 4));
}

// Few different contents, so that they meet often.
TEST(BlockTokensTest, RandomStoresMatchAMap) {
  const bool holds = rc::check([] {
    BlockTokens blocks(5, 4);
    std::map<BlockId, std::tuple<TokenId, int64_t, std::string>> model;
    const auto steps = *rc::gen::container<std::vector<std::vector<int>>>(
        rc::gen::container<std::vector<int>>(4, rc::gen::inRange(0, 4)));
    for (const std::vector<int>& step : steps) {
      const BlockId id = 1 + step[0];
      const std::string salt(static_cast<size_t>(step[3] % 3), 's');
      const PrefixContent content = ContentOf(Consecutive(step[1] % 2, 4), salt);
      const int64_t end = 1 + step[2];
      const std::tuple<TokenId, int64_t, std::string> now = {step[1] % 2, end, salt};
      RC_ASSERT(blocks.Matches(id, content, 0, end) == (model.contains(id) && model[id] == now));
      blocks.Store(id, content, 0, end);
      model[id] = now;
    }
  });
  EXPECT_TRUE(holds);
}

class ComparingPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    pool_->CacheFullBlocks(cached_, table_, 0, 3, 4, 0);
    for (size_t i : {1, 2}) PrefixContentPeer::CopyHash(cached_, i, colliding_);
  }

  std::unique_ptr<BlockPool> pool_ =
      *BlockPool::Create({.num_blocks = 10, .compared_block_size = 4});
  const std::vector<BlockId> table_ = *GetNewBlocks(*pool_, 3);
  const PrefixContent cached_ = ContentOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  // Its second and third block have the hashes of the cached ones, the second other tokens.
  PrefixContent colliding_ = ContentOf({1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12});
};

TEST_F(ComparingPoolTest, CollisionIsAMiss) {
  EXPECT_EQ(pool_->FindCached(cached_, 1, 1, 0), table_[1]);
  EXPECT_EQ(pool_->FindCached(colliding_.HashOfBlock(1, 1), 0), table_[1]);  // by hash
  EXPECT_EQ(pool_->FindCached(colliding_, 1, 1, 0), kNullBlockId);
  EXPECT_EQ(pool_->FindCached(colliding_, 2, 1, 0), table_[2]);  // same tokens
  EXPECT_FALSE(pool_->Matches(table_[1], colliding_, 1, 1));
}

TEST_F(ComparingPoolTest, RunEndsAtACollision) {
  std::vector<BlockId> out(3);
  EXPECT_EQ(pool_->FindCachedRun(cached_, 0, 1, 0, absl::MakeSpan(out)), 3);
  EXPECT_EQ(out, table_);
  EXPECT_EQ(pool_->FindCachedRun(colliding_, 0, 1, 0, absl::MakeSpan(out)), 1);
}

TEST(ComparingPoolCreateTest, ImpossibleBlockSizeIsRefused) {
  EXPECT_THAT(BlockPool::Create({.num_blocks = 2, .compared_block_size = -1}).status().ToString(),
              HasSubstr("compared_block_size is -1 tokens, expected 0 to 1048576"));
  EXPECT_FALSE(BlockPool::Create({.num_blocks = 2, .compared_block_size = 1 << 21}).ok());
}

}  // namespace
}  // namespace kvblocks
