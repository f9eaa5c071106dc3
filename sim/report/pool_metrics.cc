#include "kvblocks/sim/report/pool_metrics.h"

#include <algorithm>
#include <cmath>

#include "kvblocks/sim/report/latency_metrics.h"

namespace kvblocks::sim {
namespace {

double Share(__int128 part, __int128 whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void PoolMetrics::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  const BlockPool& pool = manager_->pool();
  usable_ = pool.num_blocks() - 1 - pool.num_permanent();
  for (GroupId g = 0; g < manager_->num_groups() && !full_group_; ++g) {
    if (manager_->group(g).is_full_type()) full_group_ = g;
  }
}

void PoolMetrics::ReadPool() {
  const BlockPool& pool = manager_->pool();
  if (const PageChunks* chunks = pool.chunks()) {
    // Pages differ in size, so what counts is their share of the memory.
    const int32_t lent = chunks->num_chunks() - chunks->num_unassigned();
    gauges_.referenced = std::llround(chunks->usage() * static_cast<double>(usable_));
    gauges_.resident = usable_ * lent / chunks->num_chunks();
  } else {
    gauges_.referenced = usable_ - pool.num_free();
    gauges_.resident = gauges_.referenced + pool.num_cached_unreferenced();
  }
  gauges_.duplicates = pool.num_keyed_blocks() - pool.num_keys();
  evictions_ = pool.num_evictions();
}

void PoolMetrics::SetSlots(const SimRequest& request, RequestProgress& progress) {
  if (!full_group_) return;
  const int64_t slots =
      static_cast<int64_t>(manager_->GetBlocks(*request.kv, *full_group_).size()) *
      manager_->group(*full_group_).block_size();
  gauges_.slots += slots - progress.num_slots;
  progress.num_slots = slots;
}

void PoolMetrics::OnAdmission(const AdmissionRecord& record) {
  gauges_.computed += record.num_hit_tokens;
}

void PoolMetrics::OnPreemption(const PreemptionRecord& record, RequestProgress& progress) {
  gauges_.computed -= record.num_computed_lost;
  gauges_.slots -= progress.num_slots;
  progress.num_slots = 0;
}

void PoolMetrics::OnAbort(const SimRequest& request, RequestProgress& progress) {
  gauges_.computed -= request.num_computed;
  gauges_.slots -= progress.num_slots;
  progress.num_slots = 0;
  ReadPool();
}

void PoolMetrics::OnStepScheduled(const StepRecord& step, RequestProgressTable& requests) {
  for (const ScheduledRecord& record : step.scheduled) {
    if (record.num_new_blocks > 0 || record.is_admission) {
      SetSlots(*record.request, requests[*record.request]);
    }
  }
  gauges_.computed += step.num_tokens;
  ReadPool();
  peak_referenced_ = std::max(peak_referenced_, gauges_.referenced);
  peak_resident_ = std::max(peak_resident_, gauges_.resident);
  peak_duplicates_ = std::max(peak_duplicates_, gauges_.duplicates);
  if (full_group_) {
    peak_fragmentation_ =
        std::max(peak_fragmentation_, Share(gauges_.slots - gauges_.computed, gauges_.slots));
  }
}

void PoolMetrics::OnStepFinished(const StepRecord& step, RequestProgressTable& requests) {
  for (const OutputRecord& output : step.outputs) {
    // A preempted request has given up all its tokens already.
    if (output.num_rejected_drafts > 0 && requests[*output.request].is_running) {
      gauges_.computed -= output.num_rejected_drafts;
    }
    if (output.finish_reason == FinishReason::kNone) continue;
    RequestProgress& progress = requests[*output.request];
    gauges_.computed -= output.request->num_computed;
    gauges_.slots -= progress.num_slots;
    progress.num_slots = 0;
  }
  ReadPool();
}

void PoolMetrics::Advance(SimTime now) {
  if (last_) {
    const SimTime dt = now - *last_;
    const Integral weight = dt;
    total_time_ += dt;
    referenced_time_ += weight * gauges_.referenced;
    resident_time_ += weight * gauges_.resident;
    duplicate_time_ += weight * gauges_.duplicates;
    slot_time_ += weight * gauges_.slots;
    unused_slot_time_ += weight * (gauges_.slots - gauges_.computed);
    if (gauges_.referenced * 10 > usable_ * 9) time_above_90_ += dt;
  }
  last_ = now;
}

void PoolMetrics::Fill(::kvblocks::report::v1::Pool* out) const {
  const Integral capacity = static_cast<Integral>(total_time_) * usable_;
  out->mutable_usage()->set_mean(Share(referenced_time_, capacity));
  out->mutable_usage()->set_peak(Share(peak_referenced_, usable_));
  out->mutable_resident()->set_mean(Share(resident_time_, capacity));
  out->mutable_resident()->set_peak(Share(peak_resident_, usable_));
  if (full_group_) {
    out->mutable_fragmentation()->set_mean(Share(unused_slot_time_, slot_time_));
    out->mutable_fragmentation()->set_peak(peak_fragmentation_);
  }
  out->mutable_duplicate_blocks()->set_mean(Share(duplicate_time_, total_time_));
  out->mutable_duplicate_blocks()->set_peak(static_cast<double>(peak_duplicates_));
  out->set_time_above_90_percent_s(Seconds(time_above_90_));
  out->set_time_above_90_percent_share(Share(time_above_90_, total_time_));
  out->set_evictions(evictions_);
  out->set_peak_referenced_blocks(peak_referenced_);
}

}  // namespace kvblocks::sim
