// RequestTracker: keeps what the sections of a report share - how far each request is, what its
// admission missed, when it ended - and tells sinks of admissions and of rows. Called first.

#ifndef KVBLOCKS_SIM_REPORT_REQUEST_TRACKER_H_
#define KVBLOCKS_SIM_REPORT_REQUEST_TRACKER_H_

#include "kvblocks/sim/engine/engine_observer.h"
#include "kvblocks/sim/report/miss_classifier.h"
#include "kvblocks/sim/report/report_section.h"
#include "kvblocks/sim/report/request_rows.h"

namespace kvblocks::sim {

class RequestTracker final : public EngineObserver {
 public:
  // `rows` and `admissions` may be null.
  RequestTracker(SimTime client_rtt, RequestRowSink* rows, AdmissionSink* admissions,
                 SharedFacts* facts);

  bool NeedsEveryRecord() const override { return false; }
  void OnRunStart(const RunInfo& info) override { classifier_.OnRunStart(info); }
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override { OnFinish(request, now); }
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;

 private:
  const SimTime client_rtt_;
  RequestRowSink* const rows_;
  AdmissionSink* const admissions_;
  SharedFacts* const facts_;
  MissClassifier classifier_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REQUEST_TRACKER_H_
