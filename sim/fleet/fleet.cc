#include "sim/fleet/fleet.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/fleet/handover.h"
#include "sim/gen/philox.h"

namespace kvblocks::sim {
namespace {

// When the trace's client gives it up, in any state.
std::optional<SimTime> AbortTimeOf(const SimRequest& request) {
  if (request.spec.abort_after_ns <= 0) return std::nullopt;
  const std::optional<SimTime> after = FromNanoseconds(request.spec.abort_after_ns);
  return after ? CheckedAdd(request.arrival, *after) : std::nullopt;
}

}  // namespace

// What the fleet itself must see of a replica.
class Fleet::Watcher final : public EngineObserver {
 public:
  Watcher(Fleet* fleet, int32_t replica)
      : fleet_(fleet),
        replica_(replica),
        role_(fleet->RoleOf(static_cast<size_t>(replica))),
        place_(replica - static_cast<int32_t>(role_.first)),
        reports_counts_(WantsCounts(role_.options.kind)),
        counts_in_time_(fleet->options_.scaling.rule &&
                        fleet->options_.scaling.rule->measure == ScaleRule::Measure::kTtft) {}

  bool NeedsEveryRecord() const override { return false; }

  void OnKvEvents(absl::Span<const KvEvent> events, SimTime now) override {
    const FleetOptions& options = fleet_->options_;
    if (role_.options.kind != RouterKind::kPrefix || !fleet_->scaler_->is_live(replica_)) return;
    const int64_t number = num_batches_++;
    ++fleet_->result_.num_event_batches;
    if (options.event_loss > 0) {
      const uint64_t stream =
          MixBits(static_cast<uint64_t>(replica_)) + static_cast<uint64_t>(number);
      Draws draws(options.router.seed, "event loss", stream);
      if (draws.Below(kMillion) < options.event_loss) {
        ++fleet_->result_.num_lost_batches;
        return;
      }
    }
    // The router is not asked before this instant's steps have ended.
    if (options.event_delay == 0) return role_.router->OnKvEvents(place_, events);
    const SimTime time = CheckedAdd(now, options.event_delay).value_or(ReplicaSet::kNever);
    batches_.push_back({time, {events.begin(), events.end()}});
  }

  void OnStepScheduled(const StepRecord& step) override {
    if (reports_counts_) ReportCounts(step.start);
  }

  void OnStepFinished(const StepRecord& step) override {
    if (reports_counts_) ReportCounts(step.end);
    if (!counts_in_time_) return;
    const SimTime limit = fleet_->options_.scaling.rule->limit;
    for (const OutputRecord& output : step.outputs) {
      if (output.request == nullptr || output.num_emitted == 0 ||
          output.request->num_outputs() > output.num_emitted) {
        continue;
      }
      ++fleet_->num_first_tokens_;
      fleet_->num_in_time_ += step.end - output.request->arrival <= limit;
    }
  }

  // Of a replica that is gone.
  void DropEvents() { batches_.clear(); }
  void DeliverEvents(SimTime now) {
    for (; !batches_.empty() && batches_.front().time <= now; batches_.pop_front()) {
      role_.router->OnKvEvents(place_, batches_.front().events);
    }
  }

 private:
  void ReportCounts(SimTime now) {
    const Replica& replica = fleet_->set_.replica(static_cast<size_t>(replica_));
    const BlockPool& pool = replica.manager().pool();
    role_.router->OnCounts(place_,
                           {.num_waiting = replica.scheduler().num_waiting(),
                            .num_running = replica.scheduler().num_running(),
                            .num_blocks_used = pool.num_blocks() - 1 - pool.num_free(),
                            .num_blocks = pool.num_blocks() - 1},
                           now);
  }

  struct Batch {
    SimTime time;
    std::vector<KvEvent> events;
  };

  Fleet* const fleet_;
  const int32_t replica_;
  const Role& role_;
  const int32_t place_;  // in it
  const bool reports_counts_, counts_in_time_;
  int64_t num_batches_ = 0;
  std::deque<Batch> batches_;  // on their way to the router
};

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(const FleetOptions& options,
                                                     std::vector<ReplicaSetup> replicas,
                                                     TraceReader* reader,
                                                     std::vector<FleetObserver*> observers) {
  if (reader == nullptr) return absl::InvalidArgumentError("reader is null, expected a trace");
  if (std::count(observers.begin(), observers.end(), nullptr) > 0) {
    return absl::InvalidArgumentError("observers holds a null, expected observers only");
  }
  if (absl::Status status = Check(options, replicas); !status.ok()) return status;
  std::unique_ptr<Fleet> fleet(
      new Fleet(options, replicas.front().config, reader, std::move(observers)));
  fleet->MakeRoles(replicas.size());
  for (ReplicaSetup& setup : replicas) {
    if (absl::Status status = fleet->Add(std::move(setup)); !status.ok()) return status;
  }
  if (absl::Status status = fleet->MakeRouters(); !status.ok()) return status;
  if (absl::Status status = fleet->CoupleRanks(); !status.ok()) return status;
  const auto count = static_cast<int32_t>(replicas.size());
  fleet->scaler_.emplace(options.scaling, options.num_live > 0 ? options.num_live : count, count);
  return fleet;
}

absl::Status Fleet::Add(ReplicaSetup setup) {
  const size_t r = set_.size();
  if (RoleOf(r).options.kind == RouterKind::kPrefix) setup.config.manager.enable_events = true;
  watchers_.push_back(std::make_unique<Watcher>(this, static_cast<int32_t>(r)));
  setup.observers.push_back(watchers_.back().get());
  if (handover_ != nullptr) handover_->Join(r, &setup);
  if (absl::Status status = set_.Add(setup); !status.ok()) return status;
  if (handover_ != nullptr) return handover_->CheckReplica(r);
  const bool is_coupled =
      std::any_of(options_.ranks.begin(), options_.ranks.end(), [&](const RankGroup& ranks) {
        return ranks.is_lockstep && static_cast<int32_t>(r) >= ranks.first &&
               static_cast<int32_t>(r) < ranks.first + ranks.count;
      });
  if (!is_coupled || setup.connector == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "replica ", r, " loads KV from elsewhere, expected none in lockstep with others: their steps "
      "would wait for its loads"));
}

Fleet::Fleet(const FleetOptions& options, const SimulationConfig& config, TraceReader* reader,
             std::vector<FleetObserver*> observers)
    : options_(options),
      reader_(reader),
      observers_(std::move(observers)),
      set_(config, reader, this),
      queue_(options.queue),
      max_queue_time_(config.max_queue_time) {}

Fleet::~Fleet() = default;

absl::Status Fleet::Run() {
  absl::Status status = set_.Run();
  if (status.ok() && !queue_.empty()) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "no progress: ", queue_.size(), " requests wait at the router, the first is ",
        queue_.first()->spec.id,
        ", but no replica is live nor will start; let one start behind the last that stops"));
  }
  scaler_->Close(set_.now());
  result_.scaling = scaler_->result();
  for (size_t r = 0; r < static_cast<size_t>(scaler_->num_used()); ++r) {
    result_.replicas.push_back(set_.replica(r).result());
  }
  if (set_.num_groups() > 0) result_.lockstep.resize(result_.replicas.size());
  for (size_t g = 0, coupled = 0; g < options_.ranks.size(); ++g) {
    if (!options_.ranks[g].is_lockstep) continue;
    const std::vector<LockstepTotals>& totals = set_.group(coupled++).totals();
    std::copy(totals.begin(), totals.end(), result_.lockstep.begin() + options_.ranks[g].first);
  }
  if (handover_ != nullptr) handover_->Close(&result_.handover);
  result_.end_time = set_.now();
  result_.num_skipped = set_.num_skipped();
  result_.peak_live_requests = set_.peak_live_requests();
  return status;
}

// --- Requests on their way ---

absl::Status Fleet::OnArrived(SimRequest* request) {
  if (handover_ != nullptr) return handover_->OnArrived(request);
  if (options_.router_delay == 0) return Reach(request);
  const auto time = CheckedAdd(request->arrival, options_.router_delay);
  if (!time) return absl::OutOfRangeError("the clock would pass its 106 days: router_delay");
  on_its_way_.push_back({*time, request->spec.row, request});
  return absl::OkStatus();
}

// Given up with its session.
bool Fleet::IsGone(const OnItsWay& way) {
  return way.request->slot < 0 || way.request->spec.row != way.row;
}

absl::Status Fleet::AfterArrivals() {
  while (!on_its_way_.empty() && on_its_way_.front().time <= set_.now()) {
    const OnItsWay next = on_its_way_.front();
    on_its_way_.pop_front();
    if (IsGone(next)) continue;
    if (absl::Status status = Reach(next.request); !status.ok()) return status;
  }
  return handover_ != nullptr ? handover_->AfterArrivals() : Drain();
}

SimTime Fleet::NextTime() {
  if (handover_ != nullptr) return handover_->NextTime();
  SimTime next = on_its_way_.empty() ? ReplicaSet::kNever : on_its_way_.front().time;
  if (!queue_.empty()) {
    // Room that aborts of this instant made.
    if (may_have_room_) return set_.now();
    next = std::min(next, queue_.NextDeadline().value_or(ReplicaSet::kNever));
  }
  // Planned starts and stops of replicas do not keep a run going.
  if (options_.scaling.is_used() &&
      (next != ReplicaSet::kNever || !queue_.empty() || set_.is_any_due())) {
    next = std::min(next, scaler_->NextTime());
  }
  return next;
}

// --- The router's queue ---

absl::Status Fleet::Reach(SimRequest* request) {
  const auto slot = static_cast<size_t>(request->slot);
  const bool is_any_live = !scaler_->live().empty();
  scaler_->result().num_held += !is_any_live;
  if (!options_.queue.is_on() && is_any_live && queue_.empty()) {
    if (options_.scaling.is_used()) FindRoom(request->num_prompt);
    if (slot < reached_.size()) reached_[slot] = -1;
    return Send(request);
  }
  if (slot >= reached_.size()) reached_.resize(slot + 1);
  reached_[slot] = set_.now();
  may_have_room_ = true;  // for this one
  queue_.Push(request, DeadlineOf(*request));
  if (absl::Status status = Drain(); !status.ok()) return status;
  if (!queue_.is_too_long()) {
    result_.most_waiting = std::max(result_.most_waiting, queue_.size());
    return absl::OkStatus();
  }
  SimRequest* last = queue_.last();
  last->finish_reason = FinishReason::kRejected;
  last->finish_text = absl::StrCat("the router's queue is full: ", options_.queue.max_waiting,
                                   " requests wait");
  ++result_.num_rejected;
  return EndAtRouter(last);
}

absl::Status Fleet::Drain() {
  if (!may_have_room_) return absl::OkStatus();
  while (!queue_.empty() && FindRoom(queue_.first()->num_prompt)) {
    SimRequest* request = queue_.first();
    queue_.Remove(*request);
    if (absl::Status status = Send(request); !status.ok()) return status;
  }
  may_have_room_ = false;
  return absl::OkStatus();
}

bool Fleet::FindRoom(int64_t num_prompt) {
  set_.GetLoads(0, set_.size(), &loads_now_);
  has_room_.clear();
  bool is_some = false;
  for (size_t r = 0; r < loads_now_.size(); ++r) {
    has_room_.push_back(scaler_->is_live(static_cast<int32_t>(r)) &&
                        HasRoom(options_.queue, loads_now_[r], num_prompt));
    is_some |= has_room_.back() != 0;
  }
  return is_some;
}

SimTime Fleet::WaitOf(const SimRequest& request) const {
  const auto slot = static_cast<size_t>(request.slot);
  return slot < reached_.size() && reached_[slot] >= 0 ? set_.now() - reached_[slot] : 0;
}

// When the request is aborted unless it was sent before.
std::optional<SimTime> Fleet::DeadlineOf(const SimRequest& request) const {
  const std::optional<SimTime> abort = AbortTimeOf(request);
  if (max_queue_time_ == 0) return abort;
  const std::optional<SimTime> patience =
      CheckedAdd(std::max(request.arrival, request.resent), max_queue_time_);
  if (!abort || !patience) return abort ? abort : patience;
  return std::min(*abort, *patience);
}

// Runs before requests are sent: like an engine, it sends none whose deadline has passed.
absl::Status Fleet::BeforeArrivals() {
  if (handover_ != nullptr) handover_->EndTransfers();
  while (SimRequest* request = queue_.FirstExpired(set_.now())) {
    const std::optional<SimTime> abort = AbortTimeOf(*request);
    request->finish_reason = FinishReason::kAbort;
    request->abort_cause =
        abort && *abort <= set_.now() ? AbortCause::kAbortTime : AbortCause::kQueueTime;
    ++result_.num_aborted;
    if (absl::Status status = EndAtRouter(request); !status.ok()) return status;
  }
  if (!options_.scaling.is_used() || scaler_->NextTime() > set_.now()) return absl::OkStatus();
  return Scale();
}

absl::Status Fleet::EndAtRouter(SimRequest* request) {
  queue_.Remove(*request);
  request->state = RequestState::kFinished;
  // The next in line may fit where it did not.
  may_have_room_ = true;
  for (FleetObserver* observer : observers_) observer->OnEndedAtRouter(*request, set_.now());
  return set_.End(request, set_.now());
}

// --- Replicas that come and go ---

Scaler::Measures Fleet::Measure() {
  Scaler::Measures measures = {.num_waiting = queue_.size(),
                               .num_first_tokens = std::exchange(num_first_tokens_, 0),
                               .num_in_time = std::exchange(num_in_time_, 0)};
  for (const int32_t r : scaler_->live()) {
    measures.num_waiting += set_.replica(static_cast<size_t>(r)).scheduler().num_waiting();
  }
  return measures;
}

absl::Status Fleet::Scale() {
  const SimTime now = set_.now();
  const Scaler::Measures measures = scaler_->checks_rule_at(now) ? Measure() : Scaler::Measures();
  for (const Scaler::Change& change : scaler_->Take(now, measures)) {
    switch (change.kind) {
      case ScaleRecord::Kind::kStop:
      case ScaleRecord::Kind::kCrash:
        roles_.front().router->OnGone(change.replica);
        watchers_[static_cast<size_t>(change.replica)]->DropEvents();
        if (change.kind == ScaleRecord::Kind::kStop) break;
        [[fallthrough]];
      case ScaleRecord::Kind::kStart:
        // What drained before comes back as new, with nothing in its caches.
        if (absl::Status status = set_.Crash(change.replica); !status.ok()) return status;
        break;
      case ScaleRecord::Kind::kLive:
      case ScaleRecord::Kind::kOff:
        break;
    }
  }
  return SendAgain();
}

absl::Status Fleet::SendAgain() {
  std::sort(lost_.begin(), lost_.end(), [](const OnItsWay& a, const OnItsWay& b) {
    return a.time != b.time ? a.time < b.time : a.row < b.row;
  });
  // Those that waited here came before those that ran until now.
  may_have_room_ = true;
  if (absl::Status status = Drain(); !status.ok()) return status;
  for (const OnItsWay& lost : std::exchange(lost_, {})) {
    if (IsGone(lost)) continue;
    if (absl::Status status = Reach(lost.request); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// --- Where they go ---

absl::Status Fleet::Send(SimRequest* request) {
  for (const auto& watcher : watchers_) watcher->DeliverEvents(set_.now());
  const RouteAnswer answer = Choose(roles_.front(), *request);
  const auto chosen = static_cast<size_t>(answer.replica);
  const auto slot = static_cast<size_t>(request->slot);
  if (slot >= routed_.size()) routed_.resize(slot + 1);
  routed_[slot] = {.claim = answer.claimed_tokens.empty() ? -1 : answer.claimed_tokens[chosen]};
  const RoutingRecord record = {.request = *request,
                                .replica = answer.replica,
                                .loads = loads_now_,
                                .claimed_tokens = answer.claimed_tokens,
                                .scores = answer.scores,
                                .held_tokens = held_,
                                .has_room = has_room_,
                                .waited = WaitOf(*request)};
  for (FleetObserver* observer : observers_) observer->OnRouted(record, set_.now());
  scaler_->OnSent(answer.replica);
  return set_.Submit(request, answer.replica);
}

// The answer counts the replicas of the role.
RouteAnswer Fleet::Choose(const Role& role, const SimRequest& request) {
  set_.GetLoads(role.first, role.count, &loads_now_);
  FindHeld(role, request);
  RouteQuestion question = {
      .request = request, .loads = loads_now_, .now = set_.now(), .has_room = has_room_};
  if (handover_ == nullptr) question.live = scaler_->live();
  if (UsesContent(role.options.kind)) {
    question.block_tokens = set_.replica(role.first).manager().group(group_).block_size();
    question.blocks = contents_.blocks();
  }
  if (role.options.kind == RouterKind::kOracle) question.tokens_held = held_;
  return role.router->Route(question);
}

// What each pool holds of the prompt, and the blocks to compare. The last token is always computed.
void Fleet::FindHeld(const Role& role, const SimRequest& request) {
  held_.clear();
  // A request that is handed over has no record of it.
  if (!caches_ || (handover_ != nullptr && !UsesContent(role.options.kind))) return;
  contents_.Hash(reader_->info(), request, set_.replica(role.first).manager(), group_);
  if (handover_ != nullptr && role.options.kind != RouterKind::kOracle) return;
  for (size_t r = role.first; r < role.first + role.count; ++r) {
    held_.push_back(scaler_->is_live(static_cast<int32_t>(r))
                        ? contents_.HeldBy(set_.replica(r).manager())
                        : 0);
  }
}

void Fleet::OnAdmission(int32_t replica, const SimRequest& request, int64_t num_hit_tokens,
                        SimTime now) {
  if (handover_ != nullptr) return;
  Routed& routed = routed_[static_cast<size_t>(request.slot)];
  routed.num_hits = num_hit_tokens;
  for (FleetObserver* observer : observers_) {
    observer->OnFound(request, replica, routed.claim, num_hit_tokens, now);
  }
}

// --- Requests that are over ---

absl::Status Fleet::OnGivenUp(SimRequest* turn, const SimRequest* ended, SimTime now) {
  if (handover_ != nullptr) return handover_->OnGivenUp(turn, now);
  const int32_t here = ended == nullptr ? 0 : std::max(set_.replica_of(*ended), 0);
  const int32_t there = set_.replica_of(*turn);
  const bool is_where_it_ended = ended != nullptr && set_.replica_of(*ended) == there;
  if (there < 0 || is_where_it_ended) {
    // What nobody was sent ends where its session did.
    return set_.replica(static_cast<size_t>(here)).AbortNow(turn, AbortCause::kSession, now);
  }
  set_.replica(static_cast<size_t>(there)).PlanAbort(turn, AbortCause::kSession, now);
  set_.CallNow(there);
  return absl::OkStatus();
}

absl::Status Fleet::OnEnded(SimRequest* request, SimTime now) {
  if (handover_ != nullptr) return handover_->OnEnded(request, now);
  const int32_t replica = set_.replica_of(*request);
  if (replica >= 0) scaler_->OnLeft(replica, now);
  if (request->abort_cause == AbortCause::kCrash) {
    ScalingResult& scaling = scaler_->result();
    ++scaling.num_lost;
    scaling.num_lost_tokens += std::max<int64_t>(
        request->highest_computed - routed_[static_cast<size_t>(request->slot)].num_hits, 0);
    if (!options_.scaling.fails_lost) {
      // At once, so that it ends if its session does.
      ++scaling.num_retried;
      set_.Restart(request);
      lost_.push_back({request->arrival, request->spec.row, request});
      return absl::OkStatus();
    }
    ++scaling.num_failed;
  }
  // A turn that waited at the router and ended with its session.
  if (queue_.Has(*request)) queue_.Remove(*request);
  may_have_room_ = true;
  return set_.End(request, now);
}

}  // namespace kvblocks::sim
