#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block_pool/recent_keys.h"
#include "block_pool/testing/pool_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block_pool.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
      // Behind the tail; a lookahead hash stands for the next token, too.
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

// If the extra keys of the tail are unknown, it is a miss.
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

// What a pool with history_keys remembers of what left its prefix cache.

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

// Page classes in chunks, through the pool.

constexpr GroupId kCoarse = 0;  // two pages per chunk
constexpr GroupId kFine = 1;    // three

// Three chunks: ids 1 to 3, 4 to 6, 7 to 9.
const ChunkLayout kLayout = {.num_chunks = 3, .pages_per_chunk = {2, 3}, .class_of_group = {0, 1}};

class PageChunksTest : public testing::Test {
 protected:
  PageChunksTest()
      : pool_(BlockPool::Create({.num_blocks = 10, .enable_events = true, .chunks = kLayout})
                  .value()) {}
  ~PageChunksTest() override { EXPECT_TRUE(pool_->CheckInvariants().ok()); }

  std::vector<BlockId> Take(int64_t k, GroupId group) {
    return GetNewBlocks(*pool_, k, group).value();
  }
  void Free(const std::vector<BlockId>& ids) { pool_->FreeBlocks(ids); }
  // Registers blocks for contents that no other block has.
  void Cache(const std::vector<BlockId>& ids, GroupId group) {
    static const auto hashing = std::make_shared<const PrefixHashing>(
        PrefixHashing{BlockHasher(HashAlgorithm::kXxh3_128, "seed"), 1});
    std::vector<TokenId> tokens(ids.size());
    std::iota(tokens.begin(), tokens.end(), next_token_);
    next_token_ += 100;
    const auto content = PrefixContent::FromTokens({.token_ids = std::move(tokens)}, hashing);
    pool_->CacheFullBlocks(*content, ids, 0, static_cast<int64_t>(ids.size()), 1, group);
  }
  // Promises new pages of the two groups and takes them.
  std::vector<std::vector<BlockId>> TakeBoth(const PageNeed& coarse, const PageNeed& fine) {
    const std::vector<PageNeed> needs = {coarse, fine};
    EXPECT_TRUE(pool_->Promise(needs, /*kept_chunks=*/0, /*reserved=*/0));
    std::vector<std::vector<BlockId>> tables(2);
    pool_->GetNewBlocks(coarse.num_pages, tables[0], kCoarse);
    pool_->GetNewBlocks(fine.num_pages, tables[1], kFine);
    return tables;
  }
  bool Promise(const PageNeed& coarse, const PageNeed& fine, int64_t kept = 0,
               int64_t reserved = 0) {
    const std::vector<PageNeed> needs = {coarse, fine};
    return pool_->Promise(needs, kept, reserved);
  }
  // Chunk 0 in use with page 2 cached and free, chunk 1 idle with 5 free and 4 cached, both coarse;
  // chunk 2 fine and full.
  void OneChunkIdleOneInUse() {
    EXPECT_THAT(Take(3, kCoarse), ElementsAre(1, 2, 4));
    EXPECT_THAT(Take(3, kFine), ElementsAre(7, 8, 9));
    Cache({2, 4}, kCoarse);
    Free({2, 4});
    EXPECT_THAT(pool_->WalkFree(), ElementsAre(5, 2, 4));
  }

  std::unique_ptr<BlockPool> pool_;
  TokenId next_token_ = 0;
};

TEST_F(PageChunksTest, IdSaysChunkAndIndex) {
  EXPECT_EQ(PlaceOfPage(1, 3), (PagePlace{.chunk = 0, .index = 0}));
  EXPECT_EQ(PlaceOfPage(3, 3), (PagePlace{.chunk = 0, .index = 2}));
  EXPECT_EQ(PlaceOfPage(8, 3), (PagePlace{.chunk = 2, .index = 1}));
}

TEST_F(PageChunksTest, ChunkNeededLaterIsLeftAlone) {
  OneChunkIdleOneInUse();
  EXPECT_THAT(TakeBoth({.num_pages = 1}, {.num_later = 3}), ElementsAre(ElementsAre(2), IsEmpty()));
}

TEST_F(PageChunksTest, LaterNeedThatDoesNotFitIsIgnored) {
  OneChunkIdleOneInUse();
  EXPECT_THAT(TakeBoth({.num_pages = 1}, {.num_later = 4}), ElementsAre(ElementsAre(5), IsEmpty()));
}

TEST_F(PageChunksTest, UsageIsAShareOfBytes) {
  EXPECT_EQ(pool_->usage(), 0.0);
  Take(1, kCoarse);
  EXPECT_DOUBLE_EQ(pool_->usage(), 0.5 / 3);
  Take(1, kFine);
  EXPECT_DOUBLE_EQ(pool_->usage(), (0.5 + 1.0 / 3) / 3);
  ASSERT_TRUE(pool_->TakePermanentBlocks(2, kFine).ok());
  EXPECT_DOUBLE_EQ(pool_->usage(), (0.5 + 1.0 / 3) / (3 - 2.0 / 3));
}

TEST_F(PageChunksTest, MisuseIsRefused) {
  Take(1, kCoarse);
  EXPECT_THAT(std::string(pool_->CheckTouchable({3}).message()), HasSubstr("block 3 has no page"));
  EXPECT_THAT(std::string(pool_->CheckTouchable({9}).message()), HasSubstr("block 9 has no page"));
  EXPECT_THAT(std::string(pool_->TakePermanentBlocks(1, 2).status().message()),
              HasSubstr("group 2 has no page class"));
  EXPECT_EQ(pool_->TakePermanentBlocks(6, kCoarse).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(PageChunksTest, LayoutThatDoesNotMakeUpThePoolStops) {
  EXPECT_DEATH(BlockPool::Create({.num_blocks = 9, .chunks = kLayout}).IgnoreError(),
               "3 chunks do not make up 9 ids");
}

TEST_F(PageChunksTest, TakingMoreThanWasPromisedStops) {
  ASSERT_TRUE(Promise({.num_pages = 1}, {}));
  std::vector<BlockId> table;
  EXPECT_DEATH(pool_->GetNewBlocks(2, table, kCoarse), "2 pages to take for group 0, 1 promised");
}

// Against a list of everything, read from its end.
TEST(RecentKeysTest, AgreesWithAListOfAllEvents) {
  for (const int64_t capacity : {1, 2, 7, 64}) {
    RecentKeys keys(capacity);
    std::vector<std::pair<uint64_t, GroupId>> events;
    uint64_t state = 1;
    for (int64_t i = 0; i < 3000; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t key = (state >> 33) % 100;
      const auto group = static_cast<GroupId>((state >> 45) % 2);
      keys.Remember(Hash(key), group, i, i % 3 == 0);
      events.emplace_back(key, group);
      for (uint64_t k = key; k < key + 5; ++k) {
        std::optional<int64_t> expected;
        const int64_t end = std::max<int64_t>(0, i + 1 - capacity);
        for (int64_t j = i; j >= end && !expected; --j) {
          if (events[static_cast<size_t>(j)] == std::pair(k, group)) expected = j;
        }
        const RecentKeys::Record* found = keys.Find(Hash(k), group);
        ASSERT_EQ(found != nullptr, expected.has_value()) << capacity << " " << i << " " << k;
        if (found == nullptr) continue;
        ASSERT_EQ(found->number, *expected);
        ASSERT_EQ(found->flag, *expected % 3 == 0);
      }
    }
  }
}

TEST(RecentKeysTest, SaysItsMemory) {
  EXPECT_EQ(sizeof(RecentKeys::Record), 32u);
  EXPECT_EQ(RecentKeys::BytesFor(1'000'000), 48'000'000);
}

}  // namespace
}  // namespace kvblocks
