// LiveMetrics: the metrics of an engine that does not end, in memory that follows the requests that
// live.
//
// ReplayMetrics would remember every prompt to say why blocks were missed. A server runs for
// months, so its metrics leave these causes out.

#ifndef KVBLOCKS_SIM_SERVE_LIVE_METRICS_H_
#define KVBLOCKS_SIM_SERVE_LIVE_METRICS_H_

#include <algorithm>
#include <optional>
#include <utility>

#include "sim/report/latency_metrics.h"
#include "sim/report/server_metrics.h"

namespace kvblocks::sim {

class LiveMetrics final : public ServerMetrics {
 public:
  explicit LiveMetrics(Options options)
      : ServerMetrics(WithoutReplay(std::move(options))),
        latency_({.max_exact_runs = 1, .sink = this}, &facts_) {}

  bool NeedsEveryRecord() const override { return true; }
  void OnArrival(const SimRequest& request, SimTime now) override {
    facts_.requests.Reset(request);
    ServerMetrics::OnArrival(request, now);
  }
  void OnRejection(const SimRequest& request, SimTime now) override { OnFinish(request, now); }
  void OnAdmission(const AdmissionRecord& record, SimTime now) override {
    RequestProgress& progress = facts_.requests[*record.request];
    progress.is_running = true;
    if (!record.is_resume) {
      progress.first_scheduled = now;
      progress.num_queried_tokens = record.num_queried_tokens;
      progress.num_hit_tokens = record.num_hit_tokens;
      progress.num_external_tokens = record.num_external_tokens;
    }
    ServerMetrics::OnAdmission(record, now);
  }
  // What did not arrive is computed.
  void OnLoadFinished(const SimRequest& request, int64_t num_tokens, SimTime) override {
    RequestProgress* progress = facts_.Find(request);
    if (progress == nullptr || request.was_preempted()) return;
    progress->num_external_tokens = std::min(progress->num_external_tokens, num_tokens);
  }
  void OnPreemption(const PreemptionRecord& record, SimTime now) override {
    facts_.requests[*record.request].is_running = false;
    ServerMetrics::OnPreemption(record, now);
  }
  void OnStepFinished(const StepRecord& step) override {
    latency_.OnStepFinished(step);
    ServerMetrics::OnStepFinished(step);
  }
  void OnFinish(const SimRequest& request, SimTime now) override {
    const RequestProgress* progress = facts_.Find(request);
    std::optional<RequestLatency> latency;
    if (progress != nullptr && progress->num_outputs > 0) {
      latency = LatencyOf(request, *progress, /*client_rtt=*/0);
    }
    OnRow({.request = &request, .progress = progress, .latency = latency, .end = now});
  }

 private:
  static Options WithoutReplay(Options options) {
    options.tick = 0;
    options.leave_out_misses = true;
    options.is_told_parameters = true;
    return options;
  }

  SharedFacts facts_;
  LatencyMetrics latency_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_LIVE_METRICS_H_
