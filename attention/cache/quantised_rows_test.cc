#include "kvblocks/attention/cache/quantised_rows.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/attention/testing/paged_case.h"

namespace kvblocks::attention {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Stored {
  std::vector<std::byte> codes, scales;
  std::vector<double> values;  // read back, the outer scale applied

  int code(int64_t i) const { return std::to_integer<int>(codes[i]); }
  int scale(int64_t i) const { return std::to_integer<int>(scales[i]); }
  float scale() const {
    float value;
    std::memcpy(&value, scales.data(), sizeof(value));
    return value;
  }
};

Stored Store(KvRowFormat format, DType code, std::vector<double> row, double outer = 1) {
  const auto count = static_cast<int64_t>(row.size());
  Stored stored;
  stored.codes.resize(CodeBytes(format, count));
  stored.scales.resize(ScaleBytes(format, count));
  stored.values.resize(count);
  EncodeQuantisedRow(format, code, row.data(), count, outer, stored.codes.data(),
                     stored.scales.data());
  DecodeQuantisedRow(format, code, stored.codes.data(), stored.scales.data(), count,
                     stored.values.data());
  for (double& value : stored.values) value *= outer;
  if (ValuesPerElement(format) > 1) {
    std::vector<float> floats(count);
    DecodePackedRow(format, stored.codes.data(), stored.scales.data(), count, floats.data());
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_NEAR(floats[i] * outer, stored.values[i], 1e-6 * std::abs(stored.values[i]));
    }
  }
  return stored;
}

// AT-44.
TEST(QuantisedRowsTest, PerTokenHeadScaleIsTheLargestMagnitude) {
  const Stored int8 = Store(KvRowFormat::kPerTokenHead, DType::kI8, {127, -254, 1, 3, -kInfinity, kNaN});
  EXPECT_EQ(int8.scale(), 2);
  const std::array<int, 6> codes = {64, -127, 0, 2, -127, 0};  // 63.5, 0.5 and 1.5 to even
  for (int i = 0; i < 6; ++i) EXPECT_EQ(static_cast<int8_t>(int8.code(i)), codes[i]) << i;
  EXPECT_EQ(int8.values, (std::vector<double>{128, -254, 0, 4, -254, 0}));

  const Stored fp8 = Store(KvRowFormat::kPerTokenHead, DType::kF8E4M3, {224, -1, 0.53125, kNaN});
  EXPECT_EQ(fp8.scale(), 0.5);
  EXPECT_EQ(fp8.code(0), 0x7E);
  EXPECT_EQ(fp8.code(1), 0xC0);
  EXPECT_EQ(fp8.values[2], 0.53125 - 0.03125);  // 1.0625 is a tie between 1 and 1.125
  EXPECT_TRUE(std::isnan(fp8.values[3]));
}

TEST(QuantisedRowsTest, ScalesAreNeverZeroOrInfinite) {
  for (const DType code : {DType::kI8, DType::kF8E4M3}) {
    for (const double tiny : {0.0, 5e-324, 1e-30}) {
      EXPECT_EQ(Store(KvRowFormat::kPerTokenHead, code, {tiny, -tiny}).scale(), 1e-6f);
    }
    EXPECT_TRUE(std::isfinite(Store(KvRowFormat::kPerTokenHead, code, {1e300, 1}).scale()));
    EXPECT_EQ(Store(KvRowFormat::kPerTokenHead, code, {kNaN, kInfinity}).scale(), 1e-6f);
  }
}

TEST(QuantisedRowsTest, Int4KeepsItsZeroPointInTheScale) {
  // Width 7.5 in 15 steps of 0.5; 0 is code 5.
  const Stored stored = Store(KvRowFormat::kInt4PerTokenHead, DType::kU8, {-2.5, 5, 0, 1, 0.25, kNaN});
  EXPECT_EQ(std::bit_cast<uint32_t>(stored.scale()), std::bit_cast<uint32_t>(0.5f) | 5u);
  EXPECT_EQ(stored.code(0), 0xF0);  // the first value in the lower half
  EXPECT_EQ(stored.code(1), 0x75);
  EXPECT_EQ(stored.code(2), 0x56);  // 5.5 to even
  EXPECT_EQ(stored.values, (std::vector<double>{-2.5, 5, 0, 1, 0.5, 0}));
}

// Engines that leave 0 out of the range lose such vectors wholly.
TEST(QuantisedRowsTest, Int4ReachesVectorsOfOneSign) {
  const std::vector<double> row = {5, 5.5, 6, 4};
  const Stored above = Store(KvRowFormat::kInt4PerTokenHead, DType::kU8, row);
  const Stored below = Store(KvRowFormat::kInt4PerTokenHead, DType::kU8, {-5, -5.5, -6, -4});
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(above.values[i], row[i], 0.201);
    EXPECT_NEAR(below.values[i], -row[i], 0.201);
  }
}

TEST(QuantisedRowsTest, Nvfp4HasAScalePerSixteenValues) {
  std::vector<double> row(32, 0.0);
  row[0] = 6, row[1] = -5, row[2] = 2.5, row[3] = 0.25, row[4] = 0.75, row[5] = kNaN, row[6] = kInfinity;
  row[31] = -0.75;
  const Stored stored = Store(KvRowFormat::kNvfp4, DType::kU8, row);
  EXPECT_EQ(stored.scale(0), 0x38);  // 1
  EXPECT_EQ(stored.scale(1), 0x20);  // 0.125
  EXPECT_EQ(stored.code(0), 0xE7);   // 6 and -4: -5 is a tie
  EXPECT_EQ(stored.code(1), 0x04);   // 2 and 0: ties
  EXPECT_EQ(stored.code(2), 0x02);   // 1: a tie; no NaN
  EXPECT_EQ(stored.code(3), 0x07);
  EXPECT_EQ(stored.code(15), 0xF0);
  EXPECT_EQ(stored.values[31], -0.75);
  // The outer scale divides first.
  const Stored outer = Store(KvRowFormat::kNvfp4, DType::kU8, row, 4);
  EXPECT_EQ(outer.scale(0), 0x28);
  EXPECT_EQ(outer.values[0], 6);
  // Values that no scale reaches are stored as 0, not as a quotient by it.
  const Stored lost = Store(KvRowFormat::kNvfp4, DType::kU8, std::vector<double>(16, 1e-3));
  EXPECT_EQ(lost.scale(0), 0);
  EXPECT_EQ(lost.values, std::vector<double>(16, 0.0));
  // ... and those beyond all scales saturate.
  EXPECT_EQ(Store(KvRowFormat::kNvfp4, DType::kU8, std::vector<double>(16, 1e6)).values[0], 448 * 6);
}

// What quantisation may cost: half a step of the code at the scale.
TEST(QuantisedRowsTest, RandomVectorsComeBackWithinHalfAStep) {
  std::mt19937_64 random(3);
  for (int n = 0; n < 200; ++n) {
    const std::vector<double> row = NormalDraws(random, 64);
    const Stored int8 = Store(KvRowFormat::kPerTokenHead, DType::kI8, row);
    const Stored fp8 = Store(KvRowFormat::kPerTokenHead, DType::kF8E4M3, row);
    const Stored int4 = Store(KvRowFormat::kInt4PerTokenHead, DType::kU8, row);
    const Stored nvfp4 = Store(KvRowFormat::kNvfp4, DType::kU8, row, 0.01);
    for (int d = 0; d < 64; ++d) {
      const double size = std::abs(row[d]);
      EXPECT_NEAR(int8.values[d], row[d], int8.scale() * 0.5001);
      EXPECT_NEAR(fp8.values[d], row[d], std::max(size / 16, fp8.scale() * 0x1p-10) * 1.0001);
      // The zero point is rounded, too: at the ends of the range twice the error.
      EXPECT_NEAR(int4.values[d], row[d], int4.scale() * 1.001);
      double amax = 0;
      for (int i = 0; i < 16; ++i) amax = std::max(amax, std::abs(row[d / 16 * 16 + i]));
      // Half of the widest step, 2 of 6, and what rounding the scale down to e4m3 takes off it.
      EXPECT_NEAR(nvfp4.values[d], row[d], amax * (1.0 / 6 + 1.0 / 16));
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention
