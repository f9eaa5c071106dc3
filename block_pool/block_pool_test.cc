#include "kvblocks/block_pool.h"

#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "block_pool/testing/pool_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

std::unique_ptr<BlockPool> Pool(const BlockPool::Options& options) {
  auto pool = BlockPool::Create(options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

// Blocks of 4 tokens: `first`, first + 1, ...
PrefixContent CountedTokens(int64_t num_tokens, TokenId first = 0, std::string lora_name = "") {
  static const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kXxh3_128, "seed"), 4});
  std::vector<TokenId> tokens(static_cast<size_t>(num_tokens));
  std::iota(tokens.begin(), tokens.end(), first);
  auto content = PrefixContent::FromTokens(
      {.token_ids = std::move(tokens), .lora_name = std::move(lora_name), .lora_id = 3}, hashing);
  EXPECT_TRUE(content.ok()) << content.status();
  return *std::move(content);
}

std::vector<BlockId> Take(BlockPool& pool, int64_t k) { return GetNewBlocks(pool, k).value(); }

std::vector<BlockId> Queue(const BlockPool& pool) { return pool.free_queue().Walk(); }

// Everything a caller can see, so that "nothing changed" is one comparison.
std::string State(const BlockPool& pool) {
  std::string state =
      absl::StrCat("queue ", absl::StrJoin(Queue(pool), ","), " keys ", pool.num_keys(), "/",
                   pool.num_keyed_blocks(), " live ", pool.num_live(), " free ", pool.num_free(),
                   " cached ", pool.num_cached_unreferenced(), " permanent ", pool.num_permanent(),
                   " epoch ", pool.removal_epoch(), " evictions ", pool.num_evictions());
  for (BlockId id = 0; id < pool.num_blocks(); ++id) {
    const KvCacheBlock& block = pool.block(id);
    absl::StrAppend(&state, "\n", id, ": ref ", block.ref_count, " group ", block.key_group);
  }
  return state;
}

// The message of a refused call, which must have left `pool` in `before`.
std::string Refusal(const BlockPool& pool, const std::string& before, const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(State(pool), before);
  EXPECT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
  return std::string(status.message());
}

TEST(BlockPoolTest, ImpossibleSizesAreRefused) {
  for (int64_t size : {int64_t{0}, int64_t{-1}, (int64_t{1} << 31) - 1, kMost, kMin}) {
    const auto pool = BlockPool::Create({.num_blocks = size});
    EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(pool.status().message()),
                HasSubstr(absl::StrCat("num_blocks is ", size, ", expected 1 to 2147483646")));
  }
}

TEST(BlockPoolTest, PoolLargerThanTheMemoryOfTheMachineIsRefused) {
  // With the tokens of every block, 2^53 bytes: more than any machine has.
  const auto pool = BlockPool::Create(
      {.num_blocks = (int64_t{1} << 31) - 2, .compared_block_size = int64_t{1} << 20});
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(pool.status().message()),
              testing::HasSubstr("num_blocks is 2147483646, whose book-keeping takes"));
}

TEST(BlockPoolTest, IdsFromOutsideAreChecked) {
  const auto pool = Pool({.num_blocks = 6});
  ASSERT_TRUE(pool->TakePermanentBlocks(1).ok());  // block 1
  Take(*pool, 2);                                  // blocks 2, 3
  const std::string before = State(*pool);
  for (BlockId id : {-1, 6, std::numeric_limits<BlockId>::max()}) {
    EXPECT_THAT(Refusal(*pool, before, pool->CheckTouchable({2, id})),
                HasSubstr(absl::StrCat("Touch: block ", id, " is outside the pool's blocks 0..5")));
    EXPECT_THAT(Refusal(*pool, before, pool->EvictBlocks({2, id})),
                HasSubstr("EvictBlocks: block"));
  }
  EXPECT_THAT(Refusal(*pool, before, pool->CheckTouchable({2, 1})),
              HasSubstr("block 1 is permanent"));
  EXPECT_TRUE(pool->CheckTouchable({2, 0, 5, 2}).ok());
}

// Hits looked up before a removal are checked again when they are taken.
TEST(BlockPoolTest, RemovalsAndResetsEndTheFreshnessOfLookUps) {
  const auto pool = Pool({.num_blocks = 3});
  pool->CacheFullBlocks(CountedTokens(8), Take(*pool, 2), 0, 2, 4, 0);
  const uint64_t at_look_up = pool->removal_epoch();
  pool->FreeBlocks({2, 1});
  Take(*pool, 1);
  const uint64_t after_removal = pool->removal_epoch();
  EXPECT_GT(after_removal, at_look_up);
  pool->FreeBlocks({2});
  EXPECT_TRUE(pool->ResetPrefixCache());
  EXPECT_GT(pool->removal_epoch(), after_removal);
}

TEST(BlockPoolTest, ContentMadeFromHashesReportsNoTokens) {
  const auto pool = Pool({.num_blocks = 8, .enable_events = true});
  const auto table = Take(*pool, 2);
  const PrefixContent tokens = CountedTokens(8);
  auto content = PrefixContent::FromHashes(8, {tokens.hashes().begin(), tokens.hashes().end()},
                                           tokens.hashing());
  ASSERT_TRUE(content.ok());
  pool->CacheFullBlocks(*content, table, 0, 2, 4, 0);
  const auto events = pool->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_THAT(std::get<BlockStored>(events[0]).token_ids, IsEmpty());
  EXPECT_EQ(std::get<BlockStored>(events[0]).extra_keys.size(), 2u);
}

// V-10, V-52, V-60: also at blocks of several hashes.
TEST(BlockPoolTest, StoredEventsNameLookaheadTokensAndSession) {
  const auto pool = Pool({.num_blocks = 8, .enable_events = true});
  const auto table = Take(*pool, 2);
  const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(HashAlgorithm::kXxh3_128Cbor, "seed"),
                    .hash_block_size = 2,
                    .num_lookahead_tokens = 2});
  const std::vector<TokenId> tokens = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
  const auto content = PrefixContent::FromTokens({.token_ids = tokens,
                                                  .lora_name = "adapter",
                                                  .lora_path = "/p",
                                                  .features = {{"image", 9, 1}},
                                                  .session_id = "s"},
                                                 hashing);
  ASSERT_TRUE(content.ok());
  pool->CacheFullBlocks(*content, table, 0, 2, 4, 0);
  const ExtraKey adapter = {ExtraKey::Kind::kLora, "adapter"};
  const ExtraKey image = {ExtraKey::Kind::kMultimodal, "image", 5};
  EXPECT_THAT(pool->TakeEvents(),
              ElementsAre(KvEvent(BlockStored{
                  .block_hashes = {content->hashes()[1], content->hashes()[3]},
                  .token_ids = {10, 11, 12, 13, 14, 15, 16, 17},
                  .block_size = 4,
                  .lora_name = "adapter",
                  .extra_keys = {ExtraKeys{adapter}, ExtraKeys{adapter, image}},
                  .session_id = "s",
                  .lookahead_token_ids = std::vector<std::vector<TokenId>>{{14, 15}, {18, 19}}})));

  const auto hashed = PrefixContent::FromHashes(4, std::vector<BlockHash>(1), hashing);
  ASSERT_TRUE(hashed.ok());
  pool->CacheFullBlocks(*hashed, {*GetNewBlocks(*pool, 1)}, 0, 1, 2, 0);
  const auto events = pool->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<BlockStored>(events[0]).lookahead_token_ids, std::nullopt);
  EXPECT_EQ(std::get<BlockStored>(events[0]).session_id, std::nullopt);
}

// The pool hands out its records as const, so what a bug could do to them is done by casting.
TEST(BlockPoolTest, BrokenInvariantsAreSaidInWords) {
  const auto pool = Pool({.num_blocks = 6});
  ASSERT_TRUE(pool->TakePermanentBlocks(1).ok());
  const auto table = Take(*pool, 2);  // blocks 2, 3
  pool->CacheFullBlocks(CountedTokens(8), table, 0, 2, 4, 0);
  pool->FreeBlocks({3});
  const auto problem_if = [&](BlockId id, auto&& damage) {
    KvCacheBlock& block = const_cast<KvCacheBlock&>(pool->block(id));
    const KvCacheBlock saved = block;
    damage(block);
    const absl::Status status = pool->CheckInvariants();
    block = saved;
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(pool->CheckInvariants().ok());
    return std::string(status.message());
  };
  EXPECT_THAT(problem_if(0, [](KvCacheBlock& b) { ++b.ref_count; }), HasSubstr("the null block"));
  EXPECT_THAT(problem_if(4, [](KvCacheBlock& b) { b.is_null = true; }),
              HasSubstr("block 4 is marked null"));
  EXPECT_THAT(problem_if(2, [](KvCacheBlock& b) { b.ref_count = -1; }),
              HasSubstr("block 2 has -1 references"));
  EXPECT_THAT(problem_if(1, [](KvCacheBlock& b) { b.ref_count = 0; }),
              HasSubstr("permanent block 1 is queued, unreferenced or has a key"));
  EXPECT_THAT(problem_if(2, [](KvCacheBlock& b) { b.ref_count = 0; }),
              HasSubstr("block 2 has 0 references and is not in the free queue"));
  EXPECT_THAT(problem_if(3, [](KvCacheBlock& b) { b.ref_count = 1; }),
              HasSubstr("block 3 has 1 references and is in the free queue"));
  EXPECT_THAT(problem_if(2, [](KvCacheBlock& b) { b.is_permanent = true; }),
              HasSubstr("permanent block 2"));
  EXPECT_THAT(problem_if(1, [](KvCacheBlock& b) { b.is_permanent = false; }),
              HasSubstr("pool counts 1 permanent and 1 cached blocks, found 0 and 1"));
  EXPECT_THAT(problem_if(2, [](KvCacheBlock& b) { b.key_group = -1; }),
              HasSubstr("maps a key to block 2, which has none"));
  EXPECT_THAT(problem_if(4, [](KvCacheBlock& b) { b.prev = kUnlinked; }),
              HasSubstr("block 4 and its neighbour 6 in a free queue disagree"));
}

TEST(BlockPoolDeathTest, ManagersBreakingTheirContractStopTheProcess) {
  const auto pool = Pool({.num_blocks = 3});
  std::vector<BlockId> table;
  EXPECT_DEATH(pool->GetNewBlocks(3, table, /*group=*/0), "3 blocks to take, 2 free");
  EXPECT_DEATH(pool->FreeBlocks({1}), "block 1 was freed more often");
  EXPECT_DEATH(pool->FreeBlocksReversed({1}), "block 1 was freed more often");
}

}  // namespace
}  // namespace kvblocks
