#include "sim/fleet/handover.h"

#include <algorithm>
#include <string>

#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {

// What a replica asks of the fleet and reports to it. A prefill replica's blocks are held until
// they are fetched; a decode replica fetches them.
class Fleet::Handover::Side final : public KvConnector, public EngineObserver {
 public:
  Side(Handover* parent, size_t replica) : parent_(parent), replica_(replica) {}

  void AddEnd(const LoadEnd& end) { events_.loads.push_back(end); }
  void AddReleased(int64_t hold) { events_.holds.push_back(hold); }

  // --- KvConnector ---

  ExternalMatch Match(const SimRequest& request, int64_t num_hit_tokens, SimTime) override {
    if (is_prefill() || parent_->ClientOf(request).hold < 0) return {};
    return {.num_tokens = std::max<int64_t>(request.num_prompt - num_hit_tokens, 0)};
  }
  void StartLoad(const KvLoad& load, const KvCacheManager& manager, SimTime now) override {
    parent_->StartTransfer(replica_, load, manager, now);
  }
  StepLoadTimes StepLoads(SimTime) override { return {}; }
  std::optional<SimTime> NextEvent() const override {
    if (events_.loads.empty() && events_.holds.empty()) return std::nullopt;
    return parent_->fleet_->set_.now();
  }
  void TakeEvents(SimTime, ConnectorEvents* events) override {
    events->loads.insert(events->loads.end(), events_.loads.begin(), events_.loads.end());
    events->holds.insert(events->holds.end(), events_.holds.begin(), events_.holds.end());
    events_.clear();
  }
  bool OnLeave(const SimRequest& request, const KvCacheManager&, LeaveCause cause, int64_t hold,
               SimTime) override {
    if (!is_prefill() || cause != LeaveCause::kFinished) return false;
    SimRequest* client = parent_->client_of_leg_.at(&request);
    if (!parent_->GoesOn(*client)) return false;
    parent_->ClientOf(*client).hold = hold;
    return true;
  }

  // --- EngineObserver ---

  bool NeedsEveryRecord() const override { return false; }
  void OnAdmission(const AdmissionRecord& record, SimTime now) override {
    Client& client = ClientOf(*record.request);
    if (client.life.prefill_start < 0) client.life.prefill_start = now;
    // All of it is here already.
    if (!is_prefill() && !record.is_load && client.hold >= 0) {
      parent_->ReleaseHold(static_cast<size_t>(client.life.prefill_replica),
                           std::exchange(client.hold, -1));
    }
  }
  void OnStepFinished(const StepRecord& step) override {
    if (is_prefill()) return;
    for (const OutputRecord& output : step.outputs) {
      if (output.num_emitted == 0 || output.request->num_outputs() > output.num_emitted) continue;
      parent_->ClientOf(*output.request).life.first_token = step.end;
    }
  }

 private:
  bool is_prefill() const { return replica_ < parent_->options_.num_prefill; }
  Client& ClientOf(const SimRequest& request) {
    return parent_->ClientOf(is_prefill() ? *parent_->client_of_leg_.at(&request) : request);
  }

  Handover* const parent_;
  const size_t replica_;
  ConnectorEvents events_;
};

absl::Status Fleet::Handover::Check(const HandoverOptions& options, size_t num_replicas) {
  if (options.num_prefill < 1 || options.num_prefill >= num_replicas) {
    return InvalidArgument("handover.num_prefill: got ", options.num_prefill, " of ", num_replicas,
                           " replicas, expected at least one that prefills and one that decodes");
  }
  KVBLOCKS_RETURN_IF_ERROR(Validate(options.decode_router));
  for (const GroupTransfer& group : options.groups) {
    if (group.block_bytes >= 1 && group.block_bytes <= int64_t{1} << 40 && group.block_size >= 1) {
      continue;
    }
    return InvalidArgument("handover.groups: got ", group.block_bytes, " bytes per block of ",
                           group.block_size, " tokens, expected 1 to 2^40 and at least 1");
  }
  if (options.max_local_tokens < 0) {
    return InvalidArgument("max_local_tokens: got ", options.max_local_tokens,
                           ", expected at least 0");
  }
  return Link::Create(options.link).status();
}

Fleet::Handover::Handover(Fleet* fleet) : fleet_(fleet), options_(*fleet->options_.handover) {
  const size_t num_links =
      options_.scope == LinkScope::kShared ? 1 : fleet->roles_.back().count;
  links_.assign(num_links, *Link::Create(options_.link));
}

Fleet::Handover::~Handover() = default;

void Fleet::Handover::Join(size_t replica, ReplicaSetup* setup) {
  sides_.push_back(std::make_unique<Side>(this, replica));
  setup->observers.push_back(sides_.back().get());
  setup->connector = sides_.back().get();
}

absl::Status Fleet::Handover::CheckReplica(size_t replica) const {
  const KvCacheManager& manager = fleet_->set_.replica(replica).manager();
  const auto refuse = [&](const absl::Status& status) {
    return fleet_->set_.OfReplica(static_cast<int32_t>(replica), status);
  };
  if (manager.num_groups() != static_cast<GroupId>(options_.groups.size())) {
    return refuse(InvalidArgument("it has ", manager.num_groups(), " KV-cache groups, expected ",
                                  options_.groups.size(), " as handover.groups lists"));
  }
  for (GroupId g = 0; g < manager.num_groups(); ++g) {
    if (manager.group(g).spec().kind() != KvCacheSpecKind::kMamba) continue;
    return refuse(InvalidArgument("KV-cache group ", g,
                                  " keeps states, expected attention only: states do not travel"));
  }
  return absl::OkStatus();
}

void Fleet::Handover::Close(HandoverResult* result) {
  for (const Link& link : links_) result_.links.push_back(link.totals());
  *result = std::move(result_);
}

// --- Transfers ---

int64_t Fleet::Handover::BytesOf(const KvLoad& load, const KvCacheManager& manager) const {
  const int64_t end = load.num_hit_tokens + load.num_tokens;
  const int64_t begin = options_.charges_hits ? 0 : load.num_hit_tokens;
  Wide bytes = 0;
  for (GroupId g = 0; g < manager.num_groups(); ++g) {
    const GroupTransfer& group = options_.groups[static_cast<size_t>(g)];
    int64_t num_tokens = end - begin;
    if (group.is_window) {
      // In front of the window there are null blocks.
      const absl::Span<const BlockId> table = manager.GetBlocks(*load.request->kv, g);
      int64_t first = end;
      while (first > begin) {
        const int64_t block = (first - 1) / group.block_size;
        if (table[static_cast<size_t>(block)] == kNullBlockId) break;
        first = std::max(begin, block * group.block_size);
      }
      num_tokens = end - first;
    }
    bytes += Wide{num_tokens} * group.block_bytes / group.block_size;
  }
  return static_cast<int64_t>(std::min<Wide>(bytes, Link::kMaxBytes));
}

void Fleet::Handover::StartTransfer(size_t decode, const KvLoad& load,
                                    const KvCacheManager& manager, SimTime now) {
  // The scheduler's own view is const; it is our request.
  Client& client = ClientOf(*load.request);
  client.life.load_start = now;
  client.life.num_loaded_tokens = load.num_tokens;
  client.life.num_bytes = BytesOf(load, manager);
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

void Fleet::Handover::EndTransfers() {
  ReplicaSet& set = fleet_->set_;
  for (size_t link = 0; link < links_.size(); ++link) {
    ended_.clear();
    links_[link].Advance(set.now(), &ended_);
    for (const Link::Ended& end : ended_) {
      const auto found = transfers_.find({link, end.id});
      const Transfer& transfer = found->second;
      if (transfer.request->slot >= 0 && transfer.request->spec.row == transfer.row) {
        HandoverLife& life = ClientOf(*transfer.request).life;
        life.load_end = end.time;
        life.link_queue = end.queue_time;
      }
      sides_[transfer.decode]->AddEnd({transfer.load, transfer.num_tokens});
      set.CallNow(static_cast<int32_t>(transfer.decode));
      ReleaseHold(transfer.prefill, transfer.hold);
      transfers_.erase(found);
    }
  }
}

SimTime Fleet::Handover::NextTime() const {
  SimTime next = ReplicaSet::kNever;
  for (const Link& link : links_) next = std::min(next, link.NextEnd().value_or(next));
  return next;
}

void Fleet::Handover::ReleaseHold(size_t prefill, int64_t hold) {
  sides_[prefill]->AddReleased(hold);
  fleet_->set_.CallNow(static_cast<int32_t>(prefill));
}

// --- Requests on their way ---

absl::Status Fleet::Handover::OnArrived(SimRequest* request) {
  ClientOf(*request) = Client();
  ++result_.num_arrived;
  if (options_.max_local_tokens > 0) {
    const int32_t chosen = ChooseDecode(*request);
    HandoverLife& life = ClientOf(*request).life;
    life.decode_replica = chosen;
    const size_t decode = options_.num_prefill + static_cast<size_t>(chosen);
    if (MissingOn(decode, *request) <= options_.max_local_tokens) {
      life.is_local = true;
      ++result_.num_local;
      return SendToDecode(request);
    }
  }
  return SendToPrefill(request);
}

// What the replica would have to compute of the prompt.
int64_t Fleet::Handover::MissingOn(size_t replica, const SimRequest& request) {
  const KvCacheManager& manager = fleet_->set_.replica(replica).manager();
  fleet_->contents_.Hash(fleet_->reader_->info(), request, manager, fleet_->group_);
  return request.num_prompt - fleet_->contents_.HeldBy(manager);
}

int32_t Fleet::Handover::ChooseDecode(const SimRequest& request) {
  return fleet_->Choose(fleet_->roles_.back(), request).replica;
}

absl::Status Fleet::Handover::SendToPrefill(SimRequest* request) {
  Client& client = ClientOf(*request);
  client.life.prefill_replica = fleet_->Choose(fleet_->roles_.front(), *request).replica;
  SimRequest* leg = fleet_->set_.AddPart(request->spec);
  leg->max_output = std::min<int64_t>(request->max_output, 1);
  leg->arrival = request->arrival;
  client.leg = leg;
  client_of_leg_[leg] = request;
  return fleet_->set_.Submit(leg, client.life.prefill_replica);
}

absl::Status Fleet::Handover::SendToDecode(SimRequest* request) {
  Client& client = ClientOf(*request);
  client.is_ready = false;
  if (client.life.decode_replica < 0) client.life.decode_replica = ChooseDecode(*request);
  const auto first = static_cast<int32_t>(options_.num_prefill);
  return fleet_->set_.Submit(request, first + client.life.decode_replica);
}

absl::Status Fleet::Handover::AfterArrivals() {
  for (SimRequest*& entry : ready_) {
    SimRequest* request = std::exchange(entry, nullptr);
    if (request == nullptr) continue;
    if (options_.first_token == FirstToken::kPrefill) {
      ++request->num_known;
      ClientOf(*request).life.first_token = fleet_->set_.now();
    }
    KVBLOCKS_RETURN_IF_ERROR(SendToDecode(request));
  }
  ready_.clear();
  return absl::OkStatus();
}

// --- Requests that are over ---

Fleet::Handover::Client& Fleet::Handover::ClientOf(const SimRequest& request) {
  const auto slot = static_cast<size_t>(request.slot);
  if (slot >= clients_.size()) clients_.resize(slot + 1);
  return clients_[slot];
}

// Whether something is left to do when its prompt is computed.
bool Fleet::Handover::GoesOn(const SimRequest& request) const {
  if (options_.first_token == FirstToken::kDecode) return request.max_output > 0;
  const ReplicaSet& set = fleet_->set_;
  const int64_t longest = set.replica(set.size() - 1).manager().options().max_model_len;
  return request.num_prompt + 1 < std::min(request.num_prompt + request.max_output, longest);
}

absl::Status Fleet::Handover::OnEnded(SimRequest* request, SimTime now) {
  return client_of_leg_.contains(request) ? EndLeg(request, now) : EndClient(request, now);
}

absl::Status Fleet::Handover::EndLeg(SimRequest* leg, SimTime now) {
  SimRequest* request = client_of_leg_.at(leg);
  Client& client = ClientOf(*request);
  const FinishReason reason = leg->finish_reason;
  const AbortCause cause = leg->abort_cause;
  const std::string text = leg->finish_text;
  const int64_t num_outputs = leg->num_outputs();
  client_of_leg_.erase(leg);
  client.leg = nullptr;
  fleet_->set_.RemovePart(leg);
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
absl::Status Fleet::Handover::GiveUp(SimRequest* request, AbortCause cause, SimTime now) {
  if (ClientOf(*request).is_ready) {
    std::replace(ready_.begin(), ready_.end(), request, static_cast<SimRequest*>(nullptr));
  }
  request->state = RequestState::kFinished;
  request->finish_reason = FinishReason::kAbort;
  request->abort_cause = cause;
  return EndClient(request, now);
}

absl::Status Fleet::Handover::EndClient(SimRequest* request, SimTime now) {
  Client& client = ClientOf(*request);
  if (client.hold >= 0) {
    ReleaseHold(static_cast<size_t>(client.life.prefill_replica), std::exchange(client.hold, -1));
  }
  for (FleetObserver* observer : fleet_->observers_) observer->OnEnded(*request, client.life, now);
  result_.num_finished += request->finish_reason == FinishReason::kLength;
  result_.num_rejected += request->finish_reason == FinishReason::kRejected;
  result_.num_aborted += request->finish_reason == FinishReason::kAbort;
  client = Client();
  return fleet_->set_.End(request, now);
}

absl::Status Fleet::Handover::OnGivenUp(SimRequest* turn, SimTime now) {
  const Client& client = ClientOf(*turn);
  const bool has_arrived = client.life.prefill_replica >= 0 || client.life.decode_replica >= 0;
  if (!has_arrived || client.is_ready) {
    result_.num_arrived += !has_arrived;
    return GiveUp(turn, AbortCause::kSession, now);
  }
  SimRequest* part = client.leg != nullptr ? client.leg : turn;
  const int32_t replica = fleet_->set_.replica_of(*part);
  fleet_->set_.replica(static_cast<size_t>(replica)).PlanAbort(part, AbortCause::kSession, now);
  fleet_->set_.CallNow(replica);
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
