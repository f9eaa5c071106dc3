// Scheduler: what one step is made of.

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/engine/scheduler.h"

namespace kvblocks::sim {

void Scheduler::Schedule(SimTime now) {
  KVBLOCKS_CHECK(has_room(), "too many steps are under way");
  ++num_calls_;
  step_ = &InFlight(num_in_flight_);
  budget_ = token_budget_;
  slot_budget_ = options_.max_num_batched_tokens;
  encoder_budget_ = std::max(options_.max_num_batched_tokens, max_encoder_tokens_);
  num_prefills_ = num_prompt_parts_ = num_walked_ = 0;
  waits_alone_ = false;
  step_->scheduled.clear();
  step_->outputs.clear();
  stuck_ = nullptr;
  TellTime(now);
  StepRecord& step = step_->record;
  step = StepRecord();
  step.step = num_scheduled_steps_;
  longest_part_ = LongestPart();
  StopSkippingForStep();
  holds_prompts_ = HoldsPrompts();
  manager_->NewStepStarts();
  step.num_skipped = skipped_.size();
  step.skipped_context = skipped_.sum_computed();
  step.num_tokens = step.num_skipped;
  budget_ -= step.num_skipped;
  slot_budget_ -= step.num_skipped;

  ScheduleRunning(now);
  first_admitted_ = visited_.size();
  const bool admits = step.num_preempted == 0 && !waits_alone_;
  if (admits) ScheduleWaiting(now);
  if (options_.prefill_schedule_interval > 1) {
    // A call that holds prompts, or admits nobody, keeps what the call before noted (V-121).
    if (admits && !holds_prompts_) queue_was_left_ = LeavesWaiting();
    CountPromptStep();
  }

  needed_step_ = -1;
  for (ScheduledRecord& record : step_->scheduled) {
    SimRequest& request = *record.request;
    if (request.num_placeholders > 0) needed_step_ = std::max(needed_step_, request.token_step);
    request.num_computed += record.num_tokens;
    ++request.num_steps_in_flight;
    record.is_chunk = request.num_computed < request.num_known + request.num_placeholders;
    request.is_chunk = record.is_chunk;
    if (options_.async && !record.is_chunk) {
      // One token is sure to come; which drafts the device will propose after it is not known here.
      request.num_placeholders += 1 + record.num_verified_drafts;
      request.num_drafts = static_cast<int32_t>(options_.num_draft_tokens);
      request.token_step = step.step;
      request.next_call = num_calls_ + options_.pipeline_stages;
    }
    step.num_tokens += record.num_tokens;
    if (record.is_prefill) step.num_prefill_tokens += record.num_tokens;
  }
  step.num_decode_tokens = step.num_tokens - step.num_prefill_tokens;
  step.start = step.device_start = step.end = now;
  step.scheduled = step_->scheduled;
  TakeCopies();
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
    ++queue_length_;
    step_->num_empty_behind = 0;
    ++num_scheduled_steps_;
    skipped_.Advance();
    SkipDecodes();
  } else {
    if (step.num_preempted > 0) ++totals_.num_empty_steps;
    if (num_in_flight_ > 0) {
      ++queue_length_;
      ++InFlight(num_in_flight_ - 1).num_empty_behind;
    }
  }
}

SimTime Scheduler::InputsReady() {
  for (int64_t i = num_in_flight_ - 1; i >= 0 && needed_step_ >= 0; --i) {
    if (InFlight(i).record.step == needed_step_) return InFlight(i).record.end;
  }
  return 0;
}

// --- Copies of blocks ---

// Includes copies of requests that were preempted again in this step: other requests may already
// use the copied blocks as cache. Their blocks are free at once (V-116). The next owner writes into
// such a block in a later step than the one that begins with the copy.
void Scheduler::TakeCopies() {
  step_->copies = manager_->TakeBlockCopies();
  step_->record.copies = step_->copies;
  totals_.num_block_copies += static_cast<int64_t>(step_->copies.size());
  if (step_->copies.empty()) return;
  KVBLOCKS_CHECK_OK(manager_->ReleaseBlockCopies(step_->copies));
  blocked_.head = nullptr;
}

void Scheduler::Record(SimRequest& request, const ScheduledRecord& record) {
  step_->scheduled.push_back(record);
  step_->scheduled.back().request = &request;
  budget_ -= record.num_tokens;
  slot_budget_ -= record.num_tokens + options_.num_draft_slots;
  num_prefills_ += record.is_prefill;
}

// Long prompts come in parts of so many tokens, unless there is nobody whom they could keep
// waiting.
int64_t Scheduler::LongestPart() const {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const int64_t threshold = options_.long_prefill_token_threshold;
  if (threshold == 0) return kNoLimit;
  const int64_t num_requests = num_running() + num_waiting();
  if (options_.rules.alone_ignores_threshold && num_requests <= 1) return kNoLimit;
  if (!options_.adaptive_prefill_threshold) return threshold;
  return std::max(threshold, options_.max_num_batched_tokens / std::max<int64_t>(num_requests, 1));
}

// --- Steps between prompts ---

// Whether this step leaves prompts alone, so that those that decode get their tokens at a steady
// pace.
bool Scheduler::HoldsPrompts() const {
  if (options_.prefill_schedule_interval == 1 || queue_was_left_) return false;
  if (told_to_hold_) {
    if (!*told_to_hold_) return false;
  } else if (num_scheduled_steps_ - last_prompt_step_ >= options_.prefill_schedule_interval) {
    return false;
  }
  return skipped_.size() > 0 || std::any_of(visited_.begin(), visited_.end(),
                                            [](const SimRequest* r) { return !r->is_chunk; });
}

// Whether a request waits for space or budget. Those that were set aside wait for something else.
bool Scheduler::LeavesWaiting() const {
  bool leaves = false;
  waiting_.ForEach([&](const SimRequest& request) { leaves |= !request.is_deferred; });
  return leaves;
}

void Scheduler::CountPromptStep() {
  // Also of a request that lost its part of this very step.
  const bool has_prompt =
      num_prompt_parts_ > 0 ||
      std::any_of(step_->scheduled.begin(), step_->scheduled.end(),
                  [](const ScheduledRecord& r) { return r.is_admission && r.is_prefill; });
  // What comes out empty is no step.
  if (has_prompt) last_prompt_step_ = num_scheduled_steps_ - (step_is_empty() ? 1 : 0);
}

// --- Running requests ---

void Scheduler::ScheduleRunning(SimTime now) {
  const int64_t draft_slots = options_.num_draft_slots;
  for (size_t i = 0; i < visited_.size() && budget_ > 0 && slot_budget_ > draft_slots; ++i) {
    SimRequest& request = *visited_[i];
    if (holds_prompts_ && request.is_chunk) continue;
    const int64_t computed = request.num_computed;
    const int64_t to_come = request.num_placeholders;
    // The step under way reaches the end even if it accepts no draft.
    if (to_come > 0 && computed + 2 - to_come >= request.full_length) continue;
    if (num_calls_ < request.next_call) continue;
    int64_t num_tokens =
        std::min({request.num_known + request.num_drafts + to_come - computed, longest_part_,
                  budget_, slot_budget_ - draft_slots, max_model_len_ - 1 - computed});
    if (num_tokens <= 0) continue;
    num_tokens = PartOfPrompt(request, computed, num_tokens);
    if (num_tokens == 0) continue;

    ScheduledRecord record{.num_context = computed,
                           .num_tokens = static_cast<int32_t>(num_tokens),
                           .is_prefill = request.num_known - computed > 1};
    const int64_t target = computed + num_tokens;
    if (target + options_.num_lookahead_tokens > request.noop_slots) {
      if (!AllocateRunning(request, num_tokens, i, now)) {
        if (waits_alone_) return;
        // FCFS takes the last one, so none is left.
        if (options_.policy != SchedulingPolicy::kPriority ||
            !options_.rules.walks_on_after_self_preemption) {
          return;
        }
        --i;
        continue;
      }
      record.new_blocks = last_new_blocks_;
      record.num_new_blocks = static_cast<int32_t>(record.new_blocks.num_blocks());
    }
    if (request.num_drafts > 0) {
      record.num_verified_drafts = static_cast<int32_t>(
          std::clamp<int64_t>(target - request.num_known - to_come, 0, request.num_drafts));
      request.num_drafts = 0;
    }
    num_prompt_parts_ += request.is_chunk;
    ++num_walked_;
    Record(request, record);
  }
}

// What a step computes of a request's next `num_tokens` tokens: a prompt's part may have to end
// earlier. A drafter of several modules reads so many tokens behind it, or none at the prompt's end
// (V-80). 0: nothing in this step.
int64_t Scheduler::PartOfPrompt(const SimRequest& request, int64_t computed,
                                int64_t num_tokens) const {
  const int64_t left = request.num_known - computed - num_tokens;
  if (left > 0 && left < num_prefill_lookahead_) {
    num_tokens = std::max<int64_t>(num_tokens - (num_prefill_lookahead_ - left), 0);
  }
  return state_boundary_ == 0 ? num_tokens : PartUpToState(request, computed, num_tokens);
}

// A state is there for reuse if a step ends where its block does, so parts of a prompt end at block
// boundaries, at the last one that a resend can hit and at the one that others share. With partial
// hits also where a resend can hit a state inside a block.
int64_t Scheduler::PartUpToState(const SimRequest& request, int64_t computed,
                                 int64_t num_tokens) const {
  const int64_t block = state_boundary_;
  const auto down = [block](int64_t n) { return n - n % block; };
  const int64_t prompt_end = std::max(request.num_prompt, request.num_known - 1);
  if (num_tokens == 0 || computed >= prompt_end) return num_tokens;
  int64_t end = computed + num_tokens;
  if (end < prompt_end) {
    const int64_t aligned = down(end);
    // Blocks longer than what one step takes of a prompt are computed in several.
    if (aligned > computed) {
      end = aligned;
    } else if (block <= longest_state_part_) {
      end = computed;
    }
  }
  const int64_t last = manager_->options().use_eagle
                           ? down(request.num_known) - block
                           : down(request.num_known - std::max<int64_t>(1, num_hash_lookahead_));
  const int64_t shared = request.kv == nullptr ? 0 : down(request.kv->shared_prefix_boundary());
  const int64_t block_end = computed % block == 0 ? 0 : down(computed) + block;
  int64_t tail = inner_states_ == nullptr ? 0 : inner_states_->StateTail(request.num_prompt);
  if (tail <= last || tail >= request.num_prompt) tail = 0;
  for (const int64_t stop : {block_end, shared}) {
    if (stop > computed) end = std::min(end, stop);
  }
  // A state that is exported on the way needs no end of a step (V-45).
  if (CheckpointIn(request, computed, end) >= std::max(last, tail)) return end - computed;
  for (const int64_t stop : {last, tail}) {
    if (stop > computed) end = std::min(end, stop);
  }
  return end - computed;
}

// Where all groups of states export theirs in such a part; -1: some do not.
int64_t Scheduler::CheckpointIn(const SimRequest& request, int64_t begin, int64_t end) const {
  int64_t at = -1;
  for (const SingleTypeManager* group : checkpoint_states_) {
    const int64_t here = group->CheckpointIn(begin, end, request.num_prompt);
    if (here <= 0 || (at >= 0 && here != at)) return -1;
    at = here;
  }
  return at;
}

void Scheduler::CountCheckpoint(const SimRequest& request) {
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    totals_.num_state_checkpoints += manager_->GetStateCheckpoint(*request.kv, g).has_value();
  }
}

// Gets the blocks, by preempting others if need be. False: the request was preempted itself, or
// waits_alone_.
bool Scheduler::AllocateRunning(SimRequest& request, int64_t num_tokens, size_t& index,
                                SimTime now) {
  SyncContent(request);
  while (true) {
    const auto slots = manager_->AllocateSlots(
        *request.kv,
        {.num_new_tokens = num_tokens, .num_lookahead_tokens = options_.num_lookahead_tokens});
    KVBLOCKS_CHECK(slots.ok(), slots.status().ToString());
    if (slots->has_value()) {
      if (!checkpoint_states_.empty()) CountCheckpoint(request);
      last_new_blocks_ = **slots;
      UpdateNoopSlots(request);
      return true;
    }
    KVBLOCKS_CHECK(skipped_.size() == 0, "blocks ran short while requests are skipped");
    // What it holds for steps under way, in windows and states, it need not compute again. (Where
    // blocks serve every group it does, as in the engine.)
    const bool gives_back = request.num_steps_in_flight > 0 && manager_->pool().chunks() != nullptr;
    if (visited_.size() == 1 && gives_back) {
      waits_alone_ = true;
      return false;
    }
    // With a token still to come this is not the second time in vain.
    const bool is_lonely = visited_.size() == 1 && request.num_placeholders == 0 &&
                           holding_.empty() && num_connector_debts() == 0 &&
                           !manager_->has_block_copies();
    SimRequest* victim = TakeVictim(index);
    if (victim == &request && is_lonely && ++request.num_lonely_preemptions >= 2) {
      stuck_ = &request;
    }
    Preempt(*victim, request, now);
    if (victim == &request) return false;
  }
}

// Takes the request to preempt off the running list. Adjusts `index`, the walk's position, so that
// it still names the same request.
SimRequest* Scheduler::TakeVictim(size_t& index) {
  if (options_.policy != SchedulingPolicy::kPriority) {
    SimRequest* victim = visited_.back();
    visited_.pop_back();
    return victim;
  }
  const auto worst = std::max_element(visited_.begin(), visited_.end(), MoreUrgent());
  SimRequest* victim = *worst;
  const bool moves = options_.rules.victim_before_walk_moves_it
                         ? static_cast<size_t>(worst - visited_.begin()) < index
                         : HasPart(*victim);
  if (moves) --index;
  visited_.erase(worst);
  return victim;
}

bool Scheduler::HasPart(const SimRequest& request) const {
  return std::any_of(step_->scheduled.begin(), step_->scheduled.end(),
                     [&](const ScheduledRecord& record) { return record.request == &request; });
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
    slot_budget_ += scheduled->num_tokens + options_.num_draft_slots;
    num_prefills_ -= scheduled->is_prefill;
    records.erase(scheduled);
  }
  if (connector_ != nullptr) {
    connector_->OnLeave(victim, *manager_, LeaveCause::kPreempted, /*hold=*/-1, now);
  }
  KVBLOCKS_CHECK_OK(manager_->Free(*victim.kv));
  victim.kv->MarkPreempted();
  victim.num_computed = 0;
  victim.num_drafts = 0;
  victim.noop_slots = 0;
  ++victim.num_preemptions;
  victim.state = RequestState::kPreempted;
  Unreserve(victim);
  waiting_.AddPreempted(&victim);
  blocked_.head = nullptr;
  ++step_->record.num_preempted;
  ++totals_.num_preemptions;
  observer_->OnPreemption(preemption, now);
}

// --- Content ---

// Brings the manager's view of a request up to date. Tokens are passed when the manager next reads
// them, not one by one.
void Scheduler::SyncContent(SimRequest& request) {
  const bool is_new = request.kv == nullptr;
  const int64_t handed_over = is_new ? 0 : request.kv->num_tokens();
  hashes_.clear();
  const bool has_tokens = !is_new && request.kv->content().has_token_ids();
  if (request.num_known > handed_over && manager_->hashing() != nullptr && !has_tokens) {
    if (!request.keys) {
      request.keys.emplace(trace_, request.spec, manager_->hash_block_size(), std::string_view(),
                           num_hash_lookahead_);
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
    request.kv->set_longest_length(LongestNumSlots(request));
  } else if (has_tokens) {
    tokens_.clear();
    for (int64_t i = handed_over; i < request.num_known; ++i) {
      tokens_.push_back(static_cast<TokenId>(
          request.spec.output_ids[static_cast<size_t>(i - request.num_prompt)]));
    }
    KVBLOCKS_CHECK_OK(request.kv->AppendOutputTokens(tokens_));
  } else if (request.num_known > handed_over) {
    KVBLOCKS_CHECK_OK(request.kv->AppendHashedTokens(request.num_known - handed_over, hashes_));
  }
  request.kv->set_num_computed_tokens(request.num_computed);
  request.kv->set_num_inflight_tokens(
      options_.rules.trims_settled_windows
          ? std::max<int64_t>(request.num_computed - request.num_settled, 0)
          : 0);
}

void Scheduler::UpdateNoopSlots(SimRequest& request) {
  if (!options_.exact_steps) request.noop_slots = request.kv->noop_slots();
}

}  // namespace kvblocks::sim
