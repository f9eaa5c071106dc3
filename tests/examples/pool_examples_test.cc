// Worked examples of the block pool and its parts: WE-1 to WE-4, WE-38 and WE-39.

#include <gtest/gtest.h>

#include "block_pool/testing/pool_testing.h"
#include "kvblocks/block_pool.h"
#include "tests/examples/model.h"
#include "tests/group_specs.h"

namespace kvblocks::examples {
namespace {

using testing::Full;
using testing::Sink;

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

// Worked examples of one full-attention group: WE-5 to WE-12, WE-31 to WE-33, WE-36 and WE-41.

KvCacheManagerOptions WithOrder(FreeOrder order) {
  KvCacheManagerOptions options = Model::Options();
  options.free_order = order;
  return options;
}

TEST(BlockManagerExamples, WE5_SharingAndOrder) {
  const auto run = [](FreeOrder order, const char* after_a, const char* after_b, const char* c_gets,
                      const char* after_c, const char* after_free_c, const char* d_gets) {
    Model m(8, {Full(4)}, WithOrder(order));
    Request& a = m.New(Range(0, 13));
    EXPECT_EQ(m.Alloc(a, 14), Groups("1..4"));
    EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(m.Queue(), Blocks("5..7"));
    Request& b = m.New(Join(Range(0, 11), {90, 91}));
    EXPECT_EQ(m.HitTokens(b), 12);
    EXPECT_EQ(m.Hits(b), Groups("1..3"));
    EXPECT_EQ(m.Alloc(b, 2), Groups("5"));
    EXPECT_EQ(m.Tables(b), Groups("1..3,5"));
    for (BlockId id : Blocks("1..3")) EXPECT_EQ(m.Ref(id), 2);
    m.Free(a);
    EXPECT_EQ(m.Queue(), Blocks(after_a));
    m.Free(b);
    EXPECT_EQ(m.Queue(), Blocks(after_b));
    EXPECT_EQ(m.manager->usage(), 0.0);
    Request& c = m.New(Join(Range(0, 11), {77}));
    EXPECT_EQ(m.HitTokens(c), 12);
    EXPECT_EQ(m.Alloc(c, 1), Groups(c_gets));
    EXPECT_EQ(m.Queue(), Blocks(after_c));
    m.Free(c);
    EXPECT_EQ(m.Queue(), Blocks(after_free_c));
    EXPECT_EQ(m.Alloc(m.New(Fresh(28)), 28), Groups(d_gets));
  };
  run(FreeOrder::kUnhashedFirst, "4,6,7", "5,4,6,7,3,2,1", "5", "4,6,7", "5,4,6,7,3,2,1",
      "5,4,6,7,3,2,1");
  run(FreeOrder::kAppendAll, "6,7,4", "6,7,4,5,3,2,1", "6", "7,4,5", "7,4,5,6,3,2,1",
      "7,4,5,6,3,2,1");
}

TEST(BlockManagerExamples, WE6_LastToken) {
  Model m(10, {Full(4)});
  ASSERT_TRUE(m.Alloc(m.New(Range(0, 15)), 16));
  const auto hit = [&](TokenId length) { return m.HitTokens(m.New(Range(0, length - 1))); };
  EXPECT_EQ(hit(1), 0);
  EXPECT_EQ(hit(4), 0);
  EXPECT_EQ(hit(5), 4);
  EXPECT_EQ(hit(8), 4);
  EXPECT_EQ(hit(12), 8);
  EXPECT_EQ(m.Hits(m.New(Range(0, 11))), Groups("1,2"));
  EXPECT_EQ(hit(13), 12);
  EXPECT_EQ(hit(16), 12);
  EXPECT_EQ(hit(17), 16);
  EXPECT_EQ(m.Hits(m.New(Range(0, 16))), Groups("1..4"));
}

TEST(BlockManagerExamples, WE7_EvictableHitsCost) {
  Model m(4, {Full(4)});
  Request& a = m.New(Range(0, 7));
  EXPECT_EQ(m.Alloc(a, 8), Groups("1,2"));
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("3,2,1"));
  Request& b = m.New(Join(Range(0, 7), Fresh(5)));
  EXPECT_EQ(m.HitTokens(b), 8);
  EXPECT_EQ(m.Alloc(b, 5), std::nullopt);
  EXPECT_EQ(m.Queue(), Blocks("3,2,1"));
  EXPECT_EQ(m.Ref(1) + m.Ref(2) + m.Ref(3), 0);
  Request& c = m.New(Join(Range(0, 7), Fresh(4)));
  EXPECT_EQ(m.Alloc(c, 4), Groups("3"));
  EXPECT_EQ(m.Queue(), Ids());
}

TEST(BlockManagerExamples, WE8_StaleHit) {
  Model m(4, {Full(4)});
  Request& a = m.New(Range(0, 7));
  ASSERT_TRUE(m.Alloc(a, 8));
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("3,2,1"));
  Request& b = m.New(Range(0, 8));
  const ComputedBlocks old_hits = m.LookUp(b);
  EXPECT_EQ(old_hits.num_tokens(), 8);
  EXPECT_EQ(m.Hits(b), Groups("1,2"));
  Request& x = m.New(Fresh(8));
  EXPECT_EQ(m.Alloc(x, 8), Groups("3,2"));
  EXPECT_EQ(m.AllocWith(b, 1, old_hits).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(m.manager->HoldsBlocks(b));
  EXPECT_EQ(m.Queue(), Blocks("1"));
  EXPECT_EQ(m.Hits(b), Groups("1"));
  EXPECT_EQ(m.HitTokens(b), 4);
}

TEST(BlockManagerExamples, WE9_PathsAAndB) {
  const int64_t expected[] = {12, 12, 12, 8, 4, 0};
  for (int64_t k = 1; k <= 6; ++k) {
    Model m(7, {Full(4)});
    Request& a = m.New(Range(0, 11));
    EXPECT_EQ(m.Alloc(a, 12), Groups("1..3"));
    m.Free(a);
    EXPECT_EQ(m.Queue(), Blocks("4..6,3,2,1"));
    ASSERT_TRUE(m.Alloc(m.New(Fresh(4 * k)), 4 * k));
    EXPECT_EQ(m.HitTokens(m.New(Join(Range(0, 11), {1}))), expected[k - 1]) << k;
  }
}

TEST(BlockManagerExamples, WE10_Duplicates) {
  Model m(10, {Full(4)});
  EXPECT_EQ(m.Alloc(m.New(Range(0, 8)), 9), Groups("1..3"));
  Request& b = m.New(Range(0, 8), /*skip_reading=*/true);
  EXPECT_EQ(m.HitTokens(b), 0);
  EXPECT_EQ(m.Alloc(b, 9), Groups("4..6"));
  EXPECT_EQ(m.NumKeys(), 2);
  const BlockPool& pool = m.manager->pool();
  EXPECT_EQ(pool.table().FindAll(pool.hash(1), 0), Blocks("1,4"));
  EXPECT_EQ(pool.table().FindAll(pool.hash(2), 0), Blocks("2,5"));
  Request& c = m.New(Range(0, 8));
  EXPECT_EQ(m.Hits(c), Groups("1,2"));
  m.Evict({1});
  EXPECT_EQ(m.Hits(c), Groups("4,2"));
  EXPECT_EQ(m.NumKeys(), 2);
  m.Evict({2});
  EXPECT_EQ(m.Hits(c), Groups("4,5"));
  m.Evict({4, 5});
  EXPECT_EQ(m.Hits(c), Groups(""));
  EXPECT_EQ(m.NumKeys(), 0);
}

TEST(BlockManagerExamples, WE11_Decode) {
  Model m(8, {Full(4)});
  Request& a = m.New(Range(0, 5));
  EXPECT_EQ(m.Alloc(a, 6), Groups("1,2"));
  EXPECT_EQ(m.NumKeys(), 1);
  const char* const blocks[] = {"", "", "3", "", ""};
  const int64_t keys[] = {1, 2, 2, 2, 2};
  for (int step = 0; step < 5; ++step) {
    m.Append(a, {6 + step});
    EXPECT_EQ(m.Alloc(a, 1), Groups(blocks[step])) << a.num_tokens();
    // The block of tokens 8..11 is not full before the twelfth token.
    EXPECT_EQ(m.NumKeys(), keys[step]) << a.num_tokens();
  }
  m.Append(a, {11});
  EXPECT_EQ(m.Alloc(a, 1), Groups(""));
  EXPECT_EQ(m.NumKeys(), 3);
}

TEST(BlockManagerExamples, WE12_DraftsLookaheadClamp) {
  Model m(10, {Full(4)});
  Request& a = m.New(Range(0, 6));
  EXPECT_EQ(m.Alloc(a, 7, {.num_lookahead_tokens = 3}), Groups("1..3"));
  EXPECT_EQ(m.NumKeys(), 1);
  m.Append(a, {7});
  EXPECT_EQ(m.Alloc(a, 5, {.num_lookahead_tokens = 3}), Groups("4"));
  EXPECT_EQ(m.NumKeys(), 2);
  a.set_num_computed_tokens(8);  // all drafts rejected
  m.Append(a, {8});
  EXPECT_EQ(m.Alloc(a, 1), Groups(""));
  EXPECT_EQ(m.NumKeys(), 2);

  KvCacheManagerOptions options = Model::Options();
  options.max_model_len = 12;
  Model clamped(10, {Full(4)}, options);
  Request& b = clamped.New(Range(0, 9));
  EXPECT_EQ(clamped.Alloc(b, 9), Groups("1..3"));
  EXPECT_EQ(clamped.Alloc(b, 1, {.num_lookahead_tokens = 8}), Groups(""));
}

TEST(BlockManagerExamples, WE31_Delay) {
  Model m(10, {Full(4)});
  Request& a = m.New(Range(0, 11));
  EXPECT_EQ(m.Alloc(a, 0, {.num_external_computed_tokens = 8, .delay_cache_blocks = true}),
            Groups(""));
  EXPECT_EQ(m.Tables(a), Groups("1,2"));
  EXPECT_EQ(m.NumKeys(), 0);
  EXPECT_EQ(a.num_computed_tokens(), 8);
  ASSERT_TRUE(m.manager->CacheBlocks(a, 8).ok());
  EXPECT_EQ(m.NumKeys(), 2);
  EXPECT_EQ(m.Alloc(a, 4), Groups("3"));
  EXPECT_EQ(m.NumKeys(), 3);
}

TEST(BlockManagerExamples, WE32_ReserveWatermarkGate) {
  for (int64_t reserved : {0, 4}) {
    Model m(11, {Full(4)});
    EXPECT_EQ(m.Alloc(m.New(Fresh(24)), 24, {.reserved_blocks = reserved}), Groups("1..6"));
  }
  Model reserved(11, {Full(4)});
  EXPECT_EQ(reserved.Alloc(reserved.New(Fresh(24)), 24, {.reserved_blocks = 5}), std::nullopt);

  KvCacheManagerOptions options = Model::Options();
  options.watermark = 0.25;
  const auto admitted = [&](RequestStatus status, bool scheduled) {
    Model m(11, {Full(4)}, options);
    Request& request = m.New(Fresh(36));
    request.set_status(status);
    return m.Alloc(request, 36, {.has_scheduled_requests = scheduled}).has_value();
  };
  EXPECT_TRUE(admitted(RequestStatus::kWaiting, false));
  EXPECT_FALSE(admitted(RequestStatus::kWaiting, true));
  EXPECT_FALSE(admitted(RequestStatus::kPreempted, true));
  EXPECT_TRUE(admitted(RequestStatus::kRunning, true));

  Model m(11, {Full(4)}, options);
  const AllocateSlotsParams gate = {.full_sequence_must_fit = true, .has_scheduled_requests = true};
  EXPECT_EQ(m.Alloc(m.New(Fresh(36)), 4, gate), std::nullopt);
  EXPECT_EQ(m.Alloc(m.New(Fresh(32)), 4, gate), Groups("1"));
}

TEST(BlockManagerExamples, WE33_PreemptResumeStats) {
  Model m(8, {Full(4)});
  Request& a = m.New(Range(0, 11));
  m.manager->RecordPrefixCacheStats(a, m.HitTokens(a));
  EXPECT_EQ(m.Alloc(a, 12), Groups("1..3"));
  m.Append(a, {12});
  EXPECT_EQ(m.Alloc(a, 1), Groups("4"));
  Request& b = m.New(Join(Range(0, 7), Fresh(4)));
  EXPECT_EQ(m.HitTokens(b), 8);
  m.manager->RecordPrefixCacheStats(b, 8);
  EXPECT_EQ(m.Alloc(b, 4), Groups("5"));
  EXPECT_EQ(m.Queue(), Blocks("6,7"));
  m.Free(a);
  a.MarkPreempted();
  EXPECT_EQ(m.Queue(), Blocks("4,6,7,3"));
  EXPECT_EQ(m.HitTokens(a), 12);
  EXPECT_EQ(m.Hits(a), Groups("1..3"));
  m.manager->RecordPrefixCacheStats(a, 12);
  EXPECT_EQ(m.Alloc(a, 1), Groups("4"));
  EXPECT_EQ(m.manager->MakePrefixCacheStats(), (PrefixCacheStats{.requests = 2,
                                                                 .queries = 24,
                                                                 .hits = 8,
                                                                 .preempted_requests = 1,
                                                                 .preempted_queries = 13,
                                                                 .preempted_hits = 12,
                                                                 .reset = false}));
}

TEST(BlockManagerExamples, WE36_Evict) {
  Model m(8, {Full(4)});
  Request& a = m.New(Range(0, 12));
  EXPECT_EQ(m.Alloc(a, 13), Groups("1..4"));
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("4..7,3,2,1"));
  m.Evict({2, 7, 0});
  EXPECT_EQ(m.Queue(), Blocks("4..7,3,2,1"));
  EXPECT_EQ(m.NumKeys(), 2);
  EXPECT_EQ(m.Hits(m.New(Range(0, 12))), Groups("1"));
  EXPECT_EQ(m.manager->EvictBlocks(Blocks("8")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(m.NumKeys(), 2);
}

TEST(BlockManagerExamples, WE41_Sink) {
  Model m(8, {Sink(4, 8)});
  const auto sinks = m.manager->group(0).sink_blocks();
  EXPECT_EQ(Ids(sinks.begin(), sinks.end()), Blocks("1,2"));
  EXPECT_EQ(m.Queue(), Blocks("3..7"));
  EXPECT_EQ(m.manager->usage(), 0.0);
  EXPECT_TRUE(m.manager->ResetPrefixCache());
  Request& a = m.New(Range(0, 8));
  EXPECT_EQ(m.Alloc(a, 9), Groups("3..5"));
  EXPECT_DOUBLE_EQ(m.manager->usage(), 0.6);
  EXPECT_FALSE(m.manager->ResetPrefixCache());
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("5..7,4,3"));
  EXPECT_TRUE(m.manager->ResetPrefixCache());
  EXPECT_EQ(m.Queue(), Blocks("5..7,4,3"));
}

}  // namespace
}  // namespace kvblocks::examples
