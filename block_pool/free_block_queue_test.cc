#include "kvblocks/free_block_queue.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/huge_page_allocator.h"
#include "kvblocks/kv_event.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

class FreeBlockQueueTest : public testing::Test {
 protected:
  static constexpr int32_t kNumBlocks = 8;

  void Fill(std::vector<BlockId> ids) {
    for (BlockId id : ids) queue_.LinkBack(id);
  }

  BlockRecords records_{kNumBlocks};
  FreeBlockQueue queue_{&records_};
};

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

// Around the size at which huge pages begin: 2^21 bytes.
TEST(HugePageAllocatorTest, ArraysOfAllSizesAreAlignedAndUsable) {
  for (size_t count : {1, 100, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 3'000'000}) {
    std::vector<uint64_t, HugePageAllocator<uint64_t>> numbers(count);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(numbers.data()) % (count < (1 << 18) ? 64 : 2 << 20), 0);
    std::iota(numbers.begin(), numbers.end(), 0);
    EXPECT_EQ(numbers.back(), count - 1);
    std::vector<uint64_t, HugePageAllocator<uint64_t>> moved = std::move(numbers);
    moved.push_back(7);
    EXPECT_EQ(moved[count - 1], count - 1);
  }
}

TEST(KvEventTest, ReasonsHaveNames) {
  EXPECT_EQ(RemovalReasonName(RemovalReason::kReused), "reused");
  EXPECT_EQ(RemovalReasonName(RemovalReason::kEvicted), "evicted");
  EXPECT_EQ(RemovalReasonName(RemovalReason::kReplaced), "replaced");
  EXPECT_EQ(RemovalReasonName(static_cast<RemovalReason>(99)), "unknown");
}

}  // namespace
}  // namespace kvblocks
