#include "kvblocks/block_pool/free_block_queue.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FreeBlockQueueTest : public testing::Test {
 protected:
  static constexpr int32_t kNumBlocks = 8;

  void Fill(std::vector<BlockId> ids) {
    for (BlockId id : ids) queue_.LinkBack(id);
  }
  std::vector<BlockId> Pop(size_t n) {
    std::vector<BlockId> ids(n);
    queue_.PopFront(absl::MakeSpan(ids));
    return ids;
  }

  BlockRecords records_{kNumBlocks};
  FreeBlockQueue queue_{&records_};
};

TEST_F(FreeBlockQueueTest, StartsEmpty) {
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.size(), 0);
  EXPECT_EQ(queue_.front(), kNumBlocks);  // the sentinel
  EXPECT_THAT(queue_.Walk(), IsEmpty());
  EXPECT_TRUE(queue_.CheckInvariants().ok());
}

TEST_F(FreeBlockQueueTest, PoppedBlockHasNoLinks) {
  Fill({3, 1, 2});
  EXPECT_THAT(Pop(1), ElementsAre(3));
  EXPECT_EQ(records_[3].prev, kUnlinked);
  EXPECT_EQ(records_[3].next, kUnlinked);
  EXPECT_EQ(queue_.size(), 2);
  EXPECT_EQ(queue_.front(), 1);
}

TEST_F(FreeBlockQueueTest, PopsSeveralInOrder) {
  Fill({5, 4, 3});
  EXPECT_THAT(Pop(0), IsEmpty());
  EXPECT_THAT(Pop(2), ElementsAre(5, 4));
  EXPECT_TRUE(queue_.CheckInvariants().ok());
  EXPECT_THAT(Pop(1), ElementsAre(3));
  EXPECT_TRUE(queue_.empty());
  EXPECT_TRUE(queue_.CheckInvariants().ok());
}

TEST_F(FreeBlockQueueTest, TouchedBlockLeavesTheMiddle) {
  Fill({1, 2, 3});
  queue_.Unlink(2);
  EXPECT_THAT(queue_.Walk(), ElementsAre(1, 3));
  queue_.Unlink(1);
  queue_.Unlink(3);
  EXPECT_TRUE(queue_.empty());
  EXPECT_TRUE(queue_.CheckInvariants().ok());
}

TEST_F(FreeBlockQueueTest, LinkAfterContinuesABatchAtTheFront) {
  Fill({1});
  queue_.LinkAfter(kUnlinked, 2);
  queue_.LinkAfter(2, 3);
  queue_.LinkBack(4);
  EXPECT_THAT(queue_.Walk(), ElementsAre(2, 3, 1, 4));
}

TEST_F(FreeBlockQueueTest, BrokenLinksAreNamed) {
  Fill({1, 2, 3});
  records_[2].prev = 3;
  EXPECT_THAT(std::string(queue_.CheckInvariants().message()),
              HasSubstr("block 2 and its neighbour 1 in a free queue disagree"));
  records_[2].prev = 1;
  ASSERT_TRUE(queue_.CheckInvariants().ok());
  // Past the blocks.
  records_[3].next = kNumBlocks + 1;
  EXPECT_THAT(std::string(queue_.CheckInvariants().message()), HasSubstr("neighbour 3"));
}

}  // namespace
}  // namespace kvblocks
