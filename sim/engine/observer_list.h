// ObserverList: several observers as one. Calls go out in the order of Add, behind OnTime where the
// event has a time.

#ifndef KVBLOCKS_SIM_ENGINE_OBSERVER_LIST_H_
#define KVBLOCKS_SIM_ENGINE_OBSERVER_LIST_H_

#include <algorithm>
#include <vector>

#include "sim/engine/engine_observer.h"

namespace kvblocks::sim {

class ObserverList : public EngineObserver {
 public:
  // Not owned.
  void Add(EngineObserver* observer) { observers_.push_back(observer); }

  bool NeedsEveryRecord() const override {
    return std::any_of(observers_.begin(), observers_.end(),
                       [](const EngineObserver* o) { return o->NeedsEveryRecord(); });
  }
  void OnRunStart(const RunInfo& info) override {
    for (EngineObserver* o : observers_) o->OnRunStart(info);
  }
  void OnArrival(const SimRequest& request, SimTime now) override {
    OnTime(now);
    for (EngineObserver* o : observers_) o->OnArrival(request, now);
  }
  void OnRejection(const SimRequest& request, SimTime now) override {
    OnTime(now);
    for (EngineObserver* o : observers_) o->OnRejection(request, now);
  }
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override {
    OnTime(now);
    for (EngineObserver* o : observers_) o->OnAdmissionAttempt(record, now);
  }
  void OnAdmission(const AdmissionRecord& record, SimTime now) override {
    OnTime(now);
    for (EngineObserver* o : observers_) o->OnAdmission(record, now);
  }
  void OnReadmission(const AdmissionRecord& record, SimTime now) override {
    OnTime(now);
    for (EngineObserver* o : observers_) o->OnReadmission(record, now);
  }
  void OnPreemption(const PreemptionRecord& record, SimTime now) override {
    OnTime(now);
    for (EngineObserver* o : observers_) o->OnPreemption(record, now);
  }
  void OnLoadFinished(const SimRequest& request, int64_t num_tokens, SimTime now) override {
    OnTime(now);
    for (EngineObserver* o : observers_) o->OnLoadFinished(request, num_tokens, now);
  }
  void OnStepScheduled(const StepRecord& step) override {
    OnTime(step.start);
    for (EngineObserver* o : observers_) o->OnStepScheduled(step);
  }
  void OnSkippedDecodes(const SimRequest& request, int64_t num_steps) override {
    for (EngineObserver* o : observers_) o->OnSkippedDecodes(request, num_steps);
  }
  void OnStepFinished(const StepRecord& step) override {
    OnTime(step.end);
    for (EngineObserver* o : observers_) o->OnStepFinished(step);
  }
  void OnFinish(const SimRequest& request, SimTime now) override {
    OnTime(now);
    for (EngineObserver* o : observers_) o->OnFinish(request, now);
  }
  void OnKvEvents(absl::Span<const KvEvent> events, SimTime now) override {
    for (EngineObserver* o : observers_) o->OnKvEvents(events, now);
  }
  void OnRunEnd(SimTime now) override {
    for (EngineObserver* o : observers_) o->OnRunEnd(now);
  }

 protected:
  // Before observers get an event at `now`; times never fall.
  virtual void OnTime(SimTime now) { (void)now; }

 private:
  std::vector<EngineObserver*> observers_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_OBSERVER_LIST_H_
