// Prefill with keys cut into pieces, both kernels emulated, against the dense oracle.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/attend_launch.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/testing/prefill_fixture.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

class PrefillSplitTest : public PrefillFixture {
 protected:
  // With a workspace of so many bytes, all of them 0xff.
  CudaCall CallWith(uint32_t* flags, size_t bytes) {
    memory_.assign(bytes, std::byte{0xff});
    LaunchContext launch = Context(flags);
    launch.workspace = reinterpret_cast<unsigned char*>(memory_.data());
    launch.workspace_bytes = bytes;
    return CudaCall("PagedPrefill", launch);
  }
  // With states that were never written being NaN.
  template <typename Args>
  void Launch(const Args& args, int pieces, uint32_t expected_flags = 0) {
    PrefillParams params{DenseAttentionOf(args)};
    ASSERT_TRUE(TakesPrefill(params));
    uint32_t flags = 0;
    CudaCall call = CallWith(&flags, pieces * PrefillPieceBytes(params) + 1024);
    ASSERT_TRUE(PlacePieces(call, pieces, &params));
    ASSERT_EQ(params.pieces.count, pieces);
    ASSERT_EQ(LaunchPrefill(call.launch(), params), 0);
    ASSERT_EQ(LaunchPrefillMerge(call.launch(), MergeOf(params)), 0);
    EXPECT_EQ(flags, expected_flags);
  }
  void ExpectExact(PagedCase& paged, int pieces, uint32_t expected_flags = 0) {
    SCOPED_TRACE(absl::StrCat(pieces, " pieces"));
    paged.ClearOutputs();
    ExpectValid(paged.PrefillArgs(), expected_flags);
    Launch(paged.PrefillArgs(), pieces, expected_flags);
    EXPECT_EQ(paged.Mismatch(CudaTolerance(paged.out.view.dtype)), "");
  }
  static PagedCaseOptions Options(std::vector<int64_t> lengths, std::vector<int64_t> q_lens,
                                  DType type = DType::kBF16) {
    PagedCaseOptions options = PrefillFixture::Options(std::move(lengths), std::move(q_lens));
    options.num_heads = 2, options.num_kv_heads = 1;
    options.q_dtype = options.cache_dtype = type;
    return options;
  }

  std::vector<std::byte> memory_;
};
INSTANTIATE_TEST_SUITE_P(ComputeCapability, PrefillSplitTest, BothPrefillKernels(),
                         NameOfPrefillKernel);

TEST_P(PrefillSplitTest, RequestsWithFewerKeysThanPieces) {
  PagedCase paged(Options({300, 0, 17, 600, 129}, {5, 0, 17, 70, 1}));
  for (const int pieces : {1, 2, kMostPrefillPieces}) ExpectExact(paged, pieces);
}

TEST_P(PrefillSplitTest, TypesHeadSizesAndGroups) {
  struct Case {
    DType type, cache;
    int64_t key_dim, value_dim, heads, kv_heads, block_size;
  };
  const Case cases[] = {
      {DType::kF16, DType::kF16, 128, 128, 4, 2, 32},
      {DType::kBF16, DType::kBF16, 80, 80, 3, 1, 24},
      {DType::kBF16, DType::kBF16, 256, 256, 1, 1, 16},
      {DType::kF16, DType::kF16, 192, 128, 2, 2, 128},
      {DType::kBF16, DType::kF8E4M3, 128, 128, 2, 1, 16},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(absl::StrCat("D ", one.key_dim, ", ", Name(one.cache)));
    PagedCaseOptions options = Options({290, 20}, {9, 20}, one.type);
    options.cache_dtype = one.cache;
    options.key_dim = one.key_dim, options.value_dim = one.value_dim;
    options.num_heads = one.heads, options.num_kv_heads = one.kv_heads;
    options.block_size = one.block_size;
    if (one.cache == DType::kF8E4M3) options.scales = PagedCaseOptions::Scales::kPerHead;
    PagedCase paged(options);
    ExpectExact(paged, 3);
  }
}

TEST_P(PrefillSplitTest, T2FeaturesOfScores) {
  PagedCaseOptions options = Options({330, 40, 270}, {40, 40, 3});
  options.num_heads = 4, options.num_kv_heads = 2;
  Tensor slopes(DType::kF32, {4}), sinks(DType::kF32, {4});
  slopes.Set({0.5, 0.25, 0.125, 0.0625});
  sinks.Set({0.5, -kInfinite, 3, kInfinite});
  for (const int features : {9, 2, 16, 32, 62, 70, 101, 158}) {
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
      paged.params.block_sparse.local_blocks = 2;
      paged.params.block_sparse.vert_stride = 3;
      paged.params.block_sparse.block_size = 16;
      paged.params.block_sparse.head_sliding_step = 1;
    }
    ExpectExact(paged, 3);
  }
}

TEST_P(PrefillSplitTest, T10ASinkOfMinusInfinityIsNone) {
  PagedCase paged(Options({300, 0}, {9, 0}));
  ExpectExact(paged, 2);
  const std::vector<std::byte> out = paged.out.bytes, lse = paged.lse.bytes;
  Tensor sinks(DType::kF32, {2});
  sinks.Set({-kInfinite, -kInfinite});
  paged.params.sinks = sinks.view;
  ExpectExact(paged, 2);
  EXPECT_EQ(paged.out.bytes, out);
  EXPECT_EQ(paged.lse.bytes, lse);
}

// Pieces are of what the window lets be seen: nothing outside of it is read, and none are empty.
TEST_P(PrefillSplitTest, T5NothingOutsideOfWindowsIsRead) {
  for (const bool causal : {true, false}) {
    PagedCaseOptions options = Options({700, 390}, {10, 70});
    options.block_size = 8;
    PagedCase paged(options);
    paged.params.causal = causal;
    paged.params.window_left = 260;
    if (!causal) paged.params.window_right = 6;
    paged.KillBlocks(
        [&](int64_t b, int64_t column) {
          return column * 8 + 7 < options.lengths[b] - options.q_lens[b] - 260;
        },
        causal);
    ExpectExact(paged, 3);
  }
}

TEST_P(PrefillSplitTest, T14NonFiniteKeysAndValuesReachRowsThatSeeThemAlone) {
  PagedCase paged(Options({290, 140}, {180, 30}));
  paged.params.window_left = 140;
  std::vector<double> row(64, 1);
  row[3] = std::nan("");
  row[50] = kInfinite;
  paged.SetValue(0, 20, 0, row);
  paged.SetValue(0, 129, 0, row);  // by the first rows' second piece
  paged.SetValue(0, 285, 0, row);
  paged.SetKey(0, 230, 0, row);
  row[3] = 2;
  paged.SetValue(1, 127, 0, row);
  for (const int pieces : {2, 3}) ExpectExact(paged, pieces);
}

TEST_P(PrefillSplitTest, BadBlocksAreInvisibleAndFlagged) {
  PagedCaseOptions options = Options({390, 20}, {20, 20});
  options.block_size = 128;
  PagedCase paged(options);
  // All of the second piece.
  paged.block_table.view.as<int32_t>()[1] = -1;
  paged.hide = [](int64_t b, int64_t, int64_t j, int64_t) { return b == 0 && j / 128 == 1; };
  for (const int pieces : {2, 4}) ExpectExact(paged, pieces, kBadBlock);
}

TEST_P(PrefillSplitTest, QueryPositionsInAnyOrder) {
  PagedCase paged(Options({400}, {70}));
  std::mt19937_64 random(7);
  for (int64_t i = 0; i < 70; ++i) {
    paged.query_positions.push_back(static_cast<int32_t>(IntegerDraw(random, 0, 399)));
  }
  ExpectExact(paged, 3);
}

TEST_P(PrefillSplitTest, ContiguousKeysAndOutputsInEightBits) {
  PagedCase paged(Options({300, 7}, {30, 3}));
  paged.ClearOutputs();
  Launch(paged.VarlenArgs(), 2);
  EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
  for (const DType code : {DType::kF8E4M3, DType::kF8E5M2}) {
    PagedPrefillArgs args = paged.PrefillArgs();
    Tensor out(code, {33, 2, 64});
    args.out = out.view;
    args.out_scale = 0.5f;
    Launch(args, 2);
    DenseResult expected = paged.Expected();
    for (double& value : expected.out) value /= 0.5;
    for (double& value : expected.value_range) value /= 0.5;
    EXPECT_EQ(Mismatch(expected, out.view, paged.lse.view, CudaTolerance(code)), "");
  }
}

// A graph's batch may have fewer tokens than its bound.
TEST_P(PrefillSplitTest, RowsOfNoRequestAreLeftAlone) {
  PagedCase paged(Options({300, 20}, {9, 20}));
  paged.query_start_loc.view.as<int32_t>()[2] = 9;
  paged.ClearOutputs();
  Launch(paged.PrefillArgs(), 2);
  const std::vector<double> out = paged.out.Get(), lse = paged.lse.Get();
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i >= 9 * 2 * 64) << i;
  for (size_t i = 0; i < lse.size(); ++i) EXPECT_EQ(std::isnan(lse[i]), i >= 9 * 2) << i;
}

// Random batches, bounds and pieces; the same call again gives the same bits.
TEST_P(PrefillSplitTest, T31RandomBatches) {
  std::mt19937_64 random(GetParam());
  const auto draw = [&](int64_t low, int64_t high) { return IntegerDraw(random, low, high); };
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    PagedCaseOptions options = Options({}, {}, round % 2 == 0 ? DType::kBF16 : DType::kF16);
    options.num_kv_heads = draw(1, 2);
    options.num_heads = options.num_kv_heads * draw(1, 5);
    options.block_size = 8 * draw(1, 9);
    options.seed = 100 + round;
    for (int64_t b = draw(1, 3); b > 0; --b) {
      options.lengths.push_back(draw(0, 500));
      options.q_lens.push_back(draw(0, std::min<int64_t>(options.lengths.back(), 60)));
    }
    PagedCase paged(options);
    if (draw(0, 1) == 1) paged.params.window_left = static_cast<int32_t>(draw(0, 400));
    if (draw(0, 2) == 2) paged.params.causal = false;
    const int pieces = static_cast<int>(draw(1, 8));
    ExpectExact(paged, pieces);
    const std::vector<std::byte> out = paged.out.bytes, lse = paged.lse.bytes;
    ExpectExact(paged, pieces);
    EXPECT_EQ(paged.out.bytes, out);
    EXPECT_EQ(paged.lse.bytes, lse);
  }
}

// --- How many pieces ---

class PiecesTest : public PrefillSplitTest {
 protected:
  // Of 32 heads over 8 KV heads of 128 values, 132 multiprocessors.
  int32_t Pieces(int32_t requests, int32_t queries, int64_t keys, int32_t window = -1) const {
    PrefillParams params;
    params.num_requests = requests;
    params.num_tokens = requests * queries;
    params.max_query_len = queries;
    params.max_seq_len = keys;
    params.num_heads = 32, params.num_kv_heads = 8;
    params.key_dim = params.value_dim = 128;
    params.keys.cache.element = params.q.element = Element::kBF16;
    params.scoring.window_left = window;
    return PiecesForPrefill(Context(nullptr, 132), params);
  }
};
INSTANTIATE_TEST_SUITE_P(ComputeCapability, PiecesTest, BothPrefillKernels(), NameOfPrefillKernel);

TEST_P(PiecesTest, FewRowTilesOfManyKeysAreCut) {
  const int at_a_time = GetParam() == 90 ? 132 : 264;
  // 16 and 8 row tiles.
  for (const int32_t queries : {64, 20}) {
    const int32_t tiles = queries == 64 ? 16 : 8;
    const int32_t pieces = Pieces(1, queries, 32768);
    EXPECT_GT(pieces * tiles, at_a_time / 2);
    EXPECT_LE(pieces * tiles, 2 * at_a_time);
  }
  EXPECT_GT(Pieces(4, 17, 8192), 1);
}
TEST_P(PiecesTest, WhatFillsTheDeviceOrHasFewKeysIsNot) {
  EXPECT_EQ(Pieces(1, 8192, 8192), 1);
  EXPECT_EQ(Pieces(8, 2048, 2048), 1);
  EXPECT_EQ(Pieces(1, 2048, 32768), 1);
  EXPECT_EQ(Pieces(1, 64, 512), 1);
  EXPECT_EQ(Pieces(1, 64, 32768, 128), 1);
  EXPECT_EQ(Pieces(0, 64, 32768), 1);
}

// --- Workspaces and policies ---

class RunPrefillTest : public PrefillSplitTest {
 protected:
  // Outputs with a workspace of so many bytes.
  std::vector<std::byte> Run(PagedCase& paged, size_t bytes, const SplitPolicy& split) {
    uint32_t flags = 0;
    CudaCall call = CallWith(&flags, bytes);
    paged.ClearOutputs();
    EXPECT_EQ(RunPrefill(call, split, PrefillParams{DenseAttentionOf(paged.PrefillArgs())}),
              absl::OkStatus());
    EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
    return paged.out.bytes;
  }
};
INSTANTIATE_TEST_SUITE_P(ComputeCapability, RunPrefillTest, BothPrefillKernels(),
                         NameOfPrefillKernel);

TEST_P(RunPrefillTest, KeysAreCutAsFarAsTheWorkspaceGoes) {
  PagedCase paged(Options({2500}, {9}));
  PrefillParams params{DenseAttentionOf(paged.PrefillArgs())};
  const int32_t pieces = PiecesForPrefill(Context(nullptr), params);
  ASSERT_GT(pieces, 2);
  const int64_t piece_bytes = PrefillPieceBytes(params);
  const std::vector<std::byte> whole = Run(paged, 0, SplitPolicy::Auto());
  // Too little for two: as without any.
  EXPECT_EQ(Run(paged, 2 * piece_bytes, SplitPolicy::Auto()), whole);
  const std::vector<std::byte> two = Run(paged, 2 * piece_bytes + 512, SplitPolicy::Auto());
  EXPECT_NE(two, whole);
  const std::vector<std::byte> all = Run(paged, pieces * piece_bytes + 512, SplitPolicy::Auto());
  EXPECT_NE(all, two);
  EXPECT_EQ(Run(paged, size_t{1} << 20, SplitPolicy::Auto()), all);
}

// A request that does not depend on its batch is not cut by what else fills the device.
TEST_P(RunPrefillTest, OnlyAutoCuts) {
  PagedCase paged(Options({2500}, {9}));
  const std::vector<std::byte> whole = Run(paged, 0, SplitPolicy::Auto());
  for (const SplitPolicy split :
       {SplitPolicy::None(), SplitPolicy::Fixed(512), SplitPolicy::Count(7)}) {
    EXPECT_EQ(Run(paged, size_t{1} << 20, split), whole);
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
