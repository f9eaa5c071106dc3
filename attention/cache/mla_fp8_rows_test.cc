#include "kvblocks/attention/cache/mla_fp8_rows.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::array<uint16_t, kMlaRotaryValues> SomeRotary() {
  std::array<uint16_t, kMlaRotaryValues> words;
  for (int i = 0; i < kMlaRotaryValues; ++i) words[i] = static_cast<uint16_t>(0x3F80 + i);
  words[5] = 0x7FA5;  // a NaN with a payload
  return words;
}

uint8_t ByteAt(const std::vector<std::byte>& bytes, int64_t i) {
  return std::to_integer<uint8_t>(bytes[i]);
}

// EX-28.
TEST(MlaFp8RowsTest, Ex28TileScales) {
  EXPECT_EQ(MlaTileScale(3.5), 0.0078125f);
  EXPECT_EQ(MlaTileScale(0), std::numeric_limits<float>::min());
  EXPECT_EQ(MlaTileScaleE8M0(3), 120);
  EXPECT_EQ(MlaTileScaleE8M0(0), 105);
  EXPECT_EQ(E8M0ToDouble(120), 0x1p-7);
}

TEST(MlaFp8RowsTest, E8M0ScaleIsTheLeastPowerOfTwoThatReachesAmax) {
  for (int exponent = -13; exponent <= 127; ++exponent) {
    for (const double fraction : {1.0, 1.25, std::nextafter(1.75, 1), 1.75, std::nextafter(1.75, 2),
                                  std::nextafter(2.0, 1)}) {
      const double amax = std::ldexp(fraction, exponent);
      const double scale = E8M0ToDouble(MlaTileScaleE8M0(amax));
      EXPECT_GE(448 * scale, amax) << amax;
      EXPECT_LT(448 * scale / 2, amax) << amax;
    }
  }
}

TEST(MlaFp8RowsTest, ScaleBytesStayWithinE8M0) {
  EXPECT_EQ(MlaTileScaleE8M0(1e300), 254);
  EXPECT_EQ(MlaTileScale(1e300), std::numeric_limits<float>::max());
}

TEST(MlaFp8RowsTest, Record656HasCodesScalesAndRotaryAtTheirPlaces) {
  std::vector<double> values(kMla656Values);
  for (int i = 0; i < kMla656Values; ++i) values[i] = (i / 128 + 1) * (i % 2 ? 1.0 : -0.5);
  values[0] = -448;    // tile 0: scale 1
  values[128] = 3.5;   // tile 1: scale 1/128
  values[256] = kNaN;  // tile 2: left out of the maximum, which is 3
  values[257] = kInfinity;
  for (int i = 384; i < 512; ++i) values[i] = 0;  // tile 3: the floor
  const auto rotary = SomeRotary();
  std::vector<std::byte> record(kMla656Bytes + 2, std::byte{0xA5});
  EncodeMla656(values.data(), rotary.data(), record.data() + 1);

  EXPECT_EQ(ByteAt(record, 0), 0xA5);
  EXPECT_EQ(ByteAt(record, kMla656Bytes + 1), 0xA5);
  EXPECT_EQ(ByteAt(record, 1), DoubleToE4M3(-448));
  EXPECT_EQ(ByteAt(record, 1 + 128), DoubleToE4M3(448));
  EXPECT_EQ(ByteAt(record, 1 + 256), 0x7F);  // NaN stays NaN
  EXPECT_EQ(ByteAt(record, 1 + 257), 0x7E);  // infinity saturates
  EXPECT_EQ(ByteAt(record, 1 + 258), 0xF6);  // -1.5 of 3: -224
  EXPECT_EQ(ByteAt(record, 1 + 400), 0);
  const float scales[4] = {1, 0.0078125f, 3 / 448.f, std::numeric_limits<float>::min()};
  EXPECT_EQ(std::memcmp(record.data() + 1 + 512, scales, sizeof(scales)), 0);
  EXPECT_EQ(std::memcmp(record.data() + 1 + 528, rotary.data(), 128), 0);

  std::vector<double> row(576);
  DecodeMla656(record.data() + 1, row.data());
  EXPECT_EQ(row[0], -448);
  EXPECT_EQ(row[128], 3.5);
  EXPECT_TRUE(std::isnan(row[256]));
  EXPECT_EQ(row[258], -224.0 * (3 / 448.f));
  EXPECT_EQ(row[512], 1);
  EXPECT_TRUE(std::isnan(row[512 + 5]));
}

TEST(MlaFp8RowsTest, Readers656AcceptAnyPositiveScale) {
  std::vector<std::byte> record(kMla656Bytes, std::byte{0x38});  // e4m3 1
  const float scales[4] = {0x1p-149f, 0.3f, 1, std::numeric_limits<float>::max()};
  std::memcpy(record.data() + kMla656ScalesAt, scales, sizeof(scales));
  std::vector<double> row(576);
  DecodeMla656(record.data(), row.data());
  for (int tile = 0; tile < 4; ++tile) EXPECT_EQ(row[tile * 128 + 7], scales[tile]);
}

// EX-4.
TEST(MlaFp8RowsTest, Ex4BlocksOf584) {
  EXPECT_EQ(MlaFp8_584BlockBytes(64), 37440);
  EXPECT_EQ(MlaFp8_584BlockBytes(256), 149760);
  EXPECT_EQ(MlaFp8_584BlockBytes(2), 1728);
}

TEST(MlaFp8RowsTest, Rows584ArePlanarWithinTheBlock) {
  constexpr int64_t kBlockSize = 3;
  const int64_t block_bytes = MlaFp8_584BlockBytes(kBlockSize);
  ASSERT_EQ(block_bytes, 2304);
  std::vector<std::byte> block(block_bytes, std::byte{0xA5});
  std::vector<double> values(kMla584Values, 1.0);
  values[64] = 3;   // tile 1: 2^-7
  values[128] = 0;  // tile 2: amax 1 -> 2^-8
  const auto rotary = SomeRotary();
  EncodeMla584(values.data(), rotary.data(), block.data(), kBlockSize, 1);

  std::vector<std::byte> expected(block_bytes, std::byte{0xA5});
  for (int i = 0; i < kMla584Values; ++i) {
    const double scale = i / 64 == 1 ? 0x1p-7 : 0x1p-8;
    expected[576 + i] = std::byte{DoubleToE4M3(values[i] / scale)};
  }
  std::memcpy(&expected[576 + 448], rotary.data(), 128);
  const uint8_t scale_bytes[8] = {119, 120, 119, 119, 119, 119, 119, 0};
  std::memcpy(&expected[3 * 576 + 8], scale_bytes, 8);
  EXPECT_EQ(block, expected);

  std::vector<double> row(512);
  DecodeMla584(block.data(), kBlockSize, 1, row.data());
  for (int i = 0; i < kMla584Values; ++i) EXPECT_EQ(row[i], values[i]) << i;
  EXPECT_EQ(row[448], 1);
}

}  // namespace
}  // namespace kvblocks::attention
