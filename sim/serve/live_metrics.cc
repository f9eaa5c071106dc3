#include "kvblocks/sim/serve/live_metrics.h"

#include <algorithm>
#include <utility>

#include "kvblocks/sim/report/latency_metrics.h"

namespace kvblocks::sim {

struct LiveMetrics::Parts {
  explicit Parts(ServerMetrics::Options options)
      : server(std::move(options)), latency({.max_exact_runs = 1, .sink = &server}, &facts) {}

  SharedFacts facts;
  ServerMetrics server;
  LatencyMetrics latency;
};

LiveMetrics::LiveMetrics(ServerMetrics::Options options) {
  options.tick = 0;
  options.leave_out_misses = true;
  options.is_told_parameters = true;
  parts_ = std::make_unique<Parts>(std::move(options));
}
LiveMetrics::~LiveMetrics() = default;

void LiveMetrics::OnRunStart(const RunInfo& info) { parts_->server.OnRunStart(info); }

void LiveMetrics::OnArrival(const SimRequest& request, SimTime now) {
  parts_->facts.requests.Reset(request);
  parts_->server.OnArrival(request, now);
}

void LiveMetrics::OnRejection(const SimRequest& request, SimTime now) { OnFinish(request, now); }

void LiveMetrics::OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) {
  parts_->server.OnAdmissionAttempt(record, now);
}

void LiveMetrics::OnAdmission(const AdmissionRecord& record, SimTime now) {
  RequestProgress& progress = parts_->facts.requests[*record.request];
  progress.is_running = true;
  if (!record.is_resume) {
    progress.first_scheduled = now;
    progress.num_queried_tokens = record.num_queried_tokens;
    progress.num_hit_tokens = record.num_hit_tokens;
    progress.num_external_tokens = record.num_external_tokens;
  }
  parts_->server.OnAdmission(record, now);
}

// What did not arrive is computed.
void LiveMetrics::OnLoadFinished(const SimRequest& request, int64_t num_tokens, SimTime) {
  RequestProgress* progress = parts_->facts.Find(request);
  if (progress == nullptr || request.was_preempted()) return;
  progress->num_external_tokens = std::min(progress->num_external_tokens, num_tokens);
}

void LiveMetrics::OnPreemption(const PreemptionRecord& record, SimTime now) {
  parts_->facts.requests[*record.request].is_running = false;
  parts_->server.OnPreemption(record, now);
}

void LiveMetrics::OnStepScheduled(const StepRecord& step) { parts_->server.OnStepScheduled(step); }

void LiveMetrics::OnStepFinished(const StepRecord& step) {
  parts_->latency.OnStepFinished(step);
  parts_->server.OnStepFinished(step);
}

void LiveMetrics::OnFinish(const SimRequest& request, SimTime now) {
  SharedFacts& facts = parts_->facts;
  const RequestProgress* progress = facts.Find(request);
  facts.latency.reset();
  if (progress != nullptr && progress->num_outputs > 0) {
    facts.latency = LatencyOf(request, *progress, /*client_rtt=*/0);
  }
  parts_->server.OnRow(
      {.request = &request, .progress = progress, .latency = facts.latency, .end = now});
}

void LiveMetrics::ReadPool() { parts_->server.ReadPool(); }
void LiveMetrics::OnMaxTokens(int64_t max_tokens, SimTime now) {
  parts_->server.OnMaxTokens(max_tokens, now);
}
void LiveMetrics::OnAnswers(int64_t count, int64_t most_tokens, SimTime now) {
  parts_->server.OnAnswers(count, most_tokens, now);
}

std::string LiveMetrics::Text() const { return parts_->server.Text(); }

}  // namespace kvblocks::sim
