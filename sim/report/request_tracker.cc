#include "kvblocks/sim/report/request_tracker.h"

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

}  // namespace kvblocks::sim
