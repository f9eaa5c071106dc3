// Worked examples of the block pool and its parts: WE-1 to WE-4, WE-38 and WE-39.

#include <gtest/gtest.h>

#include "block_pool/testing/get_new_blocks.h"
#include "kvblocks/block_pool.h"
#include "tests/examples/model.h"

namespace kvblocks::examples {
namespace {

std::unique_ptr<BlockPool> MakePool(int64_t num_blocks,
                                    FreeOrder order = FreeOrder::kUnhashedFirst) {
  return BlockPool::Create({.num_blocks = num_blocks, .free_order = order}).value();
}

TEST(BlockManagerExamples, WE1_Pool) {
  const auto pool = MakePool(5);
  EXPECT_EQ(pool->free_queue().Walk(), Blocks("1..4"));
  EXPECT_EQ(pool->usage(), 0.0);
  EXPECT_EQ(GetNewBlocks(*pool, 2), Blocks("1,2"));
  EXPECT_EQ(pool->free_queue().Walk(), Blocks("3,4"));
  EXPECT_EQ(pool->usage(), 0.5);
  EXPECT_EQ(GetNewBlocks(*pool, 3), std::nullopt);
  EXPECT_EQ(pool->free_queue().Walk(), Blocks("3,4"));
  EXPECT_EQ(GetNewBlocks(*pool, 0), Ids());
  EXPECT_EQ(MakePool(1)->usage(), 0.0);
}

TEST(BlockManagerExamples, WE2_FreeOrder) {
  const auto run = [](FreeOrder order, bool touched, const char* queue) {
    const auto pool = MakePool(6, order);
    ASSERT_EQ(GetNewBlocks(*pool, 3), Blocks("1..3"));
    if (touched) pool->Touch(Blocks("1"));
    pool->FreeBlocks(Blocks("3,2,1"));
    EXPECT_EQ(pool->free_queue().Walk(), Blocks(queue));
    EXPECT_EQ(pool->block(1).ref_count, touched ? 1 : 0);
  };
  run(FreeOrder::kUnhashedFirst, false, "3,2,1,4,5");
  run(FreeOrder::kAppendAll, false, "4,5,3,2,1");
  run(FreeOrder::kUnhashedFirst, true, "3,2,4,5");
  run(FreeOrder::kAppendAll, true, "4,5,3,2");
}

TEST(BlockManagerExamples, WE3_Queue) {
  BlockRecords records(6);
  FreeBlockQueue queue(&records);
  for (BlockId id : Blocks("1..5")) queue.LinkBack(id);
  queue.Unlink(3);
  EXPECT_EQ(queue.Walk(), Blocks("1,2,4,5"));
  queue.LinkBack(3);
  EXPECT_EQ(queue.Walk(), Blocks("1,2,4,5,3"));
  Ids popped(2);
  queue.PopFront(absl::MakeSpan(popped));
  EXPECT_EQ(popped, Blocks("1,2"));
  queue.LinkAfter(kUnlinked, 2);
  queue.LinkAfter(2, 1);
  EXPECT_EQ(queue.Walk(), Blocks("2,1,4,5,3"));
  queue.PopFront(absl::MakeSpan(popped).first(1));
  EXPECT_EQ(popped[0], 2);
  EXPECT_EQ(queue.size(), 4);
  EXPECT_EQ(queue.Walk(), Blocks("1,4,5,3"));
}

TEST(BlockManagerExamples, WE4_Table) {
  BlockRecords records(10);
  PrefixHashTable table(&records);
  const BlockHash key{{1, 2, 3, 4}};
  EXPECT_TRUE(table.Insert(key, 0, 7));
  EXPECT_TRUE(table.Insert(key, 0, 3));
  EXPECT_EQ(table.num_keys(), 1);
  EXPECT_EQ(table.Find(key, 0), 7);
  EXPECT_FALSE(table.Erase(key, 0, 9));
  EXPECT_TRUE(table.Erase(key, 0, 7));
  EXPECT_EQ(table.Find(key, 0), 3);
  EXPECT_TRUE(table.Erase(key, 0, 3));
  EXPECT_EQ(table.Find(key, 0), kNullBlockId);
  EXPECT_EQ(table.num_keys(), 0);
  EXPECT_FALSE(table.Erase(key, 0, 3));
}

std::shared_ptr<const PrefixHashing> Hashing(int64_t hash_block_size) {
  return std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kSha256, "examples"), hash_block_size});
}

ExtraKey Lora(const char* name) { return {ExtraKey::Kind::kLora, name, 0}; }
ExtraKey Salt(const char* salt) { return {ExtraKey::Kind::kSalt, salt, 0}; }
ExtraKey Image(const char* id, int64_t offset) { return {ExtraKey::Kind::kMultimodal, id, offset}; }

TEST(BlockManagerExamples, WE38_ExtraKeys) {
  const auto coarse =
      PrefixContent::FromTokens({.token_ids = Range(0, 63),
                                 .features = {{"aaa", 11, 10}, {"bbb", 30, 18}, {"ccc", 48, 7}}},
                                Hashing(16))
          .value();
  EXPECT_EQ(coarse.ExtraKeysOf(0, 16), (ExtraKeys{Image("aaa", 11)}));
  EXPECT_EQ(coarse.ExtraKeysOf(16, 32), (ExtraKeys{Image("aaa", -5), Image("bbb", 14)}));
  EXPECT_EQ(coarse.ExtraKeysOf(32, 48), (ExtraKeys{Image("bbb", -2)}));
  EXPECT_EQ(coarse.ExtraKeysOf(48, 64), (ExtraKeys{Image("ccc", 0)}));

  const auto with_salt = [](const char* salt) {
    return PrefixContent::FromTokens({.token_ids = Range(0, 11),
                                      .lora_name = "L",
                                      .cache_salt = salt,
                                      .features = {{"x", 3, 2}}},
                                     Hashing(4))
        .value();
  };
  const auto fine = with_salt("S");
  EXPECT_EQ(fine.ExtraKeysOf(0, 4), (ExtraKeys{Lora("L"), Image("x", 3), Salt("S")}));
  EXPECT_EQ(fine.ExtraKeysOf(4, 8), (ExtraKeys{Lora("L"), Image("x", -1)}));
  EXPECT_EQ(fine.ExtraKeysOf(8, 12), (ExtraKeys{Lora("L")}));
  const auto other = with_salt("T");
  ASSERT_EQ(fine.hashes().size(), 3u);
  for (const BlockHash& a : fine.hashes()) {
    for (const BlockHash& b : other.hashes()) EXPECT_FALSE(a == b);
  }
}

TEST(BlockManagerExamples, WE39_IncrementalPurity) {
  const auto hashing = Hashing(16);
  const std::vector<MultimodalFeature> features = {{"p", 17, 2}, {"q", 20, 3}};
  auto grown =
      PrefixContent::FromTokens({.token_ids = Range(0, 23), .features = features}, hashing).value();
  EXPECT_EQ(grown.hashes().size(), 1u);
  ASSERT_TRUE(grown.AppendTokens(Range(24, 39)).ok());
  const auto fresh =
      PrefixContent::FromTokens({.token_ids = Range(0, 39), .features = features}, hashing).value();
  EXPECT_EQ(grown.hashes(), fresh.hashes());
  EXPECT_EQ(grown.hashes().size(), 2u);
  EXPECT_EQ(grown.ExtraKeysOf(16, 32), (ExtraKeys{Image("p", 1), Image("q", 4)}));
}

}  // namespace
}  // namespace kvblocks::examples
