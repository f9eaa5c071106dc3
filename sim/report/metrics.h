// ReplayMetrics: the observer that measures a replay and fills its report.
//
//   ReplayMetrics metrics({.series_tick = kSecond});
//   auto simulation = Simulation::Create(config, reader, step_time, {&metrics});
//   (*simulation)->Run();
//   metrics.Fill((*simulation)->result(), &report);
//
// Hands every event to the metrics beside this file, which are plain classes: one virtual call per
// event, none per token. Memory: O(live requests), plus what distributions, time series and miss
// causes state. Cost: about 10 ns per output token, of quiet decodes nothing, and one table look-up
// per missed block.

#ifndef KVBLOCKS_SIM_REPORT_METRICS_H_
#define KVBLOCKS_SIM_REPORT_METRICS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvblocks/sim/engine/engine_observer.h"
#include "kvblocks/sim/report/group_occupancy.h"
#include "kvblocks/sim/report/hit_groups.h"
#include "kvblocks/sim/report/hit_rate_metrics.h"
#include "kvblocks/sim/report/latency_metrics.h"
#include "kvblocks/sim/report/miss_causes.h"
#include "kvblocks/sim/report/pool_metrics.h"
#include "kvblocks/sim/report/report.pb.h"
#include "kvblocks/sim/report/request_progress.h"
#include "kvblocks/sim/report/request_rows.h"
#include "kvblocks/sim/report/slo.h"
#include "kvblocks/sim/report/steady_window.h"
#include "kvblocks/sim/report/time_series.h"
#include "kvblocks/sim/simulation.h"

namespace kvblocks::sim {

struct ReplayMetricsOptions {
  LatencyMetrics::Options latency;
  HitRateMetrics::Options hit_rates;
  std::vector<Objective> objectives;
  // Of the steady window; the warm-up is that of the hit rates.
  Warmup cooldown = {.share_ppm = 0};
  SimTime series_tick = kSecond;
  size_t top_prefixes = HitGroups::kMinTopPrefixes;  // listed in the report, at least
  size_t series_max_points = TimeSeries::kDefaultMaxPoints;
  RequestRowSink* rows = nullptr;       // not owned
  AdmissionSink* admissions = nullptr;  // not owned
};

class ReplayMetrics final : public EngineObserver {
 public:
  explicit ReplayMetrics(const ReplayMetricsOptions& options);

  bool NeedsEveryRecord() const override { return false; }
  void OnRunStart(const RunInfo& info) override;
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnQuietDecodes(const SimRequest& request, int64_t num_steps) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;
  void OnRunEnd(SimTime now) override;

  // All measured sections; configuration, outcome and notes are the caller's. After the run; the
  // simulation may be gone.
  void Fill(const SimulationResult& result, ::kvblocks::report::v1::Report* out);

  // Of first admissions so far, for progress displays.
  int64_t num_queried_tokens() const { return num_queried_; }
  int64_t num_hit_tokens() const { return num_hit_; }
  // As of the last event.
  const PoolGauges& pool_gauges() const { return pool_.gauges(); }

 private:
  struct Group {
    std::string kind;
    int64_t block_tokens = 0;
    int64_t num_layers = 0;
    int64_t hit_blocks = 0, skipped_blocks = 0, resume_hit_blocks = 0, new_blocks = 0;
    int64_t vetoed_tokens = 0, vetoed_requests = 0;
  };

  void AdvanceTo(SimTime now);
  void EndRequest(const SimRequest& request, SimTime now);
  void FillWorkload(const SimulationResult& result, ::kvblocks::report::v1::Report* out) const;
  void FillTotals(const SimulationResult& result, ::kvblocks::report::v1::Report* out) const;
  void FillThroughput(const ThroughputSums& from, const ThroughputSums& to,
                      const std::string& window, ::kvblocks::report::v1::Throughput* out) const;
  void FillGoodput(::kvblocks::report::v1::Goodput* out);
  GoodputMetrics& GoodputOfClass(const std::string& name);
  void FillGroups(::kvblocks::report::v1::Report* out) const;
  double DurationSeconds() const;

  ReplayMetricsOptions options_;
  RequestProgressTable requests_;
  LatencyMetrics latency_;
  HitRateMetrics hit_rates_;
  HitGroups hit_groups_;
  MissClassifier misses_;
  PoolMetrics pool_;
  GroupOccupancy occupancy_;
  GoodputMetrics goodput_;
  std::map<std::string, GoodputMetrics> class_goodput_;
  TimeSeries series_;

  TraceInfo trace_;
  int64_t num_blocks_ = 0;
  int64_t block_tokens_ = 0;
  int64_t max_num_batched_tokens_ = 0;
  std::string time_source_;

  // The time line.
  std::optional<SimTime> first_event_;
  SimTime last_event_ = 0;
  int64_t steps_under_way_ = 0;
  TimeSeries::Gauges gauges_;
  TimeSeries::Counts counts_;  // since the last step
  int64_t evictions_seen_ = 0;
  ThroughputSums sums_;
  SteadyWindow steady_;

  // Sums.
  SimTime last_arrival_ = 0;
  int64_t input_tokens_ = 0, requested_output_ = 0;
  int64_t num_queried_ = 0, num_hit_ = 0;
  std::string first_rejection_;
  int64_t requests_preempted_ = 0;
  int64_t resume_hit_tokens_ = 0;
  SimTime preempted_time_ = 0;
  std::string worst_request_;
  int64_t worst_preemptions_ = 0;
  int64_t verified_drafts_ = 0, accepted_drafts_ = 0, rejected_drafts_ = 0, verifications_ = 0;
  std::vector<Group> groups_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_METRICS_H_
