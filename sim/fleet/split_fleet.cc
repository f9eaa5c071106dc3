#include "sim/fleet/split_fleet.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {
namespace {

absl::Status Check(const SplitOptions& options) {
  for (const RouterOptions* router : {&options.prefill_router, &options.decode_router}) {
    if (absl::Status status = Validate(*router); !status.ok()) return status;
  }
  if (options.bytes_per_token < 1 || options.bytes_per_token > (int64_t{1} << 40)) {
    return InvalidArgument("bytes_per_token: got ", options.bytes_per_token, ", expected 1 to 2^40");
  }
  if (options.max_local_tokens < 0) {
    return InvalidArgument("max_local_tokens: got ", options.max_local_tokens,
                           ", expected at least 0");
  }
  return absl::OkStatus();
}

}  // namespace

// What a replica asks of the fleet and reports to it. A prefill replica's blocks are held until they are
// fetched; a decode replica fetches them.
class SplitFleet::Side final : public KvConnector, public EngineObserver {
 public:
  Side(SplitFleet* fleet, size_t replica) : fleet_(fleet), replica_(replica) {}

  void AddEnd(const LoadEnd& end) { events_.loads.push_back(end); }
  void AddReleased(int64_t hold) { events_.holds.push_back(hold); }

  // --- KvConnector ---

  ExternalMatch Match(const SimRequest& request, int64_t num_hit_tokens, SimTime) override {
    if (is_prefill() || fleet_->ClientOf(request).hold < 0) return {};
    return {.num_tokens = std::max<int64_t>(request.num_prompt - num_hit_tokens, 0)};
  }
  void StartLoad(const KvLoad& load, const KvCacheManager&, SimTime now) override {
    fleet_->StartTransfer(replica_, load, now);
  }
  StepLoadTimes StepLoads(SimTime) override { return {}; }
  std::optional<SimTime> NextEvent() const override {
    if (events_.loads.empty() && events_.holds.empty()) return std::nullopt;
    return fleet_->set_.now();
  }
  void TakeEvents(SimTime, ConnectorEvents* events) override {
    events->loads.insert(events->loads.end(), events_.loads.begin(), events_.loads.end());
    events->holds.insert(events->holds.end(), events_.holds.begin(), events_.holds.end());
    events_.clear();
  }
  bool OnLeave(const SimRequest& request, const KvCacheManager&, LeaveCause cause, int64_t hold,
               SimTime) override {
    if (!is_prefill() || cause != LeaveCause::kFinished) return false;
    SimRequest* client = fleet_->client_of_leg_.at(&request);
    if (!fleet_->GoesOn(*client)) return false;
    fleet_->ClientOf(*client).hold = hold;
    return true;
  }

  // --- EngineObserver ---

  bool NeedsEveryRecord() const override { return false; }
  void OnKvEvents(absl::Span<const KvEvent> events, SimTime) override {
    const size_t first = is_prefill() ? 0 : fleet_->options_.num_prefill;
    Router& router = is_prefill() ? *fleet_->prefill_router_ : *fleet_->decode_router_;
    router.OnKvEvents(static_cast<int32_t>(replica_ - first), events);
  }
  void OnAdmission(const AdmissionRecord& record, SimTime now) override {
    Client& client = ClientOf(*record.request);
    if (client.life.prefill_start < 0) client.life.prefill_start = now;
    // All of it is here already.
    if (!is_prefill() && !record.is_load && client.hold >= 0) {
      fleet_->ReleaseHold(static_cast<size_t>(client.life.prefill_replica),
                          std::exchange(client.hold, -1));
    }
  }
  void OnStepFinished(const StepRecord& step) override {
    if (is_prefill()) return;
    for (const OutputRecord& output : step.outputs) {
      if (output.num_emitted == 0 || output.request->num_outputs() > output.num_emitted) continue;
      fleet_->ClientOf(*output.request).life.first_token = step.end;
    }
  }

 private:
  bool is_prefill() const { return replica_ < fleet_->options_.num_prefill; }
  Client& ClientOf(const SimRequest& request) {
    return fleet_->ClientOf(is_prefill() ? *fleet_->client_of_leg_.at(&request) : request);
  }

  SplitFleet* const fleet_;
  const size_t replica_;
  ConnectorEvents events_;
};

absl::StatusOr<std::unique_ptr<SplitFleet>> SplitFleet::Create(const SplitOptions& options,
                                                               std::vector<ReplicaSetup> replicas,
                                                               TraceReader* reader,
                                                               SplitObserver* observer) {
  if (reader == nullptr) return InvalidArgument("reader is null, expected a trace");
  if (observer == nullptr) return InvalidArgument("observer is null, expected a SplitObserver");
  const size_t num_prefill = options.num_prefill;
  const size_t num_decode = replicas.size() - std::min(num_prefill, replicas.size());
  for (const auto& [role, count] :
       {std::pair("prefill", num_prefill), std::pair("decode", num_decode)}) {
    if (count >= 1 && count <= kMostReplicas) continue;
    return InvalidArgument(role, " has ", count, " replicas, expected 1 to ", kMostReplicas);
  }
  if (absl::Status status = Check(options); !status.ok()) return status;
  const auto link = Link::Create(options.link);
  if (!link.ok()) return link.status();

  std::unique_ptr<SplitFleet> fleet(
      new SplitFleet(options, replicas.front().config, reader, observer));
  ReplicaSet& set = fleet->set_;
  fleet->links_.assign(options.scope == LinkScope::kShared ? 1 : num_decode, *link);
  for (size_t r = 0; r < replicas.size(); ++r) {
    ReplicaSetup& setup = replicas[r];
    fleet->sides_.push_back(std::make_unique<Side>(fleet.get(), r));
    setup.observers.push_back(fleet->sides_.back().get());
    const RouterKind kind = (r < num_prefill ? options.prefill_router : options.decode_router).kind;
    if (kind == RouterKind::kPrefix) setup.config.manager.enable_events = true;
    setup.connector = fleet->sides_.back().get();
    if (absl::Status status = set.Add(setup); !status.ok()) return status;
    const KvCacheManager& manager = set.replica(r).manager();
    for (GroupId g = 0; g < manager.num_groups(); ++g) {
      if (manager.group(g).keeps_all_blocks()) continue;
      return set.OfReplica(
          static_cast<int32_t>(r),
          InvalidArgument("KV-cache group ", g,
                          " does not keep all blocks of a request, expected full attention only"));
    }
  }
  for (const bool is_prefill : {true, false}) {
    const RouterKind kind = (is_prefill ? options.prefill_router : options.decode_router).kind;
    if (!UsesContent(kind)) continue;
    absl::Status status = CheckContents(set, is_prefill ? 0 : num_prefill,
                                        is_prefill ? num_prefill : num_decode, kind, /*group=*/0);
    if (!status.ok()) return status;
  }
  fleet->longest_ = set.replica(replicas.size() - 1).manager().options().max_model_len;
  fleet->prefill_router_ =
      MakeRouter(options.prefill_router, static_cast<int32_t>(num_prefill), /*group=*/0);
  fleet->decode_router_ =
      MakeRouter(options.decode_router, static_cast<int32_t>(num_decode), /*group=*/0);
  return fleet;
}

SplitFleet::SplitFleet(const SplitOptions& options, const SimulationConfig& config,
                       TraceReader* reader, SplitObserver* observer)
    : options_(options), reader_(reader), observer_(observer), set_(config, reader, this) {}

SplitFleet::~SplitFleet() = default;

std::string SplitFleet::NameOf(int32_t replica) const {
  const auto index = static_cast<size_t>(replica);
  return index < options_.num_prefill ? absl::StrCat("prefill replica ", index)
                              : absl::StrCat("decode replica ", index - options_.num_prefill);
}

absl::Status SplitFleet::Run() {
  const absl::Status status = set_.Run();
  for (size_t r = 0; r < set_.size(); ++r) {
    result_.replicas.push_back(set_.replica(r).result());
  }
  for (const Link& link : links_) result_.links.push_back(link.totals());
  result_.end_time = set_.now();
  result_.num_skipped = set_.num_skipped();
  return status;
}

// --- Transfers ---

void SplitFleet::StartTransfer(size_t decode, const KvLoad& load, SimTime now) {
  // The scheduler's own view is const; it is our request.
  Client& client = ClientOf(*load.request);
  const int64_t num_tokens =
      options_.charges_hits ? load.num_hit_tokens + load.num_tokens : load.num_tokens;
  client.life.load_start = now;
  client.life.num_loaded_tokens = load.num_tokens;
  client.life.num_bytes = num_tokens * options_.bytes_per_token;
  const size_t link = options_.scope == LinkScope::kShared ? 0 : decode - options_.num_prefill;
  const int64_t id = links_[link].Start(now, client.life.num_bytes);
  transfers_[{link, id}] = {.decode = decode,
                            .load = load.load,
                            .num_tokens = load.num_tokens,
                            .prefill = static_cast<size_t>(client.life.prefill_replica),
                            .hold = std::exchange(client.hold, -1),
                            .request = const_cast<SimRequest*>(load.request),
                            .row = load.request->spec.row};
}

absl::Status SplitFleet::BeforeArrivals() {
  for (size_t link = 0; link < links_.size(); ++link) {
    ended_.clear();
    links_[link].Advance(set_.now(), &ended_);
    for (const Link::Ended& end : ended_) {
      const auto found = transfers_.find({link, end.id});
      const Transfer& transfer = found->second;
      if (transfer.request->slot >= 0 && transfer.request->spec.row == transfer.row) {
        SplitLife& life = ClientOf(*transfer.request).life;
        life.load_end = end.time;
        life.link_queue = end.queue_time;
      }
      sides_[transfer.decode]->AddEnd({transfer.load, transfer.num_tokens});
      set_.CallNow(static_cast<int32_t>(transfer.decode));
      ReleaseHold(transfer.prefill, transfer.hold);
      transfers_.erase(found);
    }
  }
  return absl::OkStatus();
}

SimTime SplitFleet::NextTime() {
  SimTime next = ReplicaSet::kNever;
  for (const Link& link : links_) next = std::min(next, link.NextEnd().value_or(next));
  return next;
}

void SplitFleet::ReleaseHold(size_t prefill, int64_t hold) {
  sides_[prefill]->AddReleased(hold);
  set_.CallNow(static_cast<int32_t>(prefill));
}

// --- Requests on their way ---

absl::Status SplitFleet::OnArrived(SimRequest* request) {
  ClientOf(*request) = Client();
  ++result_.num_arrived;
  if (options_.max_local_tokens > 0) {
    SplitLife& life = ClientOf(*request).life;
    life.decode_replica = Choose(/*prefill=*/false, *request);
    const size_t decode = options_.num_prefill + static_cast<size_t>(life.decode_replica);
    if (MissingOn(decode, *request) <= options_.max_local_tokens) {
      life.is_local = true;
      ++result_.num_local;
      return SendToDecode(request);
    }
  }
  return SendToPrefill(request);
}

// What the replica would have to compute of the prompt.
int64_t SplitFleet::MissingOn(size_t replica, const SimRequest& request) {
  const KvCacheManager& manager = set_.replica(replica).manager();
  contents_.Hash(reader_->info(), request, manager, /*group=*/0);
  return request.num_prompt - contents_.HeldBy(manager);
}

int32_t SplitFleet::Choose(bool prefill, const SimRequest& request) {
  const size_t first = prefill ? 0 : options_.num_prefill;
  const size_t count = prefill ? options_.num_prefill : set_.size() - options_.num_prefill;
  const RouterKind kind = (prefill ? options_.prefill_router : options_.decode_router).kind;
  set_.GetLoads(first, count, &loads_now_);
  RouteQuestion question = {.request = request, .loads = loads_now_};
  if (UsesContent(kind)) {
    const KvCacheManager& manager = set_.replica(first).manager();
    contents_.Hash(reader_->info(), request, manager, /*group=*/0);
    question.block_tokens = manager.group(0).block_size();
    question.blocks = contents_.blocks();
  }
  if (kind == RouterKind::kOracle) {
    held_.clear();
    for (size_t r = first; r < first + count; ++r) {
      held_.push_back(contents_.HeldBy(set_.replica(r).manager()));
    }
    question.tokens_held = held_;
  }
  return (prefill ? prefill_router_ : decode_router_)->Route(question).replica;
}

absl::Status SplitFleet::SendToPrefill(SimRequest* request) {
  Client& client = ClientOf(*request);
  client.life.prefill_replica = Choose(/*prefill=*/true, *request);
  SimRequest* leg = set_.AddPart(request->spec);
  leg->max_output = std::min<int64_t>(request->max_output, 1);
  leg->arrival = request->arrival;
  client.leg = leg;
  client_of_leg_[leg] = request;
  return set_.Submit(leg, client.life.prefill_replica);
}

absl::Status SplitFleet::SendToDecode(SimRequest* request) {
  Client& client = ClientOf(*request);
  client.is_ready = false;
  if (client.life.decode_replica < 0) {
    client.life.decode_replica = Choose(/*prefill=*/false, *request);
  }
  return set_.Submit(request,
                     static_cast<int32_t>(options_.num_prefill) + client.life.decode_replica);
}

absl::Status SplitFleet::AfterArrivals() {
  for (SimRequest*& entry : ready_) {
    SimRequest* request = std::exchange(entry, nullptr);
    if (request == nullptr) continue;
    if (options_.first_token == FirstToken::kPrefill) {
      ++request->num_known;
      ClientOf(*request).life.first_token = set_.now();
    }
    if (absl::Status status = SendToDecode(request); !status.ok()) return status;
  }
  ready_.clear();
  return absl::OkStatus();
}

// --- Requests that are over ---

SplitFleet::Client& SplitFleet::ClientOf(const SimRequest& request) {
  const auto slot = static_cast<size_t>(request.slot);
  if (slot >= clients_.size()) clients_.resize(slot + 1);
  return clients_[slot];
}

// Whether something is left to do when its prompt is computed.
bool SplitFleet::GoesOn(const SimRequest& request) const {
  if (options_.first_token == FirstToken::kDecode) return request.max_output > 0;
  return request.num_prompt + 1 < std::min(request.num_prompt + request.max_output, longest_);
}

absl::Status SplitFleet::OnEnded(SimRequest* request, SimTime now) {
  return client_of_leg_.contains(request) ? EndLeg(request, now) : EndClient(request, now);
}

absl::Status SplitFleet::EndLeg(SimRequest* leg, SimTime now) {
  SimRequest* request = client_of_leg_.at(leg);
  Client& client = ClientOf(*request);
  const FinishReason reason = leg->finish_reason;
  const AbortCause cause = leg->abort_cause;
  const std::string text = leg->finish_text;
  const int64_t num_outputs = leg->num_outputs();
  client_of_leg_.erase(leg);
  client.leg = nullptr;
  set_.RemovePart(leg);
  if (reason == FinishReason::kAbort) return GiveUp(request, cause, now);
  if (reason == FinishReason::kLength) {
    client.life.prefill_end = now;
    if (GoesOn(*request)) {
      client.is_ready = true;
      ready_.push_back(request);
      return absl::OkStatus();
    }
    client.life.first_token = now;
    request->num_known += num_outputs;
  }
  request->state = RequestState::kFinished;
  request->finish_reason = reason;
  request->finish_text = text;
  return EndClient(request, now);
}

// Ends a request that no replica has.
absl::Status SplitFleet::GiveUp(SimRequest* request, AbortCause cause, SimTime now) {
  if (ClientOf(*request).is_ready) {
    std::replace(ready_.begin(), ready_.end(), request, static_cast<SimRequest*>(nullptr));
  }
  request->state = RequestState::kFinished;
  request->finish_reason = FinishReason::kAbort;
  request->abort_cause = cause;
  return EndClient(request, now);
}

absl::Status SplitFleet::EndClient(SimRequest* request, SimTime now) {
  Client& client = ClientOf(*request);
  if (client.hold >= 0) {
    ReleaseHold(static_cast<size_t>(client.life.prefill_replica), std::exchange(client.hold, -1));
  }
  observer_->OnEnded(*request, client.life, now);
  result_.num_finished += request->finish_reason == FinishReason::kLength;
  result_.num_rejected += request->finish_reason == FinishReason::kRejected;
  result_.num_aborted += request->finish_reason == FinishReason::kAbort;
  client = Client();
  return set_.End(request, now);
}

absl::Status SplitFleet::OnGivenUp(SimRequest* turn, const SimRequest*, SimTime now) {
  const Client& client = ClientOf(*turn);
  const bool has_arrived = client.life.prefill_replica >= 0 || client.life.decode_replica >= 0;
  if (!has_arrived || client.is_ready) {
    result_.num_arrived += !has_arrived;
    return GiveUp(turn, AbortCause::kSession, now);
  }
  SimRequest* part = client.leg != nullptr ? client.leg : turn;
  const int32_t replica = set_.replica_of(*part);
  set_.replica(static_cast<size_t>(replica)).PlanAbort(part, AbortCause::kSession, now);
  set_.CallNow(replica);
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
