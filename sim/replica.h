// Replica: one engine - scheduler, block manager, device - on a clock that its owner advances.
//
// It is given what arrives (Submit) and says when it wants to be called next (NextTime); it knows
// neither a trace nor other replicas, and nothing of what will arrive. The clock may be a simulated
// one or the wall's. At each instant that NextTime names, the owner calls, in this order,
//
//   FinishStep()         if is_step_over(now): its outputs, and what arrived while it ran
//   Submit(request, now) for what arrives at this instant
//   DeliverAborts(now)
//   Schedule(now)        hands the next step to the device
//
// or Advance(now), which does all of them except Submit. They are separate because an owner of
// several replicas makes each call on all of them before the next call. Then the numbering of the
// replicas does not change what happens at one instant.
//
// Iteration boundaries: between FinishStep and the Schedule that leaves the engine waiting for a
// step's end, and as long as it has nothing to do. What is submitted elsewhere is kept and
// delivered at the next boundary, and an abort takes effect there.
//
// Synchronously FinishStep ends the step just scheduled; with asynchronous scheduling it is the one
// before, and the device starts the new one after it. With pipeline stages a step moves to the next
// stage when both stages are free. It begins when its input tokens are known.
//
// Always: times passed in never go back. Deterministic: the same calls give the same calls to the
// observers. Cost: about 0.2 us per step and 50 ns per record in it, observers included; requests
// that decode inside a block have none (see Scheduler), unless an observer needs them. Nothing is
// allocated in steady state. Single-threaded.

#ifndef KVBLOCKS_SIM_REPLICA_H_
#define KVBLOCKS_SIM_REPLICA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/kv_cache_manager.h"
#include "sim/cost/step_time_model.h"
#include "sim/engine/observer_list.h"
#include "sim/engine/scheduler.h"
#include "sim/simulation_config.h"

namespace kvblocks::sim {

// What one engine did in a run, in numbers.
struct SimulationResult {
  SimTime end_time = 0;   // the clock when the run ended
  SimTime busy_time = 0;  // in which steps were on the device
  SimTime stage_time = 0;  // sum over pipeline stages of the time that they compute
  SimTime copy_time = 0;  // the part of it that copies of blocks took
  SimTime load_time = 0;  // and that steps waited for KV from elsewhere
  int64_t copied_bytes = 0;  // on one device
  StepTally step_tally;      // of the steps that had requests
  // Requests.
  int64_t num_arrived = 0;
  int64_t num_rejected = 0;
  int64_t num_finished = 0;       // to their length
  int64_t num_aborted_time = 0;   // abort time reached
  int64_t num_aborted_queue = 0;  // waited for too long
  int64_t num_aborted_session = 0;
  int64_t num_failed = 0;   // a load of theirs failed, and the policy was to let them fail
  int64_t num_lost = 0;     // this engine crashed while it had them
  int64_t num_skipped = 0;  // without output, left out
  int64_t peak_live_requests = 0;
  int64_t num_iterations = 0;
  // Tokens, steps and preemptions.
  SchedulerTotals scheduler;
  PrefixCacheStats prefix_cache;

  // Requests that are over, in whatever way.
  int64_t num_done() const {
    return num_finished + num_rejected + num_skipped + num_aborted_time + num_aborted_queue +
           num_aborted_session + num_lost + num_failed;
  }

  friend bool operator==(const SimulationResult&, const SimulationResult&) = default;
};

// What a router knows of a replica's work.
struct ReplicaLoad {
  int64_t num_requests = 0;        // sent there and not over
  int64_t num_tokens = 0;          // prompt and output tokens of these so far
  int64_t num_waiting_tokens = 0;  // prompt tokens of those that were not admitted yet
};

class Replica {
 public:
  // Submits requests, and owns them.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Once for each request submitted, whatever its end; finish_reason and abort_cause say which.
    // The observers know already, and the replica will not touch the request again. May call
    // AbortNow and PlanAbort of this replica and others, but nothing else of them.
    virtual absl::Status OnEnded(SimRequest* request, SimTime now) = 0;
  };

  // InvalidArgument for a bad configuration; what concerns a trace alone (concurrency, zero_output)
  // is not used. `trace` says how contents are named. The pointers and `trace` are not owned and
  // must outlive the replica, and the replica its requests' content (SimRequest::kv).
  static absl::StatusOr<std::unique_ptr<Replica>> Create(
      const SimulationConfig& config, const TraceInfo& trace, const StepTimeModel* step_time,
      const std::vector<EngineObserver*>& observers, Owner* owner);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // Where KV comes from that the pool does not hold; not owned. Before the first request.
  void set_connector(KvConnector* connector) {
    connector_ = connector;
    scheduler_->set_connector(connector);
  }

  // Before the first request, and after the last.
  void Start();
  void End(SimTime now);

  // Hands a pending request over, its `arrival` set (at most `now`): at once at an iteration
  // boundary, else at the next one. An error is the owner's own, from OnEnded.
  absl::Status Submit(SimRequest* request, SimTime now);

  // Ends the request at the first iteration boundary at or after `time`, unless it is over by then.
  // One that waited for too long, or whose session ended, only if it has not begun to run. One that
  // was not delivered yet is reported to the observers by OnFinish alone.
  void PlanAbort(SimRequest* request, AbortCause cause, SimTime time);
  // At once. REQUIRES: the replica is at an iteration boundary or in a call of OnEnded, or the
  // request was never submitted.
  absl::Status AbortNow(SimRequest* request, AbortCause cause, SimTime now);

  // When it wants to be called next, at least the last time passed in: the end of the oldest step
  // under way; when an empty step is tried again; the next abort; at once, if there is something to
  // schedule. Empty: not before a request is submitted.
  std::optional<SimTime> NextTime();

  // Whether a call of Schedule may find something to do that it did not before.
  bool wants_schedule() const { return wants_schedule_ && !in_step_; }
  // Whether the engine waits for a step that ends by then.
  bool is_step_over(SimTime now) const { return in_step_ && step_end_ <= now; }
  // Ends the oldest step, at its own end. A request that is aborted while the step runs gets no
  // token of it, even if that was its last one (V-84). REQUIRES: is_step_over(its end). OutOfRange
  // if the clock overflows.
  absl::Status FinishStep();
  // Aborts the requests whose abort time is reached. Does nothing between boundaries.
  absl::Status DeliverAborts(SimTime now) {
    clock_ = now;
    if (inbox_.empty() && aborts_.empty() && connector_ == nullptr) return absl::OkStatus();
    return DeliverAll(now);
  }
  // One call of the scheduler, if anything runs or waits and the engine is at a boundary.
  // FailedPrecondition if a request can never finish.
  absl::Status Schedule(SimTime now);

  // All of it up to `now`, in order of time.
  absl::Status Advance(SimTime now);

  // --- In lockstep with others (see LockstepGroup, which alone calls this) ---

  // Schedules a step and leaves it open, for the group to say how long it lasts. With a
  // prefill_schedule_interval, `holds_prompts` says whether prompts are left alone.
  // FailedPrecondition as Schedule.
  absl::Status ScheduleOpen(SimTime now, bool holds_prompts);
  bool has_open_step() const { return has_open_step_; }
  // REQUIRES: it has one.
  const StepRecord& open_step() const { return scheduler_->step(); }
  // How long this engine itself takes for the open step, or for one without requests.
  absl::StatusOr<SimTime> TimeOpenStep(const StepPeers& peers);
  // It is on the device from `start` to `end`, of which `own` computing.
  void CloseStep(SimTime start, SimTime own, SimTime end);
  // No boundary before `end`, when a step of the group ends, whether it has requests of this engine
  // or not.
  void HoldUntil(SimTime end);
  // There is room for one step more, at once.
  void CallAgain() { wants_schedule_ = true; }
  // It is at a boundary, though steps without requests are under way.
  void ReturnToBoundary() { in_step_ = false; }
  // What the group asks: whether a request was left when the last step had ended, before others
  // came.
  bool had_work() const { return had_work_; }

  // Its next call is due whatever arrives and whichever request is aborted.
  bool is_busy() const { return in_step_ || wants_schedule_ || !inbox_.empty(); }
  // The engine is gone at once, with all it has: requests end by AbortCause::kCrash, steps under
  // way are cut off, and the prefix cache is empty. Nothing is published of that. It may be used
  // again, as new. Who had given up by now has. FailedPrecondition with a connector, which may have
  // KV under way.
  absl::Status Crash(SimTime now);
  // Empties the prefix cache and publishes that. False, and nothing changed, while blocks are held.
  bool ResetPrefixCache();

  // Something runs, waits or is about to.
  bool has_work() const {
    return scheduler_->num_running() > 0 || scheduler_->num_waiting() > 0 || !inbox_.empty() ||
           scheduler_->num_connector_debts() > 0;
  }
  // Complete after End. What concerns a trace alone (num_skipped, peak_live_requests) and
  // num_iterations are 0.
  const SimulationResult& result() const { return result_; }
  const KvCacheManager& manager() const { return *manager_; }
  const Scheduler& scheduler() const { return *scheduler_; }

 private:
  struct Abort {
    SimTime time;
    int64_t row;
    SimRequest* request;
    AbortCause cause;
    friend bool operator>(const Abort& a, const Abort& b) {
      if (a.time != b.time) return a.time > b.time;
      return a.row != b.row ? a.row > b.row : a.cause > b.cause;
    }
  };

  Replica(const SimulationConfig& config, const TraceInfo& trace, const StepTimeModel* step_time,
          Owner* owner);

  bool IsAtBoundary(SimTime now) const { return !in_step_ && now >= retry_time_; }
  absl::Status ClockOverflow(absl::string_view what) const;
  absl::Status DeliverAll(SimTime now);
  absl::Status DeliverInbox(SimTime now);
  absl::Status Deliver(SimRequest* request, SimTime now);
  void PlanAborts(SimRequest* request);
  absl::Status TakeAborts(SimTime now);
  void DropStaleAborts();
  bool IsStale(const Abort& abort) const;
  absl::Status TimeStages(const StepPeers* peers);  // of a lockstep; null: alone
  absl::StatusOr<SimTime> CopyTime();
  std::optional<SimTime> WithLoads(SimTime compute);
  absl::Status AddHostTime(SimTime* stage);
  absl::Status TakeConnectorEvents(SimTime now);
  absl::Status StartStep();
  void PublishEvents();

  const SimulationConfig config_;
  const TraceInfo& trace_;
  const StepTimeModel* const step_time_;
  Owner* const owner_;

  KvConnector* connector_ = nullptr;  // may be null

  std::unique_ptr<KvCacheManager> manager_;
  ObserverList observers_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<SimRequest*> inbox_;  // submitted between boundaries; null: given up since
  // May name requests that are gone; their slot may be another's by then.
  std::priority_queue<Abort, std::vector<Abort>, std::greater<Abort>> aborts_;

  SimTime clock_ = 0;            // the last time passed in
  bool in_step_ = false;         // nothing happens before the oldest step's end
  SimTime step_end_ = 0;         // which is this
  bool has_open_step_ = false;   // in lockstep
  bool had_work_ = false;
  SimTime retry_time_ = 0;       // nothing happens before it
  bool wants_schedule_ = false;  // something changed, or a step more can be under way
  std::vector<SimTime> stage_free_;   // when each stage is done with all steps handed to it
  std::vector<SimTime> stage_times_;  // scratch, of the step being started
  std::vector<SimTime> send_times_;   // behind each stage but the last, likewise
  SimTime busy_until_ = 0;
  std::vector<SequenceWork> work_;  // scratch
  std::vector<int64_t>
      block_bytes_;  // per group, on one device: what copying one of its blocks copies
  SimulationResult result_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPLICA_H_
