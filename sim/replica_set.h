// ReplicaSet: several replicas, and the requests of one trace, on one simulated clock.
//
// It owns the replicas, the clock and the live requests. Its owner says where each request goes, and
// may have events of its own: messages on their way, transfers, starts of replicas. At each instant
//
//   1. all steps that end, in replica order
//   2. Owner::BeforeArrivals
//   3. Owner::OnArrived for each request whose time has come, in order of arrival
//   4. Owner::AfterArrivals
//   5. all aborts, then all schedulers, in replica order; then those of replicas in lockstep, by group
//
// So what happens at one instant does not depend on how the replicas are numbered, but for what the
// owner makes of the numbers.
//
// Where nothing that a replica does concerns the others before the next arrival or event of the owner
// (Owner::RunsApart, and no request waits for the end of another), each runs up to there by itself: its
// instants keep their order, and its memory stays in the cache. If the owner knows where the next
// requests go without a look at the replicas (Owner::IsPlaceKnown), each runs past all of these, and
// takes them up on its way; then there is enough to do between two points where all meet for
// several threads. What the owner must know of it is kept, and told when all are there, in order of time.
// Only a replica's own observers see it at once.
//
// Always: deterministic, the same with any number of threads; a request has one slot among all live
// ones and those read ahead, and ends exactly once. Cost: that of the replicas, 20 ns per instant that is
// common to all, and 1 ns per replica in it.

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
#include "kvblocks/sim/apart_queue.h"
#include "kvblocks/sim/arrivals.h"
#include "kvblocks/sim/lockstep_group.h"
#include "kvblocks/sim/replica.h"
#include "kvblocks/sim/replica_load.h"
#include "kvblocks/sim/simulation.h"

namespace kvblocks::sim {

class ReplicaSet final : private Replica::Owner {
 public:
  static constexpr SimTime kNever = std::numeric_limits<SimTime>::max();

  class Owner {
   public:
    virtual ~Owner() = default;

    // A request of the trace, its zero_output settled: to be given to Submit, now or later, or to End.
    virtual absl::Status OnArrived(SimRequest* request) = 0;
    // A turn of a session that was given up, which has not begun to run; where it is, if anywhere, it is
    // to be ended. `ended`: the request that took the session along, before it is gone; null if that
    // was before this turn was read.
    virtual absl::Status OnGivenUp(SimRequest* turn, const SimRequest* ended, SimTime now) = 0;
    // A replica is done with the request, whatever its end. To be given to End, or sent again.
    virtual absl::Status OnEnded(SimRequest* request, SimTime now) = 0;

    // See above. The clock stands at now().
    virtual absl::Status BeforeArrivals() { return absl::OkStatus(); }
    virtual absl::Status AfterArrivals() { return absl::OkStatus(); }
    // When the two want to be called next, whatever else happens; kNever: not yet known.
    virtual SimTime NextTime() { return kNever; }
    // Until then, no end or step of a replica makes the owner do anything that others could notice.
    virtual bool RunsApart() const { return false; }

    // The first admission there since the request was sent.
    virtual void OnAdmission(int32_t replica, const SimRequest& request, int64_t num_hit_tokens,
                             SimTime now) {
      (void)replica, (void)request, (void)num_hit_tokens, (void)now;
    }

    // --- Requests sent ahead, and replicas that run apart ---

    // Whether the next request that arrives goes where it goes whatever replicas do until then. Asked while
    // NextTime is kNever. REQUIRES: if so, BeforeArrivals and AfterArrivals have nothing to do then.
    virtual bool IsPlaceKnown(const SimRequest& request) const {
      (void)request;
      return false;
    }
    // In place of OnArrived, before its time, for such a request: where it is sent. It is the index-th of
    // those that are sent ahead together.
    virtual int32_t SendAhead(size_t index, SimRequest* request) {
      (void)index, (void)request;
      return 0;
    }
    // From now on observers of replicas are called by several threads, those of one replica by one at a
    // time, and times of different replicas come in no order.
    virtual void OnApart() {}
    // All stand at the same point again, and the owner has been told what happened.
    virtual void OnTogether() {}
    // Of each request sent ahead, before LookAhead; of several at once.
    virtual void PrepareAhead(size_t index, const SimRequest& request) {
      (void)index, (void)request;
    }
    // The replica stands where the index-th of them is about to be sent, wherever it is sent to. In
    // this order; of several replicas at once.
    virtual void LookAhead(size_t index, int32_t replica, const ReplicaLoad& load) {
      (void)index, (void)replica, (void)load;
    }
    // Told with ends and admissions, in order of time.
    virtual void OnSentAhead(size_t index, const SimRequest& request, int32_t replica) {
      (void)index, (void)request, (void)replica;
    }
    // For messages: "replica 3".
    virtual std::string NameOf(int32_t replica) const;
  };

  // `config` is for what concerns the trace (concurrency, zero_output, progress_interval). Nothing is
  // owned.
  ReplicaSet(const SimulationConfig& config, TraceReader* reader, Owner* owner);
  ~ReplicaSet() override;
  ReplicaSet(const ReplicaSet&) = delete;
  ReplicaSet& operator=(const ReplicaSet&) = delete;

  // Before Run; numbers count up. Errors are Replica::Create's, with the name.
  absl::Status Add(const SimulationConfig& config, const StepTimeModel* step_time,
                   std::vector<EngineObserver*> observers);
  // These replicas step together from now on. InvalidArgument for fewer than two, one that is in a group or
  // has stages, or synchronous ones beside asynchronous ones. Before Run; none gets a connector.
  absl::Status Couple(size_t first, size_t count, const LockstepOptions& options);
  void set_progress(std::function<bool(const SimulationProgress&)> progress) {
    progress_ = std::move(progress);
  }

  // Of replicas that run apart; 1 unless it is set. Observers of different replicas must share nothing then
  // that one of them changes.
  void set_num_threads(int num_threads) { num_threads_ = num_threads; }

  // As Simulation::Run; messages name the replica. Once.
  absl::Status Run();

  // --- For the owner, while it runs ---

  SimTime now() const { return now_; }
  // Hands the request to a replica, which OnEnded will tell about.
  absl::Status Submit(SimRequest* request, int32_t replica);
  // The replica is called at this instant, too. REQUIRES: not while replicas run apart.
  void CallNow(int32_t replica);
  // The replica is gone with all it has, and can be used again as new: OnEnded is told of each of its
  // requests, ended by AbortCause::kCrash. From BeforeArrivals or AfterArrivals.
  absl::Status Crash(int32_t replica);
  // Makes a request that such an end left behind ready for Submit.
  void Restart(SimRequest* request);
  // The client's request is over; finish_reason and abort_cause say how. Ends its session's turns if it
  // was aborted, lets those arrive that waited for it, and forgets it.
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
  int64_t num_sent_ahead() const { return num_sent_ahead_; }
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
  struct Ahead {
    SimTime time;
    SimRequest* request;
    int32_t replica;
  };
  // How far a replica has come by itself.
  struct alignas(64) Alone {
    size_t num_seen = 0;  // of the requests sent ahead
    int64_t num_instants = 0;  // in this turn
    SimTime last = 0;          // of them
    absl::Status status;
  };
  // Kept for the owner.
  struct Told {
    using Order = std::pair<size_t, SimTime>;  // how many had been sent ahead, and when
    SimRequest* ended = nullptr;
    const SimRequest* admitted = nullptr;
    int64_t num_hit_tokens = 0;
  };

  absl::Status RunLoop();
  absl::Status FinishSteps();
  absl::Status TakeArrivals();
  absl::Status Iterate();
  absl::Status IterateGroups();
  absl::Status ReadNextArrival();
  SimTime NextInstant(SimTime events);
  bool SkipsForNoOutput(SimRequest* request);
  bool MayEndSession(const SimRequest& request) const;
  absl::Status SubmitAt(SimRequest* request, size_t replica, SimTime now);
  ReplicaLoad LoadOf(size_t replica) const;

  // replica_set_apart.cc: replicas by themselves.
  bool MayRunApart() const;
  absl::Status GatherAhead();
  absl::Status RunApart(SimTime limit);
  SimTime ReachedBy(size_t replica) const;
  void PrepareAhead(int num_threads);
  void RunTurn(int num_threads, SimTime limit);
  void RunAlone(size_t replica, SimTime limit);
  absl::Status TellApart();
  absl::Status NoProgress() const;
  absl::Status ReportProgress();
  absl::Status OnEnded(SimRequest* request, SimTime now) override;
  Sent& SentOf(const SimRequest& request);

  const SimulationConfig config_;
  TraceReader* const reader_;
  ReplicaSet::Owner* const owner_;
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
  // Whether a request may have come whose abort takes its session's turns along, wherever they are.
  bool sessions_may_end_ = false;
  bool may_be_cut_short_ = false;  // whoever it is: waits for too long, or its load fails

  std::vector<ReplicaLoad> loads_;      // num_tokens without output
  std::vector<int64_t> ended_outputs_;  // output tokens of requests that are over
  std::vector<Sent> sent_;

  int num_threads_ = 1;
  bool is_apart_ = false;
  std::vector<Ahead> ahead_;  // in order of time; sent since all were together
  std::vector<Alone> alone_;  // by replica
  std::vector<size_t> turn_;  // whose it is
  ApartQueue<Told::Order, Told> told_;

  int64_t num_instants_ = 0;
  int64_t next_report_ = 0;
  int64_t num_arrived_ = 0, num_ended_ = 0, num_skipped_ = 0, num_sent_ahead_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPLICA_SET_H_
