#include "kvblocks/sim/cost/count_grid.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

TEST(CountGridTest, EveryPointIsItsOwnPlace) {
  for (const int bits : {1, 3, 5, 9}) {
    const CountGrid grid(bits, 100'000);
    for (size_t i = 0; i + 1 < grid.size(); ++i) {
      EXPECT_LT(grid.At(i), grid.At(i + 1));
      EXPECT_EQ(grid.Of(grid.At(i)).index, i);
      EXPECT_EQ(grid.Of(grid.At(i)).rest, 0);
    }
    EXPECT_GT(grid.At(grid.size() - 1), 100'000);
  }
}

TEST(CountGridTest, SmallCountsArePoints) {
  const CountGrid grid(4, 1000);
  for (int64_t i = 0; i <= 16; ++i) EXPECT_EQ(grid.At(static_cast<size_t>(i)), i);
  EXPECT_EQ(grid.At(17), 18);
}

TEST(CountGridTest, LinesAreExactAlsoBeyondTheLastPoint) {
  const Curve curve(CountGrid(4, 1000), [](int64_t n) { return 7 * n + 3; });
  for (const int64_t n : {0, 1, 15, 16, 17, 31, 100, 999, 1000, 5000, 123'456}) {
    EXPECT_EQ(curve.At(n), 7 * n + 3) << n;
  }
}

TEST(CountGridTest, SquaresAreCloseBetweenPoints) {
  const Curve curve(CountGrid(5, 1 << 20), [](int64_t n) { return n * n; });
  for (int64_t n = 1; n < (1 << 20); n += n / 5 + 1) {
    EXPECT_NEAR(static_cast<double>(curve.At(n)) / static_cast<double>(n * n), 1.0, 0.002) << n;
  }
}

TEST(CountGridTest, SurfacesAreLinearInBothDirections) {
  const Surface surface(CountGrid(3, 500), CountGrid(4, 5000),
                        [](int64_t x, int64_t y) { return 5 * x + 11 * y + 1; });
  for (const int64_t x : {0, 1, 7, 9, 77, 500, 900}) {
    for (const int64_t y : {0, 3, 17, 1023, 5000, 80'000}) {
      // Rounded down once per direction.
      EXPECT_NEAR(static_cast<double>(surface.At(x, y)), static_cast<double>(5 * x + 11 * y + 1),
                  1);
    }
  }
}

}  // namespace
}  // namespace kvblocks::sim
