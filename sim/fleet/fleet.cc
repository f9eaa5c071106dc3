#include "kvblocks/sim/fleet/fleet.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool/check.h"
#include "kvblocks/sim/gen/philox.h"

namespace kvblocks::sim {
namespace {

constexpr SimTime kNever = std::numeric_limits<SimTime>::max();

absl::Status OfReplica(size_t index, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("replica ", index, ": ", status.message()));
}

}  // namespace

// What the fleet itself must see of a replica.
class Fleet::Watcher final : public EngineObserver {
 public:
  Watcher(Fleet* fleet, int32_t replica) : fleet_(fleet), replica_(replica) {}

  bool NeedsEveryRecord() const override { return false; }

  void OnAdmission(const AdmissionRecord& record, SimTime now) override {
    Routed& routed = fleet_->RoutedOf(*record.request);
    if (routed.is_admitted) return;
    routed.is_admitted = true;
    fleet_->loads_[static_cast<size_t>(replica_)].num_waiting_tokens -= record.request->num_prompt;
    for (FleetObserver* observer : fleet_->observers_) {
      observer->OnFound(*record.request, replica_, routed.claim, record.num_hit_tokens, now);
    }
  }

  void OnKvEvents(absl::Span<const KvEvent> events, SimTime now) override {
    if (fleet_->options_.router.kind != RouterKind::kPrefix) return;
    const int64_t number = num_batches_++;
    ++fleet_->result_.num_event_batches;
    if (fleet_->options_.event_loss > 0) {
      const uint64_t stream = MixBits(static_cast<uint64_t>(replica_)) + static_cast<uint64_t>(number);
      Draws draws(fleet_->options_.router.seed, "event loss", stream);
      if (draws.Below(kMillion) < fleet_->options_.event_loss) {
        ++fleet_->result_.num_lost_batches;
        return;
      }
    }
    const SimTime time = CheckedAdd(now, fleet_->options_.event_delay).value_or(kNever);
    fleet_->batches_.push_back({time, replica_, {events.begin(), events.end()}});
  }

 private:
  Fleet* const fleet_;
  const int32_t replica_;
  int64_t num_batches_ = 0;
};

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(const FleetOptions& options,
                                                     std::vector<ReplicaSetup> replicas,
                                                     TraceReader* reader,
                                                     std::vector<FleetObserver*> observers) {
  if (reader == nullptr) return absl::InvalidArgumentError("reader is null, expected a trace");
  if (std::count(observers.begin(), observers.end(), nullptr) > 0) {
    return absl::InvalidArgumentError("observers holds a null, expected observers only");
  }
  if (replicas.empty() || replicas.size() > kMostReplicas) {
    return absl::InvalidArgumentError(absl::StrCat("replicas has ", replicas.size(),
                                                   " entries, expected 1 to ", kMostReplicas));
  }
  if (absl::Status status = Validate(options.router); !status.ok()) return status;
  if (options.router_delay < 0 || options.event_delay < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.router_delay < 0 ? "router_delay is " : "event_delay is ",
                     std::min(options.router_delay, options.event_delay),
                     " ps, expected at least 0"));
  }
  if (options.event_loss < 0 || options.event_loss > kMillion) {
    return absl::InvalidArgumentError(absl::StrCat("event_loss is ", options.event_loss,
                                                   " millionths, expected 0 to ", kMillion));
  }

  std::unique_ptr<Fleet> fleet(
      new Fleet(options, replicas.front().config, reader, std::move(observers)));
  for (size_t r = 0; r < replicas.size(); ++r) {
    ReplicaSetup& setup = replicas[r];
    if (options.router.kind == RouterKind::kPrefix) setup.config.manager.enable_events = true;
    fleet->watchers_.push_back(
        std::make_unique<Watcher>(fleet.get(), static_cast<int32_t>(r)));
    setup.observers.push_back(fleet->watchers_.back().get());
    auto replica = Replica::Create(setup.config, reader->info(), setup.step_time, setup.observers,
                                   fleet.get());
    if (!replica.ok()) return OfReplica(r, replica.status());
    fleet->replicas_.push_back(*std::move(replica));
  }
  const size_t count = replicas.size();
  fleet->next_.assign(count, kNever);
  fleet->loads_.resize(count);
  fleet->loads_now_.resize(count);
  fleet->ended_outputs_.resize(count);
  const KvCacheManager& manager = fleet->replicas_.front()->manager();
  fleet->caches_ = manager.hashing() != nullptr;
  for (GroupId g = manager.num_groups() - 1; g >= 0; --g) {
    if (manager.group(g).keeps_all_blocks()) fleet->group_ = g;
  }
  if (absl::Status status = fleet->CheckContents(); !status.ok()) return status;
  fleet->router_ =
      MakeRouter(options.router, static_cast<int32_t>(count), fleet->group_);
  return fleet;
}

Fleet::Fleet(const FleetOptions& options, const SimulationConfig& config, TraceReader* reader,
             std::vector<FleetObserver*> observers)
    : options_(options),
      config_(config),
      reader_(reader),
      observers_(std::move(observers)),
      arrivals_(reader, &store_, config.concurrency,
                {.jitter = config.start_jitter, .delay = config.start_delay}) {}

Fleet::~Fleet() = default;

// Contents are hashed once per request, for all replicas.
absl::Status Fleet::CheckContents() const {
  const KvCacheManager& first = replicas_.front()->manager();
  const auto block_tokens = [&](const KvCacheManager& manager) {
    return group_ < manager.num_groups() ? manager.group(group_).block_size() : 0;
  };
  if (UsesContent(options_.router.kind) && !caches_) {
    return absl::InvalidArgumentError(
        absl::StrCat("router ", std::string(RouterName(options_.router.kind)),
                     " compares cached blocks, but prefix caching is off"));
  }
  for (size_t r = 1; r < replicas_.size(); ++r) {
    const KvCacheManager& manager = replicas_[r]->manager();
    const bool is_alike =
        (manager.hashing() != nullptr) == caches_ &&
        (!caches_ || (manager.hash_block_size() == first.hash_block_size() &&
                      block_tokens(manager) == block_tokens(first) &&
                      manager.hashing()->num_lookahead_tokens ==
                          first.hashing()->num_lookahead_tokens));
    if (!is_alike) {
      return absl::InvalidArgumentError(
          absl::StrCat("replica ", r, " has blocks of ", block_tokens(manager),
                       " tokens, hashed by ", manager.hash_block_size(), ", and replica 0 of ",
                       block_tokens(first), ", hashed by ", first.hash_block_size(),
                       ": what one holds could not be compared with the other"));
    }
  }
  return absl::OkStatus();
}

absl::Status Fleet::Run() {
  for (const auto& replica : replicas_) replica->Start();
  const absl::Status status = RunLoop();
  for (const auto& replica : replicas_) {
    replica->End(now_);
    result_.replicas.push_back(replica->result());
  }
  result_.end_time = now_;
  result_.peak_live_requests = store_.peak_live();
  return status;
}

absl::Status Fleet::RunLoop() {
  while (true) {
    if (absl::Status status = FinishSteps(); !status.ok()) return status;
    DeliverEvents();
    if (absl::Status status = TakeArrivals(); !status.ok()) return status;
    if (absl::Status status = ReportProgress(); !status.ok()) return status;
    if (absl::Status status = Iterate(); !status.ok()) return status;
    const auto next = NextInstant();
    if (!next.ok()) return next.status();
    if (!*next) return NoProgress();
    now_ = std::max(now_, **next);
  }
}

// --- One instant ---

absl::Status Fleet::FinishSteps() {
  // A session that ends may make others due.
  for (size_t i = 0; i < due_.size(); ++i) {
    const auto r = static_cast<size_t>(due_[i]);
    if (!replicas_[r]->is_step_over(now_)) continue;
    if (absl::Status status = replicas_[r]->FinishStep(); !status.ok()) {
      return OfReplica(r, status);
    }
  }
  return absl::OkStatus();
}

void Fleet::CallNow(int32_t replica) {
  SimTime& next = next_[static_cast<size_t>(replica)];
  if (next <= now_) return;
  next = now_;
  due_.insert(std::upper_bound(due_.begin(), due_.end(), replica), replica);
}

void Fleet::DeliverEvents() {
  for (; !batches_.empty() && batches_.front().time <= now_; batches_.pop_front()) {
    router_->OnKvEvents(batches_.front().replica, batches_.front().events);
  }
}

absl::Status Fleet::TakeArrivals() {
  if (is_arrival_known_ && (!next_arrival_ || *next_arrival_ > now_)) return SendDue();
  is_arrival_known_ = false;
  while (true) {
    const auto taken = arrivals_.TakeDue(now_);
    if (!taken.ok()) return taken.status();
    for (SimRequest* turn : arrivals_.TakeGivenUp()) {
      // Nobody was sent it; its end is told by the first.
      absl::Status status = replicas_.front()->AbortNow(turn, AbortCause::kSession, now_);
      if (!status.ok()) return status;
    }
    SimRequest* request = *taken;
    if (request == nullptr) return SendDue();
    absl::Status status;
    if (request->max_output == 0 && config_.zero_output == ZeroOutput::kSkip) {
      ++result_.num_skipped;
      status = OnEnded(request, now_);
    } else {
      if (request->max_output == 0 && config_.zero_output == ZeroOutput::kOne) {
        request->max_output = 1;
      }
      RoutedOf(*request) = Routed();
      if (options_.router_delay == 0) {
        status = Send(request);
      } else {
        const auto time = CheckedAdd(request->arrival, options_.router_delay);
        if (!time) return absl::OutOfRangeError("the clock would pass its 106 days: router_delay");
        on_its_way_.push_back({*time, request->spec.row, request});
      }
    }
    if (!status.ok()) return status;
  }
}

absl::Status Fleet::SendDue() {
  while (!on_its_way_.empty() && on_its_way_.front().time <= now_) {
    const OnItsWay next = on_its_way_.front();
    on_its_way_.pop_front();
    if (next.request->slot < 0 || next.request->spec.row != next.row) continue;  // given up
    if (absl::Status status = Send(next.request); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Fleet::Send(SimRequest* request) {
  for (size_t r = 0; r < loads_.size(); ++r) {
    loads_now_[r] = loads_[r];
    loads_now_[r].num_tokens +=
        replicas_[r]->scheduler().totals().num_output_tokens - ended_outputs_[r];
  }
  FindHeld(*request);
  const bool shows_content = UsesContent(options_.router.kind);
  const int64_t block_tokens = replicas_.front()->manager().group(group_).block_size();
  RouteQuestion question = {.request = *request,
                            .loads = loads_now_,
                            .block_tokens = shows_content ? block_tokens : 1};
  if (shows_content) question.blocks = blocks_;
  if (options_.router.kind == RouterKind::kOracle) question.tokens_held = held_;
  const RouteAnswer answer = router_->Route(question);

  const auto chosen = static_cast<size_t>(answer.replica);
  Routed& routed = RoutedOf(*request);
  routed.replica = answer.replica;
  if (!answer.claimed_tokens.empty()) routed.claim = answer.claimed_tokens[chosen];
  const RoutingRecord record = {.request = *request,
                                .replica = answer.replica,
                                .loads = loads_now_,
                                .claimed_tokens = answer.claimed_tokens,
                                .scores = answer.scores,
                                .held_tokens = held_};
  for (FleetObserver* observer : observers_) observer->OnRouted(record, now_);
  loads_[chosen].num_requests += 1;
  loads_[chosen].num_tokens += request->num_prompt;
  loads_[chosen].num_waiting_tokens += request->num_prompt;
  CallNow(answer.replica);
  absl::Status status = replicas_[chosen]->Submit(request, now_);
  return status.ok() ? status : OfReplica(chosen, status);
}

// What each pool holds of the prompt, and the blocks to compare. The last token is always computed.
void Fleet::FindHeld(const SimRequest& request) {
  blocks_.clear();
  held_.clear();
  if (!caches_ || request.num_prompt <= 0) {
    if (caches_) held_.resize(replicas_.size());
    return;
  }
  const KvCacheManager& first = replicas_.front()->manager();
  ContentKeys keys(reader_->info(), request.spec, first.hash_block_size(), std::string_view(),
                   first.hashing()->num_lookahead_tokens);
  std::vector<BlockHash> hashes;
  keys.AppendBlocks(request.spec, request.num_prompt, &hashes);
  const int64_t block_tokens = first.group(group_).block_size();
  const int64_t per_block = block_tokens / first.hash_block_size();
  const int64_t most = (request.num_prompt - 1) / block_tokens;
  for (int64_t i = 0; i < most; ++i) {
    const auto last = static_cast<size_t>((i + 1) * per_block - 1);
    if (last >= hashes.size()) break;
    blocks_.push_back(hashes[last]);
  }
  // Without its first block nothing of a prompt is found, unless hits end inside blocks or no group
  // keeps all of its blocks.
  const bool needs_first = first.group(group_).keeps_all_blocks();
  ComputedBlocks found;
  for (const auto& replica : replicas_) {
    const KvCacheManager& manager = replica->manager();
    if (needs_first && !manager.options().partial_hits &&
        (blocks_.empty() || manager.pool().FindCached(blocks_.front(), group_) == kNullBlockId)) {
      held_.push_back(0);
      continue;
    }
    const auto probe = manager.NewRequestFromHashes("probe", request.num_prompt, hashes);
    KVBLOCKS_CHECK(probe.ok(), probe.status().ToString());
    const absl::Status status = manager.GetComputedBlocks(**probe, found);
    KVBLOCKS_CHECK(status.ok(), status.ToString());
    held_.push_back(found.num_tokens());
  }
}

absl::Status Fleet::Iterate() {
  // All aborts first: a session that ends takes turns along that others would admit.
  if (due_.size() > 1) {
    for (size_t i = 0; i < due_.size(); ++i) {
      const auto r = static_cast<size_t>(due_[i]);
      if (absl::Status status = replicas_[r]->DeliverAborts(now_); !status.ok()) {
        return OfReplica(r, status);
      }
    }
  }
  for (size_t i = 0; i < due_.size(); ++i) {
    const auto r = static_cast<size_t>(due_[i]);
    absl::Status status = replicas_[r]->DeliverAborts(now_);
    if (status.ok() && replicas_[r]->wants_schedule()) status = replicas_[r]->Schedule(now_);
    if (!status.ok()) return OfReplica(r, status);
    next_[r] = replicas_[r]->NextTime().value_or(kNever);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SimTime>> Fleet::NextInstant() {
  if (!is_arrival_known_) {
    const auto arrival = arrivals_.NextTime(now_);
    if (!arrival.ok()) return arrival.status();
    next_arrival_ = *arrival;
    is_arrival_known_ = true;
  }
  SimTime next = next_arrival_.value_or(kNever);
  if (!on_its_way_.empty()) next = std::min(next, on_its_way_.front().time);
  due_.clear();
  for (size_t r = 0; r < next_.size(); ++r) {
    if (next_[r] > next || next_[r] == kNever) continue;
    if (next_[r] < next) due_.clear();
    next = next_[r];
    due_.push_back(static_cast<int32_t>(r));
  }
  return next == kNever ? std::nullopt : std::optional<SimTime>(next);
}

// Nothing will ever happen by itself: the end, unless someone still has work.
absl::Status Fleet::NoProgress() const {
  for (size_t r = 0; r < replicas_.size(); ++r) {
    if (!replicas_[r]->has_work()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", r, ": ", replicas_[r]->scheduler().DescribeNoProgress()));
  }
  return absl::OkStatus();
}

// --- Requests that are over ---

Fleet::Routed& Fleet::RoutedOf(const SimRequest& request) {
  const auto slot = static_cast<size_t>(request.slot);
  if (slot >= routed_.size()) routed_.resize(slot + 1);
  return routed_[slot];
}

absl::Status Fleet::OnEnded(SimRequest* request, SimTime now) {
  Routed& routed = RoutedOf(*request);
  if (routed.replica >= 0) {
    const auto r = static_cast<size_t>(routed.replica);
    loads_[r].num_requests -= 1;
    loads_[r].num_tokens -= request->num_prompt;
    if (!routed.is_admitted) loads_[r].num_waiting_tokens -= request->num_prompt;
    ended_outputs_[r] += request->num_outputs();
  }
  if (request->was_cut_short() && request->spec.session != 0 &&
      request->abort_cause != AbortCause::kSession) {
    // The others must not arrive by this request's end.
    if (absl::Status status = EndSession(*request, now); !status.ok()) return status;
  }
  RoutedOf(*request) = Routed();
  is_arrival_known_ = false;
  absl::Status status = arrivals_.Resolve(*request, now);
  store_.Remove(request);
  return status;
}

absl::Status Fleet::EndSession(const SimRequest& request, SimTime now) {
  const int32_t here = std::max(RoutedOf(request).replica, 0);
  for (SimRequest* turn : arrivals_.GiveUpSession(request.spec.session)) {
    const int32_t there = RoutedOf(*turn).replica;
    if (there < 0 || there == here) {
      absl::Status status =
          replicas_[static_cast<size_t>(here)]->AbortNow(turn, AbortCause::kSession, now);
      if (!status.ok()) return status;
    } else {
      replicas_[static_cast<size_t>(there)]->PlanAbort(turn, AbortCause::kSession, now);
      CallNow(there);
    }
  }
  return absl::OkStatus();
}

absl::Status Fleet::ReportProgress() {
  ++num_instants_;
  if (!progress_ || num_instants_ % config_.progress_interval != 0) return absl::OkStatus();
  SimulationProgress progress = {
      .now = now_, .num_done = result_.num_skipped, .read = reader_->progress()};
  for (const auto& replica : replicas_) {
    progress.num_arrived += replica->result().num_arrived;
    progress.num_done += replica->result().num_done();
    progress.num_output_tokens += replica->scheduler().totals().num_output_tokens;
    progress.num_running += replica->scheduler().num_running();
    progress.num_waiting += replica->scheduler().num_waiting();
  }
  if (progress_(progress)) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("stopped at ", FormatDuration(now_)));
}

}  // namespace kvblocks::sim
