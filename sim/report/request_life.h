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

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/lookup_explanation.h"
#include "sim/engine/engine_observer.h"
#include "sim/report/explanation.pb.h"
#include "sim/report/miss_classifier.h"
#include "sim/tiers/tier_connector.h"
#include "sim/trace/trace_request.h"

namespace kvblocks::sim {

// RequestSelector: which request of a trace a user means - by its id, its row or its line.
//
//   "chat-17"    the id, as the trace gives it; without ids the row is the id
//   "row:17"     the submission index, from 0
//   "line:18"    the line of the file, from 1
//   "id:row:17"  an id that looks like one of the others
class RequestSelector {
 public:
  // InvalidArgument for an empty text and for a row or line that is no whole number.
  static absl::StatusOr<RequestSelector> Parse(std::string_view text);

  bool Matches(const TraceRequest& request) const {
    switch (kind_) {
      case Kind::kId:
        return request.id == id_;
      case Kind::kRow:
        return request.row == number_;
      case Kind::kLine:
        return request.line == number_;
    }
    return false;
  }
  // Empty if it selects by row or line.
  const std::string& id() const { return id_; }

 private:
  enum class Kind { kId, kRow, kLine };

  Kind kind_ = Kind::kId;
  std::string id_;
  int64_t number_ = 0;
};

// WorstMisses: the requests whose first admission missed most tokens because they were evicted.
//
// Ties go to the earlier row. Memory: the requests listed. Cost: O(log of them) per admission.
class WorstMisses final : public AdmissionSink {
 public:
  explicit WorstMisses(size_t num_requests) : num_requests_(num_requests) {}

  bool wants_runs() const override { return false; }
  void OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                const RequestProgress& progress, SimTime now) override;

  void Fill(::kvblocks::report::v1::Explanation* out) const;

 private:
  // Most evicted blocks first, then the earlier row.
  using Key = std::pair<int64_t, int64_t>;

  const size_t num_requests_;
  std::map<Key, ::kvblocks::report::v1::WorstRequest> entries_;
};

class RequestLife final : public EngineObserver, public AdmissionSink {
 public:
  explicit RequestLife(RequestSelector selector) : selector_(std::move(selector)) {}
  // Those of the replay, or null. Not owned; they must observe the run before this does.
  void set_tiers(const TierConnector* tiers) { tiers_ = tiers; }

  bool is_found() const { return target_row_ >= 0; }
  // REQUIRES: is_found(), and the run has ended.
  void Fill(::kvblocks::report::v1::Explanation* out) const { *out->mutable_request() = life_; }

  // The requests that came, to answer a question about one that did not.
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
  const TierConnector* tiers_ = nullptr;
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
