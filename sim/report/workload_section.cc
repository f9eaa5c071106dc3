#include "sim/report/workload_section.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sim/engine/scheduler_options.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::report::v1;

// --- What ran ---

void FillTally(const StepTally& tally, pb::Setup* setup) {
  setup->set_steps_outside_tables(tally.num_outside);
  setup->clear_time_shares();
  const Wide all = tally.measured + tally.estimated + tally.constants;
  if (all == 0) return;
  pb::TimeShares* shares = setup->mutable_time_shares();
  shares->set_kernels(Ratio(tally.measured, all));
  shares->set_roofline(Ratio(tally.estimated, all));
  shares->set_constants(Ratio(tally.constants, all));
}

void WorkloadSection::OnRunStart(const RunInfo& info) {
  const BlockPool& pool = info.manager->pool();
  workload_.set_format(info.trace->format);
  workload_.set_content_block_tokens(info.trace->block_tokens);
  workload_.set_pseudo_tokens(info.trace->pseudo_tokens);
  setup_.set_time_source(std::string(info.time_source));
  setup_.set_num_blocks(pool.num_blocks());
  setup_.set_usable_blocks(pool.num_blocks() - 1 - pool.num_permanent());
  setup_.set_block_tokens(info.manager->scheduler_block_size());
  setup_.set_hit_unit_tokens(info.manager->hit_alignment());
  setup_.set_capacity_tokens(setup_.usable_blocks() * info.manager->group(0).block_size());
}

void WorkloadSection::OnArrival(const SimRequest& request, SimTime) {
  last_arrival_ = std::max(last_arrival_, request.arrival);
  workload_.set_input_tokens(workload_.input_tokens() + request.num_prompt);
  workload_.set_requested_output_tokens(workload_.requested_output_tokens() + request.max_output);
  workload_.set_encoder_tokens(workload_.encoder_tokens() +
                               request.spec.encoder_tokens.value_or(0));
}

void WorkloadSection::OnRejection(const SimRequest& request, SimTime) {
  if (!first_rejection_.empty()) return;
  first_rejection_ = "request " + request.spec.id + ": " + request.finish_text;
}

void WorkloadSection::Fill(const ReplayEnd& end, pb::Report* out) {
  const SimulationResult& result = end.result;
  workload_.set_requests_arrived(result.num_arrived);
  workload_.set_requests_skipped(result.num_skipped);
  workload_.set_first_arrival_s(Seconds(end.first_event));
  workload_.set_last_arrival_s(Seconds(last_arrival_));
  *out->mutable_workload() = workload_;
  FillTally(result.step_tally, &setup_);
  out->mutable_setup()->MergeFrom(setup_);

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
  counted_.set_resume_hit_tokens(counted_.resume_hit_tokens() + record.num_hit_tokens);
}

void PreemptionSection::OnPreemption(const PreemptionRecord& record, SimTime) {
  const int64_t preemptions = record.request->num_preemptions;
  counted_.set_requests_affected(counted_.requests_affected() + (preemptions == 1));
  if (preemptions <= counted_.worst_request_preemptions()) return;
  counted_.set_worst_request_preemptions(preemptions);
  counted_.set_worst_request(record.request->spec.id);
}

void PreemptionSection::Fill(const ReplayEnd& end, pb::Report* report) {
  counted_.set_preemptions(end.result.scheduler.num_preemptions);
  counted_.set_recomputed_tokens(end.result.scheduler.num_recomputed);
  counted_.set_time_lost_s(Seconds(preempted_time_));
  counted_.set_empty_steps(end.result.scheduler.num_empty_steps);
  *report->mutable_preemption() = counted_;
}

// --- Drafts ---

void DraftSection::OnStepFinished(const StepRecord& step) {
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    if (step.scheduled[i].num_verified_drafts == 0) continue;
    counted_.set_verified(counted_.verified() + step.scheduled[i].num_verified_drafts);
    counted_.set_accepted(counted_.accepted() + step.outputs[i].num_accepted_drafts);
    counted_.set_rejected(counted_.rejected() + step.outputs[i].num_rejected_drafts);
    verifications_ += !step.scheduled[i].is_padded;
  }
}

void DraftSection::Fill(const ReplayEnd&, pb::Report* report) {
  counted_.set_mean_accepted(Ratio(counted_.accepted(), verifications_));
  *report->mutable_drafts() = counted_;
}

void ThroughputSection::OnRunStart(const RunInfo& info) {
  max_num_batched_tokens_ = info.scheduler->max_num_batched_tokens;
  num_stages_ = info.scheduler->pipeline_stages;
}

void ThroughputSection::OnInterval(SimTime from, SimTime to) {
  if (steps_under_way_ > 0) sums_.busy += to - from;
  sums_.time = to;
}

void ThroughputSection::OnAdmission(const AdmissionRecord& record, SimTime) {
  if (record.is_resume) return;
  steady_.OnFirstAdmission(sums_);
  ++sums_.admissions;
}

void ThroughputSection::OnStepScheduled(const StepRecord& step) {
  steps_under_way_ += step.num_requests() > 0;
}

void ThroughputSection::OnStepFinished(const StepRecord& step) {
  --steps_under_way_;
  ++sums_.steps;
  sums_.stage_time += step.stage_time;
  sums_.scheduled_requests += step.num_requests();
  sums_.computed_tokens += step.num_tokens;
  sums_.output_tokens += step.num_skipped;
  for (const OutputRecord& output : step.outputs) sums_.output_tokens += output.num_emitted;
}

void ThroughputSection::OnFinish(const SimRequest& request, SimTime) {
  if (!request.is_completed()) return;
  ++sums_.finished;
  sums_.input_tokens += request.num_prompt;
  steady_.OnFinish(sums_);
}

void ThroughputSection::FillOne(const SteadyWindow::Edges& edges, const std::string& window,
                                ::kvblocks::report::v1::Throughput* out) const {
  const auto& [from, to] = edges;
  const double duration = Seconds(to.time - from.time);
  const auto per_second = [&](int64_t count) {
    return duration > 0 ? static_cast<double>(count) / duration : 0.0;
  };
  const int64_t steps = to.steps - from.steps;
  out->set_duration_s(duration);
  out->set_requests_per_s(per_second(to.finished - from.finished));
  out->set_input_tokens_per_s(per_second(to.input_tokens - from.input_tokens));
  out->set_computed_tokens_per_s(per_second(to.computed_tokens - from.computed_tokens));
  out->set_output_tokens_per_s(per_second(to.output_tokens - from.output_tokens));
  out->set_busy_share(duration > 0 ? Seconds(to.busy - from.busy) / duration : 0.0);
  out->set_mean_batch_requests(Ratio(to.scheduled_requests - from.scheduled_requests, steps));
  out->set_mean_step_tokens(Ratio(to.computed_tokens - from.computed_tokens, steps));
  out->set_budget_use(out->mean_step_tokens() / static_cast<double>(max_num_batched_tokens_));
  const double all_stages = Seconds(to.busy - from.busy) * static_cast<double>(num_stages_);
  if (num_stages_ > 1 && all_stages > 0) {
    // Steps under way at an edge of the window count where they end.
    const double idle = 1 - Seconds(to.stage_time - from.stage_time) / all_stages;
    out->set_pipeline_bubbles(std::max(idle, 0.0));
  }
  out->set_start_s(Seconds(from.time));
  out->set_end_s(Seconds(to.time));
  out->set_window(window);
}

void ThroughputSection::Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) {
  const ThroughputSums start = {.time = end.first_event};
  FillOne({start, sums_}, "all", out->mutable_throughput());
  if (const auto edges = steady_.Find(warmup_, cooldown_, start, sums_)) {
    FillOne(*edges, DescribeWindow(warmup_, cooldown_), out->mutable_steady_throughput());
  }
}

namespace {

constexpr int64_t kPpm = 1'000'000;

bool IsNone(const Warmup& part) {
  return (part.kind == Warmup::Kind::kShare      ? part.share_ppm
          : part.kind == Warmup::Kind::kRequests ? part.requests
                                                 : part.time) == 0;
}

// Of `total` requests.
int64_t NumRequests(const Warmup& part, int64_t total) {
  if (part.kind == Warmup::Kind::kRequests) return std::min(part.requests, total);
  return static_cast<int64_t>(static_cast<__int128>(total) * part.share_ppm / kPpm);
}

}  // namespace

std::string DescribeWindow(const Warmup& warmup, const Warmup& cooldown) {
  const std::string start = DescribeWarmup(warmup);
  if (IsNone(cooldown)) return start;
  return absl::StrCat(start, " and the last ",
                      cooldown.kind == Warmup::Kind::kShare
                          ? absl::StrCat(static_cast<double>(cooldown.share_ppm) / 1e4, " %")
                      : cooldown.kind == Warmup::Kind::kRequests
                          ? absl::StrCat(cooldown.requests, " requests")
                          : FormatDuration(cooldown.time));
}

void SteadyWindow::Log::Add(const ThroughputSums& sums) {
  if (num_added++ % stride != 0) return;
  if (entries.size() == max_entries) {
    for (size_t i = 0; 2 * i < entries.size(); ++i) entries[i] = entries[2 * i];
    entries.resize((entries.size() + 1) / 2);
    stride *= 2;
    if ((num_added - 1) % stride != 0) return;
  }
  entries.push_back(sums);
}

std::optional<SteadyWindow::Edges> SteadyWindow::Find(const Warmup& warmup, const Warmup& cooldown,
                                                      const ThroughputSums& from,
                                                      const ThroughputSums& to) const {
  Edges edges = {from, to};
  const auto& admissions = admissions_.entries;
  const auto at_admission = [&](int64_t index) {
    return std::ranges::find_if(
        admissions, [&](const ThroughputSums& entry) { return entry.admissions >= index; });
  };
  if (!IsNone(warmup)) {
    const auto entry =
        warmup.kind == Warmup::Kind::kTime
            ? std::ranges::find_if(admissions,
                                   [&](const ThroughputSums& e) { return e.time >= warmup.time; })
            : at_admission(NumRequests(warmup, to.admissions));
    if (entry == admissions.end()) return std::nullopt;
    edges.from = *entry;
  }
  if (!IsNone(cooldown) && cooldown.kind == Warmup::Kind::kTime) {
    const auto& finishes = finishes_.entries;
    const auto after = std::ranges::find_if(
        finishes, [&](const ThroughputSums& e) { return e.time > to.time - cooldown.time; });
    if (after == finishes.begin()) return std::nullopt;
    edges.to = *(after - 1);
  } else if (const int64_t left_out = NumRequests(cooldown, to.admissions);
             !IsNone(cooldown) && left_out > 0) {
    const auto entry = at_admission(to.admissions - left_out);
    if (entry != admissions.end()) edges.to = *entry;
  }
  if (edges.to.time <= edges.from.time) return std::nullopt;
  return edges;
}

}  // namespace kvblocks::sim
