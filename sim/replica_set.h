// ReplicaSet: several replicas, and the requests of one trace, on one simulated clock.
//
// It owns the replicas, the clock and the live requests. Its owner says where each request goes,
// and may have events of its own: messages on their way, transfers, starts of replicas. At each
// instant
//
//   1. all steps that end, in replica order
//   2. Owner::BeforeArrivals
//   3. Owner::OnArrived for each request whose time has come, in order of arrival
//   4. Owner::AfterArrivals
//   5. all aborts, then all schedulers, in replica order; then those of lockstep groups
//
// So what happens at one instant does not depend on how the replicas are numbered, but for what the
// owner makes of the numbers.
//
// One engine alone can take requests at its iteration boundaries instead (Reading::kAtBoundaries):
// the trace is read no further than the engine is, and an instant is one iteration of it.
//
// Always: deterministic; a request has one slot among all live ones and those read before their
// time, and ends exactly once. Single-threaded. Cost: that of the replicas, 20 ns per instant, and
// 1 ns per replica in it.

#ifndef KVBLOCKS_SIM_REPLICA_SET_H_
#define KVBLOCKS_SIM_REPLICA_SET_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sim/arrivals.h"
#include "sim/lockstep_group.h"
#include "sim/replica.h"

namespace kvblocks::sim {

struct SimulationProgress {
  SimTime now = 0;
  int64_t num_arrived = 0;
  int64_t num_done = 0;  // finished, rejected, aborted or skipped
  int64_t num_output_tokens = 0;
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  ReadProgress read;
};

struct ReplicaSetup {
  SimulationConfig config;
  const StepTimeModel* step_time = nullptr;
  std::vector<EngineObserver*> observers;
  // Where it gets KV from that its pool does not hold; null: nowhere.
  KvConnector* connector = nullptr;
};

class ReplicaSet final : private Replica::Owner {
 public:
  static constexpr SimTime kNever = std::numeric_limits<SimTime>::max();

  class Owner {
   public:
    virtual ~Owner() = default;

    // A request of the trace, its zero_output settled: to be given to Submit, now or later, or to
    // End.
    virtual absl::Status OnArrived(SimRequest* request) = 0;
    // A turn of a session that was given up, which has not begun to run; where it is, if anywhere,
    // it is to be ended. `ended`: the request that took the session along, before it is gone; null
    // if that was before this turn was read.
    virtual absl::Status OnGivenUp(SimRequest* turn, const SimRequest* ended, SimTime now) = 0;
    // A replica is done with the request, whatever its end. To be given to End, or sent again.
    virtual absl::Status OnEnded(SimRequest* request, SimTime now) = 0;

    // See above. The clock stands at now().
    virtual absl::Status BeforeArrivals() { return absl::OkStatus(); }
    virtual absl::Status AfterArrivals() { return absl::OkStatus(); }
    // When the two want to be called next, whatever else happens; kNever: not yet known.
    virtual SimTime NextTime() { return kNever; }

    // The first admission there since the request was sent.
    virtual void OnAdmission(int32_t replica, const SimRequest& request, int64_t num_hit_tokens,
                             SimTime now) {
      (void)replica, (void)request, (void)num_hit_tokens, (void)now;
    }

    // For messages: "replica 3"; empty: they name none.
    virtual std::string NameOf(int32_t replica) const;
  };

  // When requests are taken from the trace: at their own times, or at iteration boundaries of the
  // only replica, which is then called at every instant and tells its owner of no admission.
  enum class Reading { kAtAnyTime, kAtBoundaries };

  // `config` is for what concerns the trace (concurrency, zero_output, progress_interval). Nothing
  // is owned.
  ReplicaSet(const SimulationConfig& config, TraceReader* reader, Owner* owner,
             Reading reading = Reading::kAtAnyTime);
  ~ReplicaSet() override;
  ReplicaSet(const ReplicaSet&) = delete;
  ReplicaSet& operator=(const ReplicaSet&) = delete;

  // Before Run; numbers count up. Errors are Replica::Create's, with the name.
  absl::Status Add(ReplicaSetup setup);
  // These replicas step together from now on. InvalidArgument for fewer than two, one that is in a
  // group or has stages, or synchronous ones beside asynchronous ones. Before Run; none gets a
  // connector.
  absl::Status Couple(size_t first, size_t count, const LockstepOptions& options);
  void set_progress(std::function<bool(const SimulationProgress&)> progress) {
    progress_ = std::move(progress);
  }

  // Replays the whole trace, once. Errors: the trace's own; OutOfRange if the clock overflows; and
  // FailedPrecondition if nothing can ever move again, with the request, the blocks it needs and
  // what would help. Messages name the replica.
  absl::Status Run();

  // --- For the owner, while it runs ---

  SimTime now() const { return now_; }
  // Hands the request to a replica, which OnEnded will report.
  absl::Status Submit(SimRequest* request, int32_t replica);
  // The replica is called at this instant, too.
  void CallNow(int32_t replica);
  // The replica is gone with all it has, and can be used again as new: OnEnded reports each of its
  // requests, ended by AbortCause::kCrash. From BeforeArrivals or AfterArrivals.
  absl::Status Crash(int32_t replica);
  // Makes a request that such an end left behind ready for Submit.
  void Restart(SimRequest* request);
  // The client's request is over; finish_reason and abort_cause say how. Ends its session's turns
  // if it was aborted, lets those arrive that waited for it, and forgets it.
  absl::Status End(SimRequest* request, SimTime now);

  // A request that is no client's own but a part of one; RemovePart instead of End.
  SimRequest* AddPart(const TraceRequest& spec) { return store_.Add(spec); }
  void RemovePart(SimRequest* part);

  // Whether a replica or a request to come has a time at which something happens.
  bool is_any_due() const;

  // Where it was sent last; -1: nowhere.
  int32_t replica_of(const SimRequest& request) const;
  // Those of `count` replicas from `first` on.
  void GetLoads(size_t first, size_t count, std::vector<ReplicaLoad>* loads) const;

  size_t size() const { return replicas_.size(); }
  Replica& replica(size_t index) { return *replicas_[index]; }
  const Replica& replica(size_t index) const { return *replicas_[index]; }
  // In the order in which they were coupled.
  size_t num_groups() const { return groups_.size(); }
  const LockstepGroup& group(size_t index) const { return *groups_[index]; }

  int64_t num_skipped() const { return num_skipped_; }
  int64_t num_instants() const { return num_instants_; }
  int64_t peak_live_requests() const { return store_.peak_live(); }
  std::string NameOf(int32_t replica) const { return owner_->NameOf(replica); }
  // With the name of the replica before the message.
  absl::Status OfReplica(int32_t replica, const absl::Status& status) const;

 private:
  class Watcher;
  // Of a live request, by slot.
  struct Sent {
    int32_t replica = -1;
    bool is_admitted = false;
    int64_t num_outputs = 0;  // when it was sent
  };
  absl::Status RunLoop();
  absl::Status FinishSteps();
  absl::Status TakeArrivals();
  absl::Status Iterate();
  absl::Status IterateGroups();
  absl::Status ReadNextArrival();
  SimTime NextInstant(SimTime events);
  bool SkipsForNoOutput(SimRequest* request);
  ReplicaLoad LoadOf(size_t replica) const;

  absl::Status NoProgress() const;
  absl::Status ReportProgress();
  absl::Status OnEnded(SimRequest* request, SimTime now) override;
  Sent& SentOf(const SimRequest& request);

  const SimulationConfig config_;
  TraceReader* const reader_;
  ReplicaSet::Owner* const owner_;
  const bool reads_at_boundaries_;
  std::function<bool(const SimulationProgress&)> progress_;

  std::vector<std::unique_ptr<Watcher>> watchers_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<std::unique_ptr<LockstepGroup>> groups_;
  std::vector<int32_t> first_of_group_;
  std::vector<uint8_t> is_coupled_;  // by replica
  RequestStore store_;  // after the replicas: its requests give blocks back when destroyed
  Arrivals arrivals_;

  SimTime now_ = 0;
  std::vector<SimTime> next_;  // when each replica is to be called
  std::vector<int32_t> due_;   // those whose time has come, ascending
  size_t at_ = 0;              // the place in it that a pass has reached
  // Of requests that are known; read anew after one that ended.
  SimTime next_arrival_ = kNever;
  bool is_arrival_known_ = false;

  std::vector<ReplicaLoad> loads_;      // num_tokens without output
  std::vector<int64_t> ended_outputs_;  // output tokens of requests that are over
  std::vector<Sent> sent_;

  int64_t num_instants_ = 0;
  int64_t next_report_ = 0;
  int64_t num_arrived_ = 0, num_ended_ = 0, num_skipped_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPLICA_SET_H_
