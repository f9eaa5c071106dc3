// The fast paged decode, its kernels run on the host, against the dense oracle.

#include <limits>
#include <string>
#include <vector>

#include "attention/cuda/paged_decode_ops.h"
#include "attention/cuda/testing/decode_runner.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/says.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {
namespace {

using Runner = DecodeRunner;

// --- T-1: types, layouts, head sizes, groups, block sizes ---

struct GridCase {
  DType q, cache;
  KvLayout layout;
  bool interleave;
  int64_t key_dim, value_dim, heads, kv_heads, block_size;
};

constexpr KvLayout kNhd = KvLayout::kNhd, kHnd = KvLayout::kHnd, kPagedX = KvLayout::kPagedX;

class PagedDecodeGrid : public testing::TestWithParam<GridCase> {};

TEST_P(PagedDecodeGrid, AgreesWithTheOracle) {
  const GridCase& grid = GetParam();
  PagedCaseOptions options = DecodeOptions();
  options.q_dtype = grid.q;
  options.cache_dtype = grid.cache;
  options.layout = grid.layout;
  options.interleave_kv = grid.interleave;
  options.key_dim = grid.key_dim;
  options.value_dim = grid.value_dim;
  options.num_heads = grid.heads;
  options.num_kv_heads = grid.kv_heads;
  options.block_size = grid.block_size;
  options.scales = static_cast<PagedCaseOptions::Scales>(grid.block_size / 16 % 3);
  options.out_dtype = grid.heads == 4 ? DType::kBF16 : DType::kF16;
  PagedCase paged(options);
  Runner runner;
  runner.ExpectDecode(paged);
  if (grid.layout == kPagedX) {
    paged.params.window_left = 37;
    runner.ExpectDecode(paged);
    paged.params.split = SplitPolicy::Fixed(2 * options.block_size);
    runner.ExpectDecode(paged);
  }
  EXPECT_EQ(runner.flags(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PagedDecodeGrid,
    testing::Values(GridCase{DType::kBF16, DType::kBF16, kNhd, false, 64, 64, 2, 2, 8},
                    GridCase{DType::kF16, DType::kF16, kHnd, false, 64, 64, 4, 2, 16},
                    GridCase{DType::kBF16, DType::kBF16, kNhd, true, 128, 128, 4, 1, 16},
                    GridCase{DType::kF16, DType::kF16, kHnd, true, 128, 128, 7, 1, 32},
                    GridCase{DType::kBF16, DType::kBF16, kHnd, false, 128, 128, 8, 1, 64},
                    GridCase{DType::kBF16, DType::kBF16, kNhd, false, 128, 128, 16, 1, 128},
                    GridCase{DType::kF16, DType::kF16, kNhd, false, 256, 256, 4, 2, 256},
                    GridCase{DType::kBF16, DType::kBF16, kHnd, false, 80, 80, 2, 1, 24},
                    GridCase{DType::kBF16, DType::kBF16, kNhd, false, 192, 128, 2, 1, 16},
                    GridCase{DType::kF16, DType::kF16, kNhd, false, 96, 96, 20, 1, 16},
                    GridCase{DType::kF16, DType::kF16, kNhd, false, 120, 112, 2, 2, 64},
                    GridCase{DType::kBF16, DType::kF8E4M3, kNhd, false, 64, 64, 4, 2, 16},
                    GridCase{DType::kBF16, DType::kF8E4M3, kHnd, false, 128, 128, 16, 1, 32},
                    GridCase{DType::kF16, DType::kF8E4M3, kNhd, true, 256, 256, 2, 1, 64},
                    GridCase{DType::kBF16, DType::kF8E5M2, kHnd, false, 64, 64, 4, 2, 8},
                    GridCase{DType::kF16, DType::kF8E5M2, kNhd, false, 112, 96, 12, 1, 16},
                    GridCase{DType::kBF16, DType::kI8, kNhd, false, 128, 128, 4, 1, 16},
                    GridCase{DType::kF16, DType::kI8, kHnd, true, 64, 64, 16, 1, 128},
                    GridCase{DType::kF16, DType::kI8, kNhd, false, 192, 192, 12, 1, 32},
                    GridCase{DType::kF8E4M3, DType::kF8E4M3, kNhd, false, 64, 64, 4, 2, 16},
                    GridCase{DType::kF8E4M3, DType::kF8E4M3, kHnd, true, 128, 128, 16, 1, 32},
                    GridCase{DType::kF8E4M3, DType::kF8E4M3, kNhd, false, 256, 256, 4, 2, 64},
                    GridCase{DType::kF8E4M3, DType::kF8E4M3, kHnd, false, 112, 96, 12, 1, 8},
                    GridCase{DType::kF8E4M3, DType::kF8E4M3, kNhd, false, 80, 80, 4, 2, 24},
                    GridCase{DType::kF8E4M3, DType::kF8E4M3, kHnd, false, 192, 128, 2, 1, 16},
                    GridCase{DType::kBF16, DType::kBF16, kPagedX, false, 64, 64, 2, 2, 8},
                    GridCase{DType::kF16, DType::kF16, kPagedX, false, 128, 128, 8, 1, 16},
                    GridCase{DType::kBF16, DType::kBF16, kPagedX, false, 128, 96, 20, 2, 64},
                    GridCase{DType::kF16, DType::kF16, kPagedX, false, 256, 256, 4, 2, 32},
                    GridCase{DType::kBF16, DType::kBF16, kPagedX, false, 120, 112, 3, 1, 24},
                    GridCase{DType::kBF16, DType::kF8E4M3, kPagedX, false, 64, 64, 4, 2, 16},
                    GridCase{DType::kF16, DType::kF8E5M2, kPagedX, false, 128, 128, 12, 1, 32},
                    GridCase{DType::kBF16, DType::kI8, kPagedX, false, 112, 96, 4, 1, 16},
                    GridCase{DType::kF16, DType::kF8E4M3, kPagedX, false, 256, 192, 2, 1, 64}));

// --- Splits ---

TEST(PagedDecodeTest, PoliciesAgreeWithTheOracle) {  // T-8, AT-47
  for (const SplitPolicy policy :
       {SplitPolicy::Auto(), SplitPolicy::None(), SplitPolicy::Fixed(16), SplitPolicy::Fixed(80),
        SplitPolicy::Fixed(512), SplitPolicy::Count(1), SplitPolicy::Count(2),
        SplitPolicy::Count(7), SplitPolicy::Count(64)}) {
    PagedCase paged(DecodeOptions({700, 1, 0, 130}));
    paged.params.split = policy;
    SCOPED_TRACE(static_cast<int>(policy.kind) * 1000 + policy.value);
    Runner().ExpectDecode(paged);
  }
}

TEST(PagedDecodeTest, LongRequestsGoOnThroughManyParts) {
  PagedCaseOptions options = DecodeOptions();
  options.num_heads = 2, options.num_kv_heads = 1;  // 8 parts
  options.lengths = {2500, 1300};
  options.q_lens = {1, 1};
  PagedCase paged(options);
  Runner().ExpectDecode(paged);
}

TEST(PagedDecodeTest, ManyRequestsArePlannedInALaunchOfTheirOwn) {
  PagedCaseOptions options = DecodeOptions();
  options.num_heads = options.num_kv_heads = 1;
  options.lengths.clear();
  for (int64_t b = 0; b < 140; ++b) options.lengths.push_back(b % 17 == 0 ? 140 + b : b % 40);
  options.q_lens.assign(140, 1);
  PagedCase paged(options);
  Runner runner;
  runner.ExpectDecode(paged);
  const std::vector<std::byte> first = OutputBytes(paged);
  runner.ExpectDecode(paged);
  EXPECT_EQ(OutputBytes(paged), first);
}

TEST(PagedDecodeTest, LaunchesFollowOneAnotherInAWorkspace) {  // T-31: counters are left as found
  PagedCase paged(DecodeOptions({1000, 20}));
  Runner runner;
  runner.ExpectDecode(paged);
  const std::vector<std::byte> first = OutputBytes(paged);
  for (int n = 0; n < 3; ++n) {
    ASSERT_TRUE(runner.Decode(paged).ok());
    EXPECT_EQ(OutputBytes(paged), first);
  }
}

// --- Clusters ---

TEST(PagedDecodeTest, ClustersAgreeWithTheOracle) {
  struct Case {
    std::vector<int64_t> lengths;
    int64_t heads, kv_heads, dim;
    DType cache;
  };
  for (const Case& given :
       {Case{{1000}, 4, 1, 64, DType::kBF16}, Case{{300}, 8, 2, 128, DType::kBF16},
        Case{{130}, 16, 1, 64, DType::kF8E4M3}, Case{{2048, 0, 129}, 2, 1, 64, DType::kI8}}) {
    PagedCaseOptions options = DecodeOptions(given.lengths);
    options.num_heads = given.heads;
    options.num_kv_heads = given.kv_heads;
    options.key_dim = options.value_dim = given.dim;
    options.cache_dtype = given.cache;
    PagedCase paged(options);
    SCOPED_TRACE(given.lengths[0]);
    Runner runner;
    std::vector<std::byte> first;
    for (int n = 0; n < 2; ++n) {
      ASSERT_EQ(runner.DecodeInClusters(paged, 32), 0);
      EXPECT_EQ(paged.Mismatch(CudaTolerance(options.q_dtype)), "");
      if (n == 0) first = OutputBytes(paged);
      EXPECT_EQ(OutputBytes(paged), first);
    }
    EXPECT_EQ(runner.flags(), 0u);
  }
}

TEST(PagedDecodeTest, ClustersHaveWindowsSinksAndNan) {
  const Tensor sinks = FloatTensor({0.5, -1, 3, -std::numeric_limits<double>::infinity()});
  PagedCaseOptions options = DecodeOptions({0, 500});
  PagedCase paged(options);
  paged.params.sinks = sinks.view;
  paged.params.window_left = 260;
  paged.SetValue(1, 100, 0, std::vector<double>(64, std::numeric_limits<double>::quiet_NaN()));
  Runner runner;
  ASSERT_EQ(runner.DecodeInClusters(paged, 32), 0);
  EXPECT_EQ(paged.Mismatch(CudaTolerance(options.q_dtype)), "");
  paged.SetValue(1, 400, 1, std::vector<double>(64, std::numeric_limits<double>::quiet_NaN()));
  ASSERT_EQ(runner.DecodeInClusters(paged, 32), 0);
  EXPECT_EQ(paged.Mismatch(CudaTolerance(options.q_dtype)), "");
}

// --- T-2: score features ---

TEST(PagedDecodeTest, WindowsReadNoBlockOutside) {  // AT-53, T-12
  for (const int64_t window : {1, 20, 64, 100}) {
    PagedCaseOptions options = DecodeOptions({1, 150, 300, 0});
    options.block_size = window == 20 ? 64 : 16;
    PagedCase paged(options);
    paged.params.window_left = window - 1;
    Runner runner;
    runner.ExpectDecode(paged);
    const std::vector<std::byte> before = OutputBytes(paged);
    paged.KillBlocks(
        [&](int64_t b, int64_t column) {
          return (column + 1) * options.block_size <= options.lengths[b] - window;
        },
        window == 64);
    ASSERT_TRUE(runner.Decode(paged).ok());
    EXPECT_EQ(OutputBytes(paged), before) << "window " << window;
    EXPECT_EQ(runner.flags(), 0u);
  }
}

TEST(PagedDecodeTest, SinksSoftCapAndSlopes) {  // AT-51, AT-52, AT-54
  const Tensor sinks = FloatTensor({0.5, -1, 3, -std::numeric_limits<double>::infinity()});
  const Tensor slopes = FloatTensor({0, 0.5, 0.0625, 0.25});
  for (int features = 1; features < 8; ++features) {
    PagedCase paged(DecodeOptions({0, 1, 65, 200}));
    if ((features & 1) != 0) paged.params.sinks = sinks.view;
    if ((features & 2) != 0) paged.params.soft_cap = 2;
    if ((features & 4) != 0) paged.params.alibi_slopes = slopes.view;
    SCOPED_TRACE(features);
    Runner().ExpectDecode(paged);
  }
}

// --- Several tokens ---

TEST(PagedDecodeTest, SeveralTokensPerRequest) {  // AT-57
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{2, 1}, {8, 2}, {8, 1}}) {
    PagedCaseOptions options = DecodeOptions({1, 3, 70, 200, 5, 66}, {1, 3, 4, 2, 0, 3});
    options.num_heads = heads;
    options.num_kv_heads = kv_heads;
    PagedCase paged(options);
    SCOPED_TRACE(heads);
    Runner().ExpectPrefill(paged);
    paged.params.window_left = 2;
    Runner().ExpectPrefill(paged);
    paged.params.window_left = -1;
    paged.params.causal = false;
    Runner().ExpectPrefill(paged);
  }
}

TEST(PagedDecodeTest, LaterTokensMayBeNaN) {  // AT-99
  PagedCaseOptions options = DecodeOptions({40}, {3});
  options.num_heads = options.num_kv_heads = 1;
  PagedCase paged(options);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  paged.SetValue(0, 39, 0, std::vector<double>(64, nan));
  Runner().ExpectPrefill(paged);
  paged.SetKey(0, 38, 0, std::vector<double>(64, nan));
  Runner().ExpectPrefill(paged);
}

// --- Special values ---

TEST(PagedDecodeTest, NanStaysWithItsRequest) {  // AT-99
  for (const DType cache : {DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    PagedCaseOptions options = DecodeOptions();
    options.cache_dtype = cache;
    PagedCase paged(options);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    paged.SetKey(1, 20, 1, std::vector<double>(64, nan));
    paged.SetValue(5, 149, 0, std::vector<double>(64, nan));
    SCOPED_TRACE(static_cast<int>(cache));
    Runner().ExpectDecode(paged);
  }
}

TEST(PagedDecodeTest, LargeScoresAndQueries) {  // T-33
  for (const DType cache : {DType::kBF16, DType::kF8E4M3}) {
    PagedCaseOptions options = DecodeOptions();
    options.cache_dtype = cache;
    options.q_factor = 4;
    PagedCase paged(options);
    for (int64_t h = 0; h < 4; ++h) {
      std::vector<double> row(64, 0.0);
      row[h] = h == 0 ? 3000 : h == 1 ? -3000 : h == 2 ? 1e5 : 1e-6;
      paged.SetQuery(3, h, row);
    }
    Runner().ExpectDecode(paged);
  }
}

// --- Strides ---

TEST(PagedDecodeTest, TakesOnlyOffsetsThatFit) {
  PagedCase paged(DecodeOptions());
  PagedDecodeParams params = PagedDecodeParamsOf(paged.DecodeArgs());
  EXPECT_TRUE(TakesPagedDecode(params));
  Cache& cache = params.keys.cache;
  cache.k.block_stride = cache.v.block_stride = 24;  // 3 units of 16 bytes
  cache.num_blocks = 1'400'000'000;
  EXPECT_TRUE(TakesPagedDecode(params));
  cache.num_blocks = 1'500'000'000;
  EXPECT_FALSE(TakesPagedDecode(params));
  cache.k.block_stride = cache.v.block_stride = 1 << 20;  // 8192 units of 256 bytes
  EXPECT_FALSE(TakesPagedDecode(params));
  cache.num_blocks = 500'000;
  EXPECT_TRUE(TakesPagedDecode(params));
  cache.v.token_stride = -64;
  EXPECT_FALSE(TakesPagedDecode(params));
}

// --- Bad indices ---

TEST(PagedDecodeTest, BadBlocksAreInvisibleAndFlagged) {
  for (const KvLayout layout : {kNhd, kPagedX}) {
    PagedCaseOptions options = DecodeOptions();
    options.layout = layout;
    PagedCase paged(options);
    const int64_t columns = paged.block_table.view.extent[1];
    int32_t* table = paged.block_table.view.as<int32_t>();
    table[5 * columns + 2] = -7;
    table[3 * columns + 0] = 1 << 30;
    paged.hide = [](int64_t b, int64_t, int64_t j, int64_t) {
      return (b == 5 && j / 16 == 2) || (b == 3 && j / 16 == 0);
    };
    // Around the host's check of the table: as if it were on a device.
    Runner runner;
    paged.ClearOutputs();
    const PagedDecodeParams params = PagedDecodeParamsOf(paged.DecodeArgs());
    ASSERT_TRUE(TakesPagedDecode(params));
    ASSERT_TRUE(runner.Run(params).ok());
    EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
    EXPECT_EQ(runner.flags(), uint32_t{kBadBlock});
  }
}

TEST(PagedDecodeTest, LengthsBeyondBoundsAreClamped) {
  PagedCase paged(DecodeOptions({100, 40}));
  PagedDecodeParams params = PagedDecodeParamsOf(paged.DecodeArgs());
  paged.seq_lens.Set({1e9, 40});
  Runner runner;
  paged.ClearOutputs();
  ASSERT_TRUE(runner.Run(params).ok());
  EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
  EXPECT_EQ(runner.flags(), uint32_t{kLengthClamped});
}

TEST(PagedDecodeTest, RefusesWhatIsNotBuilt) {
  PagedCaseOptions options = DecodeOptions();
  options.block_size = 12;
  const auto takes = [](PagedCase& paged) {
    return TakesPagedDecode(PagedDecodeParamsOf(paged.DecodeArgs()));
  };
  for (const KvLayout layout : {kNhd, kPagedX}) {
    options.layout = layout;
    options.block_size = 12;
    PagedCase odd_blocks(options);
    EXPECT_FALSE(takes(odd_blocks));
    options.block_size = 16;
    PagedCase whole(options);
    EXPECT_TRUE(takes(whole));
    whole.params.chunk = 16;
    EXPECT_TRUE(takes(whole));
  }
  options.q_dtype = options.cache_dtype = DType::kF32;
  PagedCase wide(options);
  EXPECT_FALSE(takes(wide));
}

// --- Workspace and plans ---

TEST(PagedDecodeTest, WorkspaceTooSmallNamesTheBytes) {
  PagedCase paged(DecodeOptions());
  const size_t needed = WorkspaceOf(PagedDecodeParamsOf(paged.DecodeArgs()), 4).bytes;
  Runner small(needed - 16);
  const absl::Status status = small.Decode(paged);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status, Says(std::to_string(needed)));
  // Exactly as much is enough: sanitizers see what is behind it.
  Runner(needed).ExpectDecode(paged);
}

TEST(PagedDecodeTest, OnePlanServesManyLayers) {  // AT-94, T-31
  PagedCase paged(DecodeOptions({900, 3, 200}));
  Runner runner;
  DeviceMemory memory(1 << 16);
  DeviceDecodePlan plan;
  plan.memory = TensorView::Contiguous(memory.data.get(), DType::kI32, {1 << 14});
  PagedDecodeArgs args = paged.DecodeArgs();
  ASSERT_TRUE(CudaPlanDecode(runner.context(), args, &plan).ok());
  args.device_plan = &plan;
  std::vector<std::byte> first;
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(runner.Decode(paged, args).ok());
    EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
    if (layer == 0) first = OutputBytes(paged);
    EXPECT_EQ(OutputBytes(paged), first);
  }
  args.params.window_left = 8;
  EXPECT_EQ(runner.Decode(paged, args).code(), absl::StatusCode::kFailedPrecondition);
  args.params.window_left = -1;
  // Caches of codes are cut into other numbers of parts.
  plan.cache_dtype = DType::kF8E4M3;
  EXPECT_THAT(runner.Decode(paged, args), Says("bytes per value of the cache: 1, this call has 2"));
}

TEST(PagedDecodeTest, FixedPiecesIgnoreTheBatch) {  // T-16
  PagedCase paged(DecodeOptions({170, 333, 5}));
  paged.params.split = SplitPolicy::Fixed(64);
  Runner runner;
  ASSERT_TRUE(runner.Decode(paged).ok());
  const std::vector<double> all = paged.out.Get();
  // Request 1 alone.
  PagedDecodeArgs args = paged.DecodeArgs();
  args.q = args.q.Slice(0, 1, 2).value();
  args.block_table = args.block_table.Slice(0, 1, 2).value();
  args.seq_lens = args.seq_lens.Slice(0, 1, 2).value();
  args.out = args.out.Slice(0, 1, 2).value();
  args.lse = args.lse.Slice(0, 1, 2).value();
  ASSERT_TRUE(runner.Decode(paged, args).ok());
  const std::vector<double> alone = paged.out.Get();
  for (int64_t i = 4 * 64; i < 2 * 4 * 64; ++i) ASSERT_EQ(alone[i], all[i]) << i;
}

}  // namespace
}  // namespace kvblocks::attention::cuda
