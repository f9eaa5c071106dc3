#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/testing/get_new_blocks.h"
#include "kvblocks/block_pool/testing/prefix_content_peer.h"

namespace kvblocks {
namespace {

PrefixContent Content(int64_t hash_block_size, PrefixContent::Options options = {},
                      int64_t num_lookahead_tokens = 0) {
  const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(HashAlgorithm::kSha256, "seed"),
                    .hash_block_size = hash_block_size,
                    .num_lookahead_tokens = num_lookahead_tokens,
                    .keep_plain_hashes = true});
  if (options.token_ids.empty()) options.token_ids = {1, 2, 3, 4, 5, 6, 7, 8};
  return PrefixContent::FromTokens(std::move(options), hashing).value();
}

TEST(BlockPoolPartialTest, LongerPrefixesReplaceShorterOnesAndFullBlocksAll) {
  const auto pool = BlockPool::Create({.num_blocks = 4, .enable_events = true}).value();
  const PrefixContent content = Content(2);
  const std::vector<BlockId> table = GetNewBlocks(*pool, 1).value();
  const BlockId id = table[0];
  EXPECT_TRUE(pool->RegisterPartialBlock(content, id, 4, 8, 0));
  EXPECT_FALSE(pool->RegisterPartialBlock(content, id, 4, 8, 0));
  EXPECT_FALSE(pool->RegisterPartialBlock(content, id, 2, 8, 0));
  EXPECT_EQ(pool->TakeEvents().size(), 1u);
  EXPECT_TRUE(pool->RegisterPartialBlock(content, id, 6, 8, 0));
  EXPECT_EQ(pool->TakeEvents().size(), 2u);
  EXPECT_EQ(pool->partial_tokens(id), 6);
  EXPECT_EQ(pool->FindCached(content, 1, 1, 0), kNullBlockId);
  EXPECT_EQ(pool->FindCached(content, 2, 1, 0), id);
  pool->FreeBlocks(table);
  pool->CacheFullBlocks(content, table, 0, 1, 8, 0);
  EXPECT_EQ(pool->partial_tokens(id), 0);
  EXPECT_FALSE(pool->RegisterPartialBlock(content, id, 6, 8, 0));
  EXPECT_EQ(pool->num_keys(), 1);
  EXPECT_TRUE(pool->CheckInvariants().ok()) << pool->CheckInvariants();
}

TEST(BlockPoolPartialTest, KeysOfABlockAreTheFirstAndTheFurtherOnes) {
  const auto pool = BlockPool::Create({.num_blocks = 4}).value();
  const PrefixContent content = Content(2);
  const std::vector<BlockId> table = GetNewBlocks(*pool, 2).value();
  EXPECT_FALSE(pool->HasKey(table[0], content.hashes()[3], 0));
  pool->CacheFullBlocks(content, table, 0, 1, 8, 0);
  ASSERT_TRUE(pool->RegisterPartialBlock(content, table[0], 6, 8, 0, /*adds_further_keys=*/true));
  EXPECT_TRUE(pool->HasKey(table[0], content.hashes()[3], 0));
  EXPECT_TRUE(pool->HasKey(table[0], content.hashes()[2], 0));
  EXPECT_FALSE(pool->HasKey(table[0], content.hashes()[1], 0));
  EXPECT_FALSE(pool->HasKey(table[1], content.hashes()[2], 0));
}

// A tail is compared from the start of its block to the tail, whatever else the block stands for.
TEST(BlockPoolPartialTest, TailsAreComparedTokenByToken) {
  for (int64_t lookahead : {0, 1}) {
    const auto pool = BlockPool::Create({.num_blocks = 4, .compared_block_size = 5}).value();
    const PrefixContent content =
        Content(2, {.token_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9}}, lookahead);
    const std::vector<BlockId> table = GetNewBlocks(*pool, 3).value();
    const auto find = [&](PrefixContent other) {
      for (size_t i = 0; i < 4; ++i) PrefixContentPeer::CopyHash(content, i, other);
      return pool->FindCachedTail(other, 4, 6, 0);
    };
    const auto expect_found = [&](BlockId id) {
      EXPECT_EQ(find(content), id);
      EXPECT_EQ(find(Content(2, {.token_ids = {1, 2, 3, 4, 5, 9, 7, 8, 9}}, lookahead)),
                kNullBlockId);
      // Behind the tail; a look-ahead hash stands for the next token, too.
      EXPECT_EQ(find(Content(2, {.token_ids = {1, 2, 3, 4, 5, 6, 9, 8, 9}}, lookahead)),
                lookahead == 0 ? id : kNullBlockId);
      EXPECT_EQ(find(Content(2, {.token_ids = {1, 2, 3, 4, 5, 6, 7, 9, 9}}, lookahead)), id);
      EXPECT_EQ(find(Content(2, {.token_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .lora_name = "l"},
                             lookahead)),
                kNullBlockId);
    };
    ASSERT_TRUE(pool->RegisterPartialBlock(content, table[1], 6, 4, 0));
    expect_found(table[1]);
    pool->MovePartialKey(table[1], table[2]);
    expect_found(table[2]);
    // The same in a block that is full.
    pool->CacheFullBlocks(content, table, 1, 2, 4, 0);
    ASSERT_TRUE(pool->EvictBlocks({table[2]}).ok());
    EXPECT_EQ(find(content), kNullBlockId);
    ASSERT_TRUE(pool->RegisterPartialBlock(content, table[1], 6, 4, 0, true));
    expect_found(table[1]);
  }
}

// Where nobody knows which extra keys are those of the tail, it is a miss.
TEST(BlockPoolPartialTest, AnImageBehindTheTailMakesItAMiss) {
  const auto pool = BlockPool::Create({.num_blocks = 4, .compared_block_size = 8}).value();
  const std::vector<BlockId> table = GetNewBlocks(*pool, 2).value();
  const PrefixContent inside = Content(2, {.features = {{"a", 1, 2}}});
  const PrefixContent behind = Content(2, {.features = {{"a", 7, 1}}});
  pool->CacheFullBlocks(inside, table, 0, 1, 8, 0);
  ASSERT_TRUE(pool->RegisterPartialBlock(inside, table[0], 6, 8, 0, true));
  EXPECT_EQ(pool->FindCachedTail(inside, 0, 6, 0), table[0]);
  pool->CacheFullBlocks(behind, absl::MakeConstSpan(table).subspan(1), 0, 1, 8, 0);
  ASSERT_TRUE(pool->RegisterPartialBlock(behind, table[1], 6, 8, 0, true));
  EXPECT_EQ(pool->FindCachedTail(behind, 0, 6, 0), kNullBlockId);
}

// A key counts as removed when the last block that had it, as its first key or a further one, lost
// it; not when its block came to stand for more.
TEST(BlockPoolPartialTest, TailsAreRemembered) {
  const auto pool = BlockPool::Create({.num_blocks = 4, .history_keys = 8}).value();
  const PrefixContent content = Content(2);
  const PrefixContent salted = Content(2, {.cache_salt = "s"});
  const BlockHash& tail = content.hashes()[2];
  const std::vector<BlockId> table = GetNewBlocks(*pool, 2).value();
  const auto is_removed = [&] { return pool->history()->FindRemoval(tail, 0).has_value(); };
  ASSERT_TRUE(pool->RegisterPartialBlock(content, table[0], 6, 8, 0, true));
  pool->CacheFullBlocks(content, table, 0, 1, 8, 0);
  EXPECT_FALSE(is_removed());
  ASSERT_TRUE(pool->RegisterPartialBlock(content, table[0], 6, 8, 0, true));
  ASSERT_TRUE(pool->RegisterPartialBlock(content, table[1], 6, 8, 0, true));
  ASSERT_TRUE(pool->EvictBlocks({table[1]}).ok());
  EXPECT_FALSE(is_removed());  // the other block has it
  ASSERT_TRUE(pool->RegisterPartialBlock(content, table[1], 6, 8, 0, true));
  ASSERT_TRUE(pool->EvictBlocks({table[0]}).ok());
  EXPECT_FALSE(is_removed());
  ASSERT_TRUE(pool->EvictBlocks({table[1]}).ok());
  EXPECT_TRUE(is_removed());

  EXPECT_FALSE(pool->history()->HasOtherVariant(tail, tail));
  ASSERT_TRUE(pool->RegisterPartialBlock(salted, table[0], 6, 8, 0, true));
  EXPECT_TRUE(pool->history()->HasOtherVariant(tail, tail));
}

TEST(BlockPoolPartialTest, AResetRemembersFurtherKeys) {
  const auto pool = BlockPool::Create({.num_blocks = 4, .history_keys = 8}).value();
  const PrefixContent content = Content(2);
  const std::vector<BlockId> table = GetNewBlocks(*pool, 1).value();
  pool->CacheFullBlocks(content, table, 0, 1, 8, 0);
  ASSERT_TRUE(pool->RegisterPartialBlock(content, table[0], 6, 8, 0, true));
  pool->FreeBlocks(table);
  ASSERT_TRUE(pool->ResetPrefixCache());
  EXPECT_TRUE(pool->history()->FindRemoval(content.hashes()[3], 0).has_value());
  EXPECT_TRUE(pool->history()->FindRemoval(content.hashes()[2], 0).has_value());
}

// Pages of chunks carry such keys as other blocks do.
TEST(BlockPoolPartialTest, ChunksThatAreLentTakeTheKeysWithThem) {
  const auto pool =
      BlockPool::Create(
          {.num_blocks = 5,
           .enable_events = true,
           .chunks = {.num_chunks = 2, .pages_per_chunk = {2, 1}, .class_of_group = {0, 1}}})
          .value();
  const PrefixContent content = Content(2);
  std::vector<BlockId> table = GetNewBlocks(*pool, 2, 0).value();
  pool->CacheFullBlocks(content, table, 0, 1, 4, 0);
  ASSERT_TRUE(pool->RegisterPartialBlock(content, table[1], 6, 4, 0));
  ASSERT_TRUE(pool->RegisterPartialBlock(content, table[0], 2, 4, 0, true));
  pool->FreeBlocks(table);
  EXPECT_TRUE(pool->CheckInvariants().ok()) << pool->CheckInvariants();
  EXPECT_EQ(pool->num_keys(), 3);
  ASSERT_TRUE(GetNewBlocks(*pool, 2, 1).has_value());
  EXPECT_EQ(pool->num_keys(), 0);
  EXPECT_EQ(pool->TakeEvents().size(), 6u);
  EXPECT_TRUE(pool->CheckInvariants().ok()) << pool->CheckInvariants();
}

}  // namespace
}  // namespace kvblocks
