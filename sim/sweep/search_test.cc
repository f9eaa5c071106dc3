#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/commands/option_table.h"
#include "sim/sweep/border_search.h"
#include "sim/sweep/capacity_search.h"
#include "sim/sweep/condition.h"
#include "sim/sweep/point_runner.h"
#include "sim/sweep/sweep_metrics.h"
#include "sim/sweep/sweep_table.h"

namespace kvblocks::sim {
namespace {

namespace sweep_pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

sweep_pb::PointResult ResultOf(double hit_rate, int64_t preemptions = 0) {
  sweep_pb::PointResult result;
  result.mutable_report()->mutable_whole_run()->mutable_token_hit_rate()->set_value(hit_rate);
  result.mutable_report()->mutable_preemption()->set_preemptions(preemptions);
  return result;
}

TEST(SweepMetricsTest, TheFrontIsWhatNoPointBeats) {
  std::vector<sweep_pb::PointResult> results = {ResultOf(0.5, 3), ResultOf(0.6, 3),
                                                ResultOf(0.6, 3), ResultOf(0.7, 4),
                                                ResultOf(0.1, 0), ResultOf(0.1, 1)};
  results.push_back({});  // without figures
  const auto metrics = *FindSweepMetrics("hit-rate,preemptions", {});
  std::vector<bool> is_candidate(results.size(), true);
  EXPECT_THAT(ParetoFront(results, metrics, is_candidate),
              ElementsAre(false, true, true, true, true, false, false));
  is_candidate[1] = is_candidate[2] = false;
  EXPECT_THAT(ParetoFront(results, metrics, is_candidate),
              ElementsAre(true, false, false, true, true, false, false));
  EXPECT_EQ(FindSweepMetric("hitrate", {}).ok(), false);
  const auto field = FindSweepMetric("min:preemption.preemptions", {});
  ASSERT_TRUE(field.ok());
  EXPECT_EQ(ValueOf(*field, results[3]), 4);
  EXPECT_FALSE(FindSweepMetric("min:preemption.nothing", {}).ok());
  EXPECT_FALSE(FindSweepMetric("min:preemption", {}).ok());
  EXPECT_FALSE(FindSweepMetric("cost-per-1m-tokens", {}).ok());
  const auto prices = ParsePrices("h100:2.5,h200:3.5", "host:0.5,disk:73/month", {});
  ASSERT_TRUE(prices.ok()) << prices.status();
  EXPECT_THAT(prices->devices.at("h100-sxm"), 2.5);
  EXPECT_THAT(prices->tiers.at("host"), 0.5);
  EXPECT_THAT(prices->tiers.at("disk"), 0.1);
  EXPECT_FALSE(ParsePrices("h100:-1", "", {}).ok());
  EXPECT_FALSE(ParsePrices("h100:1,h100-sxm:2", "", {}).ok());
  EXPECT_FALSE(ParsePrices("", "host:1", {}).ok());
  for (const char* bad : {"host", "host:0", "host:x", ":1", "host:1,host:2", "host:1/year"}) {
    EXPECT_FALSE(ParsePrices("h100:1", bad, {}).ok()) << bad;
  }
}

TEST(SweepMetricsTest, CostsAreThoseOfDevicesAndOfTheTiersOfEach) {
  constexpr int64_t kGib = int64_t{1} << 30;
  const Prices prices{.devices = {{"a", 10}, {"b", 100}}, .tiers = {{"host", 0.5}, {"pool", 0.25}}};
  ::kvblocks::report::v1::Report one;
  one.mutable_config()->set_device("a");
  one.mutable_setup()->set_devices(2);
  auto* host = one.mutable_tiers()->add_tiers();
  host->set_name("host");
  host->set_capacity_bytes(3 * kGib);
  one.mutable_totals()->set_output_tokens(500'000);
  one.mutable_throughput()->set_duration_s(7200);
  EXPECT_EQ(CostOf(one, prices)->total(), 2 * 10 + 2 * 3 * 0.5);
  EXPECT_EQ(FindSweepMetric("cost-per-hour", prices)->value(one), 23);
  EXPECT_EQ(FindSweepMetric("cost-per-1m-tokens", prices)->value(one), 23 * 2 / 0.5);
  // Of two replicas, the second on another device; both share the last tier.
  ::kvblocks::report::v1::Report two;
  two.mutable_config()->set_device("a");
  auto* pool = one.mutable_tiers()->add_tiers();
  pool->set_name("pool");
  pool->set_is_shared(true);
  pool->set_capacity_bytes(8 * kGib);
  for (const char* device : {"a", "b"}) {
    one.mutable_config()->set_device(device);
    *two.add_replicas()->mutable_report() = one;
  }
  const auto cost = CostOf(two, prices);
  EXPECT_EQ(cost->replicas, 2 * 10 + 2 * 100 + 2 * (2 * 3 * 0.5));
  EXPECT_EQ(cost->shared, 2 * 8 * 0.25);
  // What has no price, or no bytes.
  EXPECT_THAT(std::string(CostOf(two, {.devices = {{"a", 1}}}).status().message()),
              HasSubstr("device b has no price"));
  EXPECT_EQ(CostOf(two, {.devices = prices.devices})->total(), 220);
  EXPECT_THAT(std::string(CostOf(two, {prices.devices, {{"host", 1}}}).status().message()),
              HasSubstr("tier pool has no price in --tier-prices"));
  host = one.mutable_tiers()->mutable_tiers(0);
  host->set_capacity_bytes(0);
  EXPECT_THAT(std::string(CostOf(one, prices).status().message()),
              HasSubstr("tier host: its size is in chunks"));
}

// What searches run on.
class SearchTest : public ::testing::Test {
 protected:
  sweep_pb::PointResult Replay(const ReplayConfig& config) {
    return RunPoint(*PlanPoint(config, {}, &hashes), &traces);
  }
  sweep_pb::CapacityReport Capacity(const CapacityOptions& options) {
    auto report = FindCapacity(options, &runner, &traces, &hashes);
    EXPECT_TRUE(report.ok()) << report.status();
    return *std::move(report);
  }
  // The probe says what a replay of `config` at its speed says.
  void ExpectReplayed(ReplayConfig config, const sweep_pb::CapacityReport::Probe& probe) {
    config.set_speedup(probe.speedup());
    const auto goodput = Replay(config).report().goodput();
    EXPECT_EQ(goodput.met(), probe.met());
    EXPECT_EQ(goodput.objectives(0).observed_ms(), probe.objectives(0).observed_ms());
  }

  DecodedTraces traces;
  ContentHashes hashes;
  std::unique_ptr<ResultLog> log = *ResultLog::Open("", false);
  PointRunner runner{&traces, log.get(), 2, nullptr};
};

TEST(SweepMetricsTest, EveryNameIsANumberOfReports) {
  ::kvblocks::report::v1::Report report;
  report.mutable_setup()->set_latency_is_meaningful(true);
  report.mutable_goodput();
  report.mutable_whole_run()->mutable_token_hit_rate();
  report.mutable_whole_run()->mutable_possible_hit_rate();
  report.mutable_throughput();
  report.mutable_preemption();
  report.mutable_router()->mutable_queueing();
  report.mutable_router()->mutable_imbalance();
  report.mutable_router()->mutable_decisions();
  for (auto* latency :
       {report.mutable_latency()->mutable_ttft(), report.mutable_latency()->mutable_tpot(),
        report.mutable_latency()->mutable_e2e()}) {
    latency->set_count(1);
  }
  report.mutable_totals()->set_output_tokens(1);
  report.mutable_config()->set_device("d");
  for (const std::string& name : SweepMetricNames()) {
    const auto metric = *FindSweepMetric(name, {.devices = {{"d", 1}}});
    EXPECT_TRUE(metric.value(report).has_value()) << name;
  }
}

Condition ConditionOf(const std::string& text) {
  auto condition = ParseCondition(text, {});
  EXPECT_TRUE(condition.ok()) << condition.status();
  return *std::move(condition);
}

TEST(ConditionTest, HoldsByNumberByBaselineAndByLimits) {
  EXPECT_EQ(Holds(ConditionOf("hit-rate>=0.6"), ResultOf(0.6), {}), true);
  EXPECT_EQ(Holds(ConditionOf("hit-rate>=0.6"), ResultOf(0.59), {}), false);
  EXPECT_EQ(Holds(ConditionOf("hit-rate<=baseline"), ResultOf(0.5), ResultOf(0.5)), true);
  EXPECT_EQ(Holds(ConditionOf("hit-rate>=1.2*baseline"), ResultOf(0.5), ResultOf(0.5)), false);
  // A report without the figure neither holds it nor misses it.
  EXPECT_EQ(Holds(ConditionOf("goodput>=1"), ResultOf(0.5), {}), std::nullopt);
  EXPECT_EQ(Holds(ConditionOf("slo"), ResultOf(0.5), {}), std::nullopt);
  EXPECT_EQ(Holds(ConditionOf("hit-rate<=baseline"), ResultOf(0.5), {}), std::nullopt);
  // A rejected request is within no limit.
  sweep_pb::PointResult limited = ResultOf(0.5);
  auto* goodput = limited.mutable_report()->mutable_goodput();
  goodput->set_requests_total(100);
  auto* limit = goodput->add_objectives();
  limit->set_percentile(90);
  limit->set_limit_ms(5);
  limit->set_requests_good(90);
  EXPECT_EQ(Holds(ConditionOf("slo"), limited, {}), true);
  limit->set_requests_good(89);
  EXPECT_EQ(Holds(ConditionOf("slo"), limited, {}), false);
  EXPECT_THAT(DescribeMiss({ConditionOf("slo"), ConditionOf("hit-rate>=0.6")}, limited, {}),
              HasSubstr("hit-rate is 50.00 %, the least is 60.00 %. The bottleneck is"));
  for (const char* bad : {"hit-rate", "hit-rate>=", "hit-rate>=x", "hit-rate>=2baseline", "x<=1",
                          "hit-rate<=2*", "hit-rate<=inf"}) {
    EXPECT_FALSE(ParseCondition(bad, {}).ok()) << bad;
  }
}

TEST(BisectionTest, FindsTheBorderOnEitherSideAndSaysIfThereAreSeveral) {
  for (int border = 2; border <= 100; ++border) {
    for (const bool low_meets : {true, false}) {
      int64_t num_tried = 0;
      Bisection search({.low_meets = low_meets, .is_whole = true, .tolerance = 0.002},
                       [&](const std::vector<double>& numbers) {
                         std::vector<bool> is_met;
                         for (const double n : numbers) is_met.push_back((n < border) == low_meets);
                         num_tried += static_cast<int64_t>(numbers.size());
                         return is_met;
                       });
      ASSERT_TRUE(search.Try({1, 100}).ok());
      ASSERT_TRUE(search.CloseIn().ok());
      ASSERT_TRUE(search.LookBeyond(1, 100).ok());
      EXPECT_EQ(search.met(), low_meets ? border - 1 : border);
      EXPECT_EQ(search.missed(), low_meets ? border : border - 1);
      EXPECT_TRUE(search.is_monotone());
      EXPECT_LT(num_tried, 18) << border;
    }
  }
  // Two borders, at 10 and at 10.5.
  Bisection several({.tolerance = 0.01}, [](const std::vector<double>& numbers) {
    std::vector<bool> is_met;
    for (const double n : numbers) is_met.push_back(n < 10 || n > 10.3);
    return is_met;
  });
  ASSERT_TRUE(several.Try({1, 10.2}).ok());
  ASSERT_TRUE(several.CloseIn().ok());
  EXPECT_TRUE(several.is_monotone());
  ASSERT_TRUE(several.LookBeyond(1, 100).ok());
  EXPECT_FALSE(several.is_monotone());
  EXPECT_LT(several.high() / several.low(), 1.01);
}

TEST(BorderTest, SearchedOptionsAreRangesAloneOrInBraces) {
  const auto blocks = ParseSearchedOption("num-blocks=500:20000");
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(blocks->field, "num_blocks");
  EXPECT_TRUE(blocks->is_whole);
  const auto tier = ParseSearchedOption("tier=host:2GiB:read={0.5:50}GB/s:latency=50us");
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_FALSE(tier->is_whole);
  EXPECT_EQ(tier->ValueText("7"), "host:2GiB:read=7GB/s:latency=50us");
  for (const char* bad :
       {"num-blocks", "num-blocks=5", "num-blocks=9:5", "num-blocks=0:5", "num-blocks={5:9",
        "num-block=5:9", "num-blocks=0.5:9", "tier=host:1:2"}) {
    EXPECT_FALSE(ParseSearchedOption(bad).ok()) << bad;
  }
}

// The smallest pool and the largest batch: these hold, the next ones that were tried do not.
TEST_F(SearchTest, SM109TheBorderHoldsAndTheNextValueDoesNot) {
  BorderOptions options;
  options.asked.set_limit(120);
  options.asked.set_speedup("40");
  options.searched = *ParseSearchedOption("num-blocks=300:8000");
  options.is_largest = false;
  options.baseline = {*ParseSetting("num-blocks=8000")};
  options.conditions = {ConditionOf("hit-rate>=0.9*baseline")};
  const auto hit_rate = [&](const std::string& num_blocks) {
    ReplayConfig config = options.asked;
    EXPECT_TRUE(SetOption("num-blocks", num_blocks, &config).ok());
    return Replay(config).report().whole_run().token_hit_rate().value();
  };
  auto metrics = *FindSweepMetrics("hit-rate,imbalance", {});
  const auto find = [&] {
    auto found = FindBorder(options, &metrics, &runner, &hashes);
    EXPECT_TRUE(found.ok()) << found.status();
    return *std::move(found);
  };
  auto report = find();
  const double wanted = 0.9 * hit_rate("8000");
  EXPECT_GE(hit_rate(report.value()), wanted);
  EXPECT_LT(hit_rate(report.missed()), wanted);
  EXPECT_EQ(metrics.size(), 1);  // one replica has no imbalance
  EXPECT_THAT(report.because(), HasSubstr("hit-rate is "));
  EXPECT_THAT(FormatBorder(report, metrics, false),
              HasSubstr(absl::StrCat("--num-blocks=", report.value())));
  int64_t num_answers = 0;
  for (const sweep_pb::SweepRow& row : report.tried().rows()) {
    num_answers += row.on_front();
    EXPECT_EQ(row.on_front(), SettingOf(row, "num_blocks") == report.value());
  }
  EXPECT_EQ(num_answers, 1);

  // Limits of --slo are a condition. Beyond the range the answer is none, or its end.
  options.asked.set_slo("tpot:7ms@p90");
  options.searched = *ParseSearchedOption("max-num-seqs=1:256");
  options.is_largest = true;
  options.baseline.clear();
  options.conditions.clear();
  ASSERT_TRUE(AddLimits(0, &options).ok());
  report = find();
  EXPECT_NE(report.value(), "");
  EXPECT_THAT(report.because(), HasSubstr("tpot p90 is "));
  options.conditions = {ConditionOf("hit-rate>=2")};
  report = find();
  EXPECT_EQ(report.value(), "");
  EXPECT_EQ(report.missed(), "1");
  options.conditions = {ConditionOf("hit-rate<=2")};
  report = find();
  EXPECT_EQ(report.value(), "256");
  EXPECT_EQ(report.missed(), "");
}

TEST_F(SearchTest, SM109TheHighestRateMeetsTheLimitsAndTheNextDoesNot) {
  CapacityOptions options;
  options.asked.set_slo("ttft:300ms@p99,tpot:8ms@p95");
  options.asked.set_num_blocks(2000);
  options.asked.set_limit(150);
  options.target_rate = 15;
  options.tolerance = 0.05;
  const auto report = Capacity(options);
  ASSERT_EQ(report.candidates_size(), 1);
  const auto& found = report.candidates(0);
  EXPECT_EQ(found.problem(), "");
  EXPECT_GT(found.highest_rate(), 1);
  double highest, failing;
  ASSERT_TRUE(absl::SimpleAtod(found.at_highest().speedup(), &highest));
  ASSERT_TRUE(absl::SimpleAtod(found.at_failing().speedup(), &failing));
  EXPECT_GT(failing, highest);
  EXPECT_LE(failing / highest, 1.051);
  // As a replay says it.
  ExpectReplayed(options.asked, found.at_highest());
  ExpectReplayed(options.asked, found.at_failing());
  EXPECT_TRUE(found.at_highest().met());
  EXPECT_FALSE(found.at_failing().met());
  EXPECT_THAT(found.binding(), HasSubstr("The bottleneck is "));
  // The fewest replicas: these meet it, one less does not.
  EXPECT_GT(found.replicas(), 1);
  EXPECT_TRUE(found.at_target().met());
  EXPECT_EQ(found.one_less().replicas(), found.replicas() - 1);
  EXPECT_FALSE(found.one_less().met());
  EXPECT_EQ(report.router(), "least-tokens");
  EXPECT_THAT(FormatCapacity(report, false),
              HasSubstr("several replicas are behind the router least-tokens"));
  // Over all requests, as a replay of all replicas says it.
  ReplayConfig all = options.asked;
  all.set_replicas(found.replicas());
  all.set_router("least-tokens");
  ExpectReplayed(all, found.at_target());

  options.asked.set_slo("ttft:300ms");
  EXPECT_THAT(std::string(FindCapacity(options, &runner, &traces, &hashes).status().message()),
              HasSubstr("percentile"));
  options.asked.set_slo("ttft:1us@p99");
  EXPECT_THAT(Capacity(options).candidates(0).problem(),
              HasSubstr("no rate meets the limits: requests that are alone miss them"));
}

// Of prefill and decode replicas together, and of ranks that step together.
TEST_F(SearchTest, CapacityMultipliesWhatRunsTogether) {
  CapacityOptions split;
  split.asked.set_slo("ttft:100ms@p90,tpot:7.5ms@p90");
  split.asked.set_limit(120);
  split.asked.set_prefill_replicas(1);
  split.asked.set_decode_replicas(2);
  split.devices = {{"h100-sxm", 2.5}};
  split.target_rate = 15;
  split.tolerance = 0.1;
  const auto report = Capacity(split);
  const auto& found = report.candidates(0);
  ASSERT_EQ(found.problem(), "");
  ASSERT_GT(found.replicas(), 1);
  EXPECT_EQ(found.at_highest().devices(), 3);
  EXPECT_EQ(found.devices(), 3 * found.replicas());
  EXPECT_EQ(found.cost_per_hour(), 2.5 * 3 * static_cast<double>(found.replicas()));
  EXPECT_EQ(found.at_target().spare_cost_per_hour(), found.cost_per_hour() + 2 * 2.5);
  EXPECT_FALSE(found.one_less().met());
  EXPECT_THAT(FormatCapacity(report, false),
              HasSubstr(absl::StrCat("needs       ", found.replicas(), " prefill and ",
                                     2 * found.replicas(), " decode replicas of 1 x h100-sxm")));
  ReplayConfig all = split.asked;
  all.set_device("h100-sxm");
  all.set_prefill_replicas(found.replicas());
  all.set_decode_replicas(2 * found.replicas());
  ExpectReplayed(all, found.at_target());

  CapacityOptions ranks;
  ranks.asked.set_slo("ttft:500ms@p90,tpot:30ms@p90");
  ranks.asked.set_limit(60);
  ranks.asked.set_model("gpt-oss-20b");
  ranks.asked.set_num_blocks(4000);
  ranks.asked.set_data_parallel(2);
  ranks.tolerance = 0.1;
  const auto of_ranks = Capacity(ranks);
  ASSERT_EQ(of_ranks.candidates(0).problem(), "");
  EXPECT_EQ(of_ranks.candidates(0).at_highest().devices(), 2);
  ExpectReplayed(ranks.asked, of_ranks.candidates(0).at_highest());
  EXPECT_THAT(FormatCapacity(of_ranks, false), HasSubstr("2 x h100-sxm"));
}

// Twenty requests at a time, as a recorder that looks every two seconds has them.
TEST_F(SearchTest, SaysWhereTheAnswerIsAboutArrivalsInStep) {
  const std::string path = absl::StrCat(testing::TempDir(), "/in_step.jsonl");
  std::ofstream file(path);
  for (int i = 0; i < 200; ++i) {
    file << "{\"timestamp\": " << i / 20 * 2000
         << ", \"input_length\": 600, \"output_length\": 4, \"hash_ids\": [" << 2 * i << ", "
         << 2 * i + 1 << "]}\n";
  }
  file.close();
  CapacityOptions options;
  options.asked.set_trace(path);
  options.asked.set_slo("ttft:150ms@p90");  // the last ones have no next time
  options.tolerance = 0.1;
  EXPECT_THAT(FormatCapacity(Capacity(options), false),
              HasSubstr("200 requests arrive at 10 times"));
  options.asked.set_spread(true);
  EXPECT_THAT(FormatCapacity(Capacity(options), false), testing::Not(HasSubstr("march in step")));
}

}  // namespace
}  // namespace kvblocks::sim
