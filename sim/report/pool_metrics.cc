#include "kvblocks/sim/report/pool_metrics.h"

#include <algorithm>
#include <cmath>

namespace kvblocks::sim {

PoolBlocks CountPoolBlocks(const BlockPool& pool) {
  PoolBlocks blocks;
  blocks.usable = pool.num_blocks() - 1 - pool.num_permanent();
  if (const PageChunks* chunks = pool.chunks()) {
    // What counts is the share of the memory.
    const int32_t lent = chunks->num_chunks() - chunks->num_unassigned();
    blocks.referenced = std::llround(chunks->usage() * static_cast<double>(blocks.usable));
    blocks.resident = blocks.usable * lent / chunks->num_chunks();
  } else {
    blocks.referenced = blocks.usable - pool.num_free();
    blocks.resident = blocks.referenced + pool.num_cached_unreferenced();
  }
  return blocks;
}

void PoolMetrics::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  usable_ = CountPoolBlocks(manager_->pool()).usable;
  for (GroupId g = 0; g < manager_->num_groups() && !full_group_; ++g) {
    if (manager_->group(g).is_full_type()) full_group_ = g;
  }
}

void PoolMetrics::ReadPool() {
  const BlockPool& pool = manager_->pool();
  const PoolBlocks blocks = CountPoolBlocks(pool);
  gauges_.referenced = blocks.referenced;
  gauges_.resident = blocks.resident;
  gauges_.duplicates = pool.num_keyed_blocks() - pool.num_keys();
  evictions_ = pool.num_evictions();
  if (pool.retention() == nullptr) return;
  retention_ = pool.retention()->totals();
  retention_cap_ = pool.retention()->most();
}

void PoolMetrics::SetSlots(const SimRequest& request, int64_t slots) {
  RequestProgress& progress = facts_->requests[request];
  gauges_.slots += slots - progress.num_slots;
  progress.num_slots = slots;
}

void PoolMetrics::OnAdmission(const AdmissionRecord& record, SimTime) {
  gauges_.computed += record.num_hit_tokens + record.num_external_tokens;
}

void PoolMetrics::OnPreemption(const PreemptionRecord& record, SimTime) {
  gauges_.computed -= record.num_computed_lost;
  SetSlots(*record.request, 0);
}

void PoolMetrics::OnFinish(const SimRequest& request, SimTime) {
  // Requests that end with a step are seen there.
  if (!request.was_cut_short() || !facts_->requests.Has(request)) return;
  gauges_.computed -= request.num_computed;
  SetSlots(request, 0);
  ReadPool();
}

void PoolMetrics::OnStepScheduled(const StepRecord& step) {
  for (const ScheduledRecord& record : step.scheduled) {
    if (record.is_loaded) {
      // The last known token is computed, even if all came.
      const SimRequest& request = *record.request;
      gauges_.computed += record.num_context - request.num_load_hits - request.num_load_tokens;
    }
    if (!full_group_ || (record.num_new_blocks == 0 && !record.is_admission)) continue;
    SetSlots(*record.request,
             static_cast<int64_t>(manager_->GetBlocks(*record.request->kv, *full_group_).size()) *
                 manager_->group(*full_group_).block_size());
  }
  gauges_.computed += step.num_tokens;
  ReadPool();
  peak_referenced_ = std::max(peak_referenced_, gauges_.referenced);
  peak_resident_ = std::max(peak_resident_, gauges_.resident);
  peak_duplicates_ = std::max(peak_duplicates_, gauges_.duplicates);
  if (full_group_) {
    peak_fragmentation_ =
        std::max(peak_fragmentation_, Ratio(gauges_.slots - gauges_.computed, gauges_.slots));
  }
}

void PoolMetrics::OnStepFinished(const StepRecord& step) {
  for (const OutputRecord& output : step.outputs) {
    // A preempted request has given up all its tokens already.
    if (output.num_rejected_drafts > 0 && facts_->requests[*output.request].is_running) {
      gauges_.computed -= output.num_rejected_drafts;
    }
    if (output.finish_reason == FinishReason::kNone) continue;
    gauges_.computed -= output.request->num_computed;
    SetSlots(*output.request, 0);
  }
  ReadPool();
}

void PoolMetrics::OnInterval(SimTime from, SimTime to) {
  const Integral weight = to - from;
  total_time_ += to - from;
  referenced_time_ += weight * gauges_.referenced;
  resident_time_ += weight * gauges_.resident;
  duplicate_time_ += weight * gauges_.duplicates;
  slot_time_ += weight * gauges_.slots;
  unused_slot_time_ += weight * (gauges_.slots - gauges_.computed);
  if (gauges_.referenced * 10 > usable_ * 9) time_above_90_ += to - from;
}

void PoolMetrics::Fill(const ReplayEnd&, ::kvblocks::report::v1::Report* report) {
  ::kvblocks::report::v1::Pool* out = report->mutable_pool();
  const Integral capacity = static_cast<Integral>(total_time_) * usable_;
  out->mutable_usage()->set_mean(Ratio(referenced_time_, capacity));
  out->mutable_usage()->set_peak(Ratio(peak_referenced_, usable_));
  out->mutable_resident()->set_mean(Ratio(resident_time_, capacity));
  out->mutable_resident()->set_peak(Ratio(peak_resident_, usable_));
  if (full_group_) {
    out->mutable_fragmentation()->set_mean(Ratio(unused_slot_time_, slot_time_));
    out->mutable_fragmentation()->set_peak(peak_fragmentation_);
  }
  out->mutable_duplicate_blocks()->set_mean(Ratio(duplicate_time_, total_time_));
  out->mutable_duplicate_blocks()->set_peak(static_cast<double>(peak_duplicates_));
  out->set_time_above_90_percent_s(Seconds(time_above_90_));
  out->set_time_above_90_percent_share(Ratio(time_above_90_, total_time_));
  out->set_evictions(evictions_);
  out->set_peak_referenced_blocks(peak_referenced_);
  if (!retention_) return;
  auto* retention = out->mutable_retention();
  retention->set_cap(retention_cap_);
  retention->set_peak(retention_->peak);
  retention->set_begun(retention_->num_begun);
  retention->set_renewed(retention_->num_renewed);
  retention->set_refused(retention_->num_refused);
  retention->set_displaced(retention_->num_displaced);
  retention->set_expired(retention_->num_expired);
  retention->set_taken(retention_->num_taken);
  retention->set_hits(retention_->num_hits);
}

}  // namespace kvblocks::sim
