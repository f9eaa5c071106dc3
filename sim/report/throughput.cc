#include "kvblocks/sim/report/throughput.h"

#include <algorithm>

#include "kvblocks/sim/engine/scheduler_options.h"

namespace kvblocks::sim {

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
  sums_.output_tokens += step.num_quiet;
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

}  // namespace kvblocks::sim
