// Page classes in chunks, through the pool.

#include "kvblocks/block_pool/page_chunks.h"

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block_pool/block_pool.h"
#include "kvblocks/block_pool/testing/get_new_blocks.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  bool Fits(int64_t k, GroupId group) {
    const std::vector<BlockId> before = pool_->WalkFree();
    const auto ids = GetNewBlocks(*pool_, k, group);
    EXPECT_TRUE(ids.has_value() || before == pool_->WalkFree());
    return ids.has_value();
  }
  void Free(const std::vector<BlockId>& ids) { pool_->FreeBlocks(ids); }
  // Registers blocks for contents that nobody else has.
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

TEST_F(PageChunksTest, FirstPageLendsTheLowestChunk) {
  EXPECT_EQ(pool_->num_free(), 0);
  EXPECT_THAT(Take(1, kCoarse), ElementsAre(1));
  EXPECT_EQ(pool_->chunks()->ClassOfPage(2), 0);
  EXPECT_EQ(pool_->chunks()->ClassOfPage(3), -1);
  EXPECT_EQ(pool_->chunks()->ClassOfPage(4), -1);
  EXPECT_EQ(pool_->num_free(), 1);
  EXPECT_EQ(pool_->num_live(), 1);
  EXPECT_EQ(pool_->chunks()->num_ids_without_page(), 7);
}

TEST_F(PageChunksTest, ClassesDoNotShareChunks) {
  EXPECT_THAT(Take(1, kCoarse), ElementsAre(1));
  EXPECT_THAT(Take(1, kFine), ElementsAre(4));
  EXPECT_THAT(Take(2, kCoarse), ElementsAre(2, 7));
  EXPECT_THAT(Take(2, kFine), ElementsAre(5, 6));
}

TEST_F(PageChunksTest, FitsCountsPagesBesideUsedOnesAndWholeChunks) {
  Take(1, kCoarse);
  EXPECT_FALSE(Fits(6, kCoarse));  // 1 + 2 * 2
  EXPECT_FALSE(Fits(7, kFine));    // 2 * 3
  EXPECT_TRUE(Fits(6, kFine));
  EXPECT_FALSE(Fits(1, kFine));
  EXPECT_TRUE(Fits(1, kCoarse));
  EXPECT_FALSE(Fits(1, kCoarse));
}

TEST_F(PageChunksTest, IdleChunkServesAnotherClassAndLosesItsKeys) {
  const std::vector<BlockId> coarse = Take(2, kCoarse);
  Cache(coarse, kCoarse);
  Free(coarse);
  EXPECT_THAT(Take(6, kFine), ElementsAre(4, 5, 6, 7, 8, 9));
  EXPECT_EQ(pool_->num_cached_unreferenced(), 2);
  pool_->TakeEvents();
  EXPECT_THAT(Take(1, kFine), ElementsAre(1));
  EXPECT_EQ(pool_->chunks()->ClassOfPage(3), 1);
  EXPECT_EQ(pool_->num_cached_unreferenced(), 0);
  EXPECT_EQ(pool_->num_evictions(), 2);
  const std::vector<KvEvent> events = pool_->TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  for (const KvEvent& event : events) {
    EXPECT_EQ(std::get<BlockRemoved>(event).reason, RemovalReason::kReused);
    EXPECT_EQ(std::get<BlockRemoved>(event).group_idx, kCoarse);
  }
}

TEST_F(PageChunksTest, OfOwnPageAndForeignChunkTheEarlierFreedIsEvicted) {
  for (const bool chunk_first : {true, false}) {
    ASSERT_TRUE(pool_->ResetPrefixCache());
    EXPECT_THAT(Take(2, kCoarse), ElementsAre(1, 2));
    EXPECT_THAT(Take(6, kFine), ElementsAre(4, 5, 6, 7, 8, 9));
    Cache({1, 2}, kCoarse);
    Cache({4, 5, 6}, kFine);
    if (chunk_first) Free({1, 2});
    Free({4, 5, 6});
    if (!chunk_first) Free({1, 2});
    EXPECT_THAT(Take(1, kFine), ElementsAre(chunk_first ? 1 : 4));
    EXPECT_EQ(pool_->block(1).has_key(), !chunk_first);
    Free({chunk_first ? 1 : 4, 7, 8, 9});
  }
}

TEST_F(PageChunksTest, ChunkIdleForLongestIsTaken) {
  Take(4, kCoarse);  // chunks 0 and 1
  Take(3, kFine);
  Free({4, 1, 5, 2});  // chunk 1 is idle before chunk 0
  EXPECT_THAT(Take(1, kFine), ElementsAre(4));
}

TEST_F(PageChunksTest, FreePageInAnIdleChunkIsTakenFirst) {
  OneChunkIdleOneInUse();
  EXPECT_THAT(Take(1, kCoarse), ElementsAre(5));
  EXPECT_EQ(pool_->num_evictions(), 0);
}

TEST_F(PageChunksTest, ChunkThatTheRestOfTheCallNeedsIsLeftAlone) {
  OneChunkIdleOneInUse();
  EXPECT_THAT(TakeBoth({.num_pages = 1}, {.num_pages = 1}),
              ElementsAre(ElementsAre(2), ElementsAre(4)));
}

TEST_F(PageChunksTest, ChunkNeededLaterIsLeftAlone) {
  OneChunkIdleOneInUse();
  EXPECT_THAT(TakeBoth({.num_pages = 1}, {.num_later = 3}), ElementsAre(ElementsAre(2), IsEmpty()));
}

TEST_F(PageChunksTest, LaterNeedThatDoesNotFitIsIgnored) {
  OneChunkIdleOneInUse();
  EXPECT_THAT(TakeBoth({.num_pages = 1}, {.num_later = 4}), ElementsAre(ElementsAre(5), IsEmpty()));
}

TEST_F(PageChunksTest, HitPinsItsChunk) {
  OneChunkIdleOneInUse();
  const std::vector<BlockId> hits = {4};
  EXPECT_TRUE(Promise({.num_pages = 2, .hits = hits}, {}));  // 2 and 5
  EXPECT_FALSE(Promise({.num_pages = 3, .hits = hits}, {}));
  EXPECT_FALSE(Promise({.hits = hits}, {.num_pages = 1}));
  EXPECT_TRUE(Promise({}, {.num_pages = 1}));
  pool_->Touch(hits);
  EXPECT_TRUE(Promise({.num_pages = 2, .hits = hits}, {}));  // a referenced hit costs nothing
}

TEST_F(PageChunksTest, HitsInManyChunksMayNotFitWhereNewPagesWould) {
  const std::vector<BlockId> pages = Take(6, kCoarse);
  const std::vector<BlockId> hits = {1, 4, 7};
  Cache(hits, kCoarse);
  Free(pages);
  EXPECT_FALSE(Promise({.hits = hits}, {.num_pages = 1}));
  EXPECT_TRUE(Promise({.num_pages = 3}, {.num_pages = 1}));
}

TEST_F(PageChunksTest, KeptChunksAndReservedPagesStay) {
  Take(1, kCoarse);
  EXPECT_TRUE(Promise({.num_pages = 1}, {}, /*kept=*/2));
  EXPECT_FALSE(Promise({.num_pages = 2}, {}, /*kept=*/2));
  EXPECT_TRUE(Promise({.num_pages = 1}, {.num_pages = 2}, 0, /*reserved=*/1));
  EXPECT_FALSE(Promise({.num_pages = 1}, {.num_pages = 2}, 0, /*reserved=*/3));
}

TEST_F(PageChunksTest, FreedPagesEnterTheirOwnClassesQueues) {
  Take(2, kCoarse);
  Take(3, kFine);
  Take(1, kCoarse);  // 7, with 8 free
  Cache({2}, kCoarse);
  Free({1, 4, 2, 5, 7});
  EXPECT_THAT(pool_->WalkFree(), ElementsAre(1, 7, 8, 2, 4, 5));
}

TEST_F(PageChunksTest, ResetReturnsAllChunksButThoseOfPermanentPages) {
  EXPECT_THAT(*pool_->TakePermanentBlocks(1, kFine), ElementsAre(1));
  const std::vector<BlockId> ids = Take(2, kCoarse);
  EXPECT_FALSE(pool_->ResetPrefixCache());
  Free(ids);
  EXPECT_TRUE(pool_->ResetPrefixCache());
  EXPECT_EQ(pool_->chunks()->num_unassigned(), 2);
  EXPECT_THAT(pool_->WalkFree(), ElementsAre(2, 3));
  EXPECT_THAT(Take(1, kCoarse), ElementsAre(4));
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

TEST_F(PageChunksTest, LayoutThatDoesNotMakeUpThePoolIsRefused) {
  const auto refusal = [](int64_t num_blocks, const ChunkLayout& layout) {
    const auto pool = BlockPool::Create({.num_blocks = num_blocks, .chunks = layout});
    EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(pool.status().message());
  };
  EXPECT_THAT(refusal(9, kLayout), HasSubstr("num_blocks is 9, expected 1 + num_chunks"));
  EXPECT_THAT(refusal(10, {.num_chunks = -1, .pages_per_chunk = {3}}),
              HasSubstr("chunks.num_chunks is -1, expected 1 to"));
  EXPECT_THAT(refusal(10, {.num_chunks = 3}), HasSubstr("pages_per_chunk is empty"));
  EXPECT_THAT(refusal(10, {.num_chunks = 3, .pages_per_chunk = {3, 0}}),
              HasSubstr("chunks.pages_per_chunk[1] is 0"));
  EXPECT_THAT(refusal(10, {.num_chunks = 3, .pages_per_chunk = {3}, .class_of_group = {0, 1}}),
              HasSubstr("chunks.class_of_group[1] is 1, expected 0 to 0"));
}

TEST_F(PageChunksTest, TakingMoreThanWasPromisedStops) {
  ASSERT_TRUE(Promise({.num_pages = 1}, {}));
  std::vector<BlockId> table;
  EXPECT_DEATH(pool_->GetNewBlocks(2, table, kCoarse), "2 pages to take for group 0, 1 promised");
}

}  // namespace
}  // namespace kvblocks
