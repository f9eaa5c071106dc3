// Fleet: a trace replayed through several replicas behind a router, all on one simulated clock.
//
//   auto fleet = Fleet::Create(options, replicas, reader.get(), {&metrics});
//   absl::Status status = (*fleet)->Run();
//
// The clock is a ReplicaSet's, which says what happens at one instant in which order. The router
// learns of KV events before it is asked, of those that reach it at that instant, too.
//
// A session's turns may run on several replicas. When one is aborted, its turns elsewhere that have
// not begun to run are aborted at the next iteration boundary there; those that were not sent
// anywhere yet end where the aborted one was.
//
// Replicas may start, stop and crash (see Scaler). A request that a crash took from its replica is
// sent again at that instant, behind steps that end and before requests that arrive; its tokens are
// lost, and its latencies count from its first arrival. Its end there is reported as
// AbortCause::kCrash to the observers of that replica. Requests wait at the router while no replica
// is live.
//
// Prefill and decode can run on replicas of their own, with the KV travelling between them: see
// Handover.
//
// Data-parallel ranks are replicas of the set, each with its own number. Those that share experts
// run in lockstep (see LockstepGroup).
//
// Always: deterministic, as Simulation; each request that is not skipped ends exactly once, in the
// observers of one replica, but for those ends. Single-threaded. Cost: that of the ReplicaSet, and
// per request what the router asks.

#ifndef KVBLOCKS_SIM_FLEET_FLEET_H_
#define KVBLOCKS_SIM_FLEET_FLEET_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sim/cost/link.h"
#include "sim/fleet/prompt_contents.h"
#include "sim/fleet/router.h"
#include "sim/fleet/scaling.h"
#include "sim/replica_set.h"

namespace kvblocks::sim {

// A request on its way, and why it goes there.
struct RoutingRecord {
  const SimRequest& request;
  int32_t replica = 0;
  // By replica, before the request is among them.
  absl::Span<const ReplicaLoad> loads;
  absl::Span<const int64_t> claimed_tokens;  // as RouteAnswer
  absl::Span<const int64_t> scores;          // as RouteAnswer
  // By replica: tokens of the prompt that a look-up would find at this instant; empty without
  // prefix caching.
  absl::Span<const int64_t> held_tokens;
  absl::Span<const uint8_t> has_room = {};  // as RouteQuestion
  SimTime waited = 0;  // in the router's queue
};

// What became of a request that was or could be handed over, and when; -1: it did not come to that.
struct HandoverLife {
  int32_t prefill_replica = -1;  // of its role
  int32_t decode_replica = -1;   // likewise
  bool is_local = false;
  SimTime prefill_start = -1;  // first step of the prompt scheduled, wherever
  SimTime prefill_end = -1;    // on the prefill replica
  SimTime load_start = -1;     // the decode replica has blocks for it
  SimTime load_end = -1;
  SimTime link_queue = 0;  // of the transfer: what others on the link cost it
  int64_t num_loaded_tokens = 0;
  int64_t num_bytes = 0;
  SimTime first_token = -1;
};

// Of a fleet without hand-over, but for OnEnded.
class FleetObserver {
 public:
  virtual ~FleetObserver() = default;
  virtual void OnRouted(const RoutingRecord& record, SimTime now) { (void)record, (void)now; }
  // Rejected since the router's queue was full, or given up in it. Of no replica; finish_reason and
  // abort_cause say which.
  virtual void OnEndedAtRouter(const SimRequest& request, SimTime now) { (void)request, (void)now; }
  // At its first admission; `routed_claim` is what the router claimed for the replica it chose, -1
  // if it claims nothing.
  virtual void OnFound(const SimRequest& request, int32_t replica, int64_t routed_claim,
                       int64_t num_hit_tokens, SimTime now) {
    (void)request, (void)replica, (void)routed_claim, (void)num_hit_tokens, (void)now;
  }
  // Of one with hand-over: finish_reason and abort_cause of the request say how.
  virtual void OnEnded(const SimRequest& request, const HandoverLife& life, SimTime now) {
    (void)request, (void)life, (void)now;
  }
};

enum class FirstToken { kPrefill, kDecode };
enum class LinkScope { kShared, kPerDecodeReplica };

// KV of one KV-cache group, as a link carries it.
struct GroupTransfer {
  int64_t block_bytes = 0;  // on one device
  int64_t block_size = 1;   // tokens
  bool is_window = false;   // of a prompt only what its window still needs travels
};

struct HandoverOptions {
  size_t num_prefill = 1;  // of the replicas, the first so many; the others decode
  RouterOptions decode_router = {.kind = RouterKind::kLeastTokens};
  LinkOptions link = {};
  LinkScope scope = LinkScope::kShared;  // one for all transfers, or one into each decode replica
  std::vector<GroupTransfer> groups = {};
  // Also the bytes travel that the decode replica has already.
  bool charges_hits = false;
  FirstToken first_token = FirstToken::kPrefill;
  // A request of whose prompt the decode replica lacks at most so many tokens when it arrives is
  // computed there as a whole; 0: none.
  int64_t max_local_tokens = 0;
};

struct FleetOptions {
  RouterOptions router;  // of requests that arrive
  RouterQueueOptions queue = {};
  // From a request's arrival until the router sends it on; part of its latencies.
  SimTime router_delay = 0;
  // From the end of a step until the router knows of the blocks that it stored and removed. The
  // step that stored them is over then, so it is at least one step behind the pool.
  SimTime event_delay = 0;
  int64_t event_loss = 0;  // share of the batches that never reach it, in millionths
  // Of the replicas, the first so many are live at the beginning; 0: all.
  int32_t num_live = 0;
  ScalingOptions scaling = {};
  // Replicas of the set that are data-parallel ranks of one, ascending; none scales.
  std::vector<RankGroup> ranks = {};
  LockstepOptions lockstep = {};  // of all groups
  // Prefill and decode on replicas of their own; with no queue, delay, loss, scaling, ranks nor
  // connector.
  std::optional<HandoverOptions> handover = {};
};

// Of all requests of a fleet with hand-over.
struct HandoverResult {
  int64_t num_arrived = 0;  // those given up with their session before they could are among them
  int64_t num_finished = 0;
  int64_t num_aborted = 0;
  int64_t num_rejected = 0;
  int64_t num_local = 0;  // computed where they decode, of all that arrived
  std::vector<LinkTotals> links = {};

  friend bool operator==(const HandoverResult&, const HandoverResult&) = default;
};

struct FleetResult {
  SimTime end_time = 0;
  int64_t num_skipped = 0;
  int64_t num_event_batches = 0;  // published to a router that wants them
  int64_t num_lost_batches = 0;
  // At the router, and of no replica.
  int64_t num_rejected = 0;
  int64_t num_aborted = 0;
  int64_t most_waiting = 0;
  int64_t peak_live_requests = 0;  // with hand-over, a part of one counts as one
  ScalingResult scaling = {};
  std::vector<SimulationResult> replicas = {};  // up to the last that was ever on
  std::vector<LockstepTotals> lockstep = {};    // by replica; empty: none is in lockstep
  HandoverResult handover = {};

  friend bool operator==(const FleetResult&, const FleetResult&) = default;
};

class Fleet final : private ReplicaSet::Owner {
 public:
  static constexpr size_t kMostReplicas = 4096;

  // InvalidArgument for bad options, groups of ranks that are not ascending, scale or have a
  // connector, no replica, too many or fewer than scaling may need at once, a bad configuration of
  // one, or replicas that hash contents differently or do not cache, with a router that compares
  // contents; with hand-over also for replicas that keep states, or other groups than listed. What
  // concerns the trace (concurrency, zero_output) is the first replica's. Nothing is owned.
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(const FleetOptions& options,
                                                       std::vector<ReplicaSetup> replicas,
                                                       TraceReader* reader,
                                                       std::vector<FleetObserver*> observers);
  ~Fleet() override;
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // As Simulation::Run; also FailedPrecondition if requests wait and no replica will be live. Call
  // it once.
  absl::Status Run();
  void set_progress(std::function<bool(const SimulationProgress&)> progress) {
    set_.set_progress(std::move(progress));
  }

  const FleetResult& result() const { return result_; }
  const Replica& replica(size_t index) const { return set_.replica(index); }
  size_t num_replicas() const { return set_.size(); }

 private:
  class Handover;
  class Watcher;
  // Replicas that do the same, and who chooses between them: all, or those that prefill and those
  // that decode.
  struct Role {
    const char* name = "";
    size_t first = 0, count = 0;
    RouterOptions options = {};
    std::unique_ptr<Router> router = nullptr;
  };
  // Of a live request, by slot.
  struct Routed {
    int64_t claim = -1;    // of the router for the replica it chose; -1: none
    int64_t num_hits = 0;  // tokens found there
  };
  struct OnItsWay {
    SimTime time;
    int64_t row;
    SimRequest* request;  // may be gone
  };

  Fleet(const FleetOptions& options, const SimulationConfig& config, TraceReader* reader,
        std::vector<FleetObserver*> observers);
  static absl::Status Check(const FleetOptions& options, const std::vector<ReplicaSetup>& replicas);
  void MakeRoles(size_t num_replicas);
  absl::Status Add(ReplicaSetup setup);
  absl::Status MakeRouters();
  absl::Status CoupleRanks();
  absl::Status Scale();
  absl::Status SendAgain();
  static bool IsGone(const OnItsWay& way);
  Scaler::Measures Measure();
  absl::Status Reach(SimRequest* request);
  absl::Status Drain();
  bool FindRoom(int64_t num_prompt);
  absl::Status EndAtRouter(SimRequest* request);
  std::optional<SimTime> DeadlineOf(const SimRequest& request) const;
  SimTime WaitOf(const SimRequest& request) const;
  absl::Status Send(SimRequest* request);
  RouteAnswer Choose(const Role& role, const SimRequest& request);
  void FindHeld(const Role& role, const SimRequest& request);
  const Role& RoleOf(size_t replica) const;

  // Of a ReplicaSet.
  absl::Status OnArrived(SimRequest* request) override;
  absl::Status OnGivenUp(SimRequest* turn, const SimRequest* ended, SimTime now) override;
  absl::Status OnEnded(SimRequest* request, SimTime now) override;
  absl::Status BeforeArrivals() override;
  absl::Status AfterArrivals() override;
  SimTime NextTime() override;
  void OnAdmission(int32_t replica, const SimRequest& request, int64_t num_hit_tokens,
                   SimTime now) override;
  std::string NameOf(int32_t replica) const override;

  const FleetOptions options_;
  TraceReader* const reader_;
  const std::vector<FleetObserver*> observers_;

  std::vector<std::unique_ptr<Watcher>> watchers_;
  std::unique_ptr<Handover> handover_;  // may be null
  ReplicaSet set_;
  std::vector<Role> roles_;
  std::deque<OnItsWay> on_its_way_;
  RouterQueue queue_;              // also of those that find no live replica
  std::vector<SimTime> reached_;   // by slot: when it came to the router
  std::vector<uint8_t> has_room_;  // by replica, for the request that is sent; empty: all have
  bool may_have_room_ = false;     // more than when it was looked for
  const SimTime max_queue_time_;
  std::vector<OnItsWay> lost_;  // by crashes of this instant; `time` is the arrival
  std::vector<Routed> routed_;
  std::optional<Scaler> scaler_;
  int64_t num_first_tokens_ = 0, num_in_time_ = 0;  // since the rule was checked
  GroupId group_ = 0;                               // whose blocks are compared
  bool caches_ = false;

  // Of the request that is being sent.
  std::vector<ReplicaLoad> loads_now_;
  std::vector<int64_t> held_;
  PromptContents contents_;
  FleetResult result_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_FLEET_H_
