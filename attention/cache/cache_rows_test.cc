// Rows against single elements, bit for bit.

#include "attention/cache/cache_rows.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "attention/cache/element_rows.h"
#include "attention/cache/quantised_rows.h"
#include "attention/tensor/small_floats.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

// A float cache whose every element holds its own offset.
struct Numbered {
  explicit Numbered(int64_t count) : values(count) {
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  }
  ConstTensorView View(std::initializer_list<int64_t> extents) const {
    return ViewOf(absl::MakeConstSpan(values), extents);
  }
  std::vector<float> values;
};

std::vector<double> KeyRow(const ConstKvCacheView& cache, int64_t slot, int64_t head = 0) {
  std::vector<double> row(cache.key_dim());
  ReadKeyRow(cache, slot, head, row.data());
  return row;
}

std::vector<double> ValueRow(const ConstKvCacheView& cache, int64_t slot, int64_t head = 0) {
  std::vector<double> row(cache.value_dim());
  ReadValueRow(cache, slot, head, row.data());
  return row;
}

// EX-3: Hkv = 2, D = Dv = 16, BS = 4, x = 8; block 3, head 1, dim 11, offset 2 is slot 14.
TEST(CacheRowsTest, Ex3Addresses) {
  const Numbered memory(4 * 128);
  const ConstKvCacheView paged(KvLayout::kPagedX, memory.View({4, 2, 2, 4, 8}),
                               memory.View({4, 2, 16, 4}));
  EXPECT_EQ(KeyRow(paged, 14, 1)[11], 499);
  EXPECT_EQ(ValueRow(paged, 14, 1)[11], 494);
  const ConstKvCacheView nhd(KvLayout::kNhd, memory.View({4, 4, 2, 16}),
                             memory.View({4, 4, 2, 16}));
  EXPECT_EQ(KeyRow(nhd, 14, 1)[11], 475);
  EXPECT_EQ(ValueRow(nhd, 14, 1)[11], 475);
  const ConstKvCacheView hnd(KvLayout::kHnd, memory.View({4, 2, 4, 16}),
                             memory.View({4, 2, 4, 16}));
  EXPECT_EQ(KeyRow(hnd, 14, 1)[11], 491);
  EXPECT_EQ(ValueRow(hnd, 14, 1)[11], 491);
}

TEST(CacheRowsTest, CodesComeWithoutScale) {
  const std::vector<uint8_t> codes = {0x32, 0x7E, 0x80, 0xC0};
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    const auto k = ConstTensorView::Contiguous(reinterpret_cast<const std::byte*>(codes.data()),
                                               dtype, {1, 1, 1, 4});
    const std::vector<double> row = KeyRow(ConstKvCacheView(KvLayout::kHnd, k, k), 0);
    for (int i = 0; i < 4; ++i) {
      const double value = LoadElement(dtype, k.At(0, 0, 0, i));
      EXPECT_TRUE(row[i] == value || (row[i] != row[i] && value != value)) << Name(dtype) << i;
    }
  }
}

TEST(CacheRowsTest, Fp8LatentRowsComeDequantised) {
  std::vector<double> values(512);
  for (int i = 0; i < 512; ++i) values[i] = (i % 15 - 7) * 0.25;
  std::vector<uint16_t> rotary(64, DoubleToBF16(0.5));

  std::vector<std::byte> records(2 * 4 * kMla656Bytes);
  EncodeMla656(values.data(), rotary.data(), &records[6 * kMla656Bytes]);
  const ConstKvCacheView of656(
      KvLayout::kMlaFp8_656,
      ConstTensorView::Contiguous(records.data(), DType::kU8, {2, 4, kMla656Bytes}));
  std::vector<double> key = KeyRow(of656, 6);
  ASSERT_EQ(key.size(), 576);
  EXPECT_EQ(key[575], 0.5);
  std::vector<double> expected(576);
  DecodeMla656(&records[6 * kMla656Bytes], expected.data());
  EXPECT_EQ(key, expected);
  expected.resize(512);
  EXPECT_EQ(ValueRow(of656, 6), expected);

  const int64_t block_bytes = MlaFp8_584BlockBytes(4);
  std::vector<std::byte> blocks(2 * block_bytes);
  EncodeMla584(values.data(), rotary.data(), &blocks[block_bytes], 4, 2);
  const ConstKvCacheView of584(
      KvLayout::kMlaFp8_584,
      ConstTensorView::Contiguous(blocks.data(), DType::kU8, {2, block_bytes}), {}, 4);
  key = KeyRow(of584, 6);
  ASSERT_EQ(key.size(), 512);
  for (int i = 0; i < 448; ++i) EXPECT_EQ(key[i], values[i]);
  EXPECT_EQ(key[511], 0.5);
  EXPECT_EQ(ValueRow(of584, 6), key);
}

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
