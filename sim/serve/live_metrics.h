// LiveMetrics: feeds ServerMetrics from an engine that does not end, in memory that follows the live
// requests.
//
// ReplayMetrics would remember every prompt to say why blocks were missed. A server runs for
// months, so its metrics leave these causes out.

#ifndef KVBLOCKS_SIM_SERVE_LIVE_METRICS_H_
#define KVBLOCKS_SIM_SERVE_LIVE_METRICS_H_

#include <memory>
#include <string>

#include "kvblocks/sim/engine/engine_observer.h"
#include "kvblocks/sim/report/server_metrics.h"

namespace kvblocks::sim {

class LiveMetrics final : public EngineObserver {
 public:
  explicit LiveMetrics(ServerMetrics::Options options);
  ~LiveMetrics() override;

  void OnRunStart(const RunInfo& info) override;
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnLoadFinished(const SimRequest& request, int64_t num_tokens, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;

  // See ServerMetrics.
  void ReadPool();
  void OnMaxTokens(int64_t max_tokens, SimTime now);
  void OnAnswers(int64_t count, int64_t most_tokens, SimTime now);

  // As OpenMetrics, now.
  std::string Text() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_LIVE_METRICS_H_
