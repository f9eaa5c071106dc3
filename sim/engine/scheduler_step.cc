// Scheduler: what one step is made of.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool/check.h"
#include "kvblocks/sim/engine/scheduler.h"

namespace kvblocks::sim {

void Scheduler::Schedule(SimTime now) {
  KVBLOCKS_CHECK(num_in_flight_ < max_in_flight(), "too many steps are under way");
  step_ = &InFlight(num_in_flight_);
  budget_ = options_.max_num_batched_tokens;
  num_prefills_ = 0;
  step_->scheduled.clear();
  step_->outputs.clear();
  stuck_ = nullptr;
  StepRecord& step = step_->record;
  step = StepRecord();
  step.step = num_scheduled_steps_;
  WakeForStep();
  manager_->NewStepStarts();
  step.num_quiet = quiet_.size();
  step.quiet_context = quiet_.sum_computed();
  step.num_tokens = step.num_quiet;
  budget_ -= step.num_quiet;

  ScheduleRunning(now);
  if (step.num_preempted == 0) ScheduleWaiting(now);

  for (ScheduledRecord& record : step_->scheduled) {
    SimRequest& request = *record.request;
    request.num_computed += record.num_tokens;
    ++request.num_steps_in_flight;
    record.is_chunk = request.num_computed < request.num_known + request.num_placeholders;
    if (options_.async && !record.is_chunk) {
      // One token is sure to come; which drafts the device will propose after it is not known here.
      request.num_placeholders += 1 + record.num_verified_drafts;
      request.num_drafts = static_cast<int32_t>(options_.num_draft_tokens);
    }
    step.num_tokens += record.num_tokens;
    if (record.is_prefill) step.num_prefill_tokens += record.num_tokens;
  }
  step.num_decode_tokens = step.num_tokens - step.num_prefill_tokens;
  step.start = step.device_start = step.end = now;
  step.scheduled = step_->scheduled;
  step.num_running = num_running();
  step.num_waiting = num_waiting();
  const BlockPool& pool = manager_->pool();
  step.pool = {.num_blocks = pool.num_blocks(),
               .num_free = pool.num_free(),
               .num_cached_unreferenced = pool.num_cached_unreferenced(),
               .num_keyed = pool.num_keyed_blocks(),
               .num_keys = pool.num_keys(),
               .num_evictions = pool.num_evictions()};
  if (!step_is_empty()) {
    ++num_in_flight_;
    ++num_scheduled_steps_;
    quiet_.Advance();
    LetRest();
  } else if (step.num_preempted > 0) {
    ++totals_.num_empty_steps;
  }
}

void Scheduler::Record(SimRequest& request, const ScheduledRecord& record) {
  step_->scheduled.push_back(record);
  step_->scheduled.back().request = &request;
  budget_ -= record.num_tokens;
  num_prefills_ += record.is_prefill;
}

// --- Running requests ---

void Scheduler::ScheduleRunning(SimTime now) {
  for (size_t i = 0; i < awake_.size() && budget_ > 0; ++i) {
    SimRequest& request = *awake_[i];
    const int64_t computed = request.num_computed;
    const int64_t to_come = request.num_placeholders;
    // The step under way reaches the end even if it accepts no draft.
    if (to_come > 0 && computed + 2 - to_come >= request.full_length) continue;
    int64_t num_tokens = std::min({request.num_known + request.num_drafts + to_come - computed,
                                   longest_part_, budget_, max_model_len_ - 1 - computed});
    if (num_tokens <= 0) continue;
    num_tokens = PartUpToState(computed, num_tokens, request.num_known);

    ScheduledRecord record{.num_context = computed,
                           .num_tokens = static_cast<int32_t>(num_tokens),
                           .is_prefill = request.num_known - computed > 1};
    const int64_t target = computed + num_tokens;
    if (target + options_.num_lookahead_tokens > request.quiet_slots) {
      if (!AllocateRunning(request, num_tokens, i, now)) return;
      record.new_blocks = last_new_blocks_;
      record.num_new_blocks = static_cast<int32_t>(record.new_blocks.num_blocks());
    }
    if (request.num_drafts > 0) {
      record.num_verified_drafts = static_cast<int32_t>(
          std::clamp<int64_t>(target - request.num_known - to_come, 0, request.num_drafts));
      request.num_drafts = 0;
    }
    Record(request, record);
  }
}

// A state is there for reuse if a step ends where its block does and it is retained. So parts of a
// prompt end at such places, and the part behind the last of them is computed apart. A budget too
// small for that goes first.
int64_t Scheduler::PartUpToState(int64_t computed, int64_t num_tokens, int64_t num_known) const {
  if (state_boundary_ == 0) return num_tokens;
  const int64_t last = num_known - num_known % state_boundary_;
  const int64_t end = std::min(computed + num_tokens, last);
  if (end == last && last > computed) return last - computed;
  for (const int64_t boundary : {retained_boundary_, state_boundary_}) {
    const int64_t aligned = end - end % boundary;
    if (aligned > computed) return aligned - computed;
  }
  return num_tokens;
}

// Gets the blocks, by preempting others if need be. False: the request was preempted itself.
bool Scheduler::AllocateRunning(SimRequest& request, int64_t num_tokens, size_t& index,
                                SimTime now) {
  SyncContent(request);
  while (true) {
    const auto slots = manager_->AllocateSlots(
        *request.kv,
        {.num_new_tokens = num_tokens, .num_lookahead_tokens = options_.num_lookahead_tokens});
    KVBLOCKS_CHECK(slots.ok(), slots.status().ToString());
    if (slots->has_value()) {
      last_new_blocks_ = **slots;
      UpdateQuietSlots(request);
      return true;
    }
    KVBLOCKS_CHECK(quiet_.size() == 0, "blocks ran short while requests rest");
    // With a token still to come this is not the second time in vain.
    const bool is_lonely = awake_.size() == 1 && request.num_placeholders == 0;
    SimRequest* victim = TakeVictim(index);
    if (victim == &request && is_lonely && ++request.num_lonely_preemptions >= 2) {
      stuck_ = &request;
    }
    Preempt(*victim, request, now);
    if (victim == &request) return false;
  }
}

// Takes the least deserving request off the running list; `index`, the walk's position, goes on
// naming the same request.
SimRequest* Scheduler::TakeVictim(size_t& index) {
  if (options_.policy == SchedulingPolicy::kFcfs) {
    SimRequest* victim = awake_.back();
    awake_.pop_back();
    return victim;
  }
  const auto worst = std::max_element(awake_.begin(), awake_.end(), MoreUrgent());
  SimRequest* victim = *worst;
  if (static_cast<size_t>(worst - awake_.begin()) < index) --index;
  awake_.erase(worst);
  return victim;
}

void Scheduler::Preempt(SimRequest& victim, const SimRequest& cause, SimTime now) {
  PreemptionRecord preemption{
      .request = &victim, .num_computed_lost = victim.num_computed, .cause = &cause};
  // Only the priority policy takes a request that has its part of this step already.
  std::vector<ScheduledRecord>& records = step_->scheduled;
  const auto scheduled =
      std::find_if(records.begin(), records.end(),
                   [&](const ScheduledRecord& record) { return record.request == &victim; });
  if (scheduled != records.end()) {
    preemption.num_refunded_tokens = scheduled->num_tokens;
    budget_ += scheduled->num_tokens;
    num_prefills_ -= scheduled->is_prefill;
    records.erase(scheduled);
  }
  const absl::Status status = manager_->Free(*victim.kv);
  KVBLOCKS_CHECK(status.ok(), status.ToString());
  victim.kv->MarkPreempted();
  victim.num_computed = 0;
  victim.num_drafts = 0;
  victim.quiet_slots = 0;
  ++victim.num_preemptions;
  victim.state = RequestState::kPreempted;
  waiting_.AddPreempted(&victim);
  blocked_.head = nullptr;
  ++step_->record.num_preempted;
  ++totals_.num_preemptions;
  observer_->OnPreemption(preemption, now);
}

// --- Waiting requests ---

void Scheduler::ScheduleWaiting(SimTime now) {
  const int64_t num_drafts = options_.num_draft_tokens;
  bool forgoes_hits = false;
  while (!waiting_.empty() && budget_ > 0 && num_running() < options_.max_num_seqs) {
    SimRequest& request = *waiting_.front();
    const bool is_repeat = IsStillBlocked(request);
    if (is_repeat && !options_.exact_steps) return;
    SyncContent(request);
    if (forgoes_hits) {
      hits_ = ComputedBlocks(HitLists(static_cast<size_t>(manager_->num_groups())), 0);
    } else {
      const absl::Status status = manager_->GetComputedBlocks(*request.kv, hits_);
      KVBLOCKS_CHECK(status.ok(), status.ToString());
    }
    const int64_t num_hits = hits_.num_tokens();

    int64_t num_tokens = request.num_known - num_hits;
    ScheduledRecord record{
        .num_context = num_hits, .is_prefill = num_tokens > 1, .is_admission = true};
    if (num_tokens == 1 && PadsAdmissions()) {
      // Filled up to the shape of the decodes around it, so that the whole step has one shape.
      num_tokens = 1 + num_drafts;
      if (num_tokens > budget_ || num_hits + num_tokens > max_model_len_) return;
      record.is_padded = true;
    }
    if (options_.long_prefill_token_threshold > 0) {
      num_tokens = std::min(num_tokens, options_.long_prefill_token_threshold);
    }
    if (!options_.enable_chunked_prefill && num_tokens > budget_) return;
    num_tokens = PartUpToState(num_hits, std::min(num_tokens, budget_), request.num_known);
    record.num_tokens = static_cast<int32_t>(num_tokens);
    if (record.is_padded) record.num_verified_drafts = record.num_tokens - 1;

    const AdmissionRecord admission{.request = &request,
                                    .hits = &hits_,
                                    .num_queried_tokens = request.num_known,
                                    .num_hit_tokens = num_hits,
                                    .is_resume = request.was_preempted(),
                                    .is_repeat = is_repeat};
    observer_->OnAdmissionAttempt(admission, now);
    const auto slots =
        manager_->AllocateSlots(*request.kv, {.num_new_tokens = num_tokens,
                                              .computed_blocks = &hits_,
                                              .num_lookahead_tokens = options_.num_lookahead_tokens,
                                              .full_sequence_must_fit = options_.reserve_full_isl,
                                              .has_scheduled_requests = num_running() > 0});
    KVBLOCKS_CHECK(slots.ok(), slots.status().ToString());
    if (!slots->has_value()) {
      // Hits in many chunks may pin so many that the rest does not fit; alone, it does without
      // them.
      if (manager_->pool().chunks() != nullptr && num_hits > 0 && num_running() == 0) {
        forgoes_hits = true;
        continue;
      }
      if (!is_repeat) RememberBlocked(request, record);
      return;
    }
    forgoes_hits = false;
    record.new_blocks = **slots;
    record.num_new_blocks = static_cast<int32_t>(record.new_blocks.num_blocks());
    manager_->RecordPrefixCacheStats(*request.kv, num_hits);

    blocked_.head = nullptr;
    waiting_.PopFront();
    awake_.push_back(&request);
    request.admission = num_admissions_++;
    request.state = RequestState::kRunning;
    request.kv->set_status(RequestStatus::kRunning);
    request.num_computed = request.num_settled = num_hits;
    UpdateQuietSlots(request);
    Record(request, record);
    observer_->OnAdmission(admission, now);
  }
}

// Whether a request that enters with a single token is filled up with drafts: only decodes are
// scheduled so far.
bool Scheduler::PadsAdmissions() const {
  return options_.num_draft_tokens > 0 && !step_is_empty() && num_prefills_ == 0;
}

bool Scheduler::IsStillBlocked(const SimRequest& head) const {
  if (blocked_.head != &head || budget_ < blocked_.num_tokens) return false;
  if (blocked_.is_padded && !PadsAdmissions()) return false;
  return !blocked_.has_missing ||
         manager_->pool().FindCached(blocked_.first_missing, 0) == kNullBlockId;
}

void Scheduler::RememberBlocked(const SimRequest& head, const ScheduledRecord& attempt) {
  // Several groups, windows and dropped blocks have more ways to find a longer hit.
  const KvCacheManagerOptions& options = manager_->options();
  if (manager_->num_groups() != 1 || !is_all_full_attention_ || manager_->group(0).is_draft()) {
    return;
  }
  blocked_ = {.head = &head, .num_tokens = attempt.num_tokens, .is_padded = attempt.is_padded};
  if (!options.enable_caching) return;
  const int64_t block_size = boundary_tokens_;
  const int64_t index = hits_.num_tokens() / block_size;
  blocked_.has_missing = (index + 1) * block_size < head.num_known;
  if (blocked_.has_missing) blocked_.first_missing = head.kv->content().HashOfBlock(index, 1);
}

// --- Content ---

// Brings the manager's view of a request up to date. Tokens are handed over when the manager next
// looks at them, not one by one.
void Scheduler::SyncContent(SimRequest& request) {
  const bool is_new = request.kv == nullptr;
  const int64_t handed_over = is_new ? 0 : request.kv->num_tokens();
  hashes_.clear();
  if (request.num_known > handed_over && manager_->hashing() != nullptr) {
    if (!request.keys) {
      request.keys.emplace(trace_, request.spec, manager_->hash_block_size());
    }
    if (is_new) {
      // With room for the output, as far as it is not excessive.
      constexpr int64_t kMostSpareBlocks = 1024;
      const int64_t spare = (request.end_tokens - request.num_known) / manager_->hash_block_size();
      hashes_.reserve(static_cast<size_t>(request.num_known / manager_->hash_block_size() +
                                          std::min(spare, kMostSpareBlocks)));
    }
    request.keys->AppendBlocks(request.spec, request.num_known, &hashes_);
  }
  if (is_new) {
    auto kv = manager_->NewRequestFromHashes(request.spec.id, request.num_known,
                                             std::exchange(hashes_, {}));
    KVBLOCKS_CHECK(kv.ok(), kv.status().ToString());
    request.kv = *std::move(kv);
  } else if (request.num_known > handed_over) {
    const absl::Status status =
        request.kv->AppendHashedTokens(request.num_known - handed_over, hashes_);
    KVBLOCKS_CHECK(status.ok(), status.ToString());
  }
  request.kv->set_num_computed_tokens(request.num_computed);
  request.kv->set_num_inflight_tokens(
      std::max<int64_t>(request.num_computed - request.num_settled, 0));
}

void Scheduler::UpdateQuietSlots(SimRequest& request) {
  if (!options_.exact_steps) request.quiet_slots = request.kv->quiet_slots();
}

}  // namespace kvblocks::sim
