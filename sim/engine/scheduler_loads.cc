// Scheduler: KV from elsewhere - loads, the blocks held for them, and what becomes of those that
// fail.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/single_type_manager.h"
#include "sim/engine/scheduler.h"

namespace kvblocks::sim {

// --- At admission ---

// What the connector has behind hits_, which are cut where a longer load starts at a block.
ExternalMatch Scheduler::MatchExternal(SimRequest& request, SimTime now) {
  const int64_t found = hits_.num_tokens();
  const int64_t tail = found % manager_->scheduler_block_size();
  ExternalMatch match = connector_->Match(request, found - tail, now);
  KVBLOCKS_CHECK(match.num_tokens >= 0 && found - tail + match.num_tokens <= request.num_known,
                 absl::StrCat("request ", request.spec.id, " knows ", request.num_known,
                              " tokens, of which the pool has ", found - tail,
                              ", but the connector ", match.num_tokens));
  if (match.mode != LoadMode::kAsync) {
    match.num_tokens = std::min(match.num_tokens, request.num_known - 1 - (found - tail));
  }
  if (match.is_pending || tail == 0) return match;
  if (match.num_tokens <= tail) {
    match.num_tokens = 0;
    return match;
  }
  KVBLOCKS_CHECK_OK(manager_->GetComputedBlocks(*request.kv, hits_, found - tail));
  return match;
}

// Takes blocks for hits and load. False: they are not there, or needed by others.
bool Scheduler::StartLoading(SimRequest& request, const AdmissionRecord& admission, SimTime now) {
  observer_->OnAdmissionAttempt(admission, now);
  const auto slots = manager_->AllocateSlots(
      *request.kv, {.num_new_tokens = 0,
                    .computed_blocks = &hits_,
                    .num_external_computed_tokens = admission.num_external_tokens,
                    .delay_cache_blocks = true,
                    .full_sequence_must_fit = options_.reserve_full_isl,
                    .reserved_blocks = BlocksReservedForLoads(),
                    .has_scheduled_requests = num_running() > 0});
  KVBLOCKS_CHECK(slots.ok(), slots.status().ToString());
  if (!slots->has_value()) return false;
  manager_->RecordPrefixCacheStats(*request.kv, admission.num_hit_tokens);
  waiting_.PopFront();
  Reserve(request);
  const auto place =
      options_.policy == SchedulingPolicy::kPriority
          ? std::upper_bound(holding_.begin(), holding_.end(), &request, MoreUrgent())
          : holding_.end();
  holding_.insert(place, &request);
  request.state = RequestState::kLoading;
  request.is_deferred = true;
  request.num_computed = request.num_settled =
      admission.num_hit_tokens + admission.num_external_tokens;
  request.kv->set_num_computed_tokens(request.num_computed);
  request.load = num_loads_;
  request.num_load_hits = admission.num_hit_tokens;
  request.num_load_tokens = admission.num_external_tokens;
  request.num_arrived = -1;
  loads_.emplace(request.load, &request);
  ++step_->record.num_loads_started;
  NotifyConnector(request, admission.num_external_tokens, LoadMode::kAsync, now);
  NotifyAdmission(admission, now);
  return true;
}

void Scheduler::NotifyConnector(SimRequest& request, int64_t num_external, LoadMode mode,
                                SimTime now) {
  ++totals_.num_loads;
  totals_.num_external += num_external;
  connector_->StartLoad({.load = num_loads_++,
                         .request = &request,
                         .num_hit_tokens = request.num_computed - num_external,
                         .num_tokens = num_external,
                         .mode = mode},
                        *manager_, now);
}

// Until all that the request knows is computed and it has its next token.
int64_t Scheduler::BlocksStillNeeded(const SimRequest& request) const {
  int64_t slots = std::min(request.num_known, max_model_len_);
  if (options_.num_draft_tokens > 0) {
    slots += 1 + options_.num_draft_tokens + options_.num_lookahead_tokens;
  }
  return manager_->NumBlocksNeeded(*request.kv, slots, /*apply_cap=*/true);
}

// Free blocks that a further load must leave: it would hold its own without getting on, and nobody
// could preempt it.
int64_t Scheduler::BlocksReservedForLoads() const {
  int64_t sum = 0;
  if (options_.num_draft_tokens > 0) {
    const int64_t slots = 1 + options_.num_draft_tokens + options_.num_lookahead_tokens;
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      if (manager_->group(g).spec().kind() == KvCacheSpecKind::kMamba) continue;
      sum += BlockSize(manager_->group(g).block_size()).CeilDiv(slots);
    }
  }
  for (const SimRequest* request : holding_) sum += BlocksStillNeeded(*request);
  // Prompts under way: those that had not come to their end before this step, and those that it
  // admits and does not finish, or that come from a load.
  for (size_t i = 0; i < first_admitted_; ++i) {
    if (visited_[i]->is_chunk) sum += BlocksStillNeeded(*visited_[i]);
  }
  for (const ScheduledRecord& record : step_->scheduled) {
    if (!record.is_admission) continue;
    const SimRequest& request = *record.request;
    const bool is_part = record.num_context + record.num_tokens < request.num_known;
    if (is_part || record.is_loaded) sum += BlocksStillNeeded(request);
  }
  return sum;
}

void Scheduler::SetAside(SimRequest& request) {
  waiting_.PopFront();
  request.is_deferred = true;
  set_aside_.push_back(&request);
}

// To the front, in their order.
void Scheduler::ReturnSetAside() {
  for (; !set_aside_.empty(); set_aside_.pop_back()) waiting_.AddPreempted(set_aside_.back());
}

// --- Those that hold blocks ---

bool Scheduler::IsHolding(const SimRequest& request) const {
  return request.state == RequestState::kLoading ||
         ((request.state == RequestState::kWaiting || request.state == RequestState::kPreempted) &&
          request.kv != nullptr && manager_->HoldsBlocks(*request.kv));
}

void Scheduler::TakeConnectorEvents(SimTime now) {
  if (connector_ == nullptr) return;
  now_ = now;
  failed_.clear();
  events_.clear();
  connector_->TakeEvents(now, &events_);
  for (const LoadEnd& end : events_.loads) {
    if (const auto load = loads_.find(end.load); load != loads_.end()) {
      SimRequest& request = *load->second;
      KVBLOCKS_CHECK(end.num_tokens >= 0 && end.num_tokens <= request.num_load_tokens,
                     absl::StrCat("load ", end.load, " of ", request.num_load_tokens,
                                  " tokens ended with ", end.num_tokens));
      request.load = -1;
      request.num_arrived = end.num_tokens;
      request.state = request.was_preempted() ? RequestState::kPreempted : RequestState::kWaiting;
      loads_.erase(load);
      observer_->OnLoadFinished(request, end.num_tokens, now);
      FailIfLost(request);
      continue;
    }
    const auto orphan = orphans_.find(end.load);
    KVBLOCKS_CHECK(orphan != orphans_.end(),
                   absl::StrCat("load ", end.load, " ended, but is not under way"));
    FreeHeld(orphan->second);
    orphans_.erase(orphan);
  }
  for (const int64_t hold : events_.holds) {
    const auto held = holds_.find(hold);
    KVBLOCKS_CHECK(held != holds_.end(),
                   absl::StrCat("hold ", hold, " is over, but there is none"));
    FreeHeld(held->second);
    holds_.erase(held);
  }
}

// Ends a request whose load failed, if such requests are not computed.
void Scheduler::FailIfLost(SimRequest& request) {
  if (options_.load_failure_policy != LoadFailurePolicy::kFail ||
      request.num_arrived == request.num_load_tokens) {
    return;
  }
  ++totals_.num_failed_loads;
  totals_.num_lost += request.num_load_tokens;
  holding_.erase(std::find(holding_.begin(), holding_.end(), &request));
  failed_.push_back(&request);
  Leave(request, FinishReason::kError);
}

// The deepest first, as if they were still in a block table.
void Scheduler::FreeHeld(const std::vector<BlockId>& blocks) {
  const std::vector<BlockId> reversed(blocks.rbegin(), blocks.rend());
  KVBLOCKS_CHECK_OK(manager_->FreeBlocks(reversed));
}

// Takes note of how a load ended: registers what came. False: that is nothing, and the blocks are
// free.
bool Scheduler::SettleLoad(SimRequest& request) {
  int64_t computed = request.num_load_hits + request.num_arrived;
  if (request.num_arrived < request.num_load_tokens) {
    // Whole blocks up to the first bad one; what is missing of windows, states or one of several
    // groups spoils all before it, too.
    const bool keeps = is_all_full_attention_ && manager_->num_groups() == 1;
    computed = keeps ? computed - computed % manager_->group(0).block_size() : 0;
    ++totals_.num_failed_loads;
    totals_.num_lost +=
        request.num_load_tokens - std::max<int64_t>(computed - request.num_load_hits, 0);
  }
  request.num_arrived = -1;
  request.num_computed = request.num_settled = computed;
  request.kv->set_num_computed_tokens(computed);
  if (computed == 0) {
    request.has_lost_load = true;
    KVBLOCKS_CHECK_OK(manager_->Free(*request.kv));
    return false;
  }
  KVBLOCKS_CHECK_OK(manager_->CacheBlocks(*request.kv, computed));
  // The last known token is computed in any case.
  request.num_computed = request.num_settled = std::min(computed, request.num_known - 1);
  return true;
}

// False: nobody else is admitted in this step.
bool Scheduler::AdmitLoaded() {
  bool all_fit = true;
  for (size_t i = 0; i < holding_.size();) {
    if (budget_ <= 0 || slot_budget_ <= options_.num_draft_slots || num_running() >= max_active_) {
      return false;
    }
    SimRequest& request = *holding_[i];
    if (request.state == RequestState::kLoading) {
      ++i;
      continue;
    }
    if (request.num_arrived >= 0 && !SettleLoad(request)) {
      // It waits as if it had never been loaded, behind all that hold blocks.
      holding_.erase(holding_.begin() + static_cast<int64_t>(i));
      Unreserve(request);
      waiting_.AddPreempted(&request);
      continue;
    }
    SyncContent(request);
    ScheduledRecord record{.num_context = request.num_computed, .is_loaded = true};
    const Sized sized = SizeAdmission(request, record);
    if (sized == Sized::kWaits) return false;
    if (sized == Sized::kLetsOthersPass) {
      ++i;
      continue;
    }
    const auto slots =
        manager_->AllocateSlots(*request.kv, {.num_new_tokens = record.num_tokens,
                                              .num_lookahead_tokens = options_.num_lookahead_tokens,
                                              .full_sequence_must_fit = options_.reserve_full_isl,
                                              .has_scheduled_requests = num_running() > 0});
    KVBLOCKS_CHECK(slots.ok(), slots.status().ToString());
    if (!slots->has_value()) {
      if (num_running() > 0) return false;
      // Nobody will give blocks back but those behind it.
      all_fit = false;
      ++i;
      continue;
    }
    if (!checkpoint_states_.empty()) CountCheckpoint(request);
    record.new_blocks = **slots;
    record.num_new_blocks = static_cast<int32_t>(record.new_blocks.num_blocks());
    holding_.erase(holding_.begin() + static_cast<int64_t>(i));
    Enter(request, record);
    request.has_lost_load = false;
  }
  return all_fit;
}

// --- At the end ---

// Before a request's blocks are freed: those that others still write or read stay.
void Scheduler::GiveBack(SimRequest& request, FinishReason reason) {
  if (!manager_->HoldsBlocks(*request.kv)) return;
  const bool is_loading = request.state == RequestState::kLoading;
  const bool is_cut = reason == FinishReason::kAbort || reason == FinishReason::kError;
  const LeaveCause cause = is_cut ? LeaveCause::kAborted : LeaveCause::kFinished;
  const int64_t hold = num_holds_;
  const bool is_held = connector_->OnLeave(request, *manager_, cause, hold, now_);
  if (!is_loading && !is_held) return;
  auto blocks = manager_->PopBlocksForFree(*request.kv);
  KVBLOCKS_CHECK(blocks.ok(), blocks.status().ToString());
  if (is_loading) {
    loads_.erase(request.load);
    orphans_.emplace(std::exchange(request.load, -1), *std::move(blocks));
  } else {
    holds_.emplace(num_holds_++, *std::move(blocks));
  }
}

}  // namespace kvblocks::sim
