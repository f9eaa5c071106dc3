#include "kvblocks/sim/report/metrics.h"

#include <algorithm>

namespace kvblocks::sim {

ReplayMetrics::ReplayMetrics(const ReplayMetricsOptions& options)
    : options_(options),
      latency_(options.latency),
      hit_rates_(options.hit_rates),
      goodput_(options.objectives),
      series_(options.series_tick, options.series_max_points) {
  if (options.admissions != nullptr && options.admissions->wants_runs()) misses_.KeepRuns();
}

void ReplayMetrics::OnRunStart(const RunInfo& info) {
  trace_ = *info.trace;
  time_source_ = info.time_source;
  num_blocks_ = info.manager->pool().num_blocks();
  block_tokens_ = info.manager->scheduler_block_size();
  max_num_batched_tokens_ = info.scheduler->max_num_batched_tokens;
  for (GroupId g = 0; g < info.manager->num_groups(); ++g) {
    const SingleTypeManager& group = info.manager->group(g);
    groups_.push_back(
        {.kind = std::string(group.spec().kind_name()),
         .block_tokens = group.block_size(),
         .num_layers = static_cast<int64_t>(
             info.manager->config().groups[static_cast<size_t>(g)].layer_names.size())});
  }
  misses_.OnRunStart(info);
  pool_.OnRunStart(info);
  occupancy_.OnRunStart(info);
}

// Gauges that change at `now` held until now.
void ReplayMetrics::AdvanceTo(SimTime now) {
  if (first_event_ && now == last_event_) return;
  if (first_event_) {
    gauges_.referenced = pool_.gauges().referenced;
    gauges_.resident = pool_.gauges().resident;
    series_.AddInterval(last_event_, now, gauges_);
    if (gauges_.is_busy) sums_.busy += now - last_event_;
  } else {
    first_event_ = now;
  }
  pool_.Advance(now);
  last_event_ = now;
  sums_.time = now;
}

void ReplayMetrics::OnArrival(const SimRequest& request, SimTime now) {
  AdvanceTo(now);
  requests_.Reset(request);
  ++gauges_.waiting;
  last_arrival_ = std::max(last_arrival_, request.arrival);
  input_tokens_ += request.num_prompt;
  requested_output_ += request.max_output;
}

void ReplayMetrics::OnRejection(const SimRequest& request, SimTime now) {
  AdvanceTo(now);
  if (first_rejection_.empty()) {
    first_rejection_ = "request " + request.spec.id + ": " + request.finish_text;
  }
  --gauges_.waiting;
  EndRequest(request, now);
}

void ReplayMetrics::OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) {
  AdvanceTo(now);
  hit_rates_.OnAdmissionAttempt(record);
  // The series count as the counters do.
  if (options_.hit_rates.legacy_counters) {
    counts_.queried_tokens += record.num_queried_tokens;
    counts_.hit_tokens += record.num_hit_tokens;
  }
  misses_.OnAdmissionAttempt(record);
}

void ReplayMetrics::OnAdmission(const AdmissionRecord& record, SimTime now) {
  const SimRequest& request = *record.request;
  RequestProgress& progress = requests_[request];
  const AdmissionMisses misses = misses_.OnAdmission(record, progress, now);
  hit_rates_.OnAdmission(record, misses, misses_.block_tokens(), now);
  if (options_.admissions != nullptr) {
    options_.admissions->OnMisses(record, misses, progress, now);
  }
  pool_.OnAdmission(record);
  occupancy_.OnAdmission(request);
  progress.is_running = true;
  if (record.is_resume) {
    preempted_time_ += now - progress.preempted_at;
    progress.preempted_time += now - progress.preempted_at;
    progress.num_resume_hit_tokens += record.num_hit_tokens;
    resume_hit_tokens_ += record.num_hit_tokens;
  } else {
    steady_.OnFirstAdmission(sums_);
    ++sums_.admissions;
    progress.first_scheduled = now;
    progress.num_queried_tokens = record.num_queried_tokens;
    progress.num_hit_tokens = record.num_hit_tokens;
    progress.num_possible_tokens = misses.num_possible_blocks * misses_.block_tokens();
    hit_groups_.OnFirstAdmission(record, misses_.FirstBlockKey(record));
    num_queried_ += record.num_queried_tokens;
    num_hit_ += record.num_hit_tokens;
    if (!options_.hit_rates.legacy_counters) {
      counts_.queried_tokens += record.num_queried_tokens;
      counts_.hit_tokens += record.num_hit_tokens;
    }
    if (misses.veto_group) {
      Group& group = groups_[static_cast<size_t>(*misses.veto_group)];
      ++group.vetoed_requests;
      group.vetoed_tokens += misses_.block_tokens() *
                             misses.blocks[static_cast<size_t>(MissCause::kWindowOrAlignment)];
    }
  }
  for (size_t g = 0; g < record.hits->num_groups(); ++g) {
    const auto blocks = record.hits->blocks(static_cast<GroupId>(g));
    // Nulls come first: what lies before the window.
    const int64_t nulls =
        std::find_if(blocks.begin(), blocks.end(), [](BlockId b) { return b != kNullBlockId; }) -
        blocks.begin();
    const int64_t found = static_cast<int64_t>(blocks.size()) - nulls;
    if (record.is_resume) {
      groups_[g].resume_hit_blocks += found;
    } else {
      groups_[g].hit_blocks += found;
      groups_[g].skipped_blocks += nulls;
    }
  }
}

void ReplayMetrics::OnPreemption(const PreemptionRecord& record, SimTime now) {
  AdvanceTo(now);
  RequestProgress& progress = requests_[*record.request];
  misses_.OnPreemption(record, progress, now);
  pool_.OnPreemption(record, progress);
  occupancy_.OnRelease(*record.request);
  progress.preempted_at = now;
  progress.is_running = false;
  ++counts_.preemptions;
  const int64_t preemptions = record.request->num_preemptions;
  requests_preempted_ += preemptions == 1;
  if (preemptions > worst_preemptions_) {
    worst_preemptions_ = preemptions;
    worst_request_ = record.request->spec.id;
  }
}

void ReplayMetrics::OnStepScheduled(const StepRecord& step) {
  AdvanceTo(step.start);
  pool_.OnStepScheduled(step, requests_);
  occupancy_.OnStepScheduled(step.start);
  gauges_.running = step.num_running;
  gauges_.waiting = step.num_waiting;
  steps_under_way_ += step.num_requests() > 0;
  gauges_.is_busy = steps_under_way_ > 0;
  int64_t new_blocks = 0;
  for (const ScheduledRecord& record : step.scheduled) {
    if (record.num_new_blocks == 0) continue;
    new_blocks += record.num_new_blocks;
    if (groups_.size() == 1) {
      groups_[0].new_blocks += record.num_new_blocks;
      continue;
    }
    for (size_t g = 0; g < record.new_blocks.num_groups(); ++g) {
      groups_[g].new_blocks +=
          static_cast<int64_t>(record.new_blocks.blocks(static_cast<GroupId>(g)).size());
    }
  }
  misses_.OnStepScheduled(new_blocks);
  counts_.evictions += step.pool.num_evictions - evictions_seen_;
  evictions_seen_ = step.pool.num_evictions;
  if (step.num_requests() == 0) {
    series_.AddCounts(step.start, counts_);
    counts_ = {};
  }
}

void ReplayMetrics::OnStepFinished(const StepRecord& step) {
  // Since the last event the device was at this step.
  gauges_.step_time = step.end - step.device_start;
  AdvanceTo(step.end);
  latency_.OnStepFinished(step, requests_);
  pool_.OnStepFinished(step, requests_);
  counts_.output_tokens += step.num_quiet;
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const OutputRecord& output = step.outputs[i];
    counts_.output_tokens += output.num_emitted;
    if (output.finish_reason != FinishReason::kNone) {
      // One that was preempted meanwhile may end with a token that was still to come.
      (requests_[*output.request].is_running ? gauges_.running : gauges_.waiting) -= 1;
    }
    if (step.scheduled[i].num_verified_drafts == 0) continue;
    verified_drafts_ += step.scheduled[i].num_verified_drafts;
    accepted_drafts_ += output.num_accepted_drafts;
    rejected_drafts_ += output.num_rejected_drafts;
    verifications_ += !step.scheduled[i].is_padded;
  }
  gauges_.is_busy = --steps_under_way_ > 0;
  counts_.prefill_tokens += step.num_prefill_tokens;
  counts_.decode_tokens += step.num_decode_tokens;
  ++counts_.steps;
  ++sums_.steps;
  sums_.scheduled_requests += step.num_requests();
  sums_.computed_tokens += step.num_tokens;
  sums_.output_tokens += counts_.output_tokens;
  series_.AddCounts(step.end, counts_);
  counts_ = {};
}

void ReplayMetrics::OnQuietDecodes(const SimRequest& request, int64_t num_steps) {
  latency_.OnQuietDecodes(requests_[request], num_steps);
}

GoodputMetrics& ReplayMetrics::GoodputOfClass(const std::string& name) {
  const auto it = class_goodput_.find(name);
  if (it != class_goodput_.end()) return it->second;
  const bool is_full = class_goodput_.size() >= HitGroups::kMaxNames;
  return class_goodput_.try_emplace(is_full ? "(others)" : name, options_.objectives).first->second;
}

void ReplayMetrics::EndRequest(const SimRequest& request, SimTime now) {
  RequestProgress* progress = requests_.Has(request) ? &requests_[request] : nullptr;
  std::optional<RequestLatency> latency;
  if (progress != nullptr && progress->num_outputs > 0) {
    latency = LatencyOf(request, *progress, options_.latency.client_rtt);
  }
  if (request.finish_reason == FinishReason::kLength ||
      request.finish_reason == FinishReason::kStop) {
    ++sums_.finished;
    sums_.input_tokens += request.num_prompt;
    steady_.OnFinish(sums_);
    if (latency) {
      latency_.OnFinish(*latency);
      goodput_.OnFinish(*latency);
      if (goodput_.has_objectives()) GoodputOfClass(request.spec.slo_class).OnFinish(*latency);
    }
  } else {
    goodput_.OnFailure();
    if (goodput_.has_objectives()) GoodputOfClass(request.spec.slo_class).OnFailure();
  }
  misses_.OnFinish(request, progress, now);
  occupancy_.OnRelease(request);
  if (options_.rows != nullptr) {
    options_.rows->OnRow(
        {.request = &request, .progress = progress, .latency = latency, .end = now});
  }
}

void ReplayMetrics::OnFinish(const SimRequest& request, SimTime now) {
  AdvanceTo(now);
  if (request.finish_reason == FinishReason::kAbort && requests_.Has(request)) {
    RequestProgress& progress = requests_[request];
    pool_.OnAbort(request, progress);
    // The next step sets both anew; until then nobody else comes or goes.
    (progress.is_running ? gauges_.running : gauges_.waiting) -= 1;
  }
  EndRequest(request, now);
}

void ReplayMetrics::OnRunEnd(SimTime now) {
  if (first_event_) AdvanceTo(std::max(now, last_event_));
}

}  // namespace kvblocks::sim
