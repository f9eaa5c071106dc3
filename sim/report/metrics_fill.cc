// ReplayMetrics: from sums to the report.

#include "kvblocks/sim/report/metrics.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

double PerSecond(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

double Ratio(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

double ReplayMetrics::DurationSeconds() const {
  return first_event_ ? Seconds(last_event_ - *first_event_) : 0.0;
}

void ReplayMetrics::Fill(const SimulationResult& result, pb::Report* out) {
  out->set_schema_version(1);
  FillWorkload(result, out);
  FillTotals(result, out);
  const ThroughputSums start = {.time = first_event_.value_or(0)};
  FillThroughput(start, sums_, "all", out->mutable_throughput());
  const Warmup& warmup = options_.hit_rates.warmup;
  if (const auto edges = steady_.Find(warmup, options_.cooldown, start, sums_)) {
    FillThroughput(edges->from, edges->to, DescribeWindow(warmup, options_.cooldown),
                   out->mutable_steady_throughput());
  }
  latency_.Fill(out->mutable_latency());
  out->mutable_setup()->set_quantile_method(out->latency().itl().method());
  if (goodput_.has_objectives()) FillGoodput(out->mutable_goodput());
  hit_rates_.Fill(out);
  hit_groups_.Fill(options_.top_prefixes, out->mutable_hit_groups());
  pool_.Fill(out->mutable_pool());

  auto* preemption = out->mutable_preemption();
  preemption->set_preemptions(result.scheduler.num_preemptions);
  preemption->set_requests_affected(requests_preempted_);
  preemption->set_recomputed_tokens(result.scheduler.num_recomputed);
  preemption->set_resume_hit_tokens(resume_hit_tokens_);
  preemption->set_time_lost_s(Seconds(preempted_time_));
  preemption->set_worst_request(worst_request_);
  preemption->set_worst_request_preemptions(worst_preemptions_);
  preemption->set_empty_steps(result.scheduler.num_empty_steps);

  auto* drafts = out->mutable_drafts();
  drafts->set_verified(verified_drafts_);
  drafts->set_accepted(accepted_drafts_);
  drafts->set_rejected(rejected_drafts_);
  drafts->set_mean_accepted(Ratio(accepted_drafts_, verifications_));

  FillGroups(out);
  series_.Fill(last_event_, pool_.usable_blocks(), out->mutable_series());
}

void ReplayMetrics::FillWorkload(const SimulationResult& result, pb::Report* out) const {
  auto* workload = out->mutable_workload();
  workload->set_format(trace_.format);
  workload->set_content_block_tokens(trace_.block_tokens);
  workload->set_pseudo_tokens(trace_.pseudo_tokens);
  workload->set_requests_arrived(result.num_arrived);
  workload->set_requests_skipped(result.num_skipped);
  workload->set_input_tokens(input_tokens_);
  workload->set_requested_output_tokens(requested_output_);
  workload->set_first_arrival_s(Seconds(first_event_.value_or(0)));
  workload->set_last_arrival_s(Seconds(last_arrival_));

  auto* setup = out->mutable_setup();
  setup->set_time_source(time_source_);
  setup->set_num_blocks(num_blocks_);
  setup->set_usable_blocks(pool_.usable_blocks());
  setup->set_block_tokens(block_tokens_);
  setup->set_capacity_tokens(pool_.usable_blocks() * groups_.front().block_tokens);
}

void ReplayMetrics::FillTotals(const SimulationResult& result, pb::Report* out) const {
  auto* totals = out->mutable_totals();
  const int64_t aborted =
      result.num_aborted_time + result.num_aborted_queue + result.num_aborted_session;
  totals->set_requests_finished(result.num_finished);
  totals->set_requests_rejected(result.num_rejected);
  totals->set_requests_aborted(aborted);
  totals->set_requests_aborted_by_trace(result.num_aborted_time);
  totals->set_requests_aborted_in_queue(result.num_aborted_queue);
  totals->set_requests_aborted_with_session(result.num_aborted_session);
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
}

void ReplayMetrics::FillThroughput(const ThroughputSums& from, const ThroughputSums& to,
                                   const std::string& window, pb::Throughput* out) const {
  const double duration = Seconds(to.time - from.time);
  const int64_t steps = to.steps - from.steps;
  out->set_duration_s(duration);
  out->set_requests_per_s(PerSecond(to.finished - from.finished, duration));
  out->set_input_tokens_per_s(PerSecond(to.input_tokens - from.input_tokens, duration));
  out->set_computed_tokens_per_s(PerSecond(to.computed_tokens - from.computed_tokens, duration));
  out->set_output_tokens_per_s(PerSecond(to.output_tokens - from.output_tokens, duration));
  out->set_busy_share(duration > 0 ? Seconds(to.busy - from.busy) / duration : 0.0);
  out->set_mean_batch_requests(Ratio(to.scheduled_requests - from.scheduled_requests, steps));
  out->set_mean_step_tokens(Ratio(to.computed_tokens - from.computed_tokens, steps));
  out->set_budget_use(out->mean_step_tokens() / static_cast<double>(max_num_batched_tokens_));
  out->set_start_s(Seconds(from.time));
  out->set_end_s(Seconds(to.time));
  out->set_window(window);
}

void ReplayMetrics::FillGoodput(pb::Goodput* out) {
  goodput_.Fill(DurationSeconds(), out);
  // One class without a name: the trace has none.
  if (class_goodput_.size() == 1 && class_goodput_.begin()->first.empty()) return;
  for (auto& [name, goodput] : class_goodput_) {
    auto* entry = out->add_classes();
    goodput.Fill(DurationSeconds(), entry);
    entry->set_slo_class(name);
  }
}

void ReplayMetrics::FillGroups(pb::Report* out) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    auto* entry = out->add_groups();
    entry->set_id(static_cast<int32_t>(g));
    entry->set_kind(groups_[g].kind);
    entry->set_block_tokens(groups_[g].block_tokens);
    entry->set_hit_blocks(groups_[g].hit_blocks);
    entry->set_skipped_blocks(groups_[g].skipped_blocks);
    entry->set_resume_hit_blocks(groups_[g].resume_hit_blocks);
    entry->set_new_blocks(groups_[g].new_blocks);
    entry->set_num_layers(groups_[g].num_layers);
    occupancy_.Fill(static_cast<GroupId>(g), last_event_, entry);
    entry->set_vetoed_tokens(groups_[g].vetoed_tokens);
    entry->set_vetoed_requests(groups_[g].vetoed_requests);
  }
}

}  // namespace kvblocks::sim
