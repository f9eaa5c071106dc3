#include "kvblocks/block_pool/free_block_queue.h"

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FreeBlockQueueTest : public testing::Test {
 protected:
  static constexpr int32_t kNumBlocks = 8;

  void Fill(std::vector<BlockId> ids) { ASSERT_TRUE(queue_.Append(ids).ok()); }

  std::string Refusal(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(queue_.CheckInvariants().ok()) << queue_.CheckInvariants();
    return std::string(status.message());
  }

  BlockRecords records_{kNumBlocks};
  FreeBlockQueue queue_{&records_};
};

TEST_F(FreeBlockQueueTest, StartsEmpty) {
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.size(), 0);
  EXPECT_EQ(queue_.front(), kNumBlocks);  // the sentinel
  EXPECT_EQ(queue_.PopFront(), std::nullopt);
  EXPECT_THAT(queue_.Walk(), IsEmpty());
  EXPECT_TRUE(queue_.CheckInvariants().ok());
}

TEST_F(FreeBlockQueueTest, PoppedBlockHasNoLinks) {
  Fill({3, 1, 2});
  EXPECT_EQ(queue_.PopFront(), 3);
  EXPECT_EQ(records_[3].prev, kUnlinked);
  EXPECT_EQ(records_[3].next, kUnlinked);
  EXPECT_EQ(queue_.size(), 2);
  EXPECT_EQ(queue_.front(), 1);
}

TEST_F(FreeBlockQueueTest, PopsSeveralInOrderOrNoneAtAll) {
  Fill({5, 4, 3});
  EXPECT_EQ(queue_.PopFront(4), std::nullopt);
  EXPECT_EQ(queue_.PopFront(-1), std::nullopt);
  EXPECT_THAT(queue_.Walk(), ElementsAre(5, 4, 3));
  EXPECT_THAT(*queue_.PopFront(0), IsEmpty());
  EXPECT_THAT(*queue_.PopFront(2), ElementsAre(5, 4));
  EXPECT_THAT(*queue_.PopFront(1), ElementsAre(3));
  EXPECT_TRUE(queue_.empty());
}

TEST_F(FreeBlockQueueTest, TouchedBlockLeavesTheMiddle) {
  Fill({1, 2, 3});
  EXPECT_TRUE(queue_.Remove(2).ok());
  EXPECT_THAT(queue_.Walk(), ElementsAre(1, 3));
  EXPECT_TRUE(queue_.Remove(1).ok());
  EXPECT_TRUE(queue_.Remove(3).ok());
  EXPECT_TRUE(queue_.empty());
  EXPECT_TRUE(queue_.CheckInvariants().ok());
}

TEST_F(FreeBlockQueueTest, RemovingWhatIsNotQueuedIsRefused) {
  Fill({1, 2});
  EXPECT_THAT(Refusal(queue_.Remove(3)), HasSubstr("block 3 is not in the free queue"));
  EXPECT_THAT(Refusal(queue_.Remove(-1)), HasSubstr("block -1"));
  // The sentinel is linked, but no block.
  EXPECT_THAT(Refusal(queue_.Remove(kNumBlocks)), HasSubstr("block 8"));
  EXPECT_THAT(queue_.Walk(), ElementsAre(1, 2));
}

TEST_F(FreeBlockQueueTest, PrependKeepsListOrder) {
  Fill({1, 2});
  EXPECT_TRUE(queue_.Prepend({5, 4}).ok());
  EXPECT_TRUE(queue_.Prepend({}).ok());
  EXPECT_THAT(queue_.Walk(), ElementsAre(5, 4, 1, 2));
}

TEST_F(FreeBlockQueueTest, LinkAfterContinuesABatchAtTheFront) {
  Fill({1});
  queue_.LinkAfter(kUnlinked, 2);
  queue_.LinkAfter(2, 3);
  queue_.LinkBack(4);
  EXPECT_THAT(queue_.Walk(), ElementsAre(2, 3, 1, 4));
}

TEST_F(FreeBlockQueueTest, AddingQueuedRepeatedOrForeignBlocksAddsNothing) {
  Fill({1, 2});
  for (bool front : {false, true}) {
    const auto add = [&](std::vector<BlockId> ids) {
      return Refusal(front ? queue_.Prepend(ids) : queue_.Append(ids));
    };
    EXPECT_THAT(add({3, 1}), HasSubstr("block 1 is already in the free queue"));
    EXPECT_THAT(add({3, 4, 3}), HasSubstr("block 3 is already in the free queue, or listed twice"));
    EXPECT_THAT(add({3, -1}), HasSubstr("block -1 is outside the pool's blocks 0..7"));
    EXPECT_THAT(add({3, kNumBlocks}), HasSubstr("block 8 is outside"));
    EXPECT_THAT(queue_.Walk(), ElementsAre(1, 2));
    EXPECT_FALSE(records_[3].is_linked());
  }
}

TEST_F(FreeBlockQueueTest, RandomOperationsMatchADeque) {
  std::mt19937_64 random(1);
  std::deque<BlockId> expected;
  for (int step = 0; step < 20'000; ++step) {
    const BlockId id = static_cast<BlockId>(random() % kNumBlocks);
    const auto it = std::find(expected.begin(), expected.end(), id);
    const bool queued = it != expected.end();
    switch (random() % 4) {
      case 0:
        EXPECT_EQ(queue_.Append({id}).ok(), !queued);
        if (!queued) expected.push_back(id);
        break;
      case 1:
        EXPECT_EQ(queue_.Prepend({id}).ok(), !queued);
        if (!queued) expected.push_front(id);
        break;
      case 2:
        EXPECT_EQ(queue_.Remove(id).ok(), queued);
        if (queued) expected.erase(it);
        break;
      case 3: {
        const auto popped = queue_.PopFront();
        ASSERT_EQ(popped.has_value(), !expected.empty());
        if (popped) {
          EXPECT_EQ(*popped, expected.front());
          expected.pop_front();
        }
      }
    }
    ASSERT_THAT(queue_.Walk(), ElementsAreArray(expected));
    ASSERT_TRUE(queue_.CheckInvariants().ok()) << queue_.CheckInvariants();
  }
}

TEST_F(FreeBlockQueueTest, BrokenLinksAreNamed) {
  Fill({1, 2, 3});
  const BlockId first = records_[1].prev;
  records_[1].prev = kUnlinked;
  EXPECT_THAT(std::string(queue_.CheckInvariants().message()),
              HasSubstr("block 1 has one free-queue link set"));
  records_[1].prev = first;
  records_[2].prev = 3;
  EXPECT_THAT(std::string(queue_.CheckInvariants().message()), HasSubstr("disagree"));
  records_[2].prev = 1;
  ASSERT_TRUE(queue_.CheckInvariants().ok());
  // A pair that is linked in a circle of its own.
  records_[5].prev = records_[5].next = 6;
  records_[6].prev = records_[6].next = 5;
  EXPECT_THAT(std::string(queue_.CheckInvariants().message()),
              HasSubstr("free queue counts 3 blocks, 5 are linked, a walk visits 3"));
}

}  // namespace
}  // namespace kvblocks
