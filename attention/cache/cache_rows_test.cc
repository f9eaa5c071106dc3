#include "kvblocks/attention/cache/cache_rows.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/attention/cache/mla_fp8_rows.h"
#include "kvblocks/attention/tensor/small_floats.h"

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

// EX-1 (b): of blocks of 16, slots 35, 2, 17 are (2, 3), (0, 2), (1, 1).
TEST(CacheRowsTest, Ex1SlotsAreBlockAndOffset) {
  const Numbered memory(3 * 16);
  const ConstKvCacheView cache(KvLayout::kNhd, memory.View({3, 16, 1, 1}),
                               memory.View({3, 16, 1, 1}));
  EXPECT_EQ(KeyRow(cache, 35), std::vector<double>{2 * 16 + 3});
  EXPECT_EQ(KeyRow(cache, 2), std::vector<double>{2});
  EXPECT_EQ(KeyRow(cache, 17), std::vector<double>{16 + 1});
}

TEST(CacheRowsTest, FollowsAnyStride) {
  const Numbered memory(1000);
  const auto* data = reinterpret_cast<const std::byte*>(memory.values.data());
  // Tokens 7 apart, heads 3, dims 2, blocks 100.
  const auto k = *ConstTensorView::Make(data, DType::kF32, {3, 4, 2, 2}, {100, 7, 3, 2});
  const auto v = *ConstTensorView::Make(data, DType::kF32, {3, 4, 2, 1}, {100, 7, 3, 2});
  const ConstKvCacheView cache(KvLayout::kNhd, k, v);
  EXPECT_EQ(KeyRow(cache, 2 * 4 + 3, 1), (std::vector<double>{224, 226}));
  EXPECT_EQ(ValueRow(cache, 2 * 4 + 3, 1), std::vector<double>{224});
}

TEST(CacheRowsTest, LatentKeyIsTheRowAndValueItsHead) {
  const Numbered memory(2 * 4 * 5);
  const auto k = memory.View({2, 4, 5});
  const ConstKvCacheView latent(KvLayout::kMlaLatent, k, *k.Slice(2, 0, 3));
  EXPECT_EQ(KeyRow(latent, 6), (std::vector<double>{30, 31, 32, 33, 34}));
  EXPECT_EQ(ValueRow(latent, 6), (std::vector<double>{30, 31, 32}));
  const ConstKvCacheView split(KvLayout::kMlaSplit, memory.View({2, 4, 3}), memory.View({2, 4, 2}));
  EXPECT_EQ(KeyRow(split, 6), (std::vector<double>{18, 19, 20, 12, 13}));
  EXPECT_EQ(ValueRow(split, 6), (std::vector<double>{18, 19, 20}));
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

}  // namespace
}  // namespace kvblocks::attention
