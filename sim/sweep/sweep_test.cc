#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/commands/option_table.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_notes.h"
#include "sim/commands/replay_setup.h"
#include "sim/sweep/point_runner.h"
#include "sim/sweep/sweep_points.h"
#include "sim/sweep/sweep_table.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

namespace sweep_pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

sweep_pb::SweepSpec SpecOf(const std::vector<std::string>& axes, int64_t limit = 120) {
  sweep_pb::SweepSpec spec;
  spec.mutable_config()->set_limit(limit);
  for (const std::string& text : axes) {
    auto axis = ParseAxis(text);
    EXPECT_TRUE(axis.ok()) << axis.status();
    *spec.add_grid() = *axis;
  }
  return spec;
}

std::vector<PlannedPoint> PointsOf(const sweep_pb::SweepSpec& spec) {
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

std::vector<sweep_pb::PointResult> RunAll(const std::vector<PlannedPoint>& points, int threads,
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
  EXPECT_THAT(Values("num-blocks=1k,2K"), ElementsAre("1k", "2K"));
  // An empty value is a slip of the hand, but where an option may be left empty.
  for (const char* slip : {"num-blocks=", "num-blocks=1,,2", "device=h100,", "trace=a,"}) {
    EXPECT_THAT(Values(slip), ElementsAre(HasSubstr("expected no empty value in it"))) << slip;
  }
  EXPECT_THAT(Values("tier=|host:1GiB:read=50GB/s"), ElementsAre("", "host:1GiB:read=50GB/s"));
  EXPECT_THAT(Values("num-blocks=x"), ElementsAre(HasSubstr("expected a whole number")));
  EXPECT_THAT(Values("num-block=3"), ElementsAre(HasSubstr("did you mean --num-blocks?")));
  EXPECT_THAT(Values("num-blocks"), ElementsAre(HasSubstr("expected OPTION=VALUE")));
}

TEST(SweepPointsTest, SM107TheGridIsEveryCombinationTheLastAxisFastest) {
  sweep_pb::SweepSpec spec = SpecOf({"num-blocks=500,900", "block-size=16,32"});
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

TEST(DecodedTraceTest, ConversationsAreSessionsAndWhatWaitsForThem) {
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
  VectorTraceReader source(TraceInfo(), trace.requests);
  const auto decoded = DecodeTrace(&source);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->num_conversations, 3);
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
  sweep_pb::SweepSpec spec = SpecOf({"num-blocks=300,700", "speedup=1,40", "block-size=16,64"});
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

}  // namespace
}  // namespace kvblocks::sim
