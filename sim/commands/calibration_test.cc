// SM-65 on a run whose constants are known, because a replay made it.

#include "kvblocks/sim/commands/calibration.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/commands/nelder_mead.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/report/metrics.h"
#include "kvblocks/sim/report/result_file.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;
using ::testing::HasSubstr;

TEST(NelderMeadTest, FindsTheLeastValue) {
  const Point best =
      NelderMead({3.0, -2.0}, {.max_evaluations = 400, .tolerance = 1e-12}, [](const Point& p) {
        const double a = p[0] - 1, b = p[1] - 2 * p[0];
        return a * a + 10 * b * b;
      });
  EXPECT_NEAR(best[0], 1, 1e-3);
  EXPECT_NEAR(best[1], 2, 1e-3);
}

TEST(NelderMeadTest, StopsAtItsLimit) {
  int count = 0;
  NelderMead({5.0}, {.max_evaluations = 20, .tolerance = 0}, [&](const Point& p) {
    ++count;
    return std::exp(p[0]);
  });
  EXPECT_GE(count, 20);
  EXPECT_LE(count, 24);
}

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

}  // namespace
}  // namespace kvblocks::sim
