// The cache writers of CUDA against those of the CPU: the same bytes, whatever the layout, the
// types and the slots (T-4), and what kernels do about slots that only they see.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/cuda/testing/on_device.h"
#include "attention/tensor/small_floats.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/says.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention::cuda {
namespace {

// Values of many sizes, infinities among them and, where bits are copied, any pattern.
void FillRandom(Tensor& tensor, bool any_bits, std::mt19937_64& random) {
  if (any_bits) {
    for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
    return;
  }
  std::vector<double> values(tensor.view.num_elements());
  for (double& value : values) {
    value = NormalDraw(random) * std::exp2(static_cast<double>(random() % 20) - 10);
    if (random() % 100 == 0) value = 0;
    if (random() % 100 == 0) value = std::numeric_limits<double>::infinity();
    // Halves of a code's last place, where rounding decides.
    if (random() % 4 == 0) value = std::round(value * 16) / 16;
  }
  tensor.Set(values);
}

Tensor Slots(int64_t n, int64_t num_slots, std::mt19937_64& random) {
  std::vector<double> slots(num_slots);
  std::iota(slots.begin(), slots.end(), 0);
  if (random() % 2 == 0) std::shuffle(slots.begin(), slots.end(), random);
  slots.resize(n, -1);
  for (double& slot : slots) {
    if (random() % 6 == 0) slot = -1;
  }
  Tensor tensor(DType::kI64, {n});
  tensor.Set(slots);
  return tensor;
}

struct Types {
  DType from, to;
};
constexpr Types kTypes[] = {
    {DType::kBF16, DType::kBF16},     {DType::kF16, DType::kF16},     {DType::kF32, DType::kF32},
    {DType::kF8E4M3, DType::kF8E4M3}, {DType::kI8, DType::kI8},       {DType::kF32, DType::kBF16},
    {DType::kF32, DType::kF16},       {DType::kBF16, DType::kF8E4M3}, {DType::kF16, DType::kF8E5M2},
    {DType::kF32, DType::kI8},        {DType::kBF16, DType::kI8},     {DType::kF32, DType::kF8E4M3},
    {DType::kBF16, DType::kF32},
};

TEST(CudaCacheOpsTest, T4ReshapeAndCacheWritesTheBytesOfTheCpu) {
  std::mt19937_64 random(7);
  int cases = 0;
  for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kPagedX}) {
    for (const Types types : kTypes) {
      for (const int64_t dim : {16, 48, 128}) {
        // A GPU wants strides of 16 bytes, the tokens of a dim-major block among them.
        const int64_t block_size = layout == KvLayout::kPagedX ? int64_t{16} << random() % 2
                                                               : int64_t{1} << (1 + random() % 5);
        const int64_t num_blocks = 1 + static_cast<int64_t>(random() % 6);
        const int64_t heads = 1 + static_cast<int64_t>(random() % 3);
        const int64_t n = 1 + static_cast<int64_t>(random() % (block_size * num_blocks));
        SCOPED_TRACE(testing::Message() << Name(layout) << " " << Name(types.from) << " to "
                                        << Name(types.to) << " D " << dim << " BS " << block_size);
        const auto extents = [&](bool key) {
          return CacheExtents(key, layout, types.to, num_blocks, block_size, heads, dim);
        };
        const bool same = types.from == types.to;
        Tensor k(types.from, {n + 2, heads, dim}), v(types.from, {n + 2, heads, dim});
        FillRandom(k, same, random);
        FillRandom(v, same, random);
        Tensor k_cache(types.to, extents(true)), v_cache(types.to, extents(false));
        FillRandom(k_cache, true, random);
        FillRandom(v_cache, true, random);
        Tensor slots = Slots(n, block_size * num_blocks, random);
        Tensor scale(DType::kF32, {heads});
        std::vector<double> scales(heads);
        for (double& one : scales) one = 0.01 + static_cast<double>(random() % 1000) / 300;
        scale.Set(scales);
        ReshapeAndCacheArgs args;
        args.k = k.view;
        args.v = v.view;
        args.slot_mapping = slots.view;
        args.cache = KvCacheView(layout, k_cache.view, v_cache.view);
        if (IsQuantizedCode(types.to)) args.scales = {scale.view, scale.view};
        ExpectBytesOfTheCpu({&k_cache, &v_cache}, [&](const auto& ops, const auto& context) {
          return ops.ReshapeAndCache(context, args);
        });
        if (HasFailure()) return;
        ++cases;
      }
    }
  }
  EXPECT_EQ(cases, 3 * 13 * 3);
}

// Writes `k` [512, 1, 128] as codes, in rows and in pieces, and compares with the CPU.
void ExpectCodesOfTheCpu(const Tensor& k, DType code, float factor) {
  constexpr int64_t kTokens = 512, kDim = 128, kBlocks = kTokens / 16;
  std::vector<double> all(kTokens);
  std::iota(all.begin(), all.end(), 0);
  Tensor slots(DType::kI64, {kTokens});
  slots.Set(all);
  for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kPagedX}) {
    SCOPED_TRACE(testing::Message() << Name(k.view.dtype) << " to " << Name(code) << " scale "
                                    << factor << " " << Name(layout));
    Tensor k_cache(code, CacheExtents(true, layout, code, kBlocks, 16, 1, kDim));
    Tensor v_cache(code, CacheExtents(false, layout, code, kBlocks, 16, 1, kDim));
    Tensor scale(DType::kF32, {1});
    scale.Set({factor});
    ReshapeAndCacheArgs args;
    args.k = args.v = k.view;
    args.slot_mapping = slots.view;
    args.cache = KvCacheView(layout, k_cache.view, v_cache.view);
    args.scales = {scale.view, scale.view};
    FillWithPoison(k_cache);
    FillWithPoison(v_cache);
    ExpectBytesOfTheCpu({&k_cache, &v_cache}, [&](const auto& ops, const auto& context) {
      return ops.ReshapeAndCache(context, args);
    });
  }
}

// All values of a 16-bit type but NaN, which may have any sign.
Tensor EveryValue(DType dtype) {
  Tensor k(dtype, {512, 1, 128});
  const int infinity = dtype == DType::kBF16 ? 0x7f80 : 0x7c00;
  for (int64_t i = 0; i < 512 * 128; ++i) {
    auto bits = static_cast<uint16_t>(i);
    if ((bits & 0x7fff) > infinity) bits = 0;
    std::memcpy(k.bytes.data() + 2 * i, &bits, sizeof(bits));
  }
  return k;
}

// Middles between codes among them: of scales that are powers of two, a fifth of one (as 1 / 200 of
// a largest magnitude is), or neither; and scales near the ends of float32.
TEST(CudaCacheOpsTest, EveryBf16ValueGetsTheCodeOfTheCpu) {
  const Tensor k = EveryValue(DType::kBF16);
  for (const DType code : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    for (const double factor :
         {1.0, 0.25, 3.5 / 200, 0.05, 1.0 / 3, 5.0, 3e-38, 1e-31, 2e31, 3e38}) {
      ExpectCodesOfTheCpu(k, code, static_cast<float>(factor));
    }
  }
}

// Quotients by these are middles, or lie right beside some: scales are a value over a middle, or
// the floats next to that.
TEST(CudaCacheOpsTest, EveryShortValueByScalesThatGiveMiddlesGetsTheCodeOfTheCpu) {
  std::mt19937_64 random(11);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor k = EveryValue(dtype);
    for (const DType code : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
      const uint64_t middles = code == DType::kI8 ? 127 : code == DType::kF8E4M3 ? 16 : 8;
      const uint64_t values = dtype == DType::kBF16 ? 256 : 2048;
      for (int i = 0; i < 5; ++i) {
        const auto value = static_cast<float>(1 + random() % (values - 1));
        const auto middle = static_cast<float>(2 * (random() % middles) + 1);
        const float factor = std::ldexp(value / middle, static_cast<int>(random() % 9) - 8);
        for (int steps = -2; steps <= 2; ++steps) {
          float beside = factor;
          for (int n = 0; n < std::abs(steps); ++n) {
            beside = std::nextafter(beside, steps < 0 ? 0.0f : 1e30f);
          }
          ExpectCodesOfTheCpu(k, code, beside);
        }
      }
    }
  }
}

// Float32 values: those nearest to middles times the scale, those beside them, and any others.
TEST(CudaCacheOpsTest, WideValuesNearMiddlesGetTheCodesOfTheCpu) {
  std::mt19937_64 random(12);
  for (const DType code : {DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    for (const float factor : {1.0f, 3.0f, 0.0371f, 7e-19f, 3e19f, 2e-31f}) {
      Tensor k(DType::kF32, {512, 1, 128});
      for (int64_t i = 0; i < 512 * 128; ++i) {
        const auto middle = static_cast<float>(2 * (random() % 128) + 1);
        const int power = code == DType::kI8 ? -1 : static_cast<int>(random() % 24) - 14;
        float value = std::ldexp(middle, power) * factor;
        for (uint64_t n = random() % 3; n > 0; --n) value = std::nextafter(value, 0.0f);
        for (uint64_t n = random() % 3; n > 0; --n) value = std::nextafter(value, 3e38f);
        if (i % 64 == 0) value = i % 128 == 0 ? 0 : std::numeric_limits<float>::infinity();
        if (random() % 2 == 0) value = -value;
        std::memcpy(k.bytes.data() + 4 * i, &value, sizeof(value));
      }
      ExpectCodesOfTheCpu(k, code, factor);
    }
  }
}

TEST(CudaCacheOpsTest, T4ConcatAndCacheMlaWritesTheBytesOfTheCpu) {
  std::mt19937_64 random(8);
  for (const KvLayout layout :
       {KvLayout::kMlaLatent, KvLayout::kMlaSplit, KvLayout::kMlaFp8_656, KvLayout::kMlaFp8_584}) {
    for (const Types types :
         {Types{DType::kBF16, DType::kBF16}, Types{DType::kBF16, DType::kF8E4M3},
          Types{DType::kF32, DType::kBF16}, Types{DType::kF16, DType::kF16}}) {
      const bool tiled = layout == KvLayout::kMlaFp8_656 || layout == KvLayout::kMlaFp8_584;
      const bool planar = layout == KvLayout::kMlaFp8_584;
      const DType to = tiled ? DType::kU8 : types.to;
      const int64_t block_size = 1 + static_cast<int64_t>(random() % 64), num_blocks = 3;
      const int64_t n = 1 + static_cast<int64_t>(random() % 40) % (block_size * num_blocks);
      const int64_t compressed = planar ? 448 : tiled ? 512 : 96, rotary = tiled ? 64 : 32;
      SCOPED_TRACE(testing::Message() << Name(layout) << " " << Name(types.from) << " to "
                                      << Name(to) << " BS " << block_size);
      const bool same = types.from == to;
      Tensor kv_c(types.from, {n, compressed}), k_pe(types.from, {n, rotary});
      FillRandom(kv_c, same, random);
      FillRandom(k_pe, same, random);
      Tensor rows, rotary_rows;
      KvCacheView cache;
      if (planar) {
        rows = Tensor(to, {num_blocks, MlaFp8_584BlockBytes(block_size)});
        cache = KvCacheView(layout, rows.view, {}, block_size);
      } else if (layout == KvLayout::kMlaFp8_656) {
        rows = Tensor(to, {num_blocks, block_size, 656});
        cache = KvCacheView(layout, rows.view);
      } else if (layout == KvLayout::kMlaSplit) {
        rows = Tensor(to, {num_blocks, block_size, compressed});
        rotary_rows = Tensor(to, {num_blocks, block_size, rotary});
        cache = KvCacheView(layout, rows.view, rotary_rows.view);
      } else {
        rows = Tensor(to, {num_blocks, block_size, compressed + rotary});
        cache = KvCacheView(layout, rows.view, rows.view.Slice(2, 0, compressed).value());
      }
      FillRandom(rows, true, random);
      FillRandom(rotary_rows, true, random);
      Tensor slots = Slots(n, block_size * num_blocks, random);
      Tensor scale(DType::kF32, {1});
      scale.Set({0.37});
      ConcatAndCacheMlaArgs args;
      args.kv_c = kv_c.view;
      args.k_pe = k_pe.view;
      args.slot_mapping = slots.view;
      args.cache = cache;
      if (IsQuantizedCode(to)) args.scale = scale.view;
      ExpectBytesOfTheCpu({&rows, &rotary_rows}, [&](const auto& ops, const auto& context) {
        return ops.ConcatAndCacheMla(context, args);
      });
      if (HasFailure()) return;
    }
  }
}

TEST(CudaCacheOpsTest, ScalesAreThoseOfTheCpu) {
  std::mt19937_64 random(9);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool per_head : {false, true}) {
      for (const int64_t tokens : {1, 7, 50}) {
        const int64_t heads = 3, dim = dtype == DType::kF32 ? 20 : 40;
        SCOPED_TRACE(testing::Message() << Name(dtype) << " " << per_head << " " << tokens);
        Tensor q(dtype, {tokens, 2 * heads, dim}), k(dtype, {tokens, heads, dim}),
            v(dtype, {tokens, heads, dim});
        FillRandom(q, false, random);
        FillRandom(k, false, random);
        v.Set(std::vector<double>(tokens * heads * dim, 0));
        Tensor q_scale(DType::kF32, {1}), k_scale(DType::kF32, {per_head ? heads : 1}),
            v_scale(DType::kF32, {1});
        ComputeKvScalesArgs args;
        args.q = q.view;
        args.k = k.view;
        args.v = v.view;
        args.q_scale = q_scale.view;
        args.k_scale = k_scale.view;
        args.v_scale = v_scale.view;
        for (Tensor* scale : {&q_scale, &k_scale, &v_scale}) FillWithPoison(*scale);
        ExpectBytesOfTheCpu({&q_scale, &k_scale, &v_scale},
                            [&](const auto& ops, const auto& context) {
                              return ops.ComputeKvScales(context, args);
                            });
        EXPECT_EQ(v_scale.Get(), std::vector<double>{1});
      }
    }
  }
}

// Bit for bit what scales and then a write give.
TEST(CudaCacheOpsTest, ScaleAndCacheGivesTheBytesOfBothOperations) {
  std::mt19937_64 random(10);
  struct Case {
    DType from, code;
    KvLayout layout;
    int64_t tokens, heads, dim;
    bool per_head, with_q;
  };
  const Case cases[] = {
      {DType::kBF16, DType::kF8E4M3, KvLayout::kNhd, 50, 3, 64, false, true},
      {DType::kBF16, DType::kF8E4M3, KvLayout::kHnd, 200, 2, 128, true, false},
      {DType::kF16, DType::kI8, KvLayout::kNhd, 33, 4, 48, true, true},
      {DType::kF32, DType::kF8E5M2, KvLayout::kHnd, 70, 1, 32, false, false},
      {DType::kF16, DType::kF8E4M3, KvLayout::kPagedX, 40, 2, 64, true, false},
      {DType::kBF16, DType::kI8, KvLayout::kNhd, 1, 2, 64, false, true},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << Name(one.from) << " to " << Name(one.code) << ", tokens "
                                    << one.tokens);
    constexpr int64_t kBlockSize = 16;
    const int64_t blocks = one.tokens / kBlockSize + 2;
    Tensor q(one.from, {one.tokens, 2 * one.heads, one.dim}),
        k(one.from, {one.tokens, one.heads, one.dim}),
        v(one.from, {one.tokens, one.heads, one.dim});
    for (Tensor* tensor : {&q, &k, &v}) FillRandom(*tensor, false, random);
    const auto cache_of = [&](bool key) {
      return Tensor(one.code, CacheExtents(key, one.layout, one.code, blocks, kBlockSize, one.heads,
                                           one.dim));
    };
    Tensor k_cache = cache_of(true), v_cache = cache_of(false);
    Tensor slots(DType::kI64, {one.tokens});
    std::vector<double> places(static_cast<size_t>(blocks * kBlockSize));
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random);
    places.resize(static_cast<size_t>(one.tokens));
    if (one.tokens > 1) places[1] = -1;
    slots.Set(places);
    Tensor q_scale(DType::kF32, {1}), k_scale(DType::kF32, {one.per_head ? one.heads : 1}),
        v_scale(DType::kF32, {1});
    ScaleAndCacheArgs args;
    if (one.with_q) args.scales.q = q.view, args.scales.q_scale = q_scale.view;
    args.scales.k = k.view, args.scales.v = v.view;
    args.scales.k_scale = k_scale.view, args.scales.v_scale = v_scale.view;
    args.slot_mapping = slots.view;
    args.cache = KvCacheView(one.layout, k_cache.view, v_cache.view);
    Tensor* const outputs[] = {&k_cache, &v_cache, &q_scale, &k_scale, &v_scale};
    std::vector<std::vector<std::byte>> expected;
    for (Tensor* tensor : outputs) FillWithPoison(*tensor);
    ASSERT_EQ(CpuReference().ScaleAndCache({}, args), absl::OkStatus());
    for (Tensor* tensor : outputs) expected.push_back(tensor->bytes);
    const auto expect_same = [&](const char* what) {
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(outputs[i]->bytes == expected[i]) << what << ", output " << i;
        FillWithPoison(*outputs[i]);
      }
    };
    for (Tensor* tensor : outputs) FillWithPoison(*tensor);
    ASSERT_EQ(RowsOnDevice().ComputeKvScales({}, args.scales), absl::OkStatus());
    ASSERT_EQ(RowsOnDevice().ReshapeAndCache({}, args.write()), absl::OkStatus());
    expect_same("separate");
    for (int turn = 0; turn < 3; ++turn) {
      ASSERT_EQ(RowsOnDevice().ScaleAndCache({}, args), absl::OkStatus());
      expect_same("together");
    }
  }
}

TEST(CudaCacheOpsTest, SlotsBeyondTheCacheAreSkippedAndFlagged) {
  for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kPagedX}) {
    Tensor k(DType::kBF16, {3, 1, 16}), v(DType::kBF16, {3, 1, 16});
    k.Set(std::vector<double>(48, 2));
    v.Set(std::vector<double>(48, 3));
    Tensor k_cache(DType::kBF16, CacheExtents(true, layout, DType::kBF16, 1, 8, 1, 16));
    Tensor v_cache(DType::kBF16, CacheExtents(false, layout, DType::kBF16, 1, 8, 1, 16));
    Tensor slots(DType::kI64, {3});
    slots.Set({8, 1, 1e15});
    ReshapeAndCacheArgs args;
    args.k = k.view;
    args.v = v.view;
    args.slot_mapping = slots.view;
    args.cache = KvCacheView(layout, k_cache.view, v_cache.view);
    Flagged flagged;
    ASSERT_EQ(RowsOnDevice().ReshapeAndCache(flagged.context, args), absl::OkStatus());
    EXPECT_EQ(flagged.bits, kBadSlot);
    double k_sum = 0, v_sum = 0;
    for (const double value : k_cache.Get()) k_sum += value;
    for (const double value : v_cache.Get()) v_sum += value;
    EXPECT_EQ(k_sum, 16 * 2);
    EXPECT_EQ(v_sum, 16 * 3);
  }
}

TEST(CudaCacheOpsTest, TooSmallAWorkspaceIsNamedWithWhatItNeeds) {
  static const CudaRowOps ops;
  const auto small =
      HostTensorOps::Create(&ops, {.workspace_bytes = 256, .arena_bytes = 1 << 20}).value();
  Tensor k(DType::kF32, {1, 1, 4});
  Tensor scale(DType::kF32, {1}), other(DType::kF32, {1});
  ComputeKvScalesArgs args;
  args.k = k.view;
  args.v = k.view;
  args.k_scale = scale.view;
  args.v_scale = other.view;
  const absl::Status status = small->ComputeKvScales({}, args);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status, Says("256 bytes; needs 6336"));
}

TEST(CudaCacheOpsTest, F64IsNotBuilt) {
  Tensor k(DType::kF64, {1, 1, 4}), cache(DType::kF64, {1, 1, 1, 4}), slots(DType::kI64, {1});
  Tensor v_cache(DType::kF64, {1, 1, 1, 4});
  ReshapeAndCacheArgs args;
  args.k = k.view;
  args.v = k.view;
  args.slot_mapping = slots.view;
  args.cache = KvCacheView(KvLayout::kNhd, cache.view, v_cache.view);
  EXPECT_EQ(RowsOnDevice().ReshapeAndCache({}, args).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace kvblocks::attention::cuda
