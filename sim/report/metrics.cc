#include "kvblocks/sim/report/metrics.h"

#include <algorithm>

namespace kvblocks::sim {

ReplayMetrics::ReplayMetrics(const ReplayMetricsOptions& options)
    : tracker_(options.latency.client_rtt, options.rows, options.admissions, &facts_),
      throughput_(options.hit_rates.warmup, options.cooldown),
      latency_(options.latency, &facts_),
      goodput_(options.objectives, &facts_),
      hit_rates_(options.hit_rates, &facts_),
      hit_groups_(options.top_prefixes, &facts_),
      pool_(&facts_),
      series_(options.series_tick, options.series_max_points, options.hit_rates.legacy_counters,
              options.latency.client_rtt, &pool_, &facts_),
      preemption_(&facts_),
      groups_(&facts_),
      hit_reuse_(&facts_),
      sections_{&workload_, &throughput_, &latency_,    &goodput_, &hit_rates_, &hit_groups_,
                &series_,   &pool_,       &preemption_, &drafts_,  &groups_,    &hit_reuse_} {
  Add(&tracker_);
  for (ReportSection* section : sections_) Add(section);
}

void ReplayMetrics::OnTime(SimTime now) {
  if (first_event_ && now == last_event_) return;
  if (!first_event_) first_event_ = last_event_ = now;
  for (ReportSection* section : sections_) section->OnInterval(last_event_, now);
  last_event_ = now;
}

void ReplayMetrics::OnStepFinished(const StepRecord& step) {
  series_.SetStepTime(step);
  ObserverList::OnStepFinished(step);
}

void ReplayMetrics::OnRunEnd(SimTime now) {
  if (first_event_) OnTime(std::max(now, last_event_));
}

void ReplayMetrics::Fill(const SimulationResult& result, ::kvblocks::report::v1::Report* out) {
  out->set_schema_version(1);
  const ReplayEnd end = {
      .result = result, .first_event = first_event_.value_or(0), .last_event = last_event_};
  for (ReportSection* section : sections_) section->Fill(end, out);
}

}  // namespace kvblocks::sim
