#include "sim/report/metrics.h"

#include <algorithm>

#include "sim/report/result_file.h"

namespace kvblocks::sim {

RequestTracker::RequestTracker(SimTime client_rtt, RequestRowSink* rows, AdmissionSink* admissions,
                               SharedFacts* facts)
    : client_rtt_(client_rtt), rows_(rows), admissions_(admissions), facts_(facts) {
  if (admissions_ != nullptr && admissions_->wants_runs()) classifier_.KeepRuns();
}

void RequestTracker::OnArrival(const SimRequest& request, SimTime) {
  facts_->requests.Reset(request);
}

void RequestTracker::OnAdmissionAttempt(const AdmissionRecord& record, SimTime) {
  classifier_.OnAdmissionAttempt(record);
}

void RequestTracker::OnAdmission(const AdmissionRecord& record, SimTime now) {
  RequestProgress& progress = facts_->requests[*record.request];
  facts_->misses = classifier_.OnAdmission(record, progress, now, facts_->first_hit_use);
  facts_->first_block = classifier_.FirstBlockKey(record);
  if (admissions_ != nullptr) admissions_->OnMisses(record, facts_->misses, progress, now);
  progress.is_running = true;
  if (record.is_resume) {
    progress.preempted_time += now - progress.preempted_at;
    progress.num_resume_hit_tokens += record.num_hit_tokens;
  } else {
    progress.first_scheduled = now;
    progress.num_queried_tokens = record.num_queried_tokens;
    progress.num_hit_tokens = record.num_hit_tokens;
    progress.num_external_tokens = record.num_external_tokens;
    progress.num_possible_tokens = facts_->misses.num_possible_blocks * facts_->misses.block_tokens;
  }
}

void RequestTracker::OnPreemption(const PreemptionRecord& record, SimTime now) {
  RequestProgress& progress = facts_->requests[*record.request];
  classifier_.OnPreemption(record, progress, now);
  progress.preempted_at = now;
  progress.is_running = false;
}

void RequestTracker::OnStepScheduled(const StepRecord& step) {
  int64_t new_blocks = 0;
  for (const ScheduledRecord& record : step.scheduled) new_blocks += record.num_new_blocks;
  classifier_.OnStepScheduled(new_blocks);
}

void RequestTracker::OnFinish(const SimRequest& request, SimTime now) {
  const RequestProgress* progress = facts_->Find(request);
  facts_->latency.reset();
  if (progress != nullptr && progress->num_outputs > 0) {
    facts_->latency = LatencyOf(request, *progress, client_rtt_);
  }
  classifier_.OnFinish(request, progress, now);
  if (rows_ != nullptr) {
    rows_->OnRow(
        {.request = &request, .progress = progress, .latency = facts_->latency, .end = now});
  }
}

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
  out->set_schema_version(kReportSchemaVersion);
  const ReplayEnd end = {
      .result = result, .first_event = first_event_.value_or(0), .last_event = last_event_};
  for (ReportSection* section : sections_) section->Fill(end, out);
}

}  // namespace kvblocks::sim
