// Rows against single elements, bit for bit.

#include "kvblocks/attention/cache/element_rows.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

constexpr DType kStored[] = {DType::kF64,    DType::kF32,    DType::kF16, DType::kBF16,
                             DType::kF8E4M3, DType::kF8E5M2, DType::kI8};

bool SameBits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

TEST(ElementRowsTest, LoadsEveryCodeLikeOneElement) {
  for (const DType dtype : kStored) {
    if (ElementBytes(dtype) > 2) continue;
    const int64_t bytes = ElementBytes(dtype), count = int64_t{1} << (8 * bytes);
    std::vector<std::byte> codes(count * bytes + 1);
    for (int64_t i = 0; i < count; ++i) std::memcpy(&codes[1 + i * bytes], &i, bytes);
    std::vector<double> values(count);
    LoadElements(dtype, codes.data() + 1, 1, count, values.data());
    for (int64_t i = 0; i < count; ++i) {
      const double expected = LoadElement(dtype, &codes[1 + i * bytes]);
      ASSERT_TRUE(SameBits(values[i], expected) || (values[i] != values[i] && expected != expected))
          << Name(dtype) << " " << i;
    }
  }
}

TEST(ElementRowsTest, LoadsAtAnyStride) {
  const std::vector<float> numbers = {0, 1, 2, 3, 4, 5, 6};
  std::vector<double> values(3);
  LoadElements(DType::kF32, reinterpret_cast<const std::byte*>(numbers.data()), 3, 3,
               values.data());
  EXPECT_EQ(values, (std::vector<double>{0, 3, 6}));
  LoadElements(DType::kF32, reinterpret_cast<const std::byte*>(numbers.data() + 2), 0, 3,
               values.data());
  EXPECT_EQ(values, (std::vector<double>{2, 2, 2}));
}

void ExpectStoredLikeOneElement(DType dtype, const std::vector<double>& values) {
  const int64_t bytes = ElementBytes(dtype);
  std::vector<std::byte> stored(values.size() * bytes);
  StoreElements(dtype, values.data(), values.size(), stored.data());
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte expected[8];
    StoreElement(dtype, values[i], expected);
    if (dtype == DType::kI8) expected[0] = static_cast<std::byte>(DoubleToInt8Code(values[i]));
    ASSERT_EQ(std::memcmp(&stored[i * bytes], expected, bytes), 0)
        << Name(dtype) << " of " << std::hexfloat << values[i];
  }
}

TEST(ElementRowsTest, StoresNumbersTiesAndTheirNeighboursLikeOneElement) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    const int64_t bytes = ElementBytes(dtype), count = int64_t{1} << (8 * bytes - 1);
    std::vector<double> values;
    const auto value_of = [&](int64_t code) {
      std::byte memory[2];
      std::memcpy(memory, &code, bytes);
      return LoadElement(dtype, memory);
    };
    for (int64_t code = 0; code + 1 < count; ++code) {
      const double low = value_of(code), high = value_of(code + 1);
      const double middle = std::isfinite(high) ? (low + high) / 2 : low * 1.01;
      for (const double value : {low, std::nextafter(low, 0), middle, std::nextafter(middle, 0),
                                 std::nextafter(middle, std::numeric_limits<double>::max())}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
    ExpectStoredLikeOneElement(dtype, values);
  }
  std::vector<double> halves;
  for (int i = -600; i <= 600; ++i) halves.push_back(i / 4.0);
  ExpectStoredLikeOneElement(DType::kI8, halves);
}

TEST(ElementRowsTest, StoresAnyBitsLikeOneElement) {
  std::mt19937_64 random(1);
  std::vector<double> values = {0.0, -0.0, 5e-324, 1e308, -1e308};
  for (int i = 0; i < 20000; ++i) {
    const uint64_t bits = random();
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
    // Around the ranges of the formats.
    values.push_back(std::ldexp(std::copysign(1 + (bits >> 12) * 0x1p-52, value),
                                static_cast<int>(bits % 300) - 150));
  }
  values.push_back(std::numeric_limits<double>::infinity());
  values.push_back(-std::numeric_limits<double>::infinity());
  values.push_back(std::numeric_limits<double>::quiet_NaN());
  values.push_back(-std::numeric_limits<double>::quiet_NaN());
  for (const DType dtype : kStored) ExpectStoredLikeOneElement(dtype, values);
}

}  // namespace
}  // namespace kvblocks::attention
