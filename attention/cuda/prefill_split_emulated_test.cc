// How keys of a prefill are cut into pieces, both kernels emulated.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
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

class PrefillSplitTest : public PrefillFixture {
 protected:
  void ExpectExact(PagedCase& paged, int pieces) {
    SCOPED_TRACE(absl::StrCat(pieces, " pieces"));
    paged.ClearOutputs();
    Launch(ParamsOf(paged), pieces);
    PrefillFixture::ExpectExact(paged);
  }
  static PrefillParams ParamsOf(PagedCase& paged) {
    return PrefillParams{DenseAttentionOf(paged.PrefillArgs())};
  }
  static PagedCaseOptions Options(std::vector<int64_t> lengths, std::vector<int64_t> q_lens,
                                  DType type = DType::kBF16) {
    PagedCaseOptions options = PrefillFixture::Options(std::move(lengths), std::move(q_lens));
    options.num_heads = 2, options.num_kv_heads = 1;
    options.q_dtype = options.cache_dtype = type;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(ComputeCapability, PrefillSplitTest, BothPrefillKernels(),
                         NameOfPrefillKernel);

TEST_P(PrefillSplitTest, RequestsWithFewerKeysThanPieces) {
  PagedCase paged(Options({300, 0, 17, 600, 129}, {5, 0, 17, 70, 1}));
  for (const int pieces : {1, 2, kMostPrefillPieces}) ExpectExact(paged, pieces);
}

// A graph's batch may have fewer tokens than its bound.
TEST_P(PrefillSplitTest, RowsOfNoRequestAreLeftAlone) {
  PagedCase paged(Options({300, 20}, {9, 20}));
  paged.query_start_loc.view.as<int32_t>()[2] = 9;
  paged.ClearOutputs();
  Launch(ParamsOf(paged), 2);
  const std::vector<double> out = paged.out.Get(), lse = paged.lse.Get();
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i >= 9 * 2 * 64) << i;
  for (size_t i = 0; i < lse.size(); ++i) EXPECT_EQ(std::isnan(lse[i]), i >= 9 * 2) << i;
}

// Random batches, bounds and pieces; the same call again gives the same bits.
TEST_P(PrefillSplitTest, T31RandomBatches) {
  std::mt19937_64 random(GetParam().capability);
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
    const std::vector<std::byte> first = OutputBytes(paged);
    ExpectExact(paged, pieces);
    EXPECT_EQ(OutputBytes(paged), first);
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
  const int at_a_time = GetParam().capability == 90 ? 132 : 264;
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
    EXPECT_EQ(RunPrefill(call, split, ParamsOf(paged)), absl::OkStatus());
    EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
    return paged.out.bytes;
  }
};
INSTANTIATE_TEST_SUITE_P(ComputeCapability, RunPrefillTest, BothPrefillKernels(),
                         NameOfPrefillKernel);

TEST_P(RunPrefillTest, KeysAreCutAsFarAsTheWorkspaceGoes) {
  PagedCase paged(Options({2500}, {9}));
  const PrefillParams params = ParamsOf(paged);
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
