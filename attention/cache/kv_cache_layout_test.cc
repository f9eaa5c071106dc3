#include "kvblocks/kv_cache_view.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "attention/testing/random_cache.h"
#include "attention/testing/says.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

using Shape = std::vector<int64_t>;

KvCacheGeometry Geometry(KvLayout layout, KvPlacement placement = KvPlacement::kKThenV) {
  KvCacheGeometry geometry;
  geometry.layout = layout;
  geometry.placement = placement;
  geometry.dtype = DType::kBF16;
  geometry.num_blocks = 5;
  geometry.block_size = 4;
  geometry.num_kv_heads = 2;
  geometry.key_dim = geometry.value_dim = 16;
  if (IsMla(layout)) {
    geometry.num_kv_heads = 1;
    geometry.value_dim = 12;
  }
  if (layout >= KvLayout::kMlaFp8_656) geometry.dtype = DType::kU8;
  return geometry;
}

void ExpectNoLayout(const absl::Status& status, const char* text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status, Says(text));
}

// EX-4: [2, 1000, 16 * 32 * 128] of 16 bits, and blocks of kMlaFp8_584.
TEST(KvCacheLayoutTest, Ex4Memory) {
  KvCacheGeometry geometry = Geometry(KvLayout::kPagedX);
  geometry.num_blocks = 1000;
  geometry.block_size = 16;
  geometry.num_kv_heads = 32;
  geometry.key_dim = geometry.value_dim = 128;
  EXPECT_EQ(*KvCacheShape(geometry), (Shape{2, 1000, 16 * 32 * 128}));
  EXPECT_EQ(*KvCacheBytes(geometry), 262144000);
  EXPECT_EQ(*BytesPerBlock(geometry), 262144);
  geometry = Geometry(KvLayout::kMlaFp8_584);
  for (const auto& [block_size, bytes] : {std::pair{64, 37440}, {256, 149760}, {2, 1728}}) {
    geometry.block_size = block_size;
    EXPECT_EQ(*BytesPerBlock(geometry), bytes);
    EXPECT_EQ(*KvCacheBytes(geometry), 5 * bytes);
  }
}

TEST(KvCacheLayoutTest, ShapesAndTheirBlockDimensions) {
  const auto expect = [](const KvCacheGeometry& geometry, Shape shape, int block_dim) {
    EXPECT_EQ(*KvCacheShape(geometry), shape) << Name(geometry.layout);
    EXPECT_EQ(*BlockDim(geometry), block_dim) << Name(geometry.layout);
    EXPECT_EQ(shape[block_dim], geometry.num_blocks);
    const int64_t elements =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    EXPECT_EQ(*KvCacheBytes(geometry), elements * ElementBytes(geometry.dtype));
  };
  expect(Geometry(KvLayout::kPagedX), {2, 5, 128}, 1);
  expect(Geometry(KvLayout::kNhd), {2, 5, 4, 2, 16}, 1);
  expect(Geometry(KvLayout::kHnd), {2, 5, 4, 2, 16}, 1);
  expect(Geometry(KvLayout::kNhd, KvPlacement::kInterleaved), {5, 2, 4, 2, 16}, 0);
  expect(Geometry(KvLayout::kHnd, KvPlacement::kInterleaved), {5, 2, 4, 2, 16}, 0);
  expect(Geometry(KvLayout::kMlaLatent), {5, 4, 16}, 0);
  expect(Geometry(KvLayout::kMlaFp8_656), {5, 4, 656}, 0);
  expect(Geometry(KvLayout::kMlaFp8_584), {5, 2880}, 0);
  // Two tensors; the bytes are those of one.
  EXPECT_FALSE(KvCacheShape(Geometry(KvLayout::kMlaSplit)).ok());
  EXPECT_EQ(*KvCacheBytes(Geometry(KvLayout::kMlaSplit)),
            *KvCacheBytes(Geometry(KvLayout::kMlaLatent)));
}

TEST(KvCacheLayoutTest, StrideOrderPutsBlocksOfAllLayersOutermost) {
  using Order = std::vector<int>;
  EXPECT_EQ(*StrideOrder(Geometry(KvLayout::kNhd), false), (Order{0, 1, 2, 3, 4}));
  EXPECT_EQ(*StrideOrder(Geometry(KvLayout::kHnd), false), (Order{0, 1, 3, 2, 4}));
  EXPECT_EQ(*StrideOrder(Geometry(KvLayout::kNhd), true), (Order{2, 0, 1, 3, 4, 5}));
  EXPECT_EQ(*StrideOrder(Geometry(KvLayout::kHnd, KvPlacement::kInterleaved), true),
            (Order{1, 0, 2, 4, 3, 5}));
  EXPECT_EQ(*StrideOrder(Geometry(KvLayout::kPagedX), true), (Order{2, 0, 1, 3}));
  EXPECT_EQ(*StrideOrder(Geometry(KvLayout::kMlaLatent), true), (Order{1, 0, 2, 3}));
}

// The views address what shape and stride order say.
TEST(KvCacheLayoutTest, ViewsFollowShapeAndStrideOrder) {
  for (const KvPlacement placement : {KvPlacement::kKThenV, KvPlacement::kInterleaved}) {
    for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd}) {
      const KvCacheGeometry geometry = Geometry(layout, placement);
      std::vector<std::byte> memory(*KvCacheBytes(geometry));
      const KvCacheView view = *MakeKvCacheView(
          geometry,
          TensorView::Contiguous(memory.data(), DType::kU8, {static_cast<int64_t>(memory.size())}));
      const Shape shape = *KvCacheShape(geometry);
      const std::vector<int> order = *StrideOrder(geometry, false);
      Shape stride(5);
      int64_t next = 2;
      for (int i = 4; i >= 0; --i) {
        stride[order[i]] = next;
        next *= shape[order[i]];
      }
      const int block_dim = *BlockDim(geometry);
      for (int64_t kv = 0; kv < 2; ++kv) {
        for (int64_t block = 0; block < 5; ++block) {
          const std::byte* expected = memory.data() + kv * stride[1 - block_dim] +
                                      block * stride[block_dim] + 3 * stride[2] + stride[3] +
                                      7 * stride[4];
          const TensorView& tensor = kv == 0 ? view.k : view.v;
          EXPECT_EQ(
              layout == KvLayout::kNhd ? tensor.At(block, 3, 1, 7) : tensor.At(block, 1, 3, 7),
              expected);
        }
      }
    }
  }
}

// Every byte of the memory belongs to exactly one element, but for padding.
TEST(KvCacheLayoutTest, ViewsCoverTheirMemoryOnce) {
  for (const KvLayout layout : kAllLayouts) {
    for (const KvPlacement placement : {KvPlacement::kKThenV, KvPlacement::kInterleaved}) {
      for (const int64_t padding : {0, 32}) {
        KvCacheGeometry geometry = Geometry(layout, placement);
        geometry.block_padding_bytes = padding;
        if (layout < KvLayout::kMlaLatent && layout != KvLayout::kPagedX) geometry.value_dim = 8;
        const auto bytes = KvCacheBytes(geometry);
        const bool one_run =
            IsMla(layout) ? layout != KvLayout::kMlaSplit : placement == KvPlacement::kInterleaved;
        if ((padding > 0 && !one_run) ||
            (layout == KvLayout::kPagedX && placement == KvPlacement::kInterleaved)) {
          EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument);
          continue;
        }
        ASSERT_TRUE(bytes.ok()) << bytes.status();
        std::vector<std::byte> memory(*bytes);
        const auto view =
            MakeKvCacheView(geometry, TensorView::Contiguous(memory.data(), DType::kU8, {*bytes}));
        ASSERT_TRUE(view.ok()) << view.status();
        EXPECT_EQ(view->num_blocks(), 5);
        EXPECT_EQ(view->block_size(), 4);
        std::vector<int> covered(memory.size());
        std::vector<TensorView> tensors = {view->k};
        if (!IsMla(layout) || layout == KvLayout::kMlaSplit) tensors.push_back(view->v);
        for (const TensorView& tensor : tensors) {
          const TensorView all = *tensor.Bitcast(DType::kU8);
          for (int64_t a = 0; a < all.extent[0]; ++a) {
            for (int64_t b = 0; b < all.extent[1]; ++b) {
              for (int64_t c = 0; c < all.extent[2]; ++c) {
                for (int64_t d = 0; d < all.extent[3]; ++d) {
                  for (int64_t e = 0; e < all.extent[4]; ++e) {
                    ++covered[all.At(a, b, c, d, e) - memory.data()];
                  }
                }
              }
            }
          }
        }
        const int64_t block = *bytes / 5;
        for (int64_t i = 0; i < *bytes; ++i) {
          const bool is_padding = i % block >= block - padding;
          ASSERT_EQ(covered[i], is_padding ? 0 : 1) << Name(layout) << " byte " << i;
        }
      }
    }
  }
}

KvCacheGeometry Quantised(KvLayout layout, KvRowFormat format) {
  KvCacheGeometry geometry = Geometry(layout, KvPlacement::kInterleaved);
  geometry.format = format;
  geometry.dtype = ValuesPerElement(format) > 1 ? DType::kU8 : DType::kI8;
  geometry.key_dim = 32, geometry.value_dim = 16;
  return geometry;
}

// Codes and scales cover a block of a format once, and lie where engines have them.
TEST(KvCacheLayoutTest, FormatsWithScalesCoverTheirMemoryOnce) {
  const struct {
    KvRowFormat format;
    int64_t k_scale_of_head_1, v, v_scale;  // bytes, of the first token; V and its scale of head 0
  } kHnd[] = {{KvRowFormat::kPerTokenHead, 4 * 56 + 32, 36, 52},
              {KvRowFormat::kInt4PerTokenHead, 4 * 32 + 16, 20, 28},
              {KvRowFormat::kNvfp4, 8 * 16 + 4 * 2, 8 * 18, 8 * 18 + 8 * 8}};
  for (const auto& [format, k_scale_of_head_1, v, v_scale] : kHnd) {
    for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd}) {
      KvCacheGeometry geometry = Quantised(layout, format);
      geometry.block_padding_bytes = 8;
      const int64_t bytes = KvCacheBytes(geometry).value(), block = bytes / 5;
      std::vector<float> aligned(bytes / 4);
      auto* memory = reinterpret_cast<std::byte*>(aligned.data());
      const KvCacheView view =
          MakeKvCacheView(geometry, TensorView::Contiguous(memory, DType::kU8, {bytes})).value();
      EXPECT_EQ(view.key_dim(), 32);
      EXPECT_EQ(view.value_dim(), 16);
      std::vector<int> covered(bytes);
      for (const TensorView& tensor : {view.k, view.v, view.k_scales, view.v_scales}) {
        const int64_t inner = tensor.rank == 4 ? tensor.extent[3] : ElementBytes(tensor.dtype);
        for (int64_t a = 0; a < 5; ++a) {
          for (int64_t b = 0; b < tensor.extent[1]; ++b) {
            for (int64_t c = 0; c < tensor.extent[2]; ++c) {
              for (int64_t d = 0; d < inner; ++d) ++covered[tensor.At(a, b, c) + d - memory];
            }
          }
        }
      }
      for (int64_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(covered[i], i % block < block - 8 ? 1 : 0) << Name(format) << " byte " << i;
      }
      if (layout == KvLayout::kNhd) continue;
      EXPECT_EQ(view.k_scales.At(0, 1, 0) - memory, k_scale_of_head_1) << Name(format);
      EXPECT_EQ(view.v.At(0, 0, 0) - memory, v) << Name(format);
      EXPECT_EQ(view.v_scales.At(0, 0, 0) - memory, v_scale) << Name(format);
    }
  }
}

TEST(KvCacheLayoutTest, FormatsWithScalesRefuseWhatTheyCannotPack) {
  const auto refused = [](KvRowFormat format, auto change, const char* text) {
    KvCacheGeometry geometry = Quantised(KvLayout::kNhd, format);
    change(geometry);
    ExpectNoLayout(KvCacheBytes(geometry).status(), text);
  };
  refused(KvRowFormat::kNvfp4, [](auto& g) { g.key_dim = 24; }, "multiples of 16");
  refused(KvRowFormat::kInt4PerTokenHead, [](auto& g) { g.value_dim = 12; }, "multiples of 8");
  refused(KvRowFormat::kPerTokenHead, [](auto& g) { g.value_dim = 6; }, "multiples of 4");
  refused(KvRowFormat::kPerTokenHead, [](auto& g) { g.dtype = DType::kF8E5M2; }, "i8 or f8e4m3");
  refused(KvRowFormat::kNvfp4, [](auto& g) { g.dtype = DType::kI8; }, "takes dtype u8");
  refused(KvRowFormat::kNvfp4, [](auto& g) { g.placement = KvPlacement::kKThenV; }, "kInterleaved");
  refused(KvRowFormat::kPerTokenHead, [](auto& g) { g.block_padding_bytes = 2; }, "multiple of 4");
  refused(KvRowFormat::kPerTokenHead, [](auto& g) { g.layout = KvLayout::kPagedX; }, "nhd and hnd");
  refused(KvRowFormat::kPerTokenHead, [](auto& g) { g.key_dim = int64_t{1} << 61; }, "2^60");
  ExpectNoLayout(KvCacheShape(Quantised(KvLayout::kNhd, KvRowFormat::kNvfp4)).status(),
                "MakeKvCacheView");
}

TEST(KvCacheLayoutTest, SplitsAFusedFlatCache) {
  std::vector<float> memory(2 * 3 * 4 * 2 * 8);
  std::iota(memory.begin(), memory.end(), 0.f);
  const TensorView flat = ViewOf(absl::MakeSpan(memory), {2, 3, 4 * 2 * 8});
  for (const KvLayout layout : {KvLayout::kPagedX, KvLayout::kNhd, KvLayout::kHnd}) {
    const auto split = SplitKvCache(flat, 2, 8, layout);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->block_size(), 4);
    EXPECT_EQ(split->num_kv_heads(), 2);
    EXPECT_EQ(split->key_dim(), 8);
    EXPECT_EQ(split->value_dim(), 8);
    KvCacheGeometry geometry = Geometry(layout);
    geometry.dtype = DType::kF32;
    geometry.num_blocks = 3;
    geometry.key_dim = geometry.value_dim = 8;
    const KvCacheView made = *MakeKvCacheView(geometry, flat);
    EXPECT_EQ(split->k.DebugString(), made.k.DebugString());
    EXPECT_EQ(split->v.DebugString(), made.v.DebugString());
    EXPECT_EQ(split->k.data, made.k.data);
    EXPECT_EQ(split->v.data, made.v.data);
  }
  // Two layers' caches in one allocation: blocks have gaps.
  const TensorView strided = *TensorView::Make(flat.data, DType::kF32, {2, 3, 32}, {192, 64, 1});
  EXPECT_EQ(SplitKvCache(strided, 2, 8, KvLayout::kNhd)->k.DebugString(),
            "f32[3, 2, 2, 8] strides [64, 16, 8, 1]");
}

TEST(KvCacheLayoutTest, SplitRefusesWhatIsNoFlatCache) {
  std::vector<float> memory(2 * 3 * 64);
  const TensorView flat = ViewOf(absl::MakeSpan(memory), {2, 3, 64});
  ExpectNoLayout(SplitKvCache(flat, 3, 8, KvLayout::kNhd).status(), "no whole number");
  ExpectNoLayout(SplitKvCache(flat, 0, 8, KvLayout::kNhd).status(), "at least 1");
  ExpectNoLayout(
      SplitKvCache(flat, std::numeric_limits<int64_t>::max(), 8, KvLayout::kNhd).status(),
      "no whole number");
  ExpectNoLayout(SplitKvCache(flat, 2, 2, KvLayout::kPagedX).status(), "x = 4");
  ExpectNoLayout(SplitKvCache(flat, 2, 8, KvLayout::kMlaLatent).status(), "mla_latent");
  ExpectNoLayout(
      SplitKvCache(ViewOf(absl::MakeSpan(memory), {3, 2, 64}), 2, 8, KvLayout::kNhd).status(),
      "[2, NB, BS * Hkv * D]");
  TensorView endless = flat;
  endless.stride[0] = std::numeric_limits<int64_t>::max() / 2;
  ExpectNoLayout(SplitKvCache(endless, 2, 8, KvLayout::kNhd).status(), "farthest element");
}

TEST(KvCacheLayoutTest, GeometryNamesWhatItRefuses) {
  KvCacheGeometry geometry = Geometry(KvLayout::kPagedX);
  geometry.key_dim = 12;
  ExpectNoLayout(KvCacheBytes(geometry).status(), "no multiple of x = 8");
  geometry = Geometry(KvLayout::kNhd);
  geometry.block_size = 0;
  ExpectNoLayout(KvCacheBytes(geometry).status(), "block_size is 0");
  geometry = Geometry(KvLayout::kNhd);
  geometry.value_dim = 8;
  ExpectNoLayout(KvCacheShape(geometry).status(), "key_dim 16 and value_dim 8");
  EXPECT_TRUE(KvCacheBytes(geometry).ok());
  geometry = Geometry(KvLayout::kMlaLatent);
  geometry.value_dim = 17;
  ExpectNoLayout(KvCacheBytes(geometry).status(), "value_dim 17 exceeds key_dim 16");
  geometry = Geometry(KvLayout::kMlaFp8_656);
  geometry.dtype = DType::kF8E4M3;
  ExpectNoLayout(KvCacheBytes(geometry).status(), "must be u8");
  geometry = Geometry(KvLayout::kMlaLatent);
  geometry.num_kv_heads = 2;
  ExpectNoLayout(KvCacheBytes(geometry).status(), "num_kv_heads is 2");
}

TEST(KvCacheLayoutTest, SizesBeyondInt64AreRefused) {
  for (const KvLayout layout : kAllLayouts) {
    KvCacheGeometry geometry = Geometry(layout);
    geometry.num_blocks = int64_t{1} << 31;
    geometry.block_size = int64_t{1} << 31;
    ExpectNoLayout(KvCacheBytes(geometry).status(), "2^63");
    geometry.num_blocks = 1;
    geometry.block_size = std::numeric_limits<int64_t>::max() / 2;
    ExpectNoLayout(BytesPerBlock(geometry).status(), "2^63");
  }
}

TEST(KvCacheLayoutTest, MemoryMustBeLargeEnoughAlignedAndDense) {
  const KvCacheGeometry geometry = Geometry(KvLayout::kNhd);
  const int64_t bytes = *KvCacheBytes(geometry);
  std::vector<std::byte> memory(bytes + 2);
  const auto make = [&](int64_t offset, int64_t size) {
    return MakeKvCacheView(geometry,
                           TensorView::Contiguous(memory.data() + offset, DType::kU8, {size}))
        .status();
  };
  EXPECT_TRUE(make(0, bytes).ok());
  EXPECT_EQ(make(0, bytes - 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(make(1, bytes).code(), absl::StatusCode::kInvalidArgument);
  const TensorView gaps = *TensorView::Make(memory.data(), DType::kU8, {bytes / 2}, {2});
  EXPECT_EQ(MakeKvCacheView(geometry, gaps).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(KvCacheLayoutTest, LatentViewSharesTheRows) {
  std::vector<float> memory(2 * 3 * 10);
  std::iota(memory.begin(), memory.end(), 0.f);
  const TensorView rows = ViewOf(absl::MakeSpan(memory), {2, 3, 10});
  const KvCacheView view = *MakeMlaLatentView(rows, 8);
  EXPECT_EQ(view.key_dim(), 10);
  EXPECT_EQ(view.value_dim(), 8);
  EXPECT_EQ(view.v.data, view.k.data);
  EXPECT_FALSE(MakeMlaLatentView(rows, 11).ok());
  EXPECT_FALSE(MakeMlaLatentView(rows, 0).ok());
}

}  // namespace
}  // namespace kvblocks::attention
