#include "kvblocks/managers/block_size.h"

#include "gtest/gtest.h"

namespace kvblocks {
namespace {

TEST(BlockSizeTest, DividesLikeTheOperators) {
  for (int64_t size : {1, 2, 3, 4, 5, 16, 24, 48, 64, 256, 1000, 1024}) {
    const BlockSize block(size);
    EXPECT_EQ(block.value(), size);
    for (int64_t n : {int64_t{0}, int64_t{1}, size - 1, size, size + 1, 2 * size - 1, 2 * size,
                      17 * size, 17 * size + 1, kMaxTokens - 1, kMaxTokens}) {
      EXPECT_EQ(block.FloorDiv(n), n / size) << n << " / " << size;
      EXPECT_EQ(block.CeilDiv(n), (n + size - 1) / size) << n << " / " << size;
      EXPECT_EQ(block.RoundDown(n), n / size * size) << n << " / " << size;
    }
  }
}

TEST(BlockSizeTest, LargestSizesDoNotOverflow) {
  for (int64_t size : {int64_t{1} << 62, (int64_t{1} << 62) + 1}) {
    EXPECT_EQ(BlockSize(size).CeilDiv(1), 1);
    EXPECT_EQ(BlockSize(size).CeilDiv(size), 1);
    EXPECT_EQ(BlockSize(size).FloorDiv(size - 1), 0);
  }
}

static_assert(BlockSize(16).CeilDiv(17) == 2);

}  // namespace
}  // namespace kvblocks
