// Keys of prefixes that a block has beside its own: V-20.

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/testing/get_new_blocks.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Hash blocks of 2 tokens: 0, 1, ... up to `shared`, then others.
PrefixContent Content(int64_t num_tokens, int64_t shared) {
  static const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kXxh3_128, "seed"), 2});
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), 0);
  for (int64_t i = shared; i < num_tokens; ++i) tokens[static_cast<size_t>(i)] += 100;
  return PrefixContent::FromTokens({.token_ids = std::move(tokens)}, hashing).value();
}

class BlockPoolTailsTest : public ::testing::Test {
 protected:
  BlockPoolTailsTest()
      : pool_(BlockPool::Create({.num_blocks = 8, .enable_events = true}).value()),
        ids_(GetNewBlocks(*pool_, 3).value()) {}
  ~BlockPoolTailsTest() override {
    EXPECT_TRUE(pool_->CheckInvariants().ok()) << pool_->CheckInvariants();
  }

  bool RegisterTail(const PrefixContent& content, BlockId id, int64_t num_tokens,
                    GroupId group = 0) {
    return pool_->RegisterPartialBlock(content, id, num_tokens, 8, group, /*adds_further_keys=*/true);
  }
  void RegisterBlock(const PrefixContent& content, BlockId id) {
    const BlockId table[] = {id};
    pool_->CacheFullBlocks(content, table, 0, 1, 8, 0);
  }
  // How many removals are reported next.
  int NumRemovals() {
    int count = 0;
    for (const KvEvent& event : pool_->TakeEvents()) {
      count += std::holds_alternative<BlockRemoved>(event);
    }
    return count;
  }

  std::unique_ptr<BlockPool> pool_;
  std::vector<BlockId> ids_;
};

TEST_F(BlockPoolTailsTest, AFullBlockIsAlsoFoundByItsTail) {
  const PrefixContent content = Content(8, 8);
  RegisterBlock(content, ids_[0]);
  EXPECT_FALSE(pool_->RegisterPartialBlock(content, ids_[0], 4, 8, 0, /*adds_further_keys=*/false));
  EXPECT_TRUE(RegisterTail(content, ids_[0], 4));
  EXPECT_FALSE(RegisterTail(content, ids_[0], 4)) << "it has that key";
  EXPECT_EQ(pool_->FindCached(content.HashOfBlock(1, 1), 0), ids_[0]);
  EXPECT_EQ(pool_->FindCached(content.HashOfBlock(1, 1), 1), kNullBlockId) << "another group";
  EXPECT_EQ(pool_->partial_tokens(ids_[0]), 0);
  EXPECT_EQ(pool_->num_keys(), 2);
  EXPECT_THAT(pool_->further_keys(ids_[0]),
              ElementsAre(BlockPool::FurtherKey{content.HashOfBlock(1, 1), 0}));

  pool_->TakeEvents();
  ASSERT_TRUE(pool_->EvictBlocks(absl::MakeConstSpan(&ids_[0], 1)).ok());
  EXPECT_EQ(NumRemovals(), 2);
  EXPECT_EQ(pool_->FindCached(content.HashOfBlock(1, 1), 0), kNullBlockId);
  EXPECT_THAT(pool_->further_keys(ids_[0]), IsEmpty());
}

TEST_F(BlockPoolTailsTest, TheEarliestBlockOfATailIsFound) {
  const PrefixContent longer = Content(8, 8);
  const PrefixContent other = Content(8, 4);
  // A further key of the first block, then the own key of the second.
  RegisterBlock(longer, ids_[0]);
  ASSERT_TRUE(RegisterTail(longer, ids_[0], 4));
  ASSERT_TRUE(RegisterTail(other, ids_[1], 4));
  EXPECT_EQ(pool_->FindCached(other.HashOfBlock(1, 1), 0), ids_[0]);
  // Without the first, a further key of the third comes behind the second's own.
  RegisterBlock(other, ids_[2]);
  ASSERT_TRUE(RegisterTail(other, ids_[2], 4));
  ASSERT_TRUE(pool_->EvictBlocks(absl::MakeConstSpan(&ids_[0], 1)).ok());
  EXPECT_EQ(pool_->FindCached(other.HashOfBlock(1, 1), 0), ids_[1]);
  ASSERT_TRUE(pool_->EvictBlocks(absl::MakeConstSpan(&ids_[1], 1)).ok());
  EXPECT_EQ(pool_->FindCached(other.HashOfBlock(1, 1), 0), ids_[2]);
}

TEST_F(BlockPoolTailsTest, ALongerTailReplacesAllShorterKeys) {
  const PrefixContent content = Content(8, 8);
  ASSERT_TRUE(RegisterTail(content, ids_[0], 4));
  ASSERT_TRUE(RegisterTail(content, ids_[0], 2));
  EXPECT_EQ(pool_->partial_tokens(ids_[0]), 4);
  pool_->TakeEvents();
  ASSERT_TRUE(RegisterTail(content, ids_[0], 6));
  EXPECT_EQ(NumRemovals(), 2);
  EXPECT_EQ(pool_->partial_tokens(ids_[0]), 6);
  EXPECT_EQ(pool_->num_keys(), 1);
}

// A block that was adopted although another group has taken it may get keys of both.
TEST_F(BlockPoolTailsTest, AFurtherKeyKeepsItsGroup) {
  const PrefixContent content = Content(8, 8);
  RegisterBlock(content, ids_[0]);
  ASSERT_TRUE(RegisterTail(content, ids_[0], 4, /*group=*/1));
  EXPECT_EQ(pool_->FindCached(content.HashOfBlock(1, 1), 1), ids_[0]);
  EXPECT_FALSE(pool_->HasKey(ids_[0], content.HashOfBlock(1, 1), 0));
  EXPECT_TRUE(pool_->HasKey(ids_[0], content.HashOfBlock(1, 1), 1));
  ASSERT_TRUE(pool_->EvictBlocks(absl::MakeConstSpan(&ids_[0], 1)).ok());
  EXPECT_EQ(pool_->FindCached(content.HashOfBlock(1, 1), 1), kNullBlockId);
  EXPECT_EQ(pool_->num_keys(), 0);
}

TEST_F(BlockPoolTailsTest, AResetForgetsFurtherKeys) {
  const PrefixContent content = Content(8, 8);
  RegisterBlock(content, ids_[0]);
  ASSERT_TRUE(RegisterTail(content, ids_[0], 4));
  pool_->FreeBlocks(ids_);
  ASSERT_TRUE(pool_->ResetPrefixCache());
  EXPECT_EQ(pool_->FindCached(content.HashOfBlock(1, 1), 0), kNullBlockId);
  EXPECT_EQ(pool_->num_keys(), 0);
}

}  // namespace
}  // namespace kvblocks
