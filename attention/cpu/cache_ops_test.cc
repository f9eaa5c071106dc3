#include "kvblocks/attention_cpu.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "attention/tensor/small_floats.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
ConstTensorView In(const std::vector<T>& values, std::initializer_list<int64_t> extents) {
  return ViewOf(absl::MakeConstSpan(values), extents);
}
template <typename T>
TensorView Out(std::vector<T>& values, std::initializer_list<int64_t> extents) {
  return ViewOf(absl::MakeSpan(values), extents);
}

// Batches large enough for tables of codes: every 16-bit word, with a scale for all or one per
// head.
TEST(ReshapeAndCacheTest, LargeBatchesGetTheCodesOfSmallOnes) {
  constexpr int64_t kTokens = 256, kHeads = 2, kDim = 1024;
  std::vector<uint16_t> words(kTokens * kHeads * kDim);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(i * 40503);
  std::vector<int64_t> slots(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) slots[t] = (t * 77) % kTokens;
  const std::vector<float> scales = {0.37f, 2.5f};
  for (const DType from : {DType::kBF16, DType::kF16}) {
    for (const DType to : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
      for (const int64_t num_scales : {1, 2}) {
        KvCacheGeometry geometry;
        geometry.layout = KvLayout::kHnd;
        geometry.dtype = to;
        geometry.num_blocks = kTokens / 16;
        geometry.block_size = 16;
        geometry.num_kv_heads = kHeads;
        geometry.key_dim = geometry.value_dim = kDim;
        std::vector<std::byte> memory(*KvCacheBytes(geometry));
        const KvCacheView cache = *MakeKvCacheView(geometry, ViewOf(absl::MakeSpan(memory)));
        ReshapeAndCacheArgs args;
        args.k = args.v = ConstTensorView::Contiguous(
            reinterpret_cast<const std::byte*>(words.data()), from, {kTokens, kHeads, kDim});
        args.slot_mapping = In(slots, {kTokens});
        args.cache = cache;
        args.scales.k = args.scales.v = In(scales, {2}).Slice(0, 0, num_scales).value();
        ASSERT_EQ(CpuReference().ReshapeAndCache({}, args), absl::OkStatus());
        int64_t wrong = 0;
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t h = 0; h < kHeads; ++h) {
            const double scale = scales[num_scales == 1 ? 0 : h];
            for (int64_t d = 0; d < kDim; ++d) {
              const double value = LoadElement(from, args.k.At(t, h, d)) / scale;
              std::byte code;
              if (to == DType::kI8) {
                code = static_cast<std::byte>(DoubleToInt8Code(value));
              } else {
                StoreElement(to, value, &code);
              }
              wrong += *cache.k.At(slots[t] / 16, h, slots[t] % 16, d) != code;
              wrong += *cache.v.At(slots[t] / 16, h, slots[t] % 16, d) != code;
            }
          }
        }
        EXPECT_EQ(wrong, 0) << Name(from) << " to " << Name(to) << ", " << num_scales << " scales";
      }
    }
  }
}

// EX-28: 6 / 200 and 5 / 100; 0 gives 1.
TEST(ComputeKvScalesTest, Ex28PerTensor) {
  const std::vector<float> q = {0, 0}, k = {1, -6, 2, 3}, v = {5, 0, -4, 1};
  float q_scale = 0, k_scale = 0, v_scale = 0;
  ComputeKvScalesArgs args;
  args.q = In(q, {1, 1, 2});
  args.k = In(k, {2, 1, 2});
  args.v = In(v, {2, 1, 2});
  args.q_scale = ViewOf(absl::MakeSpan(&q_scale, 1));
  args.k_scale = ViewOf(absl::MakeSpan(&k_scale, 1));
  args.v_scale = ViewOf(absl::MakeSpan(&v_scale, 1));
  ASSERT_EQ(CpuReference().ComputeKvScales({}, args), absl::OkStatus());
  EXPECT_EQ(q_scale, 1);
  EXPECT_EQ(k_scale, 0.03f);
  EXPECT_EQ(v_scale, 0.05f);
  args.k_divisor = 127;  // int8
  ASSERT_EQ(CpuReference().ComputeKvScales({}, args), absl::OkStatus());
  EXPECT_EQ(k_scale, 6 / 127.f);
}

TEST(ComputeKvScalesTest, PerHeadLeavesNonFiniteInputsOutAndFlagsThem) {
  // Tokens of 3 heads of 2.
  const std::vector<float> k = {1, 2, kNaN, 4, 0, 0, -3, 0, 8, kInfinity, 0, 0};
  const std::vector<float> v = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 4};
  std::vector<float> k_scale(3), v_scale(3);
  ComputeKvScalesArgs args;
  args.k = In(k, {2, 3, 2});
  args.v = In(v, {2, 3, 2});
  args.k_scale = Out(k_scale, {3});
  args.v_scale = Out(v_scale, {3});
  uint32_t bits = kBadSlot;
  DeviceErrorFlags flags{&bits};
  ExecContext context;
  context.error_flags = &flags;
  ASSERT_EQ(CpuReference().ComputeKvScales(context, args), absl::OkStatus());
  EXPECT_EQ(k_scale, (std::vector<float>{3 / 200.f, 8 / 200.f, 1}));
  EXPECT_EQ(v_scale, (std::vector<float>{0.02f, 0.02f, 0.04f}));
  EXPECT_EQ(bits, kBadSlot | kNonFiniteInput);
  bits = 0;
  args.k = args.v;
  ASSERT_EQ(CpuReference().ComputeKvScales(context, args), absl::OkStatus());
  EXPECT_EQ(bits, 0);
}

TEST(ComputeKvScalesTest, ScalesStayPositiveAndFinite) {
  const std::vector<float> tiny = {std::numeric_limits<float>::denorm_min()};
  const std::vector<double> huge = {1e300};
  float k_scale = 0, v_scale = 0;
  ComputeKvScalesArgs args;
  args.k = In(tiny, {1, 1, 1});
  args.v = In(huge, {1, 1, 1});
  args.k_scale = ViewOf(absl::MakeSpan(&k_scale, 1));
  args.v_scale = ViewOf(absl::MakeSpan(&v_scale, 1));
  ASSERT_EQ(CpuReference().ComputeKvScales({}, args), absl::OkStatus());
  EXPECT_EQ(k_scale, std::numeric_limits<float>::min());
  EXPECT_EQ(v_scale, std::numeric_limits<float>::max());
}

TEST(ComputeKvScalesTest, ThreadsDoNotChangeScales) {
  std::vector<float> k(1000 * 2 * 3);
  for (size_t i = 0; i < k.size(); ++i) k[i] = std::sin(static_cast<float>(i)) * (i % 97);
  ThreadPool pool(3);
  std::vector<std::vector<float>> results;
  for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
    std::vector<float>& scales = results.emplace_back(4);
    ComputeKvScalesArgs args;
    args.k = args.v = In(k, {1000, 2, 3});
    args.k_scale = ViewOf(absl::MakeSpan(scales).first(2));
    args.v_scale = ViewOf(absl::MakeSpan(scales).subspan(2));
    ExecContext context;
    context.threads = threads;
    ASSERT_EQ(CpuReference().ComputeKvScales(context, args), absl::OkStatus());
  }
  EXPECT_EQ(results[0], results[1]);
}

class ScaleOps : public AttentionOps {
 public:
  const char* name() const override { return "scales"; }
  absl::Status Run(const Checked<ComputeKvScalesArgs>& call) const override {
    return CpuReference().Run(call);
  }
};

TEST(KvScaleStateTest, TheFirstBatchWithTokensDecides) {
  float k_scale = 0, v_scale = 0;
  KvScaleState state({}, ViewOf(absl::MakeSpan(&k_scale, 1)), ViewOf(absl::MakeSpan(&v_scale, 1)));
  const ScaleOps ops;
  const std::vector<float> none, first = {6}, second = {60};
  const auto compute = [&](const std::vector<float>& tokens) {
    ComputeKvScalesArgs args;
    args.k = args.v =
        ConstTensorView::Contiguous(reinterpret_cast<const std::byte*>(tokens.data()), DType::kF32,
                                    {static_cast<int64_t>(tokens.size()), 1, 1});
    return state.ComputeOnce(ops, {}, args);
  };
  ASSERT_EQ(compute(none), absl::OkStatus());
  EXPECT_FALSE(state.frozen());
  ASSERT_EQ(compute(first), absl::OkStatus());
  EXPECT_TRUE(state.frozen());
  EXPECT_EQ(k_scale, 0.03f);
  ASSERT_EQ(compute(second), absl::OkStatus());
  EXPECT_EQ(k_scale, 0.03f);
  EXPECT_EQ(state.scales().k.data, reinterpret_cast<const std::byte*>(&k_scale));
  EXPECT_EQ(state.scales().v.data, reinterpret_cast<const std::byte*>(&v_scale));
}

TEST(KvScaleStateTest, AFailureDoesNotFreeze) {
  float k_scale = 0, v_scale = 0;
  KvScaleState state({}, ViewOf(absl::MakeSpan(&k_scale, 1)), ViewOf(absl::MakeSpan(&v_scale, 1)));
  const std::vector<float> tokens = {6};
  ComputeKvScalesArgs args;
  args.k = args.v = In(tokens, {1, 1, 1});
  args.k_divisor = -1;
  EXPECT_FALSE(state.ComputeOnce(ScaleOps(), {}, args).ok());
  EXPECT_FALSE(state.frozen());
  EXPECT_EQ(k_scale, 0);
}

// Scales of [R, Hkv]: each request by its own.
TEST(GatherCacheTest, DequantisesByRequestAndHead) {
  // 2 blocks of 2 tokens of 2 heads of 1 code: values 1, 2, ... of K and their negatives of V.
  std::vector<int8_t> k(8), v(8);
  for (int i = 0; i < 8; ++i) k[i] = static_cast<int8_t>(i + 1), v[i] = static_cast<int8_t>(-i - 1);
  GatherCacheArgs args;
  args.cache = ConstKvCacheView(KvLayout::kNhd, In(k, {2, 2, 2, 1}), In(v, {2, 2, 2, 1}));
  const std::vector<int32_t> table = {1, 0, 0, 1}, seq_lens = {3, 2}, lengths = {2, 1};
  args.block_table = In(table, {2, 2});
  args.seq_lens = In(seq_lens, {2});
  args.lengths = In(lengths, {2});
  args.row_offset = 1;
  const std::vector<float> k_scales = {1, 10, 100, 1000};
  const std::vector<float> v_scale = {0.5};
  args.scales.k = In(k_scales, {2, 2});
  args.scales.v = In(v_scale, {1});
  std::vector<float> out(2 * 3 * 2, 99), out_v(2 * 3 * 2, 99);
  args.out = Out(out, {2, 3, 2, 1});
  args.out_v = Out(out_v, {2, 3, 2, 1});
  ASSERT_EQ(CpuReference().GatherCache({}, args), absl::OkStatus());
  // Request 0: positions 1 and 2 are block 1 offset 1 and block 0 offset 0; request 1: position 1
  // is block 0 offset 1.
  EXPECT_EQ(out, (std::vector<float>{99, 99, 7, 80, 1, 20, 99, 99, 300, 4000, 99, 99}));
  EXPECT_EQ(out_v, (std::vector<float>{99, 99, -3.5, -4, -0.5, -1, 99, 99, -1.5, -2, 99, 99}));
}

TEST(GatherCacheTest, LongRequestsAreSharedByThreads) {
  constexpr int32_t kTokens = 1000, kBlockSize = 8;
  std::vector<float> k(kTokens);
  std::iota(k.begin(), k.end(), 0.f);
  GatherCacheArgs args;
  args.cache = ConstKvCacheView(KvLayout::kNhd, In(k, {kTokens / kBlockSize, kBlockSize, 1, 1}),
                                In(k, {kTokens / kBlockSize, kBlockSize, 1, 1}));
  std::vector<int32_t> table(kTokens / kBlockSize);
  std::iota(table.rbegin(), table.rend(), 0);
  const std::vector<int32_t> seq_lens = {kTokens}, lengths = {kTokens - 1};
  args.block_table = In(table, {1, kTokens / kBlockSize});
  args.seq_lens = In(seq_lens, {1});
  args.lengths = In(lengths, {1});
  std::vector<float> out(kTokens - 1), out_v(kTokens - 1), expected(kTokens - 1);
  for (int32_t i = 0; i < kTokens - 1; ++i) {
    expected[i] =
        static_cast<float>(table[(i + 1) / kBlockSize] * kBlockSize + (i + 1) % kBlockSize);
  }
  args.out = Out(out, {1, kTokens - 1, 1, 1});
  args.out_v = Out(out_v, {1, kTokens - 1, 1, 1});
  ThreadPool pool(3);
  ExecContext context;
  context.threads = &pool;
  ASSERT_EQ(CpuReference().GatherCache(context, args), absl::OkStatus());
  EXPECT_EQ(out, expected);
  EXPECT_EQ(out_v, expected);
}

// AT-14: entries before the tokens asked for and past the length may be anything.
TEST(GatherCacheTest, ReadsOnlyTheTableEntriesOfItsTokens) {
  const std::vector<float> rows = {0, 1, 2, 3};
  GatherCacheArgs args;
  args.cache = ConstKvCacheView(KvLayout::kMlaSplit, In(rows, {2, 2, 1}), In(rows, {2, 2, 1}));
  const std::vector<int32_t> table = {2147480000, 1, -5}, seq_lens = {3}, lengths = {1};
  args.block_table = In(table, {1, 3});
  args.seq_lens = In(seq_lens, {1});
  args.lengths = In(lengths, {1});
  std::vector<float> out(2);
  args.out = Out(out, {1, 1, 2});
  ASSERT_EQ(CpuReference().GatherCache({}, args), absl::OkStatus());
  EXPECT_EQ(out, (std::vector<float>{2, 2}));
}

}  // namespace
}  // namespace kvblocks::attention
