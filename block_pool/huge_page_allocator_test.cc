#include "kvblocks/block_pool/huge_page_allocator.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks {
namespace {

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

TEST(HugePageAllocatorTest, EmptyArraysAreFine) {
  std::vector<int, HugePageAllocator<int>> none;
  none.shrink_to_fit();
  EXPECT_TRUE(none.empty());
}

}  // namespace
}  // namespace kvblocks
