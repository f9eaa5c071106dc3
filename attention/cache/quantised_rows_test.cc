#include "attention/cache/quantised_rows.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/tensor/small_floats.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_view.h"

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
  const Stored int8 =
      Store(KvRowFormat::kPerTokenHead, DType::kI8, {127, -254, 1, 3, -kInfinity, kNaN});
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
  const Stored stored =
      Store(KvRowFormat::kInt4PerTokenHead, DType::kU8, {-2.5, 5, 0, 1, 0.25, kNaN});
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
  row[0] = 6, row[1] = -5, row[2] = 2.5, row[3] = 0.25, row[4] = 0.75, row[5] = kNaN,
  row[6] = kInfinity;
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
  EXPECT_EQ(Store(KvRowFormat::kNvfp4, DType::kU8, std::vector<double>(16, 1e6)).values[0],
            448 * 6);
}

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

constexpr double kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

struct Record {
  std::vector<std::byte> bytes;
  std::vector<double> values;
  int at(int64_t i) const { return std::to_integer<int>(bytes[i]); }
  int code(int64_t d) const { return at(d / 2) >> (d % 2 == 0 ? 0 : 4) & 15; }
};

Record Encode(KvRowFormat format, const std::vector<double>& values) {
  const MlaRecordShape shape = ShapeOf(format);
  EXPECT_EQ(static_cast<int64_t>(values.size()), shape.key_dim);
  // One byte more on each side, which must stay as it is.
  std::vector<std::byte> memory(shape.bytes + 2, std::byte{0x5a});
  EncodeMlaRecord(format, values.data(), memory.data() + 1);
  EXPECT_EQ(memory.front(), std::byte{0x5a});
  EXPECT_EQ(memory.back(), std::byte{0x5a});
  Record record;
  record.bytes.assign(memory.begin() + 1, memory.end() - 1);
  record.values.resize(shape.key_dim);
  DecodeMlaRecord(format, record.bytes.data(), record.values.data());
  std::vector<float> floats(shape.key_dim);
  DecodeMlaRecord(format, record.bytes.data(), floats.data());
  for (int64_t d = 0; d < shape.key_dim; ++d) {
    if (std::isnan(record.values[d])) continue;
    EXPECT_EQ(floats[d], static_cast<float>(record.values[d]));
  }
  return record;
}

std::vector<double> Draws(std::mt19937_64& random, int64_t count) {
  std::vector<double> values = NormalDraws(random, count);
  for (int64_t d = 0; d < count; ++d) {
    values[d] *= std::ldexp(1.0, static_cast<int>(d / 32 % 13) - 6);
  }
  return values;
}

double Amax(const std::vector<double>& values, int64_t first, int64_t count) {
  double amax = 0;
  for (int64_t d = first; d < first + count; ++d) amax = std::max(amax, std::abs(values[d]));
  return amax;
}

TEST(MlaRecordsTest, V41HasAPowerOfTwoPerThirtyTwoValues) {
  std::mt19937_64 random(1);
  for (int n = 0; n < 20; ++n) {
    const std::vector<double> values = Draws(random, 512);
    const Record record = Encode(KvRowFormat::kMlaV41, values);
    for (int d = 0; d < 512; ++d) {
      // The least power of two that brings the group below 448.
      const double scale = std::exp2(std::ceil(std::log2(Amax(values, d / 32 * 32, 32) / 448)));
      EXPECT_EQ(record.at(512 + d / 32), 127 + std::log2(scale));
      EXPECT_EQ(record.at(d), DoubleToE4M3(values[d] / scale));
      EXPECT_EQ(record.values[d], E4M3ToDouble(static_cast<uint8_t>(record.at(d))) * scale);
    }
  }
  std::vector<double> edges(512, 0.0);
  edges[32] = kInfinity, edges[33] = kNaN, edges[34] = 1;
  edges[511] = 448;
  const Record record = Encode(KvRowFormat::kMlaV41, edges);
  EXPECT_EQ(record.at(512), 105);  // of 1e-4, the least magnitude
  EXPECT_EQ(record.at(513), 119);
  EXPECT_EQ(record.at(527), 127);
  EXPECT_EQ(record.values[32], 448 * 0x1p-8);
  EXPECT_TRUE(std::isnan(record.values[33]));
  EXPECT_EQ(record.values[34], 1);
}

// Both records of e2m1 codes; they differ in where the scales and the rotary values are.
TEST(MlaRecordsTest, E2M1RecordsHaveAScalePerSixteenValues) {
  std::mt19937_64 random(2);
  for (const KvRowFormat format : {KvRowFormat::kMlaV41Fp4, KvRowFormat::kMlaNvfp4}) {
    const bool v41 = format == KvRowFormat::kMlaV41Fp4;
    for (int n = 0; n < 20; ++n) {
      const std::vector<double> values = Draws(random, ShapeOf(format).key_dim);
      const Record record = Encode(format, values);
      for (int d = 0; d < 512; ++d) {
        const int group = d / 16;
        const int scale_code =
            v41 ? record.at(256 + group) : record.at(320 + 8 * (group & 3) + (group >> 2));
        EXPECT_EQ(scale_code,
                  DoubleToE4M3(std::max(Amax(values, group * 16, 16) / 6, 0x1p-9)));
        const double scale = E4M3ToDouble(static_cast<uint8_t>(scale_code));
        int nearest = 0;
        for (int code = 1; code < 8; ++code) {
          const double here = std::abs(kE2M1[code] - std::abs(values[d]) / scale);
          const double there = std::abs(kE2M1[nearest] - std::abs(values[d]) / scale);
          if (here < there || (here == there && code % 2 == 0)) nearest = code;
        }
        EXPECT_EQ(record.code(d), nearest + (values[d] < 0 ? 8 : 0));
        EXPECT_EQ(record.values[d], (values[d] < 0 ? -1 : 1) * kE2M1[nearest] * scale);
      }
      for (int d = 512; d < ShapeOf(format).key_dim; ++d) {
        EXPECT_EQ(record.at(256 + d - 512), DoubleToE4M3(values[d]));
        EXPECT_EQ(record.values[d], E4M3ToDouble(DoubleToE4M3(values[d])));
      }
    }
  }
}

TEST(MlaRecordsTest, EdgesOfE2M1Records) {
  std::vector<double> edges(576, 0.0);
  edges[0] = 1e9, edges[1] = -kInfinity, edges[2] = kNaN;
  edges[575] = 1000;
  const Record record = Encode(KvRowFormat::kMlaNvfp4, edges);
  EXPECT_EQ(record.at(320), 0x7E);  // 448: the largest scale
  EXPECT_EQ(record.at(328), 0x01);  // 2^-9 of group 1, whose values are 0
  EXPECT_EQ(record.values[0], 6 * 448);
  EXPECT_EQ(record.values[1], -6 * 448);
  EXPECT_EQ(record.values[2], 0);
  EXPECT_EQ(record.values[575], 448);
}

}  // namespace
}  // namespace kvblocks::attention
