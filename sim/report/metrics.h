// ReplayMetrics: the observer that measures a replay and fills its report.
//
//   ReplayMetrics metrics({.series_tick = kSecond});
//   auto simulation = Simulation::Create(config, reader, step_time, {&metrics});
//   (*simulation)->Run();
//   metrics.Fill((*simulation)->result(), &report);
//
// Composes one ReportSection per section of the report and keeps their time line. Memory: O(live
// requests), plus what distributions, time series and miss reasons state. Cost: about 10 ns per
// output token, of skipped decodes nothing, and one table look-up per missed block.

#ifndef KVBLOCKS_SIM_REPORT_METRICS_H_
#define KVBLOCKS_SIM_REPORT_METRICS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/engine/engine_observer.h"
#include "sim/engine/observer_list.h"
#include "sim/report/hit_rate_metrics.h"
#include "sim/report/latency_metrics.h"
#include "sim/report/miss_classifier.h"
#include "sim/report/pool_metrics.h"
#include "sim/report/report_section.h"
#include "sim/report/request_rows.h"
#include "sim/report/time_series.h"
#include "sim/report/workload_section.h"

namespace kvblocks::sim {

// RequestTracker: keeps what the sections of a report share - how far each request is, what its
// admission missed, when it ended - and tells sinks of admissions and of rows. Called first.
class RequestTracker final : public EngineObserver {
 public:
  // `rows` and `admissions` may be null.
  RequestTracker(SimTime client_rtt, RequestRowSink* rows, AdmissionSink* admissions,
                 SharedFacts* facts);

  bool NeedsEveryRecord() const override { return false; }
  void OnRunStart(const RunInfo& info) override { classifier_.OnRunStart(info); }
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override { OnFinish(request, now); }
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;

 private:
  const SimTime client_rtt_;
  RequestRowSink* const rows_;
  AdmissionSink* const admissions_;
  SharedFacts* const facts_;
  MissClassifier classifier_;
};

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

class ReplayMetrics final : public ObserverList {
 public:
  explicit ReplayMetrics(const ReplayMetricsOptions& options);
  ReplayMetrics(const ReplayMetrics&) = delete;
  ReplayMetrics& operator=(const ReplayMetrics&) = delete;

  void OnStepFinished(const StepRecord& step) override;
  void OnRunEnd(SimTime now) override;

  // All measured sections; configuration, outcome and notes are the caller's. After the run; the
  // simulation may be gone.
  void Fill(const SimulationResult& result, ::kvblocks::report::v1::Report* out);

  // Of first admissions so far, for progress displays.
  int64_t num_queried_tokens() const { return hit_rates_.num_queried_tokens(); }
  int64_t num_hit_tokens() const { return hit_rates_.num_hit_tokens(); }
  // As of the last event.
  const PoolGauges& pool_gauges() const { return pool_.gauges(); }

 private:
  void OnTime(SimTime now) override;

  SharedFacts facts_;
  RequestTracker tracker_;
  WorkloadSection workload_;
  ThroughputSection throughput_;
  LatencyMetrics latency_;
  GoodputSection goodput_;
  HitRateMetrics hit_rates_;
  HitGroups hit_groups_;
  PoolMetrics pool_;
  SeriesSection series_;
  PreemptionSection preemption_;
  DraftSection drafts_;
  GroupSection groups_;
  HitReuseSection hit_reuse_;
  std::vector<ReportSection*> sections_;  // in the order of their calls
  std::optional<SimTime> first_event_;
  SimTime last_event_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_METRICS_H_
