#include "kvblocks/attention/cache/mla_records.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/attention/tensor/small_floats.h"
#include "kvblocks/attention/testing/paged_case.h"

namespace kvblocks::attention {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
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
