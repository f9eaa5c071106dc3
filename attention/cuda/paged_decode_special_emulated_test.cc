// Decode on tensor cores with chunks, kPagedX, masks and block-sparse visibility, its kernels run
// on the host, against the dense oracle.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/kernels/decode_partition.h"
#include "attention/cuda/testing/decode_runner.h"
#include "attention/testing/random_features.h"
#include "attention/testing/says.h"
#include "gtest/gtest.h"
#include "kvblocks/device_types.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention::cuda {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

// Looks up an impossible block where `dead` says so, and expects that nobody looks there.
template <typename Dead>
void ExpectNotLookedUp(PagedCase& paged, const Dead& dead) {
  const std::vector<std::byte> before = OutputBytes(paged);
  int32_t* table = paged.block_table.view.as<int32_t>();
  const int64_t columns = paged.block_table.view.extent[1];
  for (int64_t b = 0; b < paged.num_requests(); ++b) {
    for (int64_t column = 0; column * paged.options().block_size < paged.options().lengths[b];
         ++column) {
      if (dead(b, column)) table[b * columns + column] = 1 << 29;
    }
  }
  DecodeRunner runner;
  paged.ClearOutputs();
  ASSERT_TRUE(runner.Run(PagedDecodeParamsOf(paged.DecodeArgs())).ok());
  EXPECT_EQ(OutputBytes(paged), before);
  EXPECT_EQ(runner.flags(), 0u);
}

// --- Chunks ---

TEST(DecodeChunkTest, FirstKeysAreThoseOfANaiveWalk) {
  std::mt19937_64 random(3);
  for (int n = 0; n < 3000; ++n) {
    const auto draw = [&](int64_t low, int64_t high) {
      return static_cast<int>(IntegerDraw(random, low, high));
    };
    const int length = draw(0, 200), q_len = draw(1, 5), block = draw(1, 40);
    const KeyLimits limits{n % 3 == 0 ? 0 : draw(1, 90), n % 2 == 0 ? 0 : draw(1, 90)};
    int first = 0;
    for (const int p = length - q_len; first < p; ++first) {
      const bool in_window = limits.window == 0 || first > p - limits.window;
      const bool in_chunk = limits.chunk == 0 || first / limits.chunk == p / limits.chunk;
      if (in_window && in_chunk) break;
    }
    EXPECT_EQ(FirstKey(length, q_len, limits, block), first / block * block)
        << length << " " << q_len << " " << limits.window << " " << limits.chunk;
  }
}

TEST(DecodeChunkTest, AgreesWithTheOracle) {
  for (const int64_t chunk : {16, 48, 64, 112, 128, 1008}) {
    for (const bool windowed : {false, true}) {
      PagedCase paged(DecodeOptions({1, 128, 129, 0, 300, 64, 65}));
      paged.params.chunk = chunk;
      if (windowed) paged.params.window_left = 40;
      SCOPED_TRACE(absl::StrCat("chunk ", chunk, windowed ? ", window" : ""));
      DecodeRunner().ExpectDecode(paged);
      paged.params.split = SplitPolicy::Fixed(64);
      DecodeRunner().ExpectDecode(paged);
    }
  }
}

TEST(DecodeChunkTest, ReadsNoBlockBefore) {
  for (const int64_t chunk : {16, 64, 128}) {
    PagedCaseOptions options = DecodeOptions({1, 150, 300, 0, 129});
    PagedCase paged(options);
    paged.params.chunk = chunk;
    SCOPED_TRACE(chunk);
    DecodeRunner().ExpectDecode(paged);
    ExpectNotLookedUp(paged, [&](int64_t b, int64_t column) {
      return (column + 1) * 16 <= (options.lengths[b] - 1) / chunk * chunk;
    });
  }
}

TEST(DecodeChunkTest, TokensOfARequestMayBeInSeveralChunks) {
  for (const int64_t chunk : {16, 32, 64}) {
    PagedCase paged(DecodeOptions({1, 3, 67, 200, 5, 66}, {1, 3, 4, 2, 0, 3}));
    paged.params.chunk = chunk;
    paged.SetValue(2, 63, 0, std::vector<double>(64, kNan));  // of the earlier chunk
    SCOPED_TRACE(chunk);
    DecodeRunner().ExpectPrefill(paged);
  }
}

TEST(DecodeChunkTest, PlansAreForOneChunk) {
  PagedCase paged(DecodeOptions({900, 3, 200}));
  paged.params.chunk = 256;
  DecodeRunner runner;
  DeviceMemory memory(1 << 16);
  DeviceDecodePlan plan;
  plan.memory = TensorView::Contiguous(memory.data.get(), DType::kI32, {1 << 14});
  PagedDecodeArgs args = paged.DecodeArgs();
  ASSERT_TRUE(CudaPlanDecode(runner.context(), args, &plan).ok());
  args.device_plan = &plan;
  ASSERT_TRUE(runner.Decode(paged, args).ok());
  EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
  args.params.chunk = 128;
  const std::vector<std::byte> untouched = OutputBytes(paged);
  const absl::Status status = Cuda().PagedDecode(runner.context(), args);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status, Says("chunk = 256, this call has 128"));
  EXPECT_EQ(OutputBytes(paged), untouched);

  // Pieces of the host know of no chunk.
  SplitPlanner host(1, 1);
  const std::vector<int32_t> lengths = {900, 3, 200};
  SplitPlanInput input;
  input.type.block_size = 16;
  input.seq_lens = lengths;
  input.num_parts = 5;
  ASSERT_TRUE(host.Plan(input).ok());
  args.device_plan = nullptr;
  args.plan = &host.plan();
  ASSERT_TRUE(runner.Decode(paged, args).ok());
  paged.params.chunk = 128;
  EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
}

TEST(DecodeChunkTest, ClustersHaveChunks) {
  PagedCaseOptions options = DecodeOptions({0, 500});
  PagedCase paged(options);
  paged.params.chunk = 208;
  paged.SetValue(1, 415, 0, std::vector<double>(64, kNan));
  DecodeRunner runner;
  ASSERT_EQ(runner.DecodeInClusters(paged, 32), 0);
  EXPECT_EQ(paged.Mismatch(CudaTolerance(options.q_dtype)), "");
}

// --- kPagedX ---

TEST(DecodePagedXTest, SeveralTokensClustersAndNan) {
  PagedCaseOptions options = DecodeOptions({1, 3, 70, 200, 5, 66}, {1, 3, 4, 2, 0, 3});
  options.layout = KvLayout::kPagedX;
  {
    PagedCase paged(options);
    paged.SetValue(2, 69, 0, std::vector<double>(64, kNan));  // seen by the last token alone
    DecodeRunner().ExpectPrefill(paged);
    paged.params.causal = false;
    DecodeRunner().ExpectPrefill(paged);
  }
  options.lengths = {500, 130};
  options.q_lens = {1, 1};
  PagedCase paged(options);
  DecodeRunner runner;
  ASSERT_EQ(runner.DecodeInClusters(paged, 32), 0);
  EXPECT_EQ(paged.Mismatch(CudaTolerance(options.q_dtype)), "");
}

// --- Masks ---

// Trees of drafts: every token sees the context and its ancestors.
PagedCaseOptions TreeOptions() {
  PagedCaseOptions options = DecodeOptions({70, 5, 0, 133, 40}, {7, 5, 0, 8, 1});
  options.num_heads = 4, options.num_kv_heads = 2;
  return options;
}
bool IsAncestor(int64_t of, int64_t token) {
  for (;; of = (of - 1) / 2) {
    if (of == token) return true;
    if (of == 0) return false;
  }
}

TEST(DecodeMaskTest, TreesAsBitsMarkersAndBiases) {
  for (const DType dtype : {DType::kU8, DType::kBool, DType::kF32}) {
    PagedCase paged(TreeOptions());
    paged.params.causal = false;
    const auto hides = [&](int64_t b, int64_t i, int64_t j, int64_t) {
      const int64_t context = paged.options().lengths[b] - paged.options().q_lens[b];
      return j >= context && !IsAncestor(i, j - context);
    };
    Tensor mask;
    if (dtype == DType::kU8) {
      int64_t bits = 0;
      for (int64_t b = 0; b < 5; ++b)
        bits += paged.options().lengths[b] * paged.options().q_lens[b];
      mask = Tensor(DType::kU8, {(bits + 7) / 8});
      std::vector<double> bytes((bits + 7) / 8);
      int64_t at = 0;
      for (int64_t b = 0; b < 5; ++b) {
        for (int64_t i = 0; i < paged.options().q_lens[b]; ++i) {
          for (int64_t j = 0; j < paged.options().lengths[b]; ++j, ++at) {
            if (hides(b, i, j, 0)) bytes[at / 8] += 1 << at % 8;
          }
        }
      }
      mask.Set(bytes);
      paged.params.mask.form = MaskForm::kRaggedBits;
    } else {
      mask = Tensor(dtype, {5, 8, 140});
      std::vector<double> values(5 * 8 * 140);
      for (size_t n = 0; n < values.size(); ++n) {
        const int64_t b = static_cast<int64_t>(n) / (8 * 140),
                      i = static_cast<int64_t>(n) / 140 % 8;
        const int64_t j = static_cast<int64_t>(n) % 140;
        if (i >= paged.options().q_lens[b] || j >= paged.options().lengths[b]) continue;
        if (hides(b, i, j, 0)) values[n] = dtype == DType::kF32 ? -kInf : 1;
      }
      mask.Set(values);
      paged.params.mask.form = MaskForm::kPerRequest;
      if (dtype == DType::kF32) paged.params.mask.encoding = MaskEncoding::kAdditive;
    }
    paged.params.mask.tensor = mask.view;
    paged.hide = hides;
    SCOPED_TRACE(Name(dtype));
    DecodeRunner runner;
    runner.ExpectPrefill(paged);
    // Of a draft that others see.
    paged.SetValue(0, 63 + 1, 1, std::vector<double>(64, kNan));
    paged.SetKey(3, 125 + 2, 0, std::vector<double>(64, kNan));
    runner.ExpectPrefill(paged);
    EXPECT_EQ(runner.flags(), 0u);
  }
}

TEST(DecodeMaskTest, BiasesOfEveryHeadAreAdded) {
  std::mt19937_64 random(11);
  for (const DType cache : {DType::kBF16, DType::kF8E4M3}) {
    PagedCaseOptions options = DecodeOptions();
    options.cache_dtype = cache;
    options.num_heads = 12, options.num_kv_heads = 1;  // two groups of rows
    PagedCase paged(options);
    Tensor mask(DType::kF32, {1, 12, 1, 150});
    std::vector<double> values = NormalDraws(random, 12 * 150);
    for (double& value : values) {
      if (random() % 3 == 0) value = -kInf;
    }
    mask.Set(values);
    values = mask.Get();
    paged.params.mask.tensor = mask.view;
    paged.params.mask.form = MaskForm::kPerHead;
    paged.params.mask.encoding = MaskEncoding::kAdditive;
    paged.params.soft_cap = 3;
    paged.bias = [&](int64_t, int64_t, int64_t j, int64_t h) { return values[h * 150 + j]; };
    DecodeRunner runner;
    runner.ExpectDecode(paged);
    paged.SetValue(5, 40, 0, std::vector<double>(64, kNan));  // some heads see it
    runner.ExpectDecode(paged);
  }
}

TEST(DecodeMaskTest, LayersWithAndWithoutMasksShareAPlan) {
  for (const bool plans_for_mask : {false, true}) {
    PagedCaseOptions options = DecodeOptions();
    options.num_heads = 16, options.num_kv_heads = 1;  // by 16 and by 8
    options.lengths = {900, 3, 200};
    options.q_lens = {1, 1, 1};
    PagedCase paged(options);
    Tensor mask(DType::kBool, {1, 1, 1, 900});
    std::vector<double> hides(900);
    for (size_t j = 0; j < hides.size(); ++j) hides[j] = j % 3 == 1;
    mask.Set(hides);
    PagedDecodeArgs plain = paged.DecodeArgs();
    paged.params.mask.tensor = mask.view;
    paged.params.mask.form = MaskForm::kPerHead;
    PagedDecodeArgs masked = paged.DecodeArgs();
    DecodeRunner runner;
    DeviceMemory memory(1 << 16);
    DeviceDecodePlan plan;
    plan.memory = TensorView::Contiguous(memory.data.get(), DType::kI32, {1 << 14});
    ASSERT_TRUE(
        CudaPlanDecode(runner.context(), plans_for_mask ? masked : plain, &plan).ok());
    plain.device_plan = masked.device_plan = &plan;
    for (int layer = 0; layer < 2; ++layer) {
      paged.hide = nullptr;
      ASSERT_TRUE(runner.Decode(paged, plain).ok());
      EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
      paged.hide = [](int64_t, int64_t, int64_t j, int64_t) { return j % 3 == 1; };
      ASSERT_TRUE(runner.Decode(paged, masked).ok());
      EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
    }
  }
}

TEST(DecodeMaskTest, MasksTooSmallForALengthHideTheRestAndFlag) {
  PagedCase paged(DecodeOptions());
  Tensor mask(DType::kBool, {1, 1, 1, 150});
  mask.Set(std::vector<double>(150, 0.0));
  paged.params.mask.tensor = mask.view;
  paged.params.mask.form = MaskForm::kPerHead;
  PagedDecodeParams params = PagedDecodeParamsOf(paged.DecodeArgs());
  params.scoring.mask.columns = 100;  // as if lengths had grown
  paged.hide = [](int64_t, int64_t, int64_t j, int64_t) { return j >= 100; };
  DecodeRunner runner;
  paged.ClearOutputs();
  ASSERT_TRUE(runner.Run(params).ok());
  EXPECT_EQ(paged.Mismatch(CudaTolerance(DType::kBF16)), "");
  EXPECT_EQ(runner.flags(), uint32_t{kLengthClamped});
}

// --- Block-sparse visibility ---

TEST(DecodeSparseTest, AgreesWithTheOracleAndReadsNoBlockThatNobodySees) {
  for (const int32_t step : {0, 1, -2}) {
    for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kPagedX}) {
      PagedCaseOptions options = DecodeOptions({1, 640, 300, 0, 129});
      options.layout = layout;
      options.num_heads = 4, options.num_kv_heads = 2;
      PagedCase paged(options);
      BlockSparse& sparse = paged.params.block_sparse;
      sparse.local_blocks = 2;
      sparse.vert_stride = 5;
      sparse.block_size = 16;
      sparse.head_sliding_step = step;
      SCOPED_TRACE(absl::StrCat(Name(layout), " step ", step));
      DecodeRunner().ExpectDecode(paged);
      ExpectNotLookedUp(paged, [&](int64_t b, int64_t column) {
        if (column > (options.lengths[b] - 1) / 16 - 2) return false;
        for (int64_t h = 0; h < 4; ++h) {
          const int64_t offset = step >= 0 ? h * step + 1 : h / 2 * -step + 1;
          if ((column + offset) % 5 == 0) return false;
        }
        return true;
      });
    }
  }
}

// --- All together ---

TEST(DecodeSpecialTest, RandomBatches) {
  std::mt19937_64 random(17);
  const auto draw = [&](int64_t low, int64_t high) { return IntegerDraw(random, low, high); };
  for (int n = 0; n < 60; ++n) {
    PagedCaseOptions options = DecodeOptions();
    options.seed = static_cast<uint64_t>(n) + 1;
    options.layout = n % 3 == 0 ? KvLayout::kPagedX : n % 3 == 1 ? KvLayout::kNhd : KvLayout::kHnd;
    options.cache_dtype = n % 4 == 0 ? DType::kF8E4M3 : n % 8 == 1 ? DType::kI8 : DType::kBF16;
    options.num_kv_heads = draw(1, 2);
    options.num_heads = options.num_kv_heads * draw(1, 4);
    options.block_size = options.cache_dtype == DType::kBF16 ? 8 * draw(1, 5) : 16 * draw(1, 3);
    options.lengths.clear(), options.q_lens.clear();
    for (int64_t b = draw(1, 4); b > 0; --b) {
      options.lengths.push_back(draw(0, 220));
      options.q_lens.push_back(std::min(options.lengths.back(), draw(0, 4)));
    }
    PagedCase paged(options);
    const RandomFeatures features(paged, false, draw);
    // Chunks that several tokens of a block could be in are for prefill.
    if (paged.params.chunk < 16) paged.params.chunk = 0;
    SCOPED_TRACE(n);
    DecodeRunner().ExpectPrefill(paged);
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
