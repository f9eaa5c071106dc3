// What the CPU backend promises beyond the common suite: the same bits however the work is grouped,
// on every instruction set, and the accuracy of float32.

#include "kvblocks/attention_cpu.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/cpu/simd_kernels.h"
#include "attention/tensor/small_floats.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace kvblocks::attention {
namespace {

// Runs f once for each instruction set that this machine has and the kernels are built for.
template <typename F>
void OnEveryTarget(F f) {
  for (const int64_t target : {HWY_SSE4, HWY_AVX2, HWY_AVX3}) {
    hwy::SetSupportedTargetsForTest(0);
    if ((hwy::SupportedTargets() & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    f();
  }
  hwy::SetSupportedTargetsForTest(0);
}

std::vector<double> AllOf(const PagedCase& paged) {
  std::vector<double> all = paged.out.Get();
  const std::vector<double> lse = paged.lse.Get();
  all.insert(all.end(), lse.begin(), lse.end());
  return all;
}

void RunPrefill(PagedCase& paged, ThreadPool* threads = nullptr) {
  paged.ClearOutputs();
  ExecContext context;
  context.threads = threads;
  ASSERT_EQ(Cpu().PagedPrefill(context, paged.PrefillArgs()), absl::OkStatus());
}

TEST(SimdKernelsTest, RowsWidenExactlyOnEveryTarget) {
  OnEveryTarget([] {
    for (const DType dtype :
         {DType::kF8E4M3, DType::kF8E5M2, DType::kI8, DType::kF16, DType::kBF16, DType::kF32}) {
      const int64_t bytes = ElementBytes(dtype);
      // All codes, or every 7th pattern of the wider types; not a multiple of any vector.
      const int64_t count = bytes == 1 ? 256 : 9363;
      std::vector<std::byte> row(static_cast<size_t>(count * bytes));
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t code = bytes == 1   ? static_cast<uint32_t>(i)
                              : bytes == 2 ? static_cast<uint32_t>(i * 7)
                                           : static_cast<uint32_t>(i * 458759);
        std::memcpy(row.data() + i * bytes, &code, static_cast<size_t>(bytes));
      }
      for (const int64_t n : {count, int64_t{1}, int64_t{17}}) {
        std::vector<float> wide(static_cast<size_t>(simd::Padded(n)) + 1, 9.0f);
        simd::ConvertRow(dtype, row.data(), n, wide.data());
        for (int64_t i = 0; i < n; ++i) {
          const double want = LoadElement(dtype, row.data() + i * bytes);
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(wide[i])) << Name(dtype) << " " << i;
          } else {
            ASSERT_EQ(wide[i], want) << Name(dtype) << " " << i;
          }
        }
        for (int64_t i = n; i < simd::Padded(n); ++i) ASSERT_EQ(wide[i], 0);
        ASSERT_EQ(wide.back(), 9.0f);
      }
    }
  });
}

TEST(SimdKernelsTest, RowsRoundToNearestEvenOnEveryTarget) {
  std::vector<float> row;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 0x7fff7) {
    float value;
    const uint32_t word = static_cast<uint32_t>(bits);
    std::memcpy(&value, &word, sizeof(value));
    row.push_back(value);
  }
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      const int64_t bytes = ElementBytes(dtype);
      std::vector<std::byte> rounded(row.size() * static_cast<size_t>(bytes));
      simd::RoundRow(dtype, row.data(), static_cast<int64_t>(row.size()), rounded.data());
      for (size_t i = 0; i < row.size(); ++i) {
        std::byte want[4];
        StoreElement(dtype, row[i], want);
        const double expected = LoadElement(dtype, want);
        const double actual = LoadElement(dtype, rounded.data() + i * static_cast<size_t>(bytes));
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(actual)) << row[i];
        } else {
          ASSERT_EQ(actual, expected) << row[i];
        }
      }
    }
  });
}

// T-14, to the bit: a row comes out the same alone, among the rows of a prefill, and widened.
TEST(CpuOpsTest, ADecodeIsARowOfThePrefillToTheBit) {
  for (const DType cache : {DType::kF32, DType::kBF16}) {
    constexpr int64_t kTokens = 150;
    PagedCaseOptions options;
    options.lengths = {kTokens};
    options.q_lens = {kTokens};
    options.cache_dtype = options.q_dtype = cache;
    options.num_heads = 6;
    options.key_dim = options.value_dim = 32;
    PagedCase all(options);
    RunPrefill(all);
    const std::vector<double> want = all.out.Get(), want_lse = all.lse.Get();
    PagedPrefillArgs args = all.PrefillArgs();
    for (const int64_t token : {0, 1, 63, 64, 65, 127, 149}) {
      Tensor length(DType::kI32, {1});
      length.Set({static_cast<double>(token + 1)});
      Tensor out(cache, {1, 6, 32}), lse(DType::kF32, {1, 6});
      PagedDecodeArgs one;
      one.q = args.q.Slice(0, token, token + 1).value();
      one.cache = args.cache;
      one.block_table = args.block_table;
      one.seq_lens = length.view;
      one.max_seq_len = kTokens;
      one.params = args.params;
      one.out = out.view;
      one.lse = lse.view;
      ASSERT_TRUE(Cpu().PagedDecode({}, one).ok());
      const std::vector<double> got = out.Get(), got_lse = lse.Get();
      for (int64_t i = 0; i < 6 * 32; ++i) ASSERT_EQ(got[i], want[token * 6 * 32 + i]);
      for (int64_t h = 0; h < 6; ++h) ASSERT_EQ(got_lse[h], want_lse[token * 6 + h]);
    }
  }
}

// T-31
TEST(CpuOpsTest, ThreadsDoNotChangeABit) {
  PagedCase paged({.lengths = {200, 64, 1, 0, 333, 100},
                   .q_lens = {1, 64, 1, 0, 80, 3},
                   .num_heads = 12,
                   .num_kv_heads = 3,
                   .cache_dtype = DType::kBF16});
  for (const SplitPolicy split : {SplitPolicy::None(), SplitPolicy::Fixed(48)}) {
    paged.params.split = split;
    paged.params.window_left = split.value == 0 ? -1 : 90;
    RunPrefill(paged);
    EXPECT_EQ(paged.Mismatch(CpuTolerance(DType::kF32)), "");
    const std::vector<double> want = AllOf(paged);
    for (const int num_threads : {1, 2, 16}) {
      ThreadPool threads(num_threads);
      RunPrefill(paged, &threads);
      EXPECT_EQ(AllOf(paged), want);
    }
  }
}

TEST(CpuOpsTest, NoHeadsAreNothingToDo) {
  Tensor k(DType::kF32, {6, 4, 2, 8}), v(DType::kF32, {6, 4, 2, 8}), rows(DType::kF32, {6, 4, 8});
  Tensor none(DType::kF32, {2, 0, 8}), none_latent(DType::kF32, {2, 0, 6});
  Tensor lse(DType::kF32, {2, 0});
  const std::vector<int32_t> table = {1, 2, 3, 4}, lengths = {6, 3}, starts = {0, 1, 2};
  PagedDecodeArgs decode;
  decode.q = none.view, decode.out = none.view, decode.lse = lse.view;
  decode.cache = {KvLayout::kNhd, k.view, v.view};
  decode.block_table = ViewOf(absl::MakeConstSpan(table), {2, 2});
  decode.seq_lens = ViewOf(absl::MakeConstSpan(lengths));
  decode.max_seq_len = 6;
  EXPECT_EQ(Cpu().PagedDecode({}, decode), absl::OkStatus());
  PagedPrefillArgs prefill;
  prefill.q = none.view, prefill.out = none.view;
  prefill.cache = decode.cache, prefill.block_table = decode.block_table;
  prefill.seq_lens = decode.seq_lens;
  prefill.query_start_loc = ViewOf(absl::MakeConstSpan(starts));
  prefill.max_query_len = 1, prefill.max_seq_len = 6;
  EXPECT_EQ(Cpu().PagedPrefill({}, prefill), absl::OkStatus());
  CascadeArgs cascade;
  cascade.prefill = prefill;
  EXPECT_EQ(Cpu().Cascade({}, cascade), absl::OkStatus());
  VarlenSelfAttentionArgs varlen;
  varlen.q = none.view, varlen.out = none.view;
  varlen.k = *k.view.Select(0, 0)->Slice(0, 0, 2), varlen.v = varlen.k;
  varlen.query_start_loc = prefill.query_start_loc;
  EXPECT_EQ(Cpu().VarlenSelfAttention({}, varlen), absl::OkStatus());
  MlaDecodeArgs mla;
  mla.q_lat = none.view, mla.out = none_latent.view;
  mla.cache = {KvLayout::kMlaLatent, rows.view, *rows.view.Slice(2, 0, 6)};
  mla.block_table = decode.block_table, mla.seq_lens = decode.seq_lens, mla.max_seq_len = 6;
  EXPECT_EQ(Cpu().MlaDecode({}, mla), absl::OkStatus());
}

// AT-56, AT-99: a NaN or an infinity in a value row reaches the rows that see the key and no other,
// although they share tiles.
TEST(CpuOpsTest, ValuesReachOnlyRowsThatSeeThem) {
  PagedCaseOptions options;
  options.lengths = {100};
  options.q_lens = {100};
  options.num_kv_heads = 1;
  PagedCase clean(options), dirty(options);
  for (PagedCase* paged : {&clean, &dirty}) paged->params.window_left = 20;
  RunPrefill(clean);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double poison : {std::nan(""), infinity}) {
    dirty.SetValue(0, 70, 0, std::vector<double>(16, poison));
    RunPrefill(dirty);
    const std::vector<double> want = clean.out.Get(), got = dirty.out.Get();
    for (int64_t t = 0; t < 100; ++t) {
      for (int64_t i = t * 64; i < (t + 1) * 64; ++i) {
        if (t >= 70 && t <= 90) {
          ASSERT_FALSE(std::isfinite(got[i])) << t;
        } else {
          ASSERT_EQ(got[i], want[i]) << t;
        }
      }
    }
    EXPECT_EQ(dirty.lse.Get(), clean.lse.Get());
  }
}

}  // namespace
}  // namespace kvblocks::attention
