// What must not change results, and what must change them in a known way: T-7, T-9, T-10, T-12 to
// T-14, T-16, T-18, T-19, T-31, T-33. "To the bit" compares whole output buffers.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "attention/testing/ops_suite.h"
#include "kvblocks/attention_cpu.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

PagedCaseOptions PrefillOptions() {
  PagedCaseOptions options = VariedDecodeOptions();
  options.q_lens = {1, 17, 0, 16, 1, 5};
  return options;
}

const KvLayout kLayouts[] = {KvLayout::kPagedX, KvLayout::kNhd, KvLayout::kHnd};
const DType kCacheTypes[] = {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kI8};

TEST(OpsInvarianceTest, T7BlockIdsDoNotMatter) {
  std::mt19937_64 random(5);
  for (KvLayout layout : kLayouts) {
    for (DType type : kCacheTypes) {
      for (bool interleave : {false, true}) {
        PagedCaseOptions options = PrefillOptions();
        options.layout = layout;
        options.cache_dtype = type;
        options.interleave_kv = interleave;
        PagedCase paged(options);
        paged.params.split = SplitPolicy::Fixed(32);
        RunPrefill(paged);
        const std::vector<std::byte> before = OutputBytes(paged);
        paged.PermuteBlocks(random);
        RunPrefill(paged);
        EXPECT_EQ(OutputBytes(paged), before) << Name(layout) << " " << Name(type);
      }
    }
  }
}

TEST(OpsInvarianceTest, T9WideWindowsHideNothingAndNarrowOnesAllButTheQuery) {
  PagedCase paged(PrefillOptions());
  RunPrefill(paged);
  const std::vector<std::byte> plain = OutputBytes(paged);
  paged.params.window_left = 130;
  RunPrefill(paged);
  EXPECT_EQ(OutputBytes(paged), plain);
  paged.params.window_left = 0;
  RunPrefill(paged);
  const std::vector<double> out = paged.out.Get();
  int64_t row = 0;
  for (int64_t b = 0; b < paged.num_requests(); ++b) {
    const DenseRequest& request = paged.request(b);
    for (int64_t i = 0; i < request.q_len; ++i, ++row) {
      const int64_t p = request.kv_len - request.q_len + i;
      for (int64_t h = 0; h < 4; ++h) {
        for (int64_t d = 0; d < 64; ++d) {
          ASSERT_EQ(out[(row * 4 + h) * 64 + d], request.v[(p * 2 + h / 2) * 64 + d]);
        }
      }
    }
  }
}

TEST(OpsInvarianceTest, T10SinksScaleTheOutput) {
  PagedCase paged(VariedDecodeOptions());
  RunDecode(paged);
  const std::vector<std::byte> plain = OutputBytes(paged);
  const std::vector<double> out = paged.out.Get(), lse = paged.lse.Get();
  const auto with_sink = [&](double sink) {
    const Tensor sinks = FloatTensor(std::vector<double>(4, sink));
    paged.params.sinks = sinks.view;
    RunDecode(paged);
    ExpectClose(paged.lse.Get(), lse, DType::kF32);
  };
  with_sink(-kInfinity);
  EXPECT_EQ(OutputBytes(paged), plain);
  for (double sink : {-3.0, 0.0, 1.5, 6.0}) {
    with_sink(sink);
    std::vector<double> expected = out;
    for (size_t i = 0; i < expected.size(); ++i) {
      if (lse[i / 64] != -kInfinity) expected[i] /= 1 + std::exp(sink - lse[i / 64]);
    }
    ExpectClose(paged.out.Get(), expected, DType::kF32);
  }
  with_sink(60);
  for (double value : paged.out.Get()) EXPECT_LT(std::abs(value), 1e-20);
  with_sink(kInfinity);
  for (std::byte byte : paged.out.bytes) ASSERT_EQ(byte, std::byte{0});  // no negative zeros
}

TEST(OpsInvarianceTest, T12BlocksOutsideTheWindowMayBeGone) {
  for (KvLayout layout : kLayouts) {
    for (bool null_block : {false, true}) {
      PagedCaseOptions options = PrefillOptions();
      options.layout = layout;
      PagedCase paged(options);
      paged.params.window_left = 19;
      RunPrefill(paged);
      const std::vector<std::byte> whole = OutputBytes(paged);
      EXPECT_EQ(paged.Mismatch(ToleranceUnderTest(DType::kF32)), "");
      paged.KillBlocks(
          [&](int64_t b, int64_t column) {
            const DenseRequest& request = paged.request(b);
            const int64_t first_seen = request.kv_len - request.q_len - 19;
            return (column + 1) * options.block_size <= first_seen;
          },
          null_block);
      RunPrefill(paged);
      EXPECT_EQ(OutputBytes(paged), whole);
    }
  }
}

TEST(OpsInvarianceTest, T12DeadEntriesOutsideTheWindowAreNotRead) {
  PagedCase paged(VariedDecodeOptions());
  paged.params.window_left = 19;
  RunDecode(paged);
  const std::vector<std::byte> whole = OutputBytes(paged);
  int32_t* entries = paged.block_table.view.as<int32_t>();
  const int64_t columns = paged.block_table.view.extent[1];
  for (int64_t column = 0; column < 6; ++column) entries[5 * columns + column] = 2147480000;
  RunDecode(paged);
  EXPECT_EQ(OutputBytes(paged), whole);
}

// The cases' tables are padded with 2147480000 and their unused rows NaN from the start: other
// garbage there changes nothing.
TEST(OpsInvarianceTest, T13UnusedMemoryDoesNotMatter) {
  for (KvLayout layout : kLayouts) {
    PagedCaseOptions options = PrefillOptions();
    options.layout = layout;
    PagedCase poisoned(options), zeroed(options);
    RunPrefill(poisoned);
    ASSERT_EQ(poisoned.Mismatch(ToleranceUnderTest(DType::kF32)), "");
    for (Tensor* tensor : {&zeroed.k_bytes, &zeroed.v_bytes}) {
      float* values = tensor->view.as<float>();
      for (int64_t i = 0; i < tensor->view.num_elements(); ++i) {
        if (std::isnan(values[i])) values[i] = 0;
      }
    }
    for (int64_t i = 0; i < zeroed.block_table.view.num_elements(); ++i) {
      int32_t& entry = zeroed.block_table.view.as<int32_t>()[i];
      if (entry == 2147480000) entry = 0;
    }
    RunPrefill(zeroed);
    EXPECT_EQ(OutputBytes(zeroed), OutputBytes(poisoned));
  }
}

// One request's tokens [begin, end) as new ones over the cache of `paged`.
void PrefillSlice(PagedCase& paged, int64_t begin, int64_t end) {
  PagedPrefillArgs args = paged.PrefillArgs();
  const Tensor start = IntTensor({0, static_cast<double>(end - begin)}, {2});
  const Tensor length = IntTensor({static_cast<double>(end)}, {1});
  args.q = args.q.Slice(0, begin, end).value();
  args.out = args.out.Slice(0, begin, end).value();
  args.lse = args.lse.Slice(0, begin, end).value();
  args.query_start_loc = start.view;
  args.seq_lens = length.view;
  args.max_query_len = end - begin, args.max_seq_len = end;
  ASSERT_EQ(OpsUnderTest().PagedPrefill({}, args), absl::OkStatus());
}

TEST(OpsInvarianceTest, T14ChunksAndSingleTokensEqualOnePrefill) {
  PagedCase paged({.lengths = {61}, .q_lens = {61}, .key_dim = 64, .value_dim = 64});
  const Tensor slopes = FloatTensor({0.5, 0.25, 0.125, 0}), sinks = FloatTensor({0, 1, -1, 2});
  for (int features = 0; features < 4; ++features) {
    if (features == 1) paged.params.window_left = 20;
    if (features == 2) paged.params.alibi_slopes = slopes.view;
    if (features == 3) paged.params.sinks = sinks.view, paged.params.soft_cap = 3;
    ExpectPrefillIsExact(paged);
    const std::vector<double> out = paged.out.Get(), lse = paged.lse.Get();
    for (int64_t chunk : {1, 2, 7, 16, 17, 32, 60}) {
      paged.ClearOutputs();
      for (int64_t begin = 0; begin < 61; begin += chunk) {
        PrefillSlice(paged, begin, std::min<int64_t>(61, begin + chunk));
      }
      ExpectClose(paged.out.Get(), out, DType::kF32);
      ExpectClose(paged.lse.Get(), lse, DType::kF32);
    }
    paged.ClearOutputs();
    for (int64_t t = 0; t < 61; ++t) {
      PagedDecodeArgs args = paged.DecodeArgs();
      const Tensor length = IntTensor({static_cast<double>(t + 1)}, {1});
      args.q = args.q.Slice(0, t, t + 1).value();
      args.out = args.out.Slice(0, t, t + 1).value();
      args.lse = args.lse.Slice(0, t, t + 1).value();
      args.seq_lens = length.view;
      args.max_seq_len = t + 1;
      ASSERT_EQ(OpsUnderTest().PagedDecode({}, args), absl::OkStatus());
    }
    ExpectClose(paged.out.Get(), out, DType::kF32);
    ExpectClose(paged.lse.Get(), lse, DType::kF32);
  }
}

TEST(OpsInvarianceTest, T16CompanyOrderAndPaddingDoNotMatterUnderFixedSplits) {
  PagedCaseOptions options = VariedDecodeOptions();
  options.lengths = {1, 700, 0, 16, 513, 131};
  PagedCase paged(options);
  paged.params.split = SplitPolicy::Fixed(512);
  RunDecode(paged);
  const int64_t row_bytes = 4 * 64 * sizeof(float);
  const std::vector<std::byte> together = paged.out.bytes;
  const auto row_of = [&](int64_t row) {
    return std::vector<std::byte>(together.begin() + row * row_bytes,
                                  together.begin() + (row + 1) * row_bytes);
  };
  // Alone.
  for (int64_t b = 0; b < 6; ++b) {
    PagedDecodeArgs args = paged.DecodeArgs();
    Tensor out(DType::kF32, {1, 4, 64});
    args.q = args.q.Slice(0, b, b + 1).value();
    args.block_table = args.block_table.Slice(0, b, b + 1).value();
    args.seq_lens = args.seq_lens.Slice(0, b, b + 1).value();
    args.out = out.view;
    args.lse = {};
    ASSERT_TRUE(OpsUnderTest().PagedDecode({}, args).ok());
    EXPECT_EQ(out.bytes, row_of(b)) << "request " << b;
  }
  // In another order, behind padding rows of no length.
  const int kOrder[] = {-1, 5, 1, -1, 4, 3, 0, 2};
  const ConstTensorView table = paged.block_table.view;
  Tensor q(DType::kF32, {8, 4, 64}), out(DType::kF32, {8, 4, 64});
  std::vector<double> entries, lengths, queries;
  for (int b : kOrder) {
    for (int64_t column = 0; column < table.extent[1]; ++column) {
      entries.push_back(b < 0 ? 0 : table.as<int32_t>()[b * table.extent[1] + column]);
    }
    lengths.push_back(b < 0 ? 0 : static_cast<double>(options.lengths[b]));
    const std::vector<double>& rows = paged.request(std::max(0, b)).q;
    queries.insert(queries.end(), rows.begin(), rows.end());
  }
  q.Set(queries);
  PagedDecodeArgs args = paged.DecodeArgs();
  const Tensor new_table = IntTensor(entries, {8, table.extent[1]});
  const Tensor new_lengths = IntTensor(lengths, {8});
  args.q = q.view;
  args.block_table = new_table.view;
  args.seq_lens = new_lengths.view;
  args.max_seq_len = 5000;
  args.out = out.view;
  args.lse = {};
  ASSERT_TRUE(OpsUnderTest().PagedDecode({}, args).ok());
  for (int64_t row = 0; row < 8; ++row) {
    const std::vector<std::byte> got(out.bytes.begin() + row * row_bytes,
                                     out.bytes.begin() + (row + 1) * row_bytes);
    EXPECT_EQ(got, kOrder[row] < 0 ? std::vector<std::byte>(row_bytes) : row_of(kOrder[row]));
  }
}

TEST(OpsInvarianceTest, T18GroupsEqualRepeatedHeads) {
  PagedCaseOptions options = PrefillOptions();
  options.num_heads = 8;
  for (int64_t kv_heads : {1, 2, 8}) {
    options.num_kv_heads = kv_heads;
    PagedCase grouped(options);
    PagedCaseOptions repeated_options = options;
    repeated_options.num_kv_heads = 8;
    PagedCase repeated(repeated_options);
    const auto row = [&](const std::vector<double>& all, int64_t at) {
      return std::vector<double>(all.begin() + at * 64, all.begin() + (at + 1) * 64);
    };
    int64_t token = 0;
    for (int64_t b = 0; b < grouped.num_requests(); ++b) {
      const DenseRequest& from = grouped.request(b);
      for (int64_t j = 0; j < from.kv_len; ++j) {
        for (int64_t h = 0; h < 8; ++h) {
          const int64_t at = j * kv_heads + h / (8 / kv_heads);
          repeated.SetKey(b, j, h, row(from.k, at));
          repeated.SetValue(b, j, h, row(from.v, at));
        }
      }
      for (int64_t i = 0; i < from.q_len; ++i, ++token) {
        for (int64_t h = 0; h < 8; ++h) repeated.SetQuery(token, h, row(from.q, i * 8 + h));
      }
    }
    RunPrefill(grouped);
    RunPrefill(repeated);
    ExpectClose(grouped.out.Get(), repeated.out.Get(), DType::kF32);
    ExpectClose(grouped.lse.Get(), repeated.lse.Get(), DType::kF32);
  }
}

TEST(OpsInvarianceTest, T18PermutedHeadsGivePermutedOutputs) {
  PagedCaseOptions options = PrefillOptions();
  options.num_heads = options.num_kv_heads = 4;
  PagedCase paged(options);
  RunPrefill(paged);
  const std::vector<double> out = paged.out.Get();
  // Heads of all three tensors in reverse order, by views of their own.
  Tensor q(DType::kF32, {paged.num_tokens(), 4, 64});
  const auto reverse = [](const ConstTensorView& view) {
    const std::vector<double> values = ValuesOf(view);
    std::vector<double> reversed(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      reversed[i / 256 * 256 + (3 - i / 64 % 4) * 64 + i % 64] = values[i];
    }
    return reversed;
  };
  PagedPrefillArgs args = paged.PrefillArgs();
  q.Set(reverse(args.q));
  args.q = q.view;
  paged.k_bytes.Set(reverse(args.cache.k));
  paged.v_bytes.Set(reverse(args.cache.v));
  ASSERT_TRUE(OpsUnderTest().PagedPrefill({}, args).ok());
  EXPECT_EQ(reverse(paged.out.view), out);
}

TEST(OpsInvarianceTest, T19NeutralFeaturesAndShiftedScores) {
  PagedCase paged(PrefillOptions());
  RunPrefill(paged);
  const std::vector<std::byte> plain = OutputBytes(paged);
  const std::vector<double> out = paged.out.Get(), lse = paged.lse.Get();
  const Tensor zeros = FloatTensor({0, 0, 0, 0});
  paged.params.alibi_slopes = zeros.view;
  RunPrefill(paged);
  EXPECT_EQ(OutputBytes(paged), plain);
  paged.params.alibi_slopes = {};
  paged.params.soft_cap = 1e6f;  // cap -> infinity; its cubic error is below 1e-10 here
  RunPrefill(paged);
  ExpectClose(paged.out.Get(), out, DType::kF32);
  paged.params.soft_cap = 0;
  // A constant on all scores, by an additive mask, goes into the lse alone.
  Tensor mask(DType::kF32, {1, 1, 17, 131});
  mask.Set(std::vector<double>(17 * 131, 2.5));
  paged.params.mask.tensor = mask.view;
  paged.params.mask.form = MaskForm::kPerHead;
  paged.params.mask.encoding = MaskEncoding::kAdditive;
  RunPrefill(paged);
  ExpectClose(paged.out.Get(), out, DType::kF32);
  std::vector<double> shifted = lse;
  for (double& value : shifted) value += 2.5;
  ExpectClose(paged.lse.Get(), shifted, DType::kF32);
}

TEST(OpsInvarianceTest, T31RunsAndThreadsDoNotMatter) {
  PagedCaseOptions options = PrefillOptions();
  options.num_heads = 2;
  options.key_dim = options.value_dim = 32;
  options.q_dtype = DType::kBF16;
  PagedCase paged(options);
  RunPrefill(paged);
  const std::vector<std::byte> first = OutputBytes(paged);
  ThreadPool pool(16);
  ExecContext context;
  for (int run = 0; run < 50; ++run) {
    context.threads = run % 2 == 0 ? nullptr : &pool;
    paged.ClearOutputs();
    ASSERT_TRUE(OpsUnderTest().PagedPrefill(context, paged.PrefillArgs()).ok());
    ASSERT_EQ(OutputBytes(paged), first) << "run " << run;
  }
}

TEST(OpsInvarianceTest, T33ExtremeScores) {
  // Scores up to 1e4 in magnitude; all equal; one far above the rest.
  std::vector<double> scores(40), values(40);
  for (int j = 0; j < 40; ++j) scores[j] = (j % 2 == 0 ? 1e4 : -1e4) + j, values[j] = j;
  ScoresCase huge(scores, values);
  ExpectDecodeIsExact(huge);
  ScoresCase equal(std::vector<double>(40, -9999.0), values);
  ExpectDecodeIsExact(equal);
  ExpectExample(equal.out_at(0), 19.5);
  std::fill(scores.begin(), scores.end(), -5000.0);
  scores[11] = 5000;
  ScoresCase dominant(scores, values);
  ExpectDecodeIsExact(dominant);
  EXPECT_EQ(dominant.out_at(0), 11);
  // Values below the smallest normal float.
  ScoresCase denormal({0, 0}, {0x1p-140, 0x1p-141});
  RunDecode(denormal);
  EXPECT_EQ(denormal.out_at(0), 0x1.8p-141);
}

TEST(OpsInvarianceTest, T33RowsOfMinusInfinityAreEmptyWhateverTheSink) {
  for (double sink : {-kInfinity, 0.0, kInfinity}) {
    PagedCase paged(PrefillOptions());
    const Tensor sinks = FloatTensor(std::vector<double>(4, sink));
    paged.params.sinks = sinks.view;
    Tensor mask(DType::kF32, {1, 1, 17, 131});
    mask.Set(std::vector<double>(17 * 131, -kInfinity));
    paged.params.mask.tensor = mask.view;
    paged.params.mask.form = MaskForm::kPerHead;
    paged.params.mask.encoding = MaskEncoding::kAdditive;
    RunPrefill(paged);
    for (std::byte byte : paged.out.bytes) ASSERT_EQ(byte, std::byte{0});  // +0, not -0
    for (double lse : paged.lse.Get()) EXPECT_EQ(lse, -kInfinity);
  }
}

TEST(OpsInvarianceTest, NaNsSpreadToTheRowsThatSeeThemOnly) {
  for (int what = 0; what < 3; ++what) {
    PagedCase clean(PrefillOptions()), spoiled(PrefillOptions());
    std::vector<double> row(64, 0.5);
    row[3] = kNaN;
    // Request 1 has its queries at positions 53 to 69; token 60 of KV head 1, heads 2 and 3.
    if (what == 0) spoiled.SetKey(1, 60, 1, row);
    if (what == 1) spoiled.SetValue(1, 60, 1, row);
    if (what == 2) spoiled.SetQuery(1 + 7, 2, row);
    RunPrefill(clean);
    RunPrefill(spoiled);
    EXPECT_EQ(spoiled.Mismatch(ToleranceUnderTest(DType::kF32)), "");
    const std::vector<double> a = clean.out.Get(), b = spoiled.out.Get();
    for (int64_t t = 0; t < clean.num_tokens(); ++t) {
      for (int64_t h = 0; h < 4; ++h) {
        const bool hit = what == 2 ? t == 8 && h == 2 : t >= 8 && t < 18 && h >= 2;
        const int64_t at = (t * 4 + h) * 64 + 3;
        if (hit) {
          EXPECT_TRUE(std::isnan(b[at])) << t << " " << h;
        } else {
          EXPECT_EQ(b[at], a[at]) << t << " " << h;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention
