#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/testing/get_new_blocks.h"

namespace kvblocks {
namespace {

PrefixContent Content(int64_t hash_block_size) {
  const auto hashing = std::make_shared<const PrefixHashing>(PrefixHashing{
      .hasher = BlockHasher(HashAlgorithm::kSha256, "seed"), .hash_block_size = hash_block_size});
  return PrefixContent::FromTokens({.token_ids = {1, 2, 3, 4, 5, 6, 7, 8}}, hashing).value();
}

TEST(BlockPoolPartialTest, LongerPrefixesReplaceShorterOnesAndFullBlocksAll) {
  const auto pool = BlockPool::Create({.num_blocks = 4, .enable_events = true}).value();
  const PrefixContent content = Content(2);
  const std::vector<BlockId> table = GetNewBlocks(*pool, 1).value();
  const BlockId id = table[0];
  EXPECT_TRUE(pool->RegisterPartialBlock(content, id, 4, 0));
  EXPECT_FALSE(pool->RegisterPartialBlock(content, id, 4, 0));
  EXPECT_FALSE(pool->RegisterPartialBlock(content, id, 2, 0));
  EXPECT_EQ(pool->TakeEvents().size(), 1u);
  EXPECT_TRUE(pool->RegisterPartialBlock(content, id, 6, 0));
  EXPECT_EQ(pool->TakeEvents().size(), 2u);
  EXPECT_EQ(pool->partial_tokens(id), 6);
  EXPECT_EQ(pool->FindCached(content, 1, 1, 0), kNullBlockId);
  EXPECT_EQ(pool->FindCached(content, 2, 1, 0), id);
  pool->FreeBlocks(table);
  pool->CacheFullBlocks(content, table, 0, 1, 8, 0);
  EXPECT_EQ(pool->partial_tokens(id), 0);
  EXPECT_FALSE(pool->RegisterPartialBlock(content, id, 6, 0));
  EXPECT_EQ(pool->num_keys(), 1);
  EXPECT_TRUE(pool->CheckInvariants().ok()) << pool->CheckInvariants();
}

}  // namespace
}  // namespace kvblocks
