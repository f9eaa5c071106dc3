// RequestLife: the observer that follows one request through a replay - arrival, look-ups with what
// became of every block, preemptions, end - and fills its part of an explanation.
//
//   RequestLife life(selector);
//   ReplayMetrics metrics({.admissions = &life});                // which classify its blocks
//   auto simulation = Simulation::Create(config, reader, step_time, {&metrics, &life});
//   (*simulation)->Run();
//   if (!life.is_found()) ...                                    // num_seen, ids() for the message
//   life.Fill(&explanation);
//
// Causes are those of the MissClassifier; what single KV-cache groups had, and when blocks left the
// cache, comes from ExplainLookup. For the latter the manager needs
// lookup_history_blocks.
//
// Memory: 16 bytes per step that takes blocks, and the names of all requests.

#ifndef KVBLOCKS_SIM_REPORT_REQUEST_LIFE_H_
#define KVBLOCKS_SIM_REPORT_REQUEST_LIFE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/managers/explain/lookup_explanation.h"
#include "kvblocks/sim/engine/engine_observer.h"
#include "kvblocks/sim/report/explanation.pb.h"
#include "kvblocks/sim/report/miss_classifier.h"
#include "kvblocks/sim/report/request_selector.h"
#include "kvblocks/sim/tiers/tier_connector.h"

namespace kvblocks::sim {

class RequestLife final : public EngineObserver, public AdmissionSink {
 public:
  // `tiers`: those of the replay, or null. Not owned; it must observe the run before this does.
  explicit RequestLife(RequestSelector selector, const TierConnector* tiers = nullptr)
      : selector_(std::move(selector)), tiers_(tiers) {}

  bool is_found() const { return target_row_ >= 0; }
  // REQUIRES: is_found(), and the run has ended.
  void Fill(::kvblocks::report::v1::Explanation* out) const { *out->mutable_request() = life_; }

  // The requests that came, for whoever asked for another one.
  struct Seen {
    int64_t requests = 0;
    int64_t first_row = 0, last_row = 0;
    int64_t first_line = 0, last_line = 0;
  };
  const Seen& seen() const { return seen_; }
  const std::vector<std::string>& ids() const { return ids_; }

  bool wants_runs() const override { return true; }
  void OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                const RequestProgress& progress, SimTime now) override;

  // A request's first token always comes with a record.
  bool NeedsEveryRecord() const override { return false; }
  void OnRunStart(const RunInfo& info) override { manager_ = info.manager; }
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnReadmission(const AdmissionRecord& record, SimTime now) override;
  void OnLoadFinished(const SimRequest& request, int64_t num_tokens, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;

 private:
  using RunLife = ::kvblocks::report::v1::BlockRunLife;

  bool IsTarget(const SimRequest& request) const { return request.spec.row == target_row_; }
  void Note(const SimRequest& request);
  // When the pool had handed out so many blocks and then handed out the next one.
  SimTime TimeOfTaking(int64_t num_blocks_taken, SimTime now) const;
  void FillRun(const BlockRun& run, SimTime now, RunLife* out) const;
  void FillGone(int64_t from, int64_t to, SimTime now, RunLife* out) const;

  void FillTierLookup(const AdmissionRecord& record, SimTime now);

  const RequestSelector selector_;
  const TierConnector* const tiers_;
  const KvCacheManager* manager_ = nullptr;
  ::kvblocks::report::v1::RequestLife life_;
  int64_t target_row_ = -1;
  bool is_running_ = false;
  SimTime waiting_since_ = 0;
  int64_t attempts_ = 0;
  std::optional<LookupExplanation> why_;  // of the last attempt
  int64_t taken_at_attempt_ = 0;          // blocks, before it took its own

  Seen seen_;
  std::vector<std::string> ids_;
  std::vector<::kvblocks::report::v1::RequestName> names_;  // by ordinal
  std::vector<std::pair<int64_t, SimTime>> clock_;  // blocks taken after a step, and its start
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REQUEST_LIFE_H_
