#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/commands/replay_notes.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/sweep/border_search.h"
#include "kvblocks/sim/sweep/capacity_search.h"
#include "kvblocks/sim/sweep/condition.h"
#include "kvblocks/sim/sweep/point_runner.h"
#include "kvblocks/sim/sweep/sweep_points.h"
#include "kvblocks/sim/sweep/sweep_table.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

pb::SweepSpec SpecOf(const std::vector<std::string>& axes, int64_t limit = 120) {
  pb::SweepSpec spec;
  spec.mutable_config()->set_limit(limit);
  for (const std::string& text : axes) {
    auto axis = ParseAxis(text);
    EXPECT_TRUE(axis.ok()) << axis.status();
    *spec.add_grid() = *axis;
  }
  return spec;
}

std::vector<PlannedPoint> PointsOf(const pb::SweepSpec& spec) {
  ContentHashes hashes;
  auto points = ExpandSweep(spec, &hashes);
  EXPECT_TRUE(points.ok()) << points.status();
  return *std::move(points);
}

std::string TempFile(const std::string& name, const std::string& content) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<pb::PointResult> RunAll(const std::vector<PlannedPoint>& points, int threads,
                                    const std::string& path = "", int64_t* num_run = nullptr,
                                    bool retry = false) {
  DecodedTraces traces;
  auto log = ResultLog::Open(path, retry);
  EXPECT_TRUE(log.ok()) << log.status();
  PointRunner runner(&traces, log->get(), threads, nullptr);
  auto results = runner.Run(points);
  EXPECT_TRUE(results.ok()) << results.status();
  if (num_run != nullptr) *num_run = runner.num_run();
  return *std::move(results);
}

std::vector<std::string> Values(const std::string& text) {
  const auto axis = ParseAxis(text);
  if (!axis.ok()) return {std::string(axis.status().message())};
  return *AxisValues(*axis);
}

TEST(SweepPointsTest, RangesAreWrittenOut) {
  EXPECT_THAT(Values("num-blocks=64:512:*2"), ElementsAre("64", "128", "256", "512"));
  EXPECT_THAT(Values("num_blocks=10:35:+10,7"), ElementsAre("10", "20", "30", "7"));
  EXPECT_THAT(Values("--speedup=0.5:2:*2"), ElementsAre("0.5", "1", "2"));
  EXPECT_THAT(Values("watermark=0:0.3:+0.1"), ElementsAre("0", "0.1", "0.2", "0.3"));
  // What has commas is parted by bars; a limit is no range.
  EXPECT_THAT(Values("slo=ttft:2s:p99,tpot:50ms|ttft:1s:p99"),
              ElementsAre("ttft:2s:p99,tpot:50ms", "ttft:1s:p99"));
  EXPECT_THAT(Values("num-blocks=64:32:*2"), ElementsAre(HasSubstr("expected FIRST:LAST:*FACTOR")));
  EXPECT_THAT(Values("num-blocks=64:128:*1"), ElementsAre(HasSubstr("expected FIRST:LAST")));
  EXPECT_THAT(Values("num-blocks=0:9:*2"), ElementsAre(HasSubstr("expected FIRST:LAST")));
  EXPECT_THAT(Values("num-blocks=x"), ElementsAre(HasSubstr("expected a whole number")));
  EXPECT_THAT(Values("num-block=3"), ElementsAre(HasSubstr("did you mean --num-blocks?")));
  EXPECT_THAT(Values("num-blocks"), ElementsAre(HasSubstr("expected OPTION=VALUE")));
}

TEST(SweepPointsTest, SM107TheGridIsEveryCombinationTheLastAxisFastest) {
  pb::SweepSpec spec = SpecOf({"num-blocks=500,900", "block-size=16,32"});
  std::vector<std::string> seen;
  for (const PlannedPoint& point : PointsOf(spec)) {
    seen.push_back(absl::StrCat(point.config.num_blocks(), "/", point.config.block_size()));
    EXPECT_EQ(point.config.limit(), 120);
  }
  EXPECT_THAT(seen, ElementsAre("500/16", "500/32", "900/16", "900/32"));
  // An entry of the list with every value; an axis overrules it.
  auto* entry = spec.add_list();
  for (const auto& [option, value] : {std::pair{"max-num-seqs", "8"}, {"block_size", "64"}}) {
    auto* setting = entry->add_settings();
    setting->set_option(option);
    setting->set_value(value);
  }
  spec.add_list();
  const auto points = PointsOf(spec);
  ASSERT_EQ(points.size(), 8);
  EXPECT_EQ(points[0].config.max_num_seqs(), 8);
  EXPECT_EQ(points[0].config.block_size(), 16);
  EXPECT_EQ(points[0].settings.front().option(), "max_num_seqs");
  EXPECT_EQ(points[4].config.max_num_seqs(), 0);
}

TEST(SweepPointsTest, SM107TheNameFollowsFromTheReplayAndItsContent) {
  ContentHashes hashes;
  const auto name = [&](const ReplayConfig& config) {
    return PlanPoint(config, {}, &hashes)->name;
  };
  ReplayConfig config;
  const std::string plain = name(config);
  EXPECT_EQ(plain.size(), 32);
  // A default that is written down is the same replay.
  config.set_max_model_len(1048576);
  EXPECT_EQ(name(config), plain);
  config.set_max_model_len(4096);
  EXPECT_NE(name(config), plain);
  // The file may move, but not change.
  ReplayConfig of_file;
  const std::string row =
      "{\"timestamp\": 0, \"input_length\": 4, \"output_length\": 1, \"hash_ids\": [1]}\n";
  of_file.set_trace(TempFile("sweep_a.jsonl", row));
  const std::string here = name(of_file);
  EXPECT_NE(here, plain);
  of_file.set_trace(TempFile("sweep_b.jsonl", row));
  EXPECT_EQ(name(of_file), here);
  of_file.set_trace(TempFile("sweep_c.jsonl", row + row));
  EXPECT_NE(name(of_file), here);
  of_file.set_trace("/nowhere.jsonl");
  EXPECT_THAT(std::string(PlanPoint(of_file, {}, &hashes).status().message()),
              HasSubstr("no such file"));
  of_file.set_trace("-");
  EXPECT_FALSE(PlanPoint(of_file, {}, &hashes).ok());
  // A replica's part is a point of its own.
  EXPECT_NE(PlanPoint({}, {}, &hashes, 2, 0)->name, PlanPoint({}, {}, &hashes, 2, 1)->name);
}

TEST(DecodedTraceTest, YieldsWhatTheReaderYieldsAtAnySpeed) {
  for (const char* speedup : {"1", "3/7", "2.5"}) {
    ReplayConfig asked;
    asked.set_speedup(speedup);
    asked.set_rebase(true);
    asked.set_sample("0.7");
    const auto config = EffectiveConfig(asked, {});
    ASSERT_TRUE(config.ok());
    const auto options = MakeReaderOptions(*config);
    auto reader = OpenReplayTrace(*config, *options);
    ASSERT_TRUE(reader.ok());
    DecodedTraces traces;
    const auto trace = traces.Get(*config);
    ASSERT_TRUE(trace.ok());
    DecodedReader decoded(trace->get(), options->speedup);
    TraceRequest expected, got;
    int64_t count = 0;
    while (*(*reader)->Next(expected)) {
      ASSERT_TRUE(*decoded.Next(got));
      ASSERT_EQ(got, expected);
      ++count;
    }
    EXPECT_FALSE(*decoded.Next(got));
    EXPECT_GT(count, 100);
  }
}

TEST(DecodedTraceTest, ReplicasShareTheRequestsByConversation) {
  DecodedTrace trace;
  const auto add = [&](uint64_t session, std::vector<int64_t> waits_for) {
    TraceRequest request;
    request.row = static_cast<int64_t>(trace.requests.size());
    request.session = session;
    request.waits_for = std::move(waits_for);
    request.has_arrival = request.waits_for.empty();
    trace.requests.push_back(request);
  };
  add(7, {});
  add(0, {});
  add(7, {0});
  add(0, {1});  // goes with the request that it waits for
  add(9, {});
  add(9, {0, 4});  // waits for two conversations, and is in the second
  TraceInfo info;
  class Source final : public TraceReader {
   public:
    explicit Source(const std::vector<TraceRequest>* requests) : requests_(requests) {}
    absl::StatusOr<bool> Next(TraceRequest& out) override {
      if (next_ == requests_->size()) return false;
      out = (*requests_)[next_++];
      return true;
    }
    const TraceInfo& info() const override { return info_; }
    ReadProgress progress() const override { return {}; }
    absl::Status Restart() override { return absl::OkStatus(); }
    const TraceReaderCounters& counters() const override { return counters_; }
    const std::vector<std::string>& warnings() const override { return warnings_; }

   private:
    const std::vector<TraceRequest>* requests_;
    size_t next_ = 0;
    TraceInfo info_;
    TraceReaderCounters counters_;
    std::vector<std::string> warnings_;
  } source(&trace.requests);
  const auto decoded = DecodeTrace(&source);
  ASSERT_TRUE(decoded.ok());
  EXPECT_THAT(decoded->conversations, ElementsAre(0, 1, 0, 1, 2, 2));
  const auto rows = [&](int64_t replicas, int64_t replica) {
    DecodedReader reader(&*decoded, {1, 1}, replicas, replica);
    std::vector<std::string> out;
    TraceRequest request;
    while (*reader.Next(request)) {
      out.push_back(absl::StrCat(request.row, request.waits_for.empty() ? "" : " waits"));
    }
    return out;
  };
  EXPECT_THAT(rows(3, 0), ElementsAre("0", "2 waits"));
  EXPECT_THAT(rows(3, 1), ElementsAre("1", "3 waits"));
  EXPECT_THAT(rows(3, 2), ElementsAre("4", "5 waits"));
  EXPECT_THAT(rows(2, 1), ElementsAre("1", "3 waits"));
}

// The report of `kvsim replay`, without what points leave out.
std::string ReplayBytes(const ReplayConfig& config) {
  auto setup = MakeReplaySetup(config);
  auto reader = OpenReplayTrace(config, setup->reader);
  ReplayMetrics metrics(setup->metrics);
  auto simulation = MakeSimulation(*setup, reader->get(), {&metrics});
  EXPECT_TRUE((*simulation)->Run().ok());
  ::kvblocks::report::v1::Report report;
  metrics.Fill((*simulation)->result(), &report);
  DescribeReplay(config, *setup, **reader, &report);
  report.clear_series();
  report.clear_hit_prefix_length();
  report.clear_first_missing_block();
  report.clear_hit_groups();
  for (auto* d :
       {report.mutable_latency()->mutable_queueing(), report.mutable_latency()->mutable_ttft(),
        report.mutable_latency()->mutable_prefill(), report.mutable_latency()->mutable_e2e(),
        report.mutable_latency()->mutable_tpot(), report.mutable_latency()->mutable_itl(),
        report.mutable_latency()->mutable_normalized()}) {
    d->clear_quantiles_ms();
  }
  return report.SerializeAsString();
}

TEST(PointRunnerTest, SM107ResultsAreThoseOfReplaysWhateverTheNumberOfThreads) {
  pb::SweepSpec spec = SpecOf({"num-blocks=300,700", "speedup=1,40", "block-size=16,64"});
  spec.mutable_config()->set_slo("ttft:500ms:p99");
  const auto points = PointsOf(spec);
  const auto metrics = *FindSweepMetrics("hit-rate,ttft-p99,preemptions,pool-gib", {});
  const auto front = *FindSweepMetrics("hit-rate,pool-gib", {});
  const auto one = RunAll(points, 1);
  ASSERT_EQ(one.size(), 8);
  for (size_t i = 0; i < one.size(); ++i) {
    ASSERT_EQ(one[i].problem(), "");
    EXPECT_EQ(one[i].report().SerializeAsString(), ReplayBytes(points[i].config)) << i;
  }
  for (const int threads : {2, 8}) {
    const auto many = RunAll(points, threads);
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(many[i].SerializeAsString(), one[i].SerializeAsString());
    }
    const std::vector<bool> all(one.size(), true);
    const auto a = MakeSweepReport(one, metrics, front, ParetoFront(one, front, all));
    const auto b = MakeSweepReport(many, metrics, front, ParetoFront(many, front, all));
    EXPECT_EQ(FormatSweep(a, metrics, 100, false), FormatSweep(b, metrics, 100, false));
    EXPECT_EQ(SweepCsv(a), SweepCsv(b));
  }
}

TEST(PointRunnerTest, SM107FinishedPointsAreNeverRunAgainAndATornLineIs) {
  const std::string path = TempFile("sweep_results.jsonl", "");
  const auto points = PointsOf(SpecOf({"num-blocks=300,400,500"}, 40));
  int64_t num_run = 0;
  const auto first = RunAll(points, 2, path, &num_run);
  EXPECT_EQ(num_run, 3);
  const std::string whole = ReadFile(path);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 3);
  // Read back, they are the same.
  const auto again = RunAll(points, 2, path, &num_run);
  EXPECT_EQ(num_run, 0);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(again[i].SerializeAsString(), first[i].SerializeAsString());
  }
  EXPECT_EQ(ReadFile(path), whole);
  // Whatever part of the last line is there, that point alone runs again.
  const size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (const size_t size : {last + 1, last + 20, whole.size() - 1}) {
    TempFile("sweep_results.jsonl", whole.substr(0, size));
    RunAll(points, 1, path, &num_run);
    EXPECT_EQ(num_run, 1) << size;
    EXPECT_EQ(ReadFile(path), whole) << size;
  }
  // Another point is added.
  RunAll(PointsOf(SpecOf({"num-blocks=300,600"}, 40)), 1, path, &num_run);
  EXPECT_EQ(num_run, 1);
  // What is no log stays as it is.
  TempFile("sweep_results.jsonl", "my thesis");
  EXPECT_FALSE(ResultLog::Open(path, false).ok());
  TempFile("sweep_results.jsonl", "my\nthesis\n");
  EXPECT_THAT(std::string(ResultLog::Open(path, false).status().message()), HasSubstr(":1: error"));
  EXPECT_EQ(ReadFile(path), "my\nthesis\n");
}

TEST(PointRunnerTest, SM107APointWithoutFiguresStopsNoOther) {
  const std::string path = TempFile("sweep_problems.jsonl", "");
  // One block holds nobody, one is out of range, one contradicts another option.
  const auto points = PointsOf(SpecOf({"num-blocks=2,-1,400", "kv-memory=0,1"}, 40));
  int64_t num_run = 0;
  const auto results = RunAll(points, 2, path, &num_run);
  ASSERT_EQ(results.size(), 6);
  EXPECT_THAT(results[0].problem(), HasSubstr("requests were rejected"));
  EXPECT_THAT(results[1].problem(), HasSubstr("--kv-memory"));
  EXPECT_THAT(results[2].problem(), HasSubstr("--num-blocks: got -1"));
  EXPECT_EQ(results[4].problem(), "");
  EXPECT_TRUE(results[4].has_report());
  EXPECT_FALSE(results[5].has_report());
  RunAll(points, 1, path, &num_run);
  EXPECT_EQ(num_run, 0);
  RunAll(points, 1, path, &num_run, /*retry=*/true);
  EXPECT_EQ(num_run, 5);
}

TEST(SweepMetricsTest, TheFrontIsWhatNoPointBeats) {
  const auto point = [](double hit_rate, int64_t preemptions) {
    pb::PointResult result;
    result.mutable_report()->mutable_whole_run()->mutable_token_hit_rate()->set_value(hit_rate);
    result.mutable_report()->mutable_preemption()->set_preemptions(preemptions);
    return result;
  };
  std::vector<pb::PointResult> results = {point(0.5, 3), point(0.6, 3), point(0.6, 3),
                                          point(0.7, 4), point(0.1, 0), point(0.1, 1)};
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
  EXPECT_THAT(ParsePrices("h100:2.5,h200:3.5", {})->at("h100-sxm"), 2.5);
  EXPECT_FALSE(ParsePrices("h100:-1", {}).ok());
  EXPECT_FALSE(ParsePrices("h100:1,h100-sxm:2", {}).ok());
}

Condition ConditionOf(const std::string& text) {
  auto condition = ParseCondition(text, {});
  EXPECT_TRUE(condition.ok()) << condition.status();
  return *std::move(condition);
}

TEST(ConditionTest, HoldsByNumberByBaselineAndByLimits) {
  const auto with_hits = [](double hit_rate) {
    pb::PointResult result;
    result.mutable_report()->mutable_whole_run()->mutable_token_hit_rate()->set_value(hit_rate);
    return result;
  };
  EXPECT_EQ(Holds(ConditionOf("hit-rate>=0.6"), with_hits(0.6), {}), true);
  EXPECT_EQ(Holds(ConditionOf("hit-rate>=0.6"), with_hits(0.59), {}), false);
  EXPECT_EQ(Holds(ConditionOf("hit-rate<=baseline"), with_hits(0.5), with_hits(0.5)), true);
  EXPECT_EQ(Holds(ConditionOf("hit-rate>=1.2*baseline"), with_hits(0.5), with_hits(0.5)), false);
  // A report without the figure neither holds it nor misses it.
  EXPECT_EQ(Holds(ConditionOf("goodput>=1"), with_hits(0.5), {}), std::nullopt);
  EXPECT_EQ(Holds(ConditionOf("slo"), with_hits(0.5), {}), std::nullopt);
  EXPECT_EQ(Holds(ConditionOf("hit-rate<=baseline"), with_hits(0.5), {}), std::nullopt);
  // A rejected request is within no limit.
  pb::PointResult limited = with_hits(0.5);
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
  for (const char* bad : {"num-blocks", "num-blocks=5", "num-blocks=9:5", "num-blocks=0:5",
                          "num-blocks={5:9", "num-block=5:9", "num-blocks=0.5:9",
                          "tier=host:1:2"}) {
    EXPECT_FALSE(ParseSearchedOption(bad).ok()) << bad;
  }
}

// The smallest pool and the largest batch: these hold, the next ones that were tried do not.
TEST(BorderTest, SM109TheBorderHoldsAndTheNextValueDoesNot) {
  BorderOptions options;
  options.asked.set_limit(120);
  options.asked.set_speedup("40");
  options.searched = *ParseSearchedOption("num-blocks=300:8000");
  options.is_largest = false;
  options.baseline = {*ParseSetting("num-blocks=8000")};
  options.conditions = {ConditionOf("hit-rate>=0.9*baseline")};
  DecodedTraces traces;
  ContentHashes hashes;
  auto log = ResultLog::Open("", false);
  PointRunner runner(&traces, log->get(), 2, nullptr);
  const auto hit_rate = [&](const std::string& num_blocks) {
    ReplayConfig config = options.asked;
    EXPECT_TRUE(SetOption("num-blocks", num_blocks, &config).ok());
    return RunPoint(*PlanPoint(config, {}, &hashes), &traces).report().whole_run().token_hit_rate()
        .value();
  };
  auto metrics = *FindSweepMetrics("hit-rate,imbalance", {});
  auto report = FindBorder(options, &metrics, &runner, &hashes);
  ASSERT_TRUE(report.ok()) << report.status();
  const double wanted = 0.9 * hit_rate("8000");
  EXPECT_GE(hit_rate(report->value()), wanted);
  EXPECT_LT(hit_rate(report->missed()), wanted);
  EXPECT_EQ(metrics.size(), 1);  // one replica has no imbalance
  EXPECT_THAT(report->because(), HasSubstr("hit-rate is "));
  EXPECT_THAT(FormatBorder(*report, metrics, false),
              HasSubstr(absl::StrCat("--num-blocks=", report->value())));
  int64_t num_answers = 0;
  for (const pb::SweepRow& row : report->tried().rows()) num_answers += row.on_front();
  EXPECT_EQ(num_answers, 1);

  // Limits of --slo are a condition. Beyond the range the answer is none, or its end.
  options.asked.set_slo("tpot:7ms@p90");
  options.searched = *ParseSearchedOption("max-num-seqs=1:256");
  options.is_largest = true;
  options.baseline.clear();
  options.conditions.clear();
  ASSERT_TRUE(AddLimits(0, &options).ok());
  report = FindBorder(options, &metrics, &runner, &hashes);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_NE(report->value(), "");
  EXPECT_THAT(report->because(), HasSubstr("tpot p90 is "));
  options.conditions = {ConditionOf("hit-rate>=2")};
  report = FindBorder(options, &metrics, &runner, &hashes);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->value(), "");
  EXPECT_EQ(report->missed(), "1");
  options.conditions = {ConditionOf("hit-rate<=2")};
  report = FindBorder(options, &metrics, &runner, &hashes);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->value(), "256");
  EXPECT_EQ(report->missed(), "");
}

TEST(CapacityTest, SM109TheHighestRateMeetsTheLimitsAndTheNextDoesNot) {
  CapacityOptions options;
  options.asked.set_slo("ttft:300ms@p99,tpot:8ms@p95");
  options.asked.set_num_blocks(2000);
  options.asked.set_limit(150);
  options.target_rate = 15;
  options.tolerance = 0.05;
  DecodedTraces traces;
  ContentHashes hashes;
  auto log = ResultLog::Open("", false);
  PointRunner runner(&traces, log->get(), 2, nullptr);
  const auto report = FindCapacity(options, &runner, &traces, &hashes);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->candidates_size(), 1);
  const auto& found = report->candidates(0);
  EXPECT_EQ(found.problem(), "");
  EXPECT_GT(found.highest_rate(), 1);
  double highest, failing;
  ASSERT_TRUE(absl::SimpleAtod(found.at_highest().speedup(), &highest));
  ASSERT_TRUE(absl::SimpleAtod(found.at_failing().speedup(), &failing));
  EXPECT_GT(failing, highest);
  EXPECT_LE(failing / highest, 1.051);
  // As a replay says it.
  for (const auto* probe : {&found.at_highest(), &found.at_failing()}) {
    ReplayConfig config = options.asked;
    config.set_speedup(probe->speedup());
    const auto replayed = RunPoint(*PlanPoint(config, {}, &hashes), &traces);
    EXPECT_EQ(replayed.report().goodput().met(), probe->met());
    EXPECT_EQ(replayed.report().goodput().objectives(0).observed_ms(),
              probe->objectives(0).observed_ms());
  }
  EXPECT_TRUE(found.at_highest().met());
  EXPECT_FALSE(found.at_failing().met());
  EXPECT_THAT(found.binding(), HasSubstr("The bottleneck is "));
  // The fewest replicas: these meet it, one less does not.
  EXPECT_GT(found.replicas(), 1);
  EXPECT_TRUE(found.at_target().met());
  EXPECT_EQ(found.one_less().replicas(), found.replicas() - 1);
  EXPECT_FALSE(found.one_less().met());
  EXPECT_THAT(FormatCapacity(*report, false), HasSubstr("replicas are independent"));

  options.asked.set_slo("ttft:300ms");
  EXPECT_THAT(std::string(FindCapacity(options, &runner, &traces, &hashes).status().message()),
              HasSubstr("percentile"));
  options.asked.set_slo("ttft:1us@p99");
  const auto never = FindCapacity(options, &runner, &traces, &hashes);
  ASSERT_TRUE(never.ok());
  EXPECT_THAT(never->candidates(0).problem(), HasSubstr("no rate meets"));
}

// Twenty requests at a time, as a recorder that looks every two seconds has them.
TEST(CapacityTest, SaysWhereTheAnswerIsAboutArrivalsInStep) {
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
  DecodedTraces traces;
  ContentHashes hashes;
  auto log = ResultLog::Open("", false);
  PointRunner runner(&traces, log->get(), 2, nullptr);
  const auto note_of = [&] {
    const auto report = FindCapacity(options, &runner, &traces, &hashes);
    EXPECT_TRUE(report.ok()) << report.status();
    return FormatCapacity(*report, false);
  };
  EXPECT_THAT(note_of(), HasSubstr("200 requests arrive at 10 times"));
  options.asked.set_spread(true);
  EXPECT_THAT(note_of(), testing::Not(HasSubstr("march in step")));
}

}  // namespace
}  // namespace kvblocks::sim
