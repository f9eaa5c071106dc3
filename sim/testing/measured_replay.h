// A replay with its measurements taken, and the sums that hold for every report; for tests.

#ifndef KVBLOCKS_SIM_TESTING_MEASURED_REPLAY_H_
#define KVBLOCKS_SIM_TESTING_MEASURED_REPLAY_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/report/metrics.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {

class Rows final : public RequestRowSink {
 public:
  void OnRow(const RequestRow& row) override {
    latency[row.request->spec.id] = row.latency;
    lines[row.request->spec.id] = CsvRequestSink::Format(row);
  }
  std::map<std::string, std::optional<RequestLatency>> latency;
  std::map<std::string, std::string> lines;
};

struct Measured {
  report::v1::Report report;
  Rows rows;
  absl::Status status;
};

inline void Measure(Replay& replay, Measured* out, ReplayMetricsOptions options = {}) {
  options.rows = &out->rows;
  ReplayMetrics metrics(options);
  replay.further_observers = {&metrics};
  out->status = replay.Run();
  metrics.Fill(replay.result, &out->report);
}

template <typename Groups>
void ExpectGroupsAddUp(const Groups& groups, const report::v1::HitRates& whole) {
  int64_t requests = 0, queried = 0, hit = 0;
  for (const report::v1::HitGroup& group : groups) {
    requests += group.requests();
    hit += group.token_hit_rate().numerator();
    queried += group.token_hit_rate().denominator();
  }
  EXPECT_EQ(requests, whole.requests());
  EXPECT_EQ(hit, whole.token_hit_rate().numerator());
  EXPECT_EQ(queried, whole.token_hit_rate().denominator());
}

inline int64_t Blocks(const report::v1::MissCauses& misses, MissReason reason) {
  for (const report::v1::MissCause& cause : misses.causes()) {
    if (cause.cause() == std::string(MissReasonName(reason))) return cause.blocks();
  }
  ADD_FAILURE() << "no cause " << std::string(MissReasonName(reason));
  return -1;
}

inline void ExpectCausesAddUp(const report::v1::Report& report) {
  for (const report::v1::MissCauses* misses :
       {&report.first_admission_misses(), &report.resume_misses()}) {
    int64_t sum = 0;
    for (const auto& cause : misses->causes()) sum += cause.blocks();
    EXPECT_EQ(sum, misses->missed_blocks());
  }
  // The series tells the same, tick by tick.
  const auto& causes = report.first_admission_misses().causes();
  ASSERT_EQ(report.series().miss_causes_size(), causes.size());
  for (int i = 0; i < causes.size(); ++i) {
    EXPECT_EQ(report.series().miss_causes(i), causes[i].cause());
    int64_t blocks = 0;
    for (const report::v1::Point& point : report.series().points()) {
      if (point.missed_blocks_size() > 0) blocks += point.missed_blocks(i);
    }
    EXPECT_EQ(blocks, causes[i].blocks()) << causes[i].cause();
  }
  int64_t outputs = 0;
  for (const report::v1::Point& point : report.series().points()) {
    outputs += point.output_tokens();
    EXPECT_EQ(point.ttft_ms() > 0, point.first_tokens() > 0);
  }
  EXPECT_EQ(outputs, report.totals().output_tokens());
  const auto& rate = report.whole_run().full_block_hit_rate();
  EXPECT_EQ(report.first_admission_misses().missed_blocks(), rate.denominator() - rate.numerator());
  const auto& prompt = report.prompt_tokens();
  EXPECT_EQ(prompt.hit() + prompt.missed_full_blocks() + prompt.partial_blocks(), prompt.known());
  ExpectGroupsAddUp(report.hit_groups().tenants(), report.whole_run());
  ExpectGroupsAddUp(report.hit_groups().classes(), report.whole_run());
  ExpectGroupsAddUp(report.hit_groups().turns(), report.whole_run());
}

// The token of position i in a content that starts with `head` shared tokens.
inline std::vector<int64_t> Content(int64_t head, int64_t first, int64_t length) {
  std::vector<int64_t> content;
  for (int64_t i = 0; i < length; ++i) content.push_back(i < head ? i : first + i);
  return content;
}

// Requests as they are, for what Replay has no field for.
inline report::v1::Report MeasureRequests(std::vector<TraceRequest> requests, const TraceInfo& info,
                                  const ReplayMetricsOptions& options = {}) {
  SimulationConfig config;
  config.kv_cache.num_blocks = 100;
  config.kv_cache.groups = {FullGroup(4)};
  config.manager.max_model_len = 1000;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].row = static_cast<int64_t>(i);
    requests[i].arrival_ns = static_cast<int64_t>(i) * 10'000'000'000;
    requests[i].output_length = 1;
  }
  VectorTraceReader reader(info, std::move(requests));
  const auto step_time = MakeFixedStepTime(kSecond);
  ReplayMetrics metrics(options);
  const auto simulation = Simulation::Create(config, &reader, step_time->get(), {&metrics});
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_TRUE((*simulation)->Run().ok());
  report::v1::Report report;
  metrics.Fill((*simulation)->result(), &report);
  return report;
}

// Of a run that ends well; with the sums that hold for every report.
inline report::v1::Report ReportOf(Replay& replay, const ReplayMetricsOptions& options = {}) {
  Measured measured;
  Measure(replay, &measured, options);
  EXPECT_TRUE(measured.status.ok()) << measured.status;
  ExpectCausesAddUp(measured.report);
  return measured.report;
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TESTING_MEASURED_REPLAY_H_
