#include "tests/allocation_counter/allocation_counter.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks {
namespace {

TEST(AllocationCounterTest, SeesAnAllocationOnlyWhileItCounts) {
  const int64_t before = NumAllocations();
  auto vector = std::make_unique<std::vector<int32_t>>(100, 1);
  EXPECT_EQ(NumAllocations(), before);
  {
    const CountAllocations counting;
    vector = std::make_unique<std::vector<int32_t>>(100, 1);
    EXPECT_EQ(NumAllocations(), before + 2);
    {
      const CountAllocations not_counting(false);
      vector = std::make_unique<std::vector<int32_t>>(100, 1);
    }
    EXPECT_EQ(NumAllocations(), before + 2);
    vector = std::make_unique<std::vector<int32_t>>(100, 1);
  }
  EXPECT_EQ(NumAllocations(), before + 4);
  vector->resize(1000);
  EXPECT_EQ(NumAllocations(), before + 4);
}

}  // namespace
}  // namespace kvblocks
