// The worked examples of attention over heads, against the backend under test.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/testing/ops_suite.h"
#include "attention/testing/random_features.h"
#include "checks/ceil_div.h"
#include "rapidcheck/gtest.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kLn2 = std::log(2), kLn3 = std::log(3), kLn4 = std::log(4), kLn5 = std::log(5),
             kLn6 = std::log(6), kLn8 = std::log(8);

TEST(OpsExamplesTest, Ex6DecodeAndSink) {
  ScoresCase paged({0, kLn2, kLn5}, {8, 16, 24});
  RunDecode(paged);
  ExpectExample(paged.out_at(0), 20);
  ExpectExample(paged.lse_at(0), 2.0794415);
  const std::vector<std::byte> plain = OutputBytes(paged);
  const std::pair<double, double> kCases[] = {
      {-kInfinity, 20}, {0, 17.7777778}, {kLn8, 10}, {std::log(24), 5}, {kInfinity, 0}};
  for (const auto& [sink, out] : kCases) {
    const Tensor sinks = FloatTensor({sink});
    paged.params.sinks = sinks.view;
    for (const SplitPolicy split : {SplitPolicy::None(), SplitPolicy::Fixed(2)}) {
      paged.params.split = split;
      RunDecode(paged);
      ExpectExample(paged.out_at(0), out);
      ExpectExample(paged.lse_at(0), 2.0794415);
    }
    paged.params.split = SplitPolicy::None();
    RunDecode(paged);
    if (sink == -kInfinity) {
      EXPECT_EQ(OutputBytes(paged), plain);
    } else if (out == 0) {  // no negative zeros
      EXPECT_EQ(paged.out.bytes, std::vector<std::byte>(paged.out.bytes.size()));
    }
  }
}

TEST(OpsExamplesTest, Ex10ScoreFeatures) {
  const Tensor half = FloatTensor({0.5}), quarter = FloatTensor({0.25}), zero = FloatTensor({0});
  ScoresCase alibi({0, 0, 0, 0}, {1, 2, 3, 4});
  alibi.params.alibi_slopes = half.view;
  RunDecode(alibi);
  ExpectExample(alibi.out_at(0), 3.0845765);
  ExpectExample(alibi.lse_at(0), 0.7873387);

  ScoresCase cap({1, 2, 4}, {1, 2, 4});
  cap.params.soft_cap = 2;
  RunDecode(cap);
  ExpectExample(cap.out_at(0), 2.8032897);
  ExpectExample(cap.lse_at(0), 2.6378343);
  cap.params.alibi_slopes = quarter.view;
  RunDecode(cap);
  ExpectExample(cap.out_at(0), 3.0206284);
  ExpectExample(cap.lse_at(0), 2.4829688);

  ScoresCase window({std::vector<double>(8)}, {{0, 1, 2, 3, 4, 5, 6, 7}}, {8}, 2);
  window.params.window_left = 2;
  RunPrefill(window);
  ExpectExample(window.out_at(1), 0.5);
  ExpectExample(window.out_at(6), 5);
  ExpectExample(window.out_at(7), 6);
  ScoresCase decode(std::vector<double>(8), {0, 1, 2, 3, 4, 5, 6, 7});
  decode.params.window_left = 2;
  RunDecode(decode);
  ExpectExample(decode.out_at(0), 6);
  ExpectExample(decode.lse_at(0), kLn3);

  ScoresCase sink({9, 9, 0, kLn3}, {1, 2, 3, 4});
  sink.params.window_left = 1;
  sink.params.sinks = zero.view;
  RunDecode(sink);
  ExpectExample(sink.out_at(0), 3);
  ExpectExample(sink.lse_at(0), kLn4);
}

// Which of 17 keys each head sees is read off values 2^j.
TEST(OpsExamplesTest, Ex15BlockSparse) {
  PagedCase paged(
      {.lengths = {17}, .key_dim = 32, .value_dim = 32, .block_size = 2, .q_factor = 0});
  for (int j = 0; j < 17; ++j) {
    for (int h : {0, 1}) paged.SetValue(0, j, h, std::vector<double>(32, std::ldexp(1, j)));
  }
  paged.params.block_sparse.local_blocks = 1;
  paged.params.block_sparse.vert_stride = 2;
  paged.params.block_sparse.block_size = 4;
  const auto blocks = [&](int head) {
    RunDecode(paged);
    const int64_t bits =
        std::llround(paged.out.Get()[head * 32] * std::exp(paged.lse.Get()[head]));
    std::vector<int> seen;
    for (int j = 0; j < 17; ++j) {
      if (bits >> j & 1 && (seen.empty() || seen.back() != j / 2)) seen.push_back(j / 2);
    }
    return seen;
  };
  for (int head = 0; head < 4; ++head) EXPECT_EQ(blocks(head), (std::vector<int>{2, 3, 6, 7, 8}));
  ExpectExample(paged.lse.Get()[0], std::log(9));
  paged.params.block_sparse.head_sliding_step = 1;
  EXPECT_EQ(blocks(1), (std::vector<int>{0, 1, 4, 5, 8}));
  paged.params.block_sparse.head_sliding_step = -1;
  for (int head : {2, 3}) EXPECT_EQ(blocks(head), (std::vector<int>{0, 1, 4, 5, 8}));
}

TEST(OpsExamplesTest, Ex30VarlenPagedPrefill) {
  ScoresCase paged({{0, kLn2, kLn3}, {0, kLn4}}, {{1, 2, 3}, {5, 10}}, {2, 1}, 2);
  RunPrefill(paged);
  const double kOut[] = {1.6666667, 2.3333333, 9}, kLse[] = {kLn3, kLn6, kLn5};
  for (int row = 0; row < 3; ++row) {
    ExpectExample(paged.out_at(row), kOut[row]);
    ExpectExample(paged.lse_at(row), kLse[row]);
  }
  Tensor mask(DType::kBool, {2, 2, 3});
  mask.Set({0, 0, 0, 0, 1, 0, /* second request */ 0, 0, 0, 0, 0, 0});
  paged.params.mask.tensor = mask.view;
  paged.params.mask.form = MaskForm::kPerRequest;
  RunPrefill(paged);
  ExpectExample(paged.out_at(0), kOut[0]);
  ExpectExample(paged.out_at(1), 2.5);
  ExpectExample(paged.lse_at(1), kLn4);
  ExpectExample(paged.out_at(2), kOut[2]);

  ScoresCase chunk({std::vector<double>(5)}, {{1, 2, 3, 4, 5}}, {2}, 2);
  RunPrefill(chunk);
  ExpectExample(chunk.out_at(0), 2.5);
  ExpectExample(chunk.lse_at(0), kLn4);
  ExpectExample(chunk.out_at(1), 3);
  ExpectExample(chunk.lse_at(1), kLn5);
}

TEST(OpsExamplesTest, Ex31Tail) {
  ScoresCase paged({0, 0, 0}, {1, 2, 3});  // unused rows are NaN
  RunDecode(paged);
  ExpectExample(paged.out_at(0), 2);
  ExpectExample(paged.lse_at(0), kLn3);
}

TEST(OpsExamplesTest, Ex34SoftCapOfHugeScores) {
  ScoresCase paged({100, 200, -200}, {1, 2, 3});
  paged.params.soft_cap = 1;
  RunDecode(paged);
  // tanh is 1, 1, -1.
  ExpectExample(paged.out_at(0), (3 * std::exp(1) + 3 * std::exp(-1)) /
                                     (2 * std::exp(1) + std::exp(-1)));
  ExpectExample(paged.lse_at(0), std::log(2 * std::exp(1) + std::exp(-1)));
}

TEST(OpsExamplesTest, Ex35GroupsOfHeadsShareKeys) {
  PagedCase paged({.lengths = {2}, .key_dim = 32, .value_dim = 32});
  paged.params.scale = 1;
  const auto axis = [](int d, double value) {
    std::vector<double> row(32);
    row[d] = value;
    return row;
  };
  for (int h : {0, 1}) {
    paged.SetKey(0, 0, h, axis(0, 1));
    paged.SetKey(0, 1, h, axis(1, 1));
    const double factor = h == 0 ? 1 : 10;  // so that the KV heads differ
    paged.SetValue(0, 0, h, std::vector<double>(32, 10 * factor));
    paged.SetValue(0, 1, h, std::vector<double>(32, 20 * factor));
  }
  for (int head = 0; head < 4; ++head) paged.SetQuery(0, head, axis(head % 2, kLn3));
  RunDecode(paged);
  const double kOut[] = {12.5, 17.5, 125, 175};
  for (int head = 0; head < 4; ++head) {
    ExpectExample(paged.out.Get()[head * 32], kOut[head]);
    ExpectExample(paged.lse.Get()[head], kLn4);
  }
}

// Any shape with any features against the dense oracle: T-1 and T-2 at random.

// [low, high), the whole range from the first case on.
int64_t Draw(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high));
}
bool Flip() { return Draw(0, 2) == 1; }

PagedCaseOptions DrawOptions(bool decode) {
  PagedCaseOptions options;
  const DType kQueryTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  const DType kCodeTypes[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kI8};
  options.q_dtype = kQueryTypes[Draw(0, 3)];
  options.cache_dtype = Flip() ? options.q_dtype : kCodeTypes[Draw(0, 3)];
  const KvLayout kLayouts[] = {KvLayout::kPagedX, KvLayout::kNhd, KvLayout::kHnd};
  options.layout = kLayouts[Draw(0, 3)];
  const int64_t x =
      options.layout == KvLayout::kPagedX ? 16 / ElementBytes(options.cache_dtype) : 1;
  options.key_dim = x * Draw(1, 1 + 40 / x);
  options.value_dim = Flip() ? options.key_dim : Draw(1, 41);
  options.num_kv_heads = Draw(1, 4);
  options.num_heads = options.num_kv_heads * Draw(1, 5);
  options.block_size = Draw(1, 20);
  if (const int64_t bytes = TraitsUnderTest().alignment; bytes > 1) {
    // The same draws, moved up to where rows are aligned.
    const int64_t of_row =
        bytes / std::min(ElementBytes(options.q_dtype), ElementBytes(options.cache_dtype));
    options.key_dim = RoundUp(options.key_dim, of_row);
    options.value_dim = RoundUp(options.value_dim, of_row);
    if (options.layout == KvLayout::kPagedX) {
      options.block_size = RoundUp(options.block_size, bytes / ElementBytes(options.cache_dtype));
    }
  }
  options.interleave_kv = Flip();
  options.scales = static_cast<PagedCaseOptions::Scales>(Draw(0, 3));
  options.seed = Draw(0, 1 << 30);
  const int64_t num_requests = Draw(0, 5);
  options.lengths.clear();
  options.q_lens.clear();
  for (int64_t b = 0; b < num_requests; ++b) {
    options.lengths.push_back(Draw(0, 70));
    options.q_lens.push_back(decode ? 1 : std::min(options.lengths.back(), Draw(0, 12)));
  }
  return options;
}

SplitPolicy DrawSplit(int64_t block_size) {
  switch (Draw(0, 4)) {
    case 0:
      return SplitPolicy::Fixed(block_size * Draw(1, 5));
    case 1:
      return SplitPolicy::Count(Draw(1, 9));
    case 2:
      return SplitPolicy::None();
    default:
      return SplitPolicy::Auto();
  }
}

// A few values can cancel almost to nothing, where an error relative to them says nothing about
// sums in float32: the absolute limit holds alone there, as it does for rows of small norm.
std::string MismatchOf(const PagedCase& paged) {
  Tolerance tolerance = ToleranceUnderTest(paged.options().q_dtype);
  if (paged.options().value_dim < 16) tolerance.relative_l2 = 1;
  return paged.Mismatch(tolerance);
}

// Runs `run` on a case with random features.
template <typename Run>
void ExpectExactWithFeatures(const PagedCaseOptions& options, bool decode, const Run& run) {
  PagedCase paged(options);
  const RandomFeatures features(paged, decode,
                                [](int64_t low, int64_t high) { return Draw(low, high + 1); });
  paged.params.split = DrawSplit(options.block_size);
  RC_ASSERT(run(paged).ToString() == "OK");
  RC_ASSERT(MismatchOf(paged) == "");
}

RC_GTEST_PROP(OpsPropertyTest, DecodeIsExactForAnyShapeAndFeatures, ()) {
  ExpectExactWithFeatures(DrawOptions(true), true, [](PagedCase& paged) {
    return OpsUnderTest().PagedDecode({}, paged.DecodeArgs());
  });
}

RC_GTEST_PROP(OpsPropertyTest, PrefillIsExactForAnyShapeAndFeatures, ()) {
  ExpectExactWithFeatures(DrawOptions(false), false, [](PagedCase& paged) {
    return OpsUnderTest().PagedPrefill({}, paged.PrefillArgs());
  });
}

RC_GTEST_PROP(OpsPropertyTest, ContiguousKeysAreExactForAnyShapeAndFeatures, ()) {
  PagedCaseOptions options = DrawOptions(false);
  options.cache_dtype = options.q_dtype;
  options.layout = KvLayout::kNhd;
  ExpectExactWithFeatures(options, false, [](PagedCase& paged) {
    return OpsUnderTest().VarlenSelfAttention({}, paged.VarlenArgs());
  });
}

}  // namespace

}  // namespace kvblocks::attention
