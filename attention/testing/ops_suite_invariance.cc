// What must not change results: T-7, T-12, T-13, T-16, T-31; and extreme scores: T-33. "To the bit"
// compares whole output buffers.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

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
