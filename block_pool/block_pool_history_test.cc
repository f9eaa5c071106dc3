// What a pool with history_keys remembers of what left its prefix cache.

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/testing/get_new_blocks.h"

namespace kvblocks {
namespace {

BlockHash Hash(uint64_t n) { return {{n, ~n, 0, 0}}; }

class BlockPoolHistoryTest : public ::testing::Test {
 protected:
  // Takes and registers `hashes`, one block each, in group 0.
  std::vector<BlockId> Cache(const std::vector<BlockHash>& hashes, GroupId group = 0) {
    const auto hashing = std::make_shared<const PrefixHashing>();
    const auto content =
        PrefixContent::FromHashes(16 * static_cast<int64_t>(hashes.size()), hashes, hashing)
            .value();
    const auto ids = GetNewBlocks(*pool_, static_cast<int64_t>(hashes.size())).value();
    pool_->CacheFullBlocks(content, ids, 0, static_cast<int64_t>(ids.size()), 16, group);
    return ids;
  }
  LookupHistory::Removal Removal(uint64_t n, GroupId group = 0) {
    const auto removal = pool_->history()->FindRemoval(Hash(n), group);
    EXPECT_TRUE(removal.has_value()) << n;
    return removal.value_or(LookupHistory::Removal{.num_blocks_taken = -1});
  }

  std::unique_ptr<BlockPool> pool_ =
      BlockPool::Create({.num_blocks = 5, .history_keys = 8}).value();
};

TEST_F(BlockPoolHistoryTest, IsOffByDefault) {
  const auto pool = BlockPool::Create({.num_blocks = 5}).value();
  EXPECT_EQ(pool->history(), nullptr);
  ASSERT_TRUE(GetNewBlocks(*pool, 3).has_value());
  EXPECT_EQ(pool->num_blocks_taken(), 3);
}

TEST_F(BlockPoolHistoryTest, IsOffWithoutCaching) {
  const auto pool =
      BlockPool::Create({.num_blocks = 5, .enable_caching = false, .history_keys = 8}).value();
  EXPECT_EQ(pool->history(), nullptr);
}

TEST_F(BlockPoolHistoryTest, CountsBlocksTakenNotBlocksAskedFor) {
  ASSERT_FALSE(GetNewBlocks(*pool_, 5).has_value());
  EXPECT_EQ(pool_->num_blocks_taken(), 0);
  const auto ids = GetNewBlocks(*pool_, 2).value();
  pool_->Touch(ids);
  EXPECT_EQ(pool_->num_blocks_taken(), 2);
  ASSERT_TRUE(pool_->TakePermanentBlocks(1).ok());
  EXPECT_EQ(pool_->num_blocks_taken(), 3);
}

TEST_F(BlockPoolHistoryTest, RemembersWhenABlockWasReused) {
  const auto ids = Cache({Hash(1), Hash(2)});
  EXPECT_FALSE(pool_->history()->FindRemoval(Hash(1), 0).has_value());
  pool_->FreeBlocks(ids);
  ASSERT_TRUE(GetNewBlocks(*pool_, 1).has_value());  // a free one
  ASSERT_TRUE(GetNewBlocks(*pool_, 2).has_value());  // the other free one, and Hash(1)
  EXPECT_EQ(Removal(1).num_blocks_taken, 3);         // before the call that took the block
  EXPECT_TRUE(Removal(1).was_reused);
  EXPECT_FALSE(pool_->history()->FindRemoval(Hash(2), 0).has_value());
  EXPECT_FALSE(pool_->history()->FindRemoval(Hash(1), 1).has_value());
  EXPECT_EQ(pool_->num_blocks_taken(), 5);
}

TEST_F(BlockPoolHistoryTest, AKeyLeavesWithItsLastBlock) {
  const auto first = Cache({Hash(1)});
  const auto second = Cache({Hash(1)});
  ASSERT_TRUE(pool_->EvictBlocks(first).ok());
  EXPECT_EQ(pool_->history()->num_removals(), 0);
  ASSERT_TRUE(pool_->EvictBlocks(second).ok());
  EXPECT_EQ(Removal(1).num_blocks_taken, 2);
  EXPECT_FALSE(Removal(1).was_reused);
}

TEST_F(BlockPoolHistoryTest, AResetRemovesEachKeyOnce) {
  std::vector<BlockId> ids = Cache({Hash(1), Hash(2)});
  const auto same = Cache({Hash(1)});
  ids.insert(ids.end(), same.begin(), same.end());
  ASSERT_FALSE(pool_->ResetPrefixCache());
  EXPECT_EQ(pool_->history()->num_removals(), 0);
  pool_->FreeBlocks(ids);
  ASSERT_TRUE(pool_->ResetPrefixCache());
  EXPECT_EQ(pool_->history()->num_removals(), 2);
  EXPECT_FALSE(Removal(1).was_reused);
  EXPECT_EQ(Removal(2).num_blocks_taken, 3);
}

TEST_F(BlockPoolHistoryTest, IsCompleteUntilItForgets) {
  for (uint64_t n = 0; n < 9; ++n) {
    const auto ids = Cache({Hash(n)});
    ASSERT_TRUE(pool_->EvictBlocks(ids).ok());
    pool_->FreeBlocks(ids);
    EXPECT_EQ(pool_->history()->is_complete(), n < 8);
  }
  EXPECT_FALSE(pool_->history()->FindRemoval(Hash(0), 0).has_value());
  EXPECT_TRUE(pool_->history()->FindRemoval(Hash(1), 0).has_value());
}

TEST_F(BlockPoolHistoryTest, RefusesWhatIsNoNumberOfKeys) {
  EXPECT_EQ(BlockPool::Create({.num_blocks = 5, .history_keys = -1}).status().message(),
            "history_keys is -1, expected 0 to 2147483646");
  EXPECT_FALSE(
      BlockPool::Create({.num_blocks = 5, .history_keys = std::numeric_limits<int64_t>::max()})
          .ok());
}

TEST(LookupHistoryTest, KnowsTheLatestVariant) {
  const auto history = LookupHistory::Create(4);
  EXPECT_FALSE(history->HasOtherVariant(Hash(1), Hash(2)));
  history->OnVariantStored(Hash(1), Hash(2));
  EXPECT_FALSE(history->HasOtherVariant(Hash(1), Hash(2)));  // that very content
  EXPECT_TRUE(history->HasOtherVariant(Hash(1), Hash(1)));
  EXPECT_TRUE(history->HasOtherVariant(Hash(1), Hash(3)));
  EXPECT_FALSE(history->HasOtherVariant(Hash(3), Hash(1)));
  history->OnVariantStored(Hash(5), Hash(5));  // no extra keys up to here
  EXPECT_FALSE(history->HasOtherVariant(Hash(5), Hash(6)));
}

TEST(LookupHistoryTest, SaysItsMemory) {
  EXPECT_EQ(LookupHistory::BytesFor(1'000'000), 96'000'000);
}

}  // namespace
}  // namespace kvblocks
