#include "kvblocks/sim/report/workload_section.h"

#include <algorithm>

namespace kvblocks::sim {

namespace pb = ::kvblocks::report::v1;

// --- What ran ---

void WorkloadSection::OnRunStart(const RunInfo& info) {
  trace_ = *info.trace;
  time_source_ = info.time_source;
  const BlockPool& pool = info.manager->pool();
  num_blocks_ = pool.num_blocks();
  usable_blocks_ = num_blocks_ - 1 - pool.num_permanent();
  block_tokens_ = info.manager->scheduler_block_size();
  hit_unit_tokens_ = info.manager->hit_alignment();
  first_group_block_tokens_ = info.manager->group(0).block_size();
}

void WorkloadSection::OnArrival(const SimRequest& request, SimTime) {
  last_arrival_ = std::max(last_arrival_, request.arrival);
  input_tokens_ += request.num_prompt;
  requested_output_ += request.max_output;
  encoder_tokens_ += request.spec.encoder_tokens.value_or(0);
}

void WorkloadSection::OnRejection(const SimRequest& request, SimTime) {
  if (!first_rejection_.empty()) return;
  first_rejection_ = "request " + request.spec.id + ": " + request.finish_text;
}

void WorkloadSection::Fill(const ReplayEnd& end, pb::Report* out) {
  const SimulationResult& result = end.result;
  auto* workload = out->mutable_workload();
  workload->set_format(trace_.format);
  workload->set_content_block_tokens(trace_.block_tokens);
  workload->set_pseudo_tokens(trace_.pseudo_tokens);
  workload->set_requests_arrived(result.num_arrived);
  workload->set_requests_skipped(result.num_skipped);
  workload->set_input_tokens(input_tokens_);
  workload->set_requested_output_tokens(requested_output_);
  workload->set_encoder_tokens(encoder_tokens_);
  workload->set_first_arrival_s(Seconds(end.first_event));
  workload->set_last_arrival_s(Seconds(last_arrival_));

  auto* setup = out->mutable_setup();
  setup->set_time_source(time_source_);
  setup->set_num_blocks(num_blocks_);
  setup->set_usable_blocks(usable_blocks_);
  setup->set_block_tokens(block_tokens_);
  setup->set_hit_unit_tokens(hit_unit_tokens_);
  setup->set_capacity_tokens(usable_blocks_ * first_group_block_tokens_);

  auto* totals = out->mutable_totals();
  totals->set_requests_finished(result.num_finished);
  totals->set_requests_rejected(result.num_rejected);
  totals->set_requests_aborted(result.num_aborted_time + result.num_aborted_queue +
                               result.num_aborted_session + result.num_lost);
  totals->set_requests_aborted_by_trace(result.num_aborted_time);
  totals->set_requests_aborted_in_queue(result.num_aborted_queue);
  totals->set_requests_aborted_with_session(result.num_aborted_session);
  totals->set_requests_failed(result.num_failed);
  totals->set_output_tokens(result.scheduler.num_output_tokens);
  totals->set_computed_tokens(result.scheduler.num_computed);
  totals->set_first_time_tokens(result.scheduler.num_first_time);
  totals->set_recomputed_tokens(result.scheduler.num_recomputed);
  totals->set_wasted_tokens(result.scheduler.num_wasted);
  totals->set_rejected_draft_tokens(result.scheduler.num_rejected_drafts);
  totals->set_steps(result.scheduler.num_steps);
  totals->set_empty_steps(result.scheduler.num_empty_steps);
  totals->set_peak_live_requests(result.peak_live_requests);
  totals->set_first_rejection(first_rejection_);
  totals->set_state_checkpoints(result.scheduler.num_state_checkpoints);
  totals->set_encoder_tokens(result.scheduler.num_encoder_tokens);
}

// --- Preemptions ---

void PreemptionSection::OnAdmission(const AdmissionRecord& record, SimTime now) {
  if (!record.is_resume) return;
  preempted_time_ += now - facts_->requests[*record.request].preempted_at;
  resume_hit_tokens_ += record.num_hit_tokens;
}

void PreemptionSection::OnPreemption(const PreemptionRecord& record, SimTime) {
  const int64_t preemptions = record.request->num_preemptions;
  requests_affected_ += preemptions == 1;
  if (preemptions <= worst_preemptions_) return;
  worst_preemptions_ = preemptions;
  worst_request_ = record.request->spec.id;
}

void PreemptionSection::Fill(const ReplayEnd& end, pb::Report* report) {
  auto* out = report->mutable_preemption();
  out->set_preemptions(end.result.scheduler.num_preemptions);
  out->set_requests_affected(requests_affected_);
  out->set_recomputed_tokens(end.result.scheduler.num_recomputed);
  out->set_resume_hit_tokens(resume_hit_tokens_);
  out->set_time_lost_s(Seconds(preempted_time_));
  out->set_worst_request(worst_request_);
  out->set_worst_request_preemptions(worst_preemptions_);
  out->set_empty_steps(end.result.scheduler.num_empty_steps);
}

// --- Drafts ---

void DraftSection::OnStepFinished(const StepRecord& step) {
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    if (step.scheduled[i].num_verified_drafts == 0) continue;
    verified_ += step.scheduled[i].num_verified_drafts;
    accepted_ += step.outputs[i].num_accepted_drafts;
    rejected_ += step.outputs[i].num_rejected_drafts;
    verifications_ += !step.scheduled[i].is_padded;
  }
}

void DraftSection::Fill(const ReplayEnd&, pb::Report* report) {
  auto* out = report->mutable_drafts();
  out->set_verified(verified_);
  out->set_accepted(accepted_);
  out->set_rejected(rejected_);
  out->set_mean_accepted(Ratio(accepted_, verifications_));
}

}  // namespace kvblocks::sim
