// T-15, T-27: attention of parts of the keys, merged, is attention of all of them; cascades.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "attention/testing/ops_suite.h"
#include "checks/ceil_div.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kLn8 = std::log(8);

// States of one token and head with values of 32 equal columns.
struct ExampleStates {
  ExampleStates(const std::vector<double>& outs_in, const std::vector<double>& lses_in)
      : n(static_cast<int64_t>(outs_in.size())),
        outs(DType::kF32, {n, 1, 1, 32}),
        lses(DType::kF32, {n, 1, 1}) {
    std::vector<double> values;
    for (double out_value : outs_in) values.insert(values.end(), 32, out_value);
    outs.Set(values);
    lses.Set(lses_in);
    args.outs = outs.view;
    args.lses = lses.view;
    args.out = out.view;
    args.lse = lse.view;
  }
  void Expect(double want_out, double want_lse) {
    FillWithPoison(out);
    FillWithPoison(lse);
    ASSERT_EQ(OpsUnderTest().MergeStates({}, args), absl::OkStatus());
    for (double value : out.Get()) ExpectExample(value, want_out);
    ExpectExample(lse.Get()[0], want_lse);
  }

  int64_t n;
  Tensor outs, lses, out{DType::kF32, {1, 1, 32}}, lse{DType::kF32, {1, 1}};
  MergeStatesArgs args;
};

TEST(OpsStatesTest, Ex8Merge) {
  ExampleStates({40.0 / 3, 24}, {std::log(3), std::log(5)}).Expect(20, kLn8);
  ExampleStates({20, 0}, {kLn8, -kInfinity}).Expect(20, kLn8);
  ExampleStates({0, 0}, {-kInfinity, -kInfinity}).Expect(0, -kInfinity);
}

TEST(OpsStatesTest, ValuesOfEmptyStatesDoNotMatter) {
  ExampleStates({20, NAN}, {kLn8, -kInfinity}).Expect(20, kLn8);
  ExampleStates({NAN, NAN}, {-kInfinity, -kInfinity}).Expect(0, -kInfinity);
}

TEST(OpsStatesTest, Ex9SinkExactlyOnce) {
  const Tensor sinks = FloatTensor({kLn8});
  ExampleStates once({40.0 / 3, 24}, {std::log(3), std::log(5)});
  once.args.sinks = sinks.view;
  once.Expect(10, kLn8);
  // In both parts, outputs and LSEs: another result, which is why parts take no sinks.
  const auto with_sink = [](double value, double lse) { return value / (1 + 8 / std::exp(lse)); };
  ExampleStates twice({with_sink(40.0 / 3, std::log(3)), with_sink(24, std::log(5))},
                      {std::log(11), std::log(13)});
  twice.Expect(6.6666667, std::log(24));
  // In one part whose LSE includes it.
  ExampleStates in_lse({with_sink(40.0 / 3, std::log(3)), 24}, {std::log(11), std::log(5)});
  in_lse.Expect(10, std::log(16));
}

TEST(OpsStatesTest, InfiniteLseIsRefusedOrTakenAsEmpty) {
  ExampleStates states({1, NAN}, {0, kInfinity});
  Flagged flagged;
  const absl::Status status = OpsUnderTest().MergeStates(flagged.context, states.args);
  if (TraitsUnderTest().host_sees_values) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return;
  }
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(flagged.bits, kMergeOfInfinity);
  states.Expect(1, 0);
}

// Attention of one request with `num_keys` keys, and of parts of its keys, all by
// VarlenSelfAttention.
struct SplitKeys {
  SplitKeys(int64_t num_keys, uint64_t seed) : paged(Options(num_keys, seed)) {
    paged.params.causal = false;
    RunVarlen(paged);
    whole_out = paged.out.Get(), whole_lse = paged.lse.Get();
  }
  static PagedCaseOptions Options(int64_t num_keys, uint64_t seed) {
    PagedCaseOptions options;
    options.lengths = {num_keys};
    options.q_lens = {3};
    options.key_dim = options.value_dim = 64;
    options.seed = seed;
    return options;
  }
  // States of keys [cuts[n], cuts[n + 1]).
  void Split(const std::vector<int64_t>& cuts) {
    const int64_t n = static_cast<int64_t>(cuts.size()) - 1;
    outs = Tensor(DType::kF32, {n, 3, 4, 64});
    lses = Tensor(DType::kF32, {n, 3, 4});
    for (int64_t part = 0; part < n; ++part) {
      VarlenSelfAttentionArgs args = paged.VarlenArgs();
      const Tensor start =
          IntTensor({0, static_cast<double>(cuts[part + 1] - cuts[part])}, {2});
      args.k = args.k.Slice(0, cuts[part], cuts[part + 1]).value();
      args.v = args.v.Slice(0, cuts[part], cuts[part + 1]).value();
      args.kv_start_loc = start.view;
      args.out = outs.view.Select(0, part).value();
      args.lse = lses.view.Select(0, part).value();
      ASSERT_EQ(OpsUnderTest().VarlenSelfAttention({}, args), absl::OkStatus());
    }
  }
  MergeStatesArgs Args() {
    MergeStatesArgs args;
    args.outs = outs.view;
    args.lses = lses.view;
    args.out = out.view;
    args.lse = lse.view;
    return args;
  }
  void Merge() { ASSERT_TRUE(OpsUnderTest().MergeStates({}, Args()).ok()); }

  PagedCase paged;
  std::vector<double> whole_out, whole_lse;
  Tensor outs, lses, out{DType::kF32, {3, 4, 64}}, lse{DType::kF32, {3, 4}};
};

TEST(OpsStatesTest, T15PartsMergeToTheWhole) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 20; ++trial) {
    const int64_t num_keys = IntegerDraw(random, 1, 60);
    SplitKeys keys(num_keys, trial + 1);
    std::vector<int64_t> cuts = {0, num_keys};
    for (int64_t n = IntegerDraw(random, 0, 5); n > 0; --n) {
      cuts.push_back(IntegerDraw(random, 0, num_keys));  // parts may be empty
    }
    std::sort(cuts.begin(), cuts.end());
    keys.Split(cuts);
    keys.Merge();
    ExpectClose(keys.out.Get(), keys.whole_out, DType::kF32);
    ExpectClose(keys.lse.Get(), keys.whole_lse, DType::kF32);
  }
}

TEST(OpsStatesTest, T15MergingCommutesToTheBit) {
  std::mt19937_64 random(1);
  for (int n = 0; n < 100; ++n) {
    const std::vector<double> out = NormalDraws(random, 2), lse = NormalDraws(random, 2);
    ExampleStates forward(out, lse), backward({out[1], out[0]}, {lse[1], lse[0]});
    for (ExampleStates* states : {&forward, &backward}) {
      ASSERT_EQ(OpsUnderTest().MergeStates({}, states->args), absl::OkStatus());
    }
    EXPECT_EQ(forward.out.bytes, backward.out.bytes);
    EXPECT_EQ(forward.lse.bytes, backward.lse.bytes);
  }
}

// Few states and many: kernels differ.
TEST(OpsStatesTest, MergingInPlaceWithContextForSomeTokens) {
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{0, 20, 50}, std::vector<int64_t>{0, 8, 16, 24, 32, 50}}) {
    SplitKeys keys(50, 1);
    keys.Split(cuts);
    keys.Merge();
    const int64_t last = static_cast<int64_t>(cuts.size()) - 2;
    const std::vector<double> merged = keys.out.Get(), merged_lse = keys.lse.Get();
    const std::vector<double> suffix = keys.outs.Get(), suffix_lse = keys.lses.Get();
    MergeStatesArgs args = keys.Args();
    args.tokens_with_context = 2;
    args.out = keys.outs.view.Select(0, last).value();
    args.lse = keys.lses.view.Select(0, last).value();
    ASSERT_EQ(OpsUnderTest().MergeStates({}, args), absl::OkStatus());
    const std::vector<double> out = ValuesOf(args.out), lse = ValuesOf(args.lse);
    for (int64_t i = 0; i < 3 * 4 * 64; ++i) {
      EXPECT_EQ(out[i], i < 2 * 4 * 64 ? merged[i] : suffix[last * 768 + i]) << last + 1;
    }
    for (int64_t i = 0; i < 3 * 4; ++i) {
      EXPECT_EQ(lse[i], i < 2 * 4 ? merged_lse[i] : suffix_lse[last * 12 + i]) << last + 1;
    }
  }
}

TEST(OpsStatesTest, MergedOutputsAreQuantisedByTheirScale) {
  SplitKeys keys(50, 1);
  keys.Split({0, 20, 50});
  keys.Merge();
  const std::vector<double> merged = keys.out.Get();
  Tensor codes(DType::kF8E4M3, {3, 4, 64});
  MergeStatesArgs args = keys.Args();
  args.out = codes.view;
  args.out_scale = 0.03125f;
  ASSERT_TRUE(OpsUnderTest().MergeStates({}, args).ok());
  const std::vector<double> values = codes.Get();
  for (size_t i = 0; i < values.size(); ++i) {
    // Half a unit in the last place, or half the smallest subnormal.
    EXPECT_NEAR(values[i] * 0.03125, merged[i],
                std::max(std::abs(merged[i]) / 16, 0.03125 / 1024) * 1.001);
  }
}

// --- Cascade ---

TEST(OpsStatesTest, Ex18Cascade) {
  // All scores 0, the prefix in the first two blocks of two tokens.
  const auto run = [](std::vector<double> suffix, double want_out, double want_lse) {
    std::vector<double> values = {1, 2, 3, 4};
    values.insert(values.end(), suffix.begin(), suffix.end());
    ScoresCase paged({std::vector<double>(values.size())}, {values}, {1}, 2);
    CascadeArgs args;
    args.prefill = paged.PrefillArgs();
    args.common_prefix_len = 4;
    ASSERT_EQ(OpsUnderTest().Cascade({}, args), absl::OkStatus());
    ExpectExample(paged.out_at(0), want_out);
    ExpectExample(paged.lse_at(0), want_lse);
    RunPrefill(paged);
    ExpectExample(paged.out_at(0), want_out);
    ExpectExample(paged.lse_at(0), want_lse);
  };
  run({10}, 4, std::log(5));
  run({20, 30}, 10, std::log(6));
}

TEST(OpsStatesTest, T27CascadeEqualsNoCascade) {
  const Tensor sinks = FloatTensor({0.5, -1, 2, -kInfinity});
  const Tensor slopes = FloatTensor({0.5, 0.25, 0.125, 0});
  for (DType type : {DType::kF32, DType::kBF16}) {
    PagedCaseOptions options;
    options.q_dtype = options.cache_dtype = type;
    options.lengths = {60, 49, 0, 100, 48 + 16};
    options.q_lens = {1, 1, 0, 17, 16};
    options.key_dim = options.value_dim = 64;
    PagedCase paged(options);
    paged.SharePrefix(3);
    for (int features = 0; features < 3; ++features) {
      if (features == 1) paged.params.sinks = sinks.view;
      if (features == 2) paged.params.alibi_slopes = slopes.view, paged.params.soft_cap = 5;
      ExpectPrefillIsExact(paged);
      for (int64_t prefix : {0, 16, 48}) {
        CascadeArgs args;
        args.prefill = paged.PrefillArgs();
        args.common_prefix_len = prefix;
        paged.ClearOutputs();
        ASSERT_EQ(OpsUnderTest().Cascade({}, args), absl::OkStatus());
        EXPECT_EQ(paged.Mismatch(ToleranceUnderTest(type)), "") << "prefix " << prefix;
      }
    }
  }
}

// T-8 and Ex-7: cutting the keys of a decode, by a policy, a plan or partitions, changes nothing
// but the order of sums.

struct Partials {
  Tensor max_logits, exp_sums, tmp_out;
};

// The first pass of a decode in two.
Partials RunPartial(PagedCase& paged, int64_t partition_tokens) {
  const PagedDecodeArgs decode = paged.DecodeArgs();
  const int64_t R = decode.q.extent[0], H = decode.q.extent[1], Dv = decode.out.extent[2];
  const int64_t P = CeilDiv(decode.max_seq_len, partition_tokens);
  Partials partials = {Tensor(DType::kF32, {R, H, P}), Tensor(DType::kF32, {R, H, P}),
                       Tensor(DType::kF32, {R, H, P, Dv})};
  PagedDecodePartialArgs args;
  args.q = decode.q;
  args.cache = decode.cache;
  args.block_table = decode.block_table;
  args.seq_lens = decode.seq_lens;
  args.max_seq_len = decode.max_seq_len;
  args.partition_tokens = partition_tokens;
  args.params = decode.params;
  args.params.sinks = {};
  args.max_logits = partials.max_logits.view;
  args.exp_sums = partials.exp_sums.view;
  args.tmp_out = partials.tmp_out.view;
  for (Tensor* tensor : {&partials.max_logits, &partials.exp_sums, &partials.tmp_out}) {
    FillWithPoison(*tensor);
  }
  EXPECT_EQ(OpsUnderTest().PagedDecodePartial({}, args), absl::OkStatus());
  return partials;
}

void RunPartialAndReduce(PagedCase& paged, int64_t partition_tokens) {
  const Partials partials = RunPartial(paged, partition_tokens);
  for (double sum : partials.exp_sums.Get()) ASSERT_TRUE(sum == 0 || sum >= 1) << sum;
  ReduceSplitsArgs reduce;
  reduce.max_logits = partials.max_logits.view;
  reduce.exp_sums = partials.exp_sums.view;
  reduce.tmp_out = partials.tmp_out.view;
  reduce.sinks = paged.params.sinks;
  paged.ClearOutputs();
  reduce.out = paged.out.view;
  reduce.lse = paged.lse.view;
  ASSERT_EQ(OpsUnderTest().ReduceSplits({}, reduce), absl::OkStatus());
}

TEST(OpsInvarianceTest, T8EverySplitGivesTheSame) {
  for (bool window : {false, true}) {
    PagedCaseOptions options = VariedDecodeOptions();
    options.lengths.push_back(1200);
    PagedCase paged(options);
    const Tensor sinks = FloatTensor({0.5, -1, 2, 0});
    paged.params.sinks = sinks.view;
    if (window) paged.params.window_left = 40;
    for (const SplitPolicy split :
         {SplitPolicy::None(), SplitPolicy::Auto(), SplitPolicy::Fixed(512), SplitPolicy::Count(1),
          SplitPolicy::Count(2), SplitPolicy::Count(7), SplitPolicy::Count(64)}) {
      paged.params.split = split;
      ExpectDecodeIsExact(paged);
    }
    // The parts are float32 whatever the backend computes in, so they round once more.
    Tolerance of_parts = ToleranceUnderTest(DType::kF32);
    of_parts.relative_l2 = std::max(of_parts.relative_l2, 1e-6);
    of_parts.absolute = std::max(of_parts.absolute, 1e-6);
    of_parts.lse_absolute = std::max(of_parts.lse_absolute, 1e-6);
    for (int64_t tokens : {16, 64, 512, 2048}) {
      RunPartialAndReduce(paged, tokens);
      EXPECT_EQ(paged.Mismatch(of_parts), "") << tokens;
    }
  }
}

TEST(OpsInvarianceTest, T8PlansGiveTheSameAndMustFit) {
  for (int64_t window : {0, 50}) {
    PagedCaseOptions options = VariedDecodeOptions();
    options.lengths = {900, 1, 0, 64, 333};
    PagedCase paged(options);
    if (window > 0) paged.params.window_left = window - 1;
    SplitPlanInput input;
    std::vector<int32_t> lengths(options.lengths.begin(), options.lengths.end());
    input.type = {options.block_size, window, 1};
    input.seq_lens = lengths;
    for (int32_t parts : {1, 3, 40}) {
      input.num_parts = parts;
      SplitPlanner planner(8, 64);
      ASSERT_TRUE(planner.Plan(input).ok());
      PagedDecodeArgs args = paged.DecodeArgs();
      args.plan = &planner.plan();
      paged.ClearOutputs();
      ASSERT_EQ(OpsUnderTest().PagedDecode({}, args), absl::OkStatus());
      EXPECT_EQ(paged.Mismatch(ToleranceUnderTest(DType::kF32)), "") << parts;
      if (!TraitsUnderTest().host_sees_values) continue;
      // A plan for other lengths is refused and nothing written.
      lengths[0] += 200;
      input.type.window = 0;
      ASSERT_TRUE(planner.Plan(input).ok());
      const std::vector<std::byte> before = OutputBytes(paged);
      EXPECT_EQ(OpsUnderTest().PagedDecode({}, args).code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ(OutputBytes(paged), before);
      lengths[0] -= 200;
      input.type.window = window;
    }
  }
}

TEST(OpsInvarianceTest, T8OnePartitionIsTheSinglePassToTheBit) {
  PagedCase paged(VariedDecodeOptions());
  paged.params.split = SplitPolicy::None();
  RunDecode(paged);
  const std::vector<std::byte> single = OutputBytes(paged), out = paged.out.bytes;
  paged.params.split = SplitPolicy::Count(1);
  RunDecode(paged);
  EXPECT_EQ(OutputBytes(paged), single);
  RunPartialAndReduce(paged, 256);
  EXPECT_EQ(paged.out.bytes, out);  // its lse went through float32 parts
}

TEST(OpsInvarianceTest, Ex7Split) {
  ScoresCase paged({0, std::log(2), std::log(5)}, {8, 16, 24});
  const Partials partials = RunPartial(paged, 2);
  ExpectExample(partials.max_logits.Get()[0], std::log(2));
  ExpectExample(partials.exp_sums.Get()[0], 1.5);
  ExpectExample(partials.tmp_out.Get()[0], 13.3333333);
  ExpectExample(partials.max_logits.Get()[1], std::log(5));
  ExpectExample(partials.exp_sums.Get()[1], 1);
  ExpectExample(partials.tmp_out.Get()[32], 24);
  RunPartialAndReduce(paged, 2);
  ExpectExample(paged.out_at(0), 20);
  ExpectExample(paged.lse_at(0), std::log(8));
}

}  // namespace

}  // namespace kvblocks::attention
