// Both prefill kernels, emulated, keys whole and cut into pieces, against the dense oracle.

#include <algorithm>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/testing/prefill_fixture.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"

namespace kvblocks::attention::cuda {
namespace {

using PrefillTest = PrefillFixture;
INSTANTIATE_TEST_SUITE_P(Kernels, PrefillTest,
                         testing::Values(PrefillKernel{80}, PrefillKernel{90}, PrefillKernel{80, 3},
                                         PrefillKernel{90, 3}),
                         NameOfPrefillKernel);

TEST_P(PrefillTest, T1LayoutsTypesHeadSizesAndGroups) {
  struct Case {
    DType type;
    KvLayout layout;
    int64_t key_dim, value_dim, heads, kv_heads, block_size;
  };
  const Case cases[] = {
      {DType::kBF16, KvLayout::kNhd, 64, 64, 2, 2, 16},
      {DType::kF16, KvLayout::kHnd, 128, 128, 4, 2, 32},
      {DType::kBF16, KvLayout::kHnd, 96, 96, 4, 1, 8},
      {DType::kF16, KvLayout::kNhd, 80, 80, 3, 1, 64},
      {DType::kBF16, KvLayout::kNhd, 256, 256, 2, 1, 16},
      {DType::kF16, KvLayout::kHnd, 192, 128, 2, 2, 128},
      {DType::kBF16, KvLayout::kNhd, 128, 128, 8, 1, 24},
  };
  for (const Case& one : cases) {
    PagedCaseOptions options = Options(one.type);
    options.layout = one.layout;
    options.key_dim = one.key_dim, options.value_dim = one.value_dim;
    options.num_heads = one.heads, options.num_kv_heads = one.kv_heads;
    options.block_size = one.block_size;
    options.interleave_kv = one.block_size == 16;
    options.lengths = {17, 0, 70, 150, 5, 65};
    options.q_lens = {5, 0, 17, 2, 5, 1};
    SCOPED_TRACE(absl::StrCat("D ", one.key_dim, ", heads ", one.heads, "/", one.kv_heads, ", BS ",
                              one.block_size));
    PagedCase paged(options);
    ExpectPrefillIsExact(paged);
  }
}

// Boxes of 8, 16 and 32 keys, whole blocks and parts of them, and blocks that cannot be made of
// boxes.
TEST_P(PrefillTest, T1BlockSizes) {
  for (const int64_t block_size : {8, 16, 20, 32, 40, 48, 64, 256}) {
    for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd}) {
      PagedCaseOptions options = Options({270, 0, 37}, {30, 0, 37});
      options.block_size = block_size;
      options.layout = layout;
      options.interleave_kv = layout == KvLayout::kHnd;
      options.num_heads = 2;
      SCOPED_TRACE(absl::StrCat("BS ", block_size, ", ", layout == KvLayout::kNhd ? "NHD" : "HND"));
      PagedCase paged(options);
      const PrefillParams params{DenseAttentionOf(paged.PrefillArgs())};
      EXPECT_EQ(TakesPrefillHopper(params), block_size != 20);
      ExpectPrefillIsExact(paged);
    }
  }
}

TEST_P(PrefillTest, WhatTheCopyEngineDoesNotTakeIsTakenElsewhere) {
  PagedCaseOptions options = Options();
  PagedCase paged(options);
  const PrefillParams good{DenseAttentionOf(paged.PrefillArgs())};
  EXPECT_TRUE(TakesPrefillHopper(good));
  const auto takes = [&](auto change) {
    PrefillParams params = good;
    change(params.keys.cache);
    EXPECT_TRUE(TakesPrefill(params));
    return TakesPrefillHopper(params);
  };
  EXPECT_FALSE(takes([](Cache& cache) { cache.k.block_stride = int64_t{1} << 39; }));
  EXPECT_FALSE(takes([](Cache& cache) { cache.v.block_stride = int64_t{1} << 39; }));
  EXPECT_FALSE(takes([](Cache& cache) { cache.v.token_stride = 0; }));
  EXPECT_FALSE(takes([](Cache& cache) { cache.k.head_stride = -64; }));
  EXPECT_FALSE(takes([](Cache& cache) { cache.num_blocks = 0; }));
  // Nobody looks at the stride of one.
  EXPECT_TRUE(takes([](Cache& cache) { cache.num_blocks = 1, cache.k.block_stride = 0; }));
}

TEST_P(PrefillTest, T1ManyRowTilesOfOneRequest) {
  for (const auto& [q_len, length] :
       std::vector<std::pair<int64_t, int64_t>>{{129, 129}, {129, 200}, {300, 300}}) {
    PagedCaseOptions options = Options({3, length, 33}, {3, q_len, 1});
    options.num_heads = q_len == 300 ? 1 : 2, options.num_kv_heads = 1;
    options.key_dim = options.value_dim = q_len == 300 ? 128 : 64;
    options.q_factor = 4;
    PagedCase paged(options);
    ExpectPrefillIsExact(paged);
  }
}

TEST_P(PrefillTest, T21CodesWithScalesOfAllShapes) {
  using Scales = PagedCaseOptions::Scales;
  struct Case {
    DType type, code;
    Scales scales;
    int64_t dim;
    KvLayout layout;
  };
  const Case cases[] = {
      {DType::kBF16, DType::kF8E4M3, Scales::kPerHead, 128, KvLayout::kNhd},
      {DType::kF16, DType::kF8E5M2, Scales::kOne, 64, KvLayout::kHnd},
      {DType::kF16, DType::kI8, Scales::kPerRequest, 80, KvLayout::kNhd},
      {DType::kBF16, DType::kI8, Scales::kPerHead, 128, KvLayout::kHnd},
      {DType::kF8E4M3, DType::kF8E4M3, Scales::kPerHead, 128, KvLayout::kNhd},
      {DType::kF8E4M3, DType::kF8E4M3, Scales::kOne, 80, KvLayout::kHnd},
      {DType::kF8E4M3, DType::kI8, Scales::kPerRequest, 64, KvLayout::kNhd},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(absl::StrCat(Name(one.type), " over ", Name(one.code)));
    PagedCaseOptions options = Options(one.type);
    options.cache_dtype = one.code;
    options.scales = one.scales;
    options.key_dim = options.value_dim = one.dim;
    options.layout = one.layout;
    options.out_dtype = one.dim == 80 ? DType::kBF16 : DType::kF16;
    options.lengths = {17, 100, 5};
    options.q_lens = {5, 20, 5};
    PagedCase paged(options);
    paged.params.soft_cap = one.code == DType::kF8E5M2 ? 3 : 0;
    ExpectPrefillIsExact(paged);
    if (one.code == DType::kF8E4M3) ExpectVarlenIsExact(paged);
  }
}

// More tiles of keys than there are stages, several row tiles, and what features make of scales.
TEST_P(PrefillTest, T21CodesOfManyTiles) {
  struct Case {
    DType type, code;
    int64_t dim, block_size;
    KvLayout layout;
  };
  const Case cases[] = {
      {DType::kBF16, DType::kF8E4M3, 128, 16, KvLayout::kNhd},
      {DType::kF16, DType::kF8E5M2, 128, 8, KvLayout::kHnd},
      {DType::kBF16, DType::kI8, 64, 64, KvLayout::kNhd},
      {DType::kF8E4M3, DType::kF8E4M3, 128, 32, KvLayout::kHnd},
      {DType::kF8E4M3, DType::kF8E4M3, 64, 16, KvLayout::kNhd},
      {DType::kF8E4M3, DType::kF8E4M3, 112, 48, KvLayout::kNhd},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(absl::StrCat(Name(one.type), " over ", Name(one.code), ", D ", one.dim));
    PagedCaseOptions options = Options(one.type);
    options.cache_dtype = one.code;
    options.scales = PagedCaseOptions::Scales::kPerHead;
    options.key_dim = options.value_dim = one.dim;
    options.num_heads = 4, options.num_kv_heads = 2;
    options.block_size = one.block_size;
    options.layout = one.layout;
    options.out_dtype = one.type == DType::kF16 ? DType::kF16 : DType::kBF16;
    options.lengths = {530, 0, 130};
    options.q_lens = {70, 0, 1};
    PagedCase paged(options);
    const PrefillParams params{DenseAttentionOf(paged.PrefillArgs())};
    EXPECT_TRUE(TakesPrefillHopper(params));
    ExpectPrefillIsExact(paged);
    if (one.dim == 128) continue;
    paged.params.window_left = 200;
    paged.params.soft_cap = one.dim == 64 ? 3 : 0;
    ExpectPrefillIsExact(paged);
  }
}

TEST_P(PrefillTest, ContiguousKeysOfOtherLengths) {
  PagedCaseOptions options = Options(DType::kF16);
  options.key_dim = 192, options.value_dim = 128;
  options.num_heads = 2;
  options.lengths = {40, 7, 0, 100, 66};
  options.q_lens = {40, 3, 0, 20, 1};
  PagedCase paged(options);
  ExpectVarlenIsExact(paged);
  paged.params.causal = false;
  ExpectVarlenIsExact(paged);
}

TEST_P(PrefillTest, T2FeaturesOfScores) {
  PagedCaseOptions options = Options({330, 40, 270}, {40, 40, 3});
  const Tensor slopes = FloatTensor({0.5, 0.25, 0.125, 0.0625});
  const Tensor sinks = FloatTensor(
      {0.5, -std::numeric_limits<double>::infinity(), 3, std::numeric_limits<double>::infinity()});
  for (const int features : {1, 2, 4, 8, 16, 32, 7, 62, 44, 70, 101, 158}) {
    SCOPED_TRACE(features);
    options.layout = features & 128 ? KvLayout::kPagedX : KvLayout::kNhd;
    PagedCase paged(options);
    if (features & 1) paged.params.causal = false;
    if (features & 2) paged.params.soft_cap = 5;
    if (features & 4) paged.params.alibi_slopes = slopes.view;
    if (features & 8) paged.params.sinks = sinks.view;
    if (features & 16) paged.params.window_left = 140;
    if (features & 32) paged.params.chunk = 96;
    if (features & 64) {
      paged.params.block_sparse = {
          .local_blocks = 2, .vert_stride = 3, .block_size = 16, .head_sliding_step = 1};
    }
    ExpectPrefillIsExact(paged);
  }
}

// Pieces are of what the window lets be seen, and none are empty.
TEST_P(PrefillTest, T5NothingOutsideOfWindowsIsRead) {
  for (const bool causal : {true, false}) {
    PagedCaseOptions options = Options({700, 390}, {10, 70});
    options.block_size = 8;
    options.num_heads = 2, options.num_kv_heads = 1;
    PagedCase paged(options);
    paged.params.causal = causal;
    paged.params.window_left = 260;
    if (!causal) paged.params.window_right = 6;
    paged.KillBlocks(
        [&](int64_t b, int64_t column) {
          return column * 8 + 7 < options.lengths[b] - options.q_lens[b] - 260;
        },
        causal);
    ExpectPrefillIsExact(paged);
  }
}

// Windows that begin within boxes: the rest of these is read, as are the rows behind a length, and
// all of them hold NaN.
TEST_P(PrefillTest, T5HiddenKeysOfPagesThatAreReadDoNotCount) {
  for (const int64_t block_size : {32, 64}) {
    for (const int32_t window : {77, 150}) {
      PagedCaseOptions options = Options({301, 90}, {3, 9});
      options.block_size = block_size;
      options.num_heads = 2, options.num_kv_heads = 1;
      PagedCase paged(options);
      paged.params.window_left = window;
      // What no row sees.
      const std::vector<double> nan(64, std::numeric_limits<double>::quiet_NaN());
      for (int64_t j = 0; j < 298 - window; ++j) {
        paged.SetKey(0, j, 0, nan);
        paged.SetValue(0, j, 0, nan);
      }
      ExpectPrefillIsExact(paged);
      ExpectVarlenIsExact(paged);
    }
  }
}

TEST_P(PrefillTest, NonFiniteKeysAndValuesReachRowsThatSeeThemAlone) {
  for (const auto& [type, cached] : {std::pair{DType::kBF16, DType::kBF16},
                                     {DType::kF16, DType::kF16},
                                     {DType::kBF16, DType::kF8E5M2},
                                     {DType::kF8E4M3, DType::kF8E4M3}}) {
    SCOPED_TRACE(absl::StrCat(Name(type), " over ", Name(cached)));
    PagedCaseOptions options = Options(type);
    options.cache_dtype = cached;
    if (type == DType::kF8E4M3) options.out_dtype = DType::kBF16;
    options.num_heads = 2, options.num_kv_heads = 1;
    options.lengths = {290, 140};
    options.q_lens = {180, 30};
    PagedCase paged(options);
    paged.params.window_left = 140;
    std::vector<double> row(64, 1);
    row[3] = std::numeric_limits<double>::quiet_NaN();
    row[50] = std::numeric_limits<double>::infinity();
    row[51] = -std::numeric_limits<double>::infinity();
    paged.SetValue(0, 20, 0, row);
    paged.SetValue(0, 129, 0, row);
    paged.SetValue(0, 285, 0, row);
    paged.SetKey(0, 230, 0, row);
    row[3] = 2;
    paged.SetValue(1, 127, 0, row);
    ExpectPrefillIsExact(paged);
  }
}

TEST_P(PrefillTest, BadBlocksAreInvisibleAndFlagged) {
  struct Case {
    int64_t block_size;
    int32_t id;
    DType cache = DType::kBF16;
  };
  for (const Case& one : {Case{8, -7}, Case{16, 2147480000}, Case{16, -1, DType::kF8E4M3},
                          Case{24, -7}, Case{64, -7}, Case{128, -7}}) {
    SCOPED_TRACE(absl::StrCat(one.block_size, " of ", Name(one.cache)));
    PagedCaseOptions options = Options({400, 20}, {140, 20});
    options.block_size = one.block_size;
    options.cache_dtype = one.cache;
    options.num_heads = 2, options.num_kv_heads = 1;
    PagedCase paged(options);
    // Keys that all rows see, some see, and the next row tiles see, too.
    const int64_t bad[] = {0, 130 / one.block_size, 399 / one.block_size};
    for (const int64_t column : bad) paged.block_table.view.as<int32_t>()[column] = one.id;
    paged.hide = [&](int64_t b, int64_t, int64_t j, int64_t) {
      return b == 0 &&
             std::find(std::begin(bad), std::end(bad), j / one.block_size) != std::end(bad);
    };
    ExpectPrefillIsExact(paged, kBadBlock);
  }
}

TEST_P(PrefillTest, LengthsPastTheTableAreClampedAndFlagged) {
  PagedCaseOptions options = Options({48}, {4});
  options.num_heads = options.num_kv_heads = 1;
  PagedCase paged(options);
  PagedPrefillArgs args = paged.PrefillArgs();
  args.block_table.extent[1] = 3;
  paged.seq_lens.view.as<int32_t>()[0] = 1000;
  Launch(args, kLengthClamped);
  ExpectExact(paged);
}

TEST_P(PrefillTest, QueryPositionsInAnyOrder) {
  PagedCaseOptions options = Options({400, 30}, {70, 3});
  options.num_heads = 4, options.num_kv_heads = 1;
  PagedCase paged(options);
  std::mt19937_64 random(7);
  for (int64_t i = 0; i < 73; ++i) {
    paged.query_positions.push_back(
        static_cast<int32_t>(IntegerDraw(random, 0, i < 70 ? 399 : 29)));
  }
  ExpectPrefillIsExact(paged);
}

TEST_P(PrefillTest, OutputsInEightBits) {
  for (const DType code : {DType::kF8E4M3, DType::kF8E5M2}) {
    PagedCase paged(Options({300, 7}, {30, 3}));
    PagedPrefillArgs args = paged.PrefillArgs();
    Tensor out(code, {33, 4, 64});
    args.out = out.view;
    args.out_scale = 0.5f;
    Launch(args);
    DenseResult expected = paged.Expected();
    for (double& value : expected.out) value /= 0.5;
    for (double& value : expected.value_range) value /= 0.5;
    EXPECT_EQ(Mismatch(expected, out.view, paged.lse.view, CudaTolerance(code)), "");
  }
}

TEST_P(PrefillTest, NoLseAndNoRequests) {
  PagedCase paged(Options({16, 40}, {16, 1}));
  PagedPrefillArgs args = paged.PrefillArgs();
  args.lse = {};
  Launch(args);
  EXPECT_EQ(Mismatch(paged.Expected(), paged.out.view, {}, CudaTolerance(DType::kBF16)), "");
}

}  // namespace
}  // namespace kvblocks::attention::cuda
