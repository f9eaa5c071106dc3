#include "sim/tiers/tier_connector.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "offload/tier.h"
#include "sim/engine/scheduler_options.h"

namespace kvblocks::sim {

using offload::OffloadManager;
using offload::TierId;

// --- Setting up ---

absl::StatusOr<std::unique_ptr<TierConnector>> TierConnector::Create(Options options,
                                                                     const TierConnector* with) {
  auto connector = std::unique_ptr<TierConnector>(new TierConnector(std::move(options)));
  for (const SimTier& tier : connector->options_.tiers) {
    if (tier.is_shared && with != nullptr) {
      connector->states_.push_back(with->states_[connector->states_.size()]);
      continue;
    }
    TierState& state = *connector->states_.emplace_back(std::make_shared<TierState>());
    for (const bool is_read : {true, false}) {
      const std::optional<LinkOptions>& wanted = is_read ? tier.read : tier.write;
      std::optional<Link> link;
      if (wanted) {
        auto made = Link::Create(*wanted);
        if (!made.ok()) {
          return InvalidArgument("tier \"", tier.options.name, "\": ", made.status().message());
        }
        link = *std::move(made);
      }
      state.links[is_read] = std::move(link);
    }
  }
  connector->last_lookup_.resize(connector->states_.size());
  const bool shares = with != nullptr && !connector->options_.tiers.empty() &&
                      connector->options_.tiers.back().is_shared;
  connector->group_ = shares ? with->group_ : std::make_shared<Group>();
  connector->group_->members.push_back(connector.get());
  return connector;
}

absl::Status TierConnector::Attach(const KvCacheManager& manager) {
  manager_ = &manager;
  std::vector<offload::TierOptions> tiers;
  for (const SimTier& tier : options_.tiers) tiers.push_back(tier.options);
  std::vector<std::shared_ptr<offload::Tier>> shared;
  for (const auto& state : states_) shared.push_back(state->tier);
  KVBLOCKS_ASSIGN_OR_RETURN(
      offload_, OffloadManager::Create(manager, {.tiers = std::move(tiers),
                                                 .group_block_bytes = options_.group_block_bytes,
                                                 .shared = std::move(shared)}));
  for (size_t t = 0; t < states_.size(); ++t) {
    if (options_.tiers[t].is_shared)
      states_[t]->tier = offload_->shared_tier(static_cast<TierId>(t));
  }
  bool has_lead = false;
  for (GroupId g = 0; g < manager.num_groups(); ++g) {
    const SingleTypeManager& group = manager.group(g);
    has_all_blocks_ = has_all_blocks_ && group.keeps_all_blocks();
    if (!has_lead && group.is_cacheable()) lead_group_ = g;
    if (group.is_cacheable() && group.is_full_type() &&
        !manager.group(lead_group_).is_full_type()) {
      lead_group_ = g;
    }
    has_lead = has_lead || group.is_cacheable();
  }
  keeps_parts_ = manager.num_groups() == 1 && manager.group(0).is_full_type();
  return absl::OkStatus();
}

void TierConnector::OnRunStart(const RunInfo& info) {
  fails_lost_ = info.scheduler->load_failure_policy == LoadFailurePolicy::kFail;
  if (manager_ == info.manager) return;
  KVBLOCKS_CHECK_OK(Attach(*info.manager));
}

bool TierConnector::NeedsEvents() const {
  return options_.tiers.front().options.write_policy == offload::WritePolicy::kOnEvict;
}

// --- Transfers ---

void TierConnector::Advance(SimTime now) {
  now_ = std::max(now_, now);
  struct Ended {
    SimTime time;
    TierState* state;
    bool is_read;
    int64_t transfer;
  };
  std::vector<Ended> ended;
  std::vector<Link::Ended> of_link;
  for (const TierConnector* member : group_->members) {
    for (const auto& state : member->states_) {
      for (const bool is_read : {true, false}) {
        std::optional<Link>& link = state->links[is_read];
        if (!link || link->num_under_way() == 0) continue;
        of_link.clear();
        link->Advance(now_, &of_link);
        for (const Link::Ended& end : of_link) {
          ended.push_back({end.time, state.get(), is_read, end.id});
        }
      }
    }
  }
  group_->num_ended += static_cast<int64_t>(ended.size());
  std::stable_sort(ended.begin(), ended.end(),
                   [](const Ended& a, const Ended& b) { return a.time < b.time; });
  for (const Ended& end : ended) {
    auto& jobs = end.state->job_of[end.is_read];
    const auto of = jobs.find(end.transfer);
    const auto [connector, job] = of->second;
    jobs.erase(of);
    connector->EndTransfer(job, end.time);
  }
}

void TierConnector::EndTransfer(int64_t number, SimTime now) {
  const auto job = jobs_.find(number);
  if (--job->second.num_open > 0) return;
  const Job done = std::move(job->second);
  jobs_.erase(job);
  now_ = std::max(now_, now);
  End(done, now);
}

void TierConnector::Begin(Job job, absl::Span<const int64_t> read_bytes,
                          absl::Span<const int64_t> write_bytes, SimTime now) {
  job.start = now;
  const int64_t number = num_jobs_++;
  for (size_t t = 0; t < states_.size(); ++t) {
    for (const bool is_read : {true, false}) {
      const int64_t bytes = is_read ? read_bytes[t] : write_bytes[t];
      std::optional<Link>& link = LinkOf(t, is_read);
      if (bytes == 0 || !link) continue;
      const int64_t transfer = link->Start(now, bytes);
      states_[t]->job_of[is_read].emplace(transfer, std::pair(this, number));
      ++job.num_open;
    }
  }
  if (job.num_open == 0) return End(job, now);
  jobs_.emplace(number, std::move(job));
}

void TierConnector::End(const Job& job, SimTime now) {
  const bool fails = job.bad_tier != offload::kDevice;
  const absl::Status status =
      !job.is_load ? offload_->CompleteStore(job.ticket)
      : fails      ? offload_->FailLoad(job.ticket, OffloadManager::AfterFailure::kKeep)
                   : offload_->CompleteLoad(job.ticket);
  KVBLOCKS_CHECK_OK(status);
  // It may have been evicted since the load began.
  if (fails) offload_->Evict(job.bad_tier, job.bad_key).IgnoreError();
  if (!job.is_load) return;
  if (!job.copies.empty()) on_copies_(job.copies);
  load_totals_.load_time += now - job.start;
  if (job.load < 0) return;
  --num_async_loads_;
  ended_.push_back({.load = job.load, .num_tokens = job.num_tokens});
}

std::optional<SimTime> TierConnector::NextEvent() const {
  if (!ended_.empty()) return now_;
  // Stores alone are nothing to wait for.
  if (num_async_loads_ == 0 && !has_waiters_) return std::nullopt;
  if (has_waiters_ && group_->num_ended != num_ended_before_) return now_;
  std::optional<SimTime> next;
  for (const TierConnector* member : group_->members) {
    for (const auto& state : member->states_) {
      for (const std::optional<Link>& link : state->links) {
        if (!link) continue;
        const std::optional<SimTime> end = link->NextEnd();
        if (end && (!next || *end < *next)) next = end;
      }
    }
  }
  return next;
}

void TierConnector::TakeEvents(SimTime now, ConnectorEvents* events) {
  Advance(now);
  // A caller that gets no news does not ask again.
  if (group_->num_ended != num_ended_before_) has_waiters_ = false;
  events->loads.insert(events->loads.end(), ended_.begin(), ended_.end());
  ended_.clear();
}

// --- Loads ---

SimTime TierConnector::ComputeTime(int64_t num_context, int64_t num_tokens) const {
  if (options_.step_time == nullptr) return 0;
  const SequenceWork work = {.num_context = num_context, .num_new = num_tokens};
  const auto time = options_.step_time->StepTime(absl::MakeConstSpan(&work, 1));
  return time.ok() ? *time : kMaxSimTime;  // beyond the clock
}

SimTime TierConnector::TransferTime(absl::Span<const int64_t> bytes, SimTime now) const {
  SimTime longest = 0;
  for (size_t t = 0; t < bytes.size(); ++t) {
    const std::optional<Link>& link = LinkOf(t, true);
    if (bytes[t] == 0 || !link) continue;
    longest = std::max(longest, link->EndIfStarted(now, bytes[t]) - now);
  }
  return longest;
}

ExternalMatch TierConnector::Pending(ExternalMatch match) {
  match.is_pending = has_waiters_ = true;
  num_ended_before_ = group_->num_ended;
  return match;
}

ExternalMatch TierConnector::Match(const SimRequest& request, int64_t num_hit_tokens, SimTime now) {
  Advance(now);
  declined_.erase(&request);
  ExternalMatch match{.mode = options_.mode};
  const PrefixContent& content = request.kv->content();
  const OffloadManager::Match found =
      offload_->Lookup(content, num_hit_tokens, request.num_known - 1);
  // A request that loads only what saves time does not wait for what may not.
  if (found.num_tokens_with_pending > found.num_tokens && !options_.load_if_faster) {
    return Pending(match);
  }
  if (found.num_tokens <= num_hit_tokens) return match;
  const OffloadManager::LoadCost cost =
      offload_->CostOfLoad(content, num_hit_tokens, found.num_tokens);
  if (cost.is_being_read && options_.mode == LoadMode::kAsync) {
    return Pending(match);
  }
  const int64_t num_tokens = found.num_tokens - num_hit_tokens;
  if (options_.load_if_faster &&
      TransferTime(cost.bytes, now) >= ComputeTime(num_hit_tokens, num_tokens)) {
    declined_.insert(&request);
    return match;
  }
  match.num_tokens = num_tokens;
  return match;
}

// One chunk of the load, so that the chunks before it in the prompt arrive.
void TierConnector::DrawFailure(const offload::LoadPlan& plan, const KvLoad& load, Job* job) {
  if (options_.load_failures <= 0 || plan.reads.empty()) return;
  if (static_cast<double>(failures_() >> 11) * 0x1p-53 >= options_.load_failures) return;
  const offload::ChunkRead& bad = plan.reads[failures_() % plan.reads.size()];
  job->bad_tier = bad.tier;
  job->bad_key = offload_->tier(bad.tier).chunk(bad.slot).key;
  const int64_t begin = bad.first_block * manager_->group(bad.group).block_size();
  job->num_tokens =
      std::clamp<int64_t>(begin - load.num_hit_tokens, 0, load.num_tokens - 1);
}

void TierConnector::StartLoad(const KvLoad& load, const KvCacheManager& manager, SimTime now) {
  Advance(now);
  const PrefixContent& content = load.request->kv->content();
  auto plan = offload_->PrepareLoad(load.load, content, load.num_hit_tokens,
                                    load.num_hit_tokens + load.num_tokens);
  KVBLOCKS_CHECK(plan.ok(), plan.status().ToString());
  std::vector<int64_t> bytes(states_.size()), none(states_.size());
  std::vector<bool> is_read(states_.size());
  for (TierLookup& lookup : last_lookup_) lookup.loaded_tokens = 0;
  for (const offload::ChunkRead& read : plan->reads) {
    const auto t = static_cast<size_t>(read.tier);
    bytes[t] += read.bytes;
    load_totals_.num_bytes += read.bytes;
    TierTotals& totals = states_[t]->totals;
    if (!is_read[t]) ++totals.num_loads;
    is_read[t] = true;
    if (read.group == lead_group_) {
      const int64_t tokens = read.num_blocks * manager.group(lead_group_).block_size();
      totals.num_hit_tokens += tokens;
      last_lookup_[t].loaded_tokens += tokens;
    }
  }
  ++load_totals_.num_loads;
  const SimTime compute = ComputeTime(load.num_hit_tokens, load.num_tokens);
  load_totals_.compute_time = CheckedAdd(load_totals_.compute_time, compute).value_or(kMaxSimTime);
  Job job{.ticket = plan->ticket, .is_load = true, .num_tokens = load.num_tokens};
  if (load.mode == LoadMode::kAsync) {
    job.load = load.load;
    DrawFailure(*plan, load, &job);
    ++num_async_loads_;
  } else {
    for (size_t t = 0; t < bytes.size(); ++t) {
      const std::optional<Link>& link = LinkOf(t, true);
      if (bytes[t] == 0 || !link) continue;
      step_loads_.push_back(
          {{.tier = t, .is_read = true, .transfer = link->totals().num_started}, load.mode});
    }
  }
  if (on_copies_) {
    job.copies = CopiesOf(*plan, load, job, manager);
    if (load.mode != LoadMode::kAsync) on_copies_(std::exchange(job.copies, {}));
  }
  Begin(std::move(job), bytes, none, now);
}

std::vector<KvCopy> TierConnector::CopiesOf(const offload::LoadPlan& plan, const KvLoad& load,
                                            const Job& job, const KvCacheManager& manager) const {
  std::vector<KvCopy> copies;
  for (const offload::ChunkRead& read : plan.reads) {
    const offload::Tier& tier = offload_->tier(read.tier);
    if (read.tier == job.bad_tier && tier.key(read.slot) == job.bad_key) continue;
    const absl::Span<const BlockId> table = manager.GetBlocks(*load.request->kv, read.group);
    const int64_t first = read.slot * tier.options().blocks_per_chunk + read.block_in_chunk;
    for (int64_t i = 0; i < read.num_blocks; ++i) {
      copies.push_back({.from_tier = read.tier,
                        .from = first + i,
                        .to = table[static_cast<size_t>(read.first_block + i)]});
    }
  }
  return copies;
}

// As long as nothing else starts on these links, this is when the loads end.
StepLoadTimes TierConnector::StepLoads(SimTime device_start) {
  StepLoadTimes times;
  std::vector<Link::Ended> ended;
  for (size_t t = 0; t < states_.size() && !step_loads_.empty(); ++t) {
    const std::optional<Link>& link = LinkOf(t, true);
    if (!link || link->num_under_way() == 0) continue;
    Link copy = *link;
    ended.clear();
    while (const std::optional<SimTime> next = copy.NextEnd()) copy.Advance(*next, &ended);
    for (const auto& [wire, mode] : step_loads_) {
      if (wire.tier != t) continue;
      const auto end = std::find_if(ended.begin(), ended.end(), [&, id = wire.transfer](
                                                                    const Link::Ended& e) {
        return e.id == id;
      });
      if (end == ended.end()) continue;
      SimTime& longest = mode == LoadMode::kSync ? times.sync : times.layerwise;
      longest = std::max(longest, end->time - device_start);
    }
  }
  step_loads_.clear();
  return times;
}

// --- Stores ---

void TierConnector::Store(const SimRequest& request, const KvCacheManager& manager, int64_t end,
                          SimTime now) {
  const auto stored = stored_.find(&request);
  const PrefixContent& content = request.kv->content();
  end = std::min(end, content.num_tokens());
  if (stored == stored_.end() || end <= stored->second) return;
  OffloadManager::StoreRange range{
      .begin = stored->second, .end = end, .num_prompt_tokens = request.num_prompt};
  if (!has_all_blocks_) {
    for (GroupId g = 0; g < manager.num_groups(); ++g) {
      range.tables.push_back(manager.GetBlocks(*request.kv, g));
    }
  }
  stored->second = end;
  const auto plan = offload_->PrepareStore(-1, content, range);
  KVBLOCKS_CHECK(plan.ok(), plan.status().ToString());
  if (on_copies_) ReportStore(*plan, request, manager);
  Write(*plan, now);
}

void TierConnector::ReportStore(const offload::StorePlan& plan, const SimRequest& request,
                                const KvCacheManager& manager) {
  std::vector<KvCopy> copies;
  for (const offload::ChunkWrite& write : plan.writes) {
    const bool from_device = write.from_tier == offload::kDevice;
    const int64_t per_chunk = offload_->tier(write.tier).options().blocks_per_chunk;
    for (int64_t i = 0; i < write.num_blocks; ++i) {
      const int64_t from =
          from_device ? manager.GetBlocks(*request.kv, write.key.group)[static_cast<size_t>(
                            write.first_block + i)]
                      : write.from_slot * per_chunk + i;
      copies.push_back({.from_tier = write.from_tier,
                        .to_tier = write.tier,
                        .from = from,
                        .to = write.slot * per_chunk + i});
    }
  }
  on_copies_(copies);
}

void TierConnector::Write(const offload::StorePlan& plan, SimTime now) {
  if (plan.ticket == 0) return;
  std::vector<int64_t> read(states_.size()), written(states_.size());
  for (const offload::ChunkWrite& write : plan.writes) {
    const auto t = static_cast<size_t>(write.tier);
    written[t] += write.bytes;
    if (write.from_tier != offload::kDevice) {
      read[static_cast<size_t>(write.from_tier)] += write.bytes;
    }
    if (options_.leave_out_misses) continue;
    TierState& state = *states_[t];
    state.totals.num_distinct += state.written.insert(write.key.Mixed()).second;
  }
  Begin({.ticket = plan.ticket}, read, written, now);
}

bool TierConnector::OnLeave(const SimRequest& request, const KvCacheManager& manager, LeaveCause,
                            int64_t, SimTime now) {
  Advance(now);
  int64_t end = request.num_settled;
  // Of a load that failed the scheduler may not have taken note yet.
  if (request.num_arrived >= 0) end = std::min(end, request.num_load_hits + request.num_arrived);
  if (request.state != RequestState::kLoading) Store(request, manager, end, now);
  offload_->RequestFinished(request.kv->content(), end);
  return false;
}

void TierConnector::OnStepFinished(const StepRecord& step) {
  Advance(step.end);
  for (const ScheduledRecord& record : step.scheduled) {
    if (record.request == nullptr || !record.is_prefill) continue;
    const SimRequest& request = *record.request;
    if (!manager_->HoldsBlocks(*request.kv)) continue;
    Store(request, *manager_, std::min(record.num_context + record.num_tokens, request.num_prompt),
          step.end);
  }
}

void TierConnector::OnKvEvents(absl::Span<const KvEvent> events, SimTime now) {
  if (!NeedsEvents()) return;
  Advance(now);
  std::vector<OffloadManager::EvictedBlock> evicted;
  for (const KvEvent& event : events) {
    const auto* removed = std::get_if<BlockRemoved>(&event);
    if (removed == nullptr || removed->reason != RemovalReason::kReused) continue;
    evicted.push_back({.key = {.hash = removed->block_hash, .group = removed->group_idx}});
  }
  Write(offload_->PrepareStoreOfEvicted(-1, evicted), now);
}

void TierConnector::OnFinish(const SimRequest& request, SimTime) {
  stored_.erase(&request);
  declined_.erase(&request);
}

absl::Status TierConnector::CheckInvariants() const {
  if (offload_->num_open_tickets() != static_cast<int64_t>(jobs_.size())) {
    return BrokenInvariant(offload_->num_open_tickets(), " tickets are open for ", jobs_.size(),
                           " jobs");
  }
  return offload_->CheckInvariants();
}

}  // namespace kvblocks::sim
