// SM-65 on a run whose constants are known, because a replay made it.

#include "sim/commands/calibration.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/commands/option_table.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_setup.h"
#include "sim/report/metrics.h"
#include "sim/report/result_file.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;
using ::testing::HasSubstr;

ReplayConfig Example() {
  ReplayConfig given;
  given.set_limit(120);
  given.set_speedup("10");
  given.set_max_model_len(32768);
  auto config = EffectiveConfig({}, given);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

class MeasuredRows final : public RequestRowSink {
 public:
  explicit MeasuredRows(Measurement* out) : out_(out) {}
  void OnRow(const RequestRow& row) override {
    const auto index = static_cast<size_t>(row.request->spec.row);
    if (out_->requests.size() <= index) out_->requests.resize(index + 1);
    MeasuredRequest& request = out_->requests[index];
    request.row = static_cast<int64_t>(index);
    request.start_ns = row.request->arrival / kNanosecond;
    request.input_length = row.request->spec.input_length;
    request.output_length = row.request->spec.output_length;
    request.ttft_ns = row.latency->ttft / kNanosecond;
    request.latency_ns = row.latency->e2e / kNanosecond;
    if (row.latency->tpot) request.tpot_ns = *row.latency->tpot / kNanosecond;
  }

 private:
  Measurement* out_;
};

Measurement MeasurementOf(const ReplayConfig& config) {
  Measurement measurement;
  measurement.file = "made by a replay";
  auto setup = MakeReplaySetup(config);
  EXPECT_TRUE(setup.ok()) << setup.status();
  const auto reader = OpenReplayTrace(config, setup->reader);
  MeasuredRows rows(&measurement);
  setup->metrics.rows = &rows;
  ReplayMetrics metrics(setup->metrics);
  const auto simulation = MakeSimulation(*setup, reader->get(), {&metrics});
  EXPECT_TRUE((*simulation)->Run().ok());
  return measurement;
}

TEST(CalibrationTest, FindsTheConstantsThatMadeARun) {
  ReplayConfig made = Example();
  made.set_time_per_layer("60us");
  made.set_time_per_sequence("9us");
  made.set_prefill_factor(2);
  made.set_expert_prefill_factor(2);
  const auto result = Calibrate(Example(), MeasurementOf(made), {});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->constants.size(), 4);
  EXPECT_LE(result->num_replays, 340);  // 80 per constant, and a few
  EXPECT_EQ(result->constants[0].field, "time_per_layer");
  for (const MetricError& error : result->all) {
    EXPECT_NEAR(error.mean_percent, 0, 1) << error.metric;
  }
  for (const MetricError& error : result->before) {
    if (error.metric == "duration") continue;
    EXPECT_LT(error.mean_percent, -10) << error.metric;
  }
  EXPECT_GT(result->constants[0].tpot_percent, 1);
  EXPECT_TRUE(result->constants[0].is_identified);
  EXPECT_EQ(result->time_source, "measured kernels, calibrated: made by a replay");
}

TEST(CalibrationTest, SaysWhatARunDoesNotTell) {
  // A step takes what the memory takes, and even that is next to nothing: the arithmetic's share
  // shows nowhere.
  ReplayConfig config = Example();
  config.set_time("roofline");
  config.set_fixed_time("20s");
  config.set_speedup("1000000");
  const auto result = Calibrate(config, MeasurementOf(config), {"compute-efficiency"});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->constants.size(), 1);
  EXPECT_FALSE(result->constants[0].is_identified);
}

TEST(CalibrationTest, BadInputIsRefused) {
  const ReplayConfig config = Example();
  const Measurement good = MeasurementOf(config);
  EXPECT_THAT(Calibrate(config, good, {"speed"}).status().message(),
              HasSubstr("--fit: got \"speed\", expected some of time_per_layer"));
  ReplayConfig fixed = config;
  fixed.set_time("fixed");
  EXPECT_THAT(Calibrate(fixed, good, {}).status().message(),
              HasSubstr("--time: got fixed, which has no constants"));
  Measurement empty;
  empty.file = "FILE";
  EXPECT_THAT(Calibrate(config, empty, {}).status().message(),
              HasSubstr("FILE: no TTFT, TPOT or latency of any request"));
  Measurement longer = good;
  longer.requests.resize(1000);
  EXPECT_THAT(Calibrate(config, longer, {}).status().message(),
              HasSubstr("expected a workload of the same rows"));
}

TEST(MeasuredReportTest, SM84ReportsAreCutToWhatWasMeasured) {
  Measurement measurement = MeasurementOf(Example());
  for (MeasuredRequest& request : measurement.requests) request.tpot_ns = -1;
  const auto measured = MeasuredReport(measurement);
  EXPECT_EQ(measured.totals().requests_finished(), 120);
  EXPECT_EQ(measured.latency().tpot().count(), 0);
  ::kvblocks::report::v1::Report replayed;
  replayed.mutable_latency()->mutable_tpot()->set_count(7);
  replayed.mutable_latency()->mutable_ttft()->set_count(9);
  replayed.mutable_counters();
  const auto cut = CutToMeasured(replayed, measured);
  EXPECT_EQ(cut.latency().tpot().count(), 0);
  EXPECT_EQ(cut.latency().ttft().count(), 9);
  EXPECT_FALSE(cut.has_counters());
}

// --- SM-114, SM-65: runs of a real server, replayed with the settings that they had, and
//   calibrated on one half of the requests (testdata/measured_runs) ---

std::string FileOf(const std::string& name) {
  return absl::StrCat("sim/commands/testdata/measured_runs/", name);
}

// As the server was started: 2,048 tokens a step, asynchronous, ShareGPT prompts.
ReplayConfig ServerOf(const std::string& device) {
  ReplayConfig given;
  given.set_engine("vllm-0.25");
  given.set_trace(FileOf("sharegpt.kvtrace.gz"));
  given.set_model("llama-3.1-8b");
  given.set_device(device);
  given.set_max_num_batched_tokens(2048);
  auto config = EffectiveConfig({}, given);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

double Percent(double replayed, double measured) { return 100 * (replayed / measured - 1); }

// The run of SM-114 with one clock.
void ExpectPreemptionHeavyRun(ReplayConfig config, double most_preemptions_off) {
  const auto measurement = ReadMeasurement(FileOf("rtx-4090.jsonl.gz"), {});
  ASSERT_TRUE(measurement.ok()) << measurement.status();
  config.set_num_blocks(2588);
  config.set_max_num_seqs(256);
  auto setup = MakeReplaySetup(config);
  ASSERT_TRUE(setup.ok()) << setup.status();
  auto trace = OpenReplayTrace(config, setup->reader);
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto reader = WithMeasuredArrivals(*std::move(trace), *measurement);
  ReplayMetrics metrics(setup->metrics);
  const auto simulation = MakeSimulation(*setup, reader.get(), {&metrics});
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const absl::Status status = (*simulation)->Run();
  ASSERT_TRUE(status.ok()) << status;
  pb::Report replayed;
  metrics.Fill((*simulation)->result(), &replayed);
  const pb::Report measured = MeasuredReport(*measurement);
  const auto error = [&](const pb::Distribution& r, const pb::Distribution& m) {
    return Percent(r.mean_ms(), m.mean_ms());
  };
  EXPECT_NEAR(error(replayed.latency().ttft(), measured.latency().ttft()), 0, 1);
  EXPECT_NEAR(error(replayed.latency().tpot(), measured.latency().tpot()), 0, 1);
  EXPECT_NEAR(error(replayed.latency().e2e(), measured.latency().e2e()), 0, 1);
  EXPECT_NEAR(Percent(replayed.throughput().duration_s(), measured.throughput().duration_s()), 0,
              1);
  EXPECT_NEAR(static_cast<double>((*simulation)->result().scheduler.num_preemptions), 194,
              most_preemptions_off);
}

// The roofline's times are right in the mean and a little off step by step, which moves a few more
// preemptions.
TEST(MeasuredRunsTest, SM114TheRooflineMeetsThePreemptionHeavyRunInTheMean) {
  ReplayConfig config = ServerOf("rtx-4090");
  config.set_time("roofline");
  config.set_compute_efficiency(0.97);
  config.set_memory_efficiency(0.85);
  config.set_fixed_time("1ms");
  config.set_time_per_layer("0s");
  ExpectPreemptionHeavyRun(config, 10);
}

TEST(MeasuredRunsTest, SM65ARunWithoutPressureIsMetWithinThreePerCentAfterTheFit) {
  const auto measurement = ReadMeasurement(FileOf("rtx-pro-6000.jsonl.gz"), {});
  ASSERT_TRUE(measurement.ok()) << measurement.status();
  ReplayConfig config = ServerOf("rtx-pro-6000");
  config.set_max_num_seqs(128);
  config.set_time("table");
  const auto result = Calibrate(config, *measurement, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->num_fitted, 150);
  EXPECT_EQ(result->num_held_out, 150);
  ASSERT_EQ(result->held_out.size(), 3);
  for (const MetricError& error : result->held_out) {
    EXPECT_NEAR(error.mean_percent, 0, 3) << "held out " << error.metric;
  }
  ASSERT_EQ(result->all.size(), 4);
  for (const MetricError& error : result->all) {
    EXPECT_NEAR(error.mean_percent, 0, 3) << "all " << error.metric;
  }
  EXPECT_NE(result->time_source.find(", calibrated: "), std::string::npos);
}

}  // namespace
}  // namespace kvblocks::sim
