// Scheduler: what a step yields - tokens, rejected drafts, requests that end.

#include <algorithm>

#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/single_type_manager.h"
#include "sim/engine/scheduler.h"

namespace kvblocks::sim {

StepRecord& Scheduler::ProcessOutputs() {
  KVBLOCKS_CHECK(num_in_flight_ > 0, "no step is under way");
  Step& step = InFlight(0);
  // From here on only later steps are under way.
  oldest_ = (oldest_ + 1) % max_in_flight();
  --num_in_flight_;
  queue_length_ -= 1 + step.num_empty_behind;
  finished_.clear();
  TellTime(step.record.end);
  step.outputs.resize(step.scheduled.size());
  for (size_t i = 0; i < step.scheduled.size(); ++i) {
    ProcessOutput(step.scheduled[i], step.outputs[i]);
  }
  if (!finished_.empty()) {
    std::erase_if(visited_, [](const SimRequest* request) {
      return request->state == RequestState::kFinished;
    });
  }
  totals_.num_output_tokens += step.record.num_skipped;
  totals_.num_first_time += step.record.num_skipped;
  step.record.scheduled = step.scheduled;
  step.record.copies = step.copies;
  step.record.outputs = step.outputs;
  ++totals_.num_steps;
  totals_.num_computed += step.record.num_tokens;
  return step.record;
}

void Scheduler::ProcessOutput(const ScheduledRecord& record, OutputRecord& output) {
  output.request = record.request;
  if (record.request == nullptr) {
    output.num_wasted = record.num_tokens;
    totals_.num_wasted += record.num_tokens;
    return;
  }
  SimRequest& request = *record.request;
  --request.num_steps_in_flight;
  // Or it was preempted while the step was under way: its blocks are gone, its tokens are not.
  const bool is_running = request.state == RequestState::kRunning;
  if (!record.is_chunk) {
    if (record.num_verified_drafts > 0) {
      if (!record.is_padded) {
        output.num_accepted_drafts =
            static_cast<int32_t>(sampler_.NumAccepted(request, record.num_verified_drafts));
        ++request.num_verifications;
      }
      output.num_rejected_drafts = record.num_verified_drafts - output.num_accepted_drafts;
      if (is_running) request.num_computed -= output.num_rejected_drafts;
    }
    // Tokens after the one that ends the request are dropped.
    output.num_emitted = static_cast<int32_t>(
        std::min<int64_t>(output.num_accepted_drafts + 1, request.end_tokens - request.num_known));
    request.num_known += output.num_emitted;
    request.num_lonely_preemptions = 0;
    if (options_.async) {
      request.num_placeholders -= output.num_rejected_drafts + output.num_emitted;
    } else if (is_running) {
      request.num_drafts = static_cast<int32_t>(options_.num_draft_tokens);
    }
    if (is_running && registers_outputs_) {
      RegisterSettled(request, output.num_accepted_drafts + 1);
    }
  }

  // What the computed tokens were good for.
  const int64_t context = request.num_settled;
  const int64_t computed = context + record.num_tokens - output.num_rejected_drafts;
  request.num_settled = computed;
  const bool ends = !record.is_chunk && request.num_known >= request.end_tokens;
  // The last token of a request that ends is known and needs no computing.
  const int64_t useful =
      ends && output.num_emitted > 0 ? std::min(computed, request.num_known - 1) : computed;
  output.num_wasted = static_cast<int32_t>(computed - useful);
  output.num_recomputed = static_cast<int32_t>(
      std::clamp<int64_t>(request.highest_computed - context, 0, useful - context));
  output.num_first_time = static_cast<int32_t>(useful - context) - output.num_recomputed;
  request.highest_computed = std::max(request.highest_computed, useful);

  totals_.num_output_tokens += output.num_emitted;
  totals_.num_first_time += output.num_first_time;
  totals_.num_recomputed += output.num_recomputed;
  totals_.num_wasted += output.num_wasted;
  totals_.num_rejected_drafts += output.num_rejected_drafts;

  if (ends) {
    output.finish_reason = request.ending;
    if (request.state == RequestState::kPreempted) waiting_.Remove(&request);
    Leave(request, request.ending);
    finished_.push_back(&request);
  }
}

// Registers the blocks that the tokens just emitted completed while nothing more was scheduled for
// the request. `num_tokens_ahead`: so many fewer were known to be final before.
void Scheduler::RegisterSettled(SimRequest& request, int64_t num_tokens_ahead) {
  // The newest token is not computed, and drafts accepted behind a request's last one are dropped.
  // The manager knows how far hashes reach; it does not know what may be computed again.
  const int64_t num_tokens =
      std::min(request.num_computed - request.num_placeholders, request.num_known - 1);
  if (num_tokens <= 0) return;
  // Some groups count all of these tokens, others only those that are never computed again (V-110).
  const BlockSize boundary(boundary_tokens_);
  const int64_t replayed = std::max<int64_t>(0, num_prefill_lookahead_ - 1);
  if (!options_.exact_steps && num_tokens >= num_tokens_ahead + replayed &&
      boundary.FloorDiv(num_tokens - num_tokens_ahead - replayed) ==
          boundary.FloorDiv(num_tokens)) {
    return;
  }
  SyncContent(request);
  KVBLOCKS_CHECK_OK(manager_->CacheBlocks(*request.kv, num_tokens));
  UpdateNoopSlots(request);
}

// Scheduler: skips requests whose next steps are no-ops (see SkippedDecodes).

namespace {

// Fewer steps than this are not worth the trouble.
constexpr int64_t kMinSkippedSteps = 3;
// Steps without skips after all skips had to stop.
constexpr int64_t kStepsWithoutSkips = 32;

bool EnteredBefore(const SimRequest* a, const SimRequest* b) { return a->admission < b->admission; }

}  // namespace

// Before a step is scheduled: stops skipping the requests that it must visit.
void Scheduler::StopSkippingForStep() {
  if (skipped_.size() == 0) return;
  const int64_t next = num_scheduled_steps_;
  if (!CanSkip()) {
    StopSkippingAll();
    no_skips_until_ = next + kStepsWithoutSkips;
    return;
  }
  returning_.clear();
  skipped_.TakeDue(next, &returning_);
  for (SimRequest* request : returning_) {
    StopSkipping(*request);
    visited_.insert(std::upper_bound(visited_.begin(), visited_.end(), request, EnteredBefore),
                    request);
  }
}

void Scheduler::StopSkippingAll() {
  if (skipped_.size() == 0) return;
  returning_.clear();
  skipped_.TakeAll(num_scheduled_steps_, &returning_);
  for (SimRequest* request : returning_) StopSkipping(*request);
  visited_.insert(visited_.end(), returning_.begin(), returning_.end());
  std::sort(visited_.begin(), visited_.end(), EnteredBefore);
}

// Whether the next step surely has blocks and tokens for all running requests. Then it can skip the
// skipped ones: they cannot be preempted, and they get their token.
bool Scheduler::CanSkip() const {
  const int64_t budget = token_budget_ - skipped_.size();
  int64_t wanted = 0;
  for (const SimRequest* request : visited_) {
    if (wanted >= budget) return false;
    const int64_t tokens = request->num_known + request->num_placeholders - request->num_computed;
    wanted += std::clamp<int64_t>(tokens, 0, longest_part_);
  }
  // The last one may get less than it wants if no skipped one comes after it.
  if (wanted > budget && visited_.back()->admission < skipped_.latest_admission()) return false;
  return HasBlocksFor(std::min(wanted, budget));
}

// Whether all running requests together can compute so many tokens, however they are distributed.
bool Scheduler::HasBlocksFor(int64_t num_tokens) const {
  const int64_t most = manager_->num_groups() * (num_tokens / boundary_tokens_ + num_running() + 1);
  return manager_->pool().num_free() >= most;
}

// Brings the request's counters up to date, and gives it the records that it lacks in steps that
// are under way.
void Scheduler::StopSkipping(SimRequest& request) {
  const int64_t first = request.skipped_since + 1;
  const int64_t num_scheduled = num_scheduled_steps_ - first;
  const int64_t num_processed = std::clamp<int64_t>(totals_.num_steps - first, 0, num_scheduled);
  const int64_t num_under_way = num_scheduled - num_processed;
  for (int64_t i = num_in_flight_ - num_under_way; i < num_in_flight_; ++i) {
    Step& step = InFlight(i);
    step.scheduled.push_back({.request = &request,
                              .num_context = request.num_computed + step.record.step - first,
                              .num_tokens = 1});
    --step.record.num_skipped;
  }
  request.skipped_since = -1;
  request.num_computed += num_scheduled;
  request.num_steps_in_flight += static_cast<int32_t>(num_under_way);
  if (options_.async) request.num_placeholders += static_cast<int32_t>(num_under_way);
  if (num_processed == 0) return;
  request.num_known += num_processed;
  request.num_settled += num_processed;
  request.highest_computed = std::max(request.highest_computed, request.num_settled);
  observer_->OnSkippedDecodes(request, num_processed);
}

// An asynchronous step makes a slot for a token that is not known yet, so a block is registered a
// step after its last slot was made: one more step is a no-op where the blocks have a slot for it.
int64_t Scheduler::NoopSlotsIfSkipped(const SimRequest& request) const {
  const int64_t slots = request.noop_slots + 1;
  if (!options_.async) return request.noop_slots;
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    const auto held = static_cast<int64_t>(manager_->GetBlocks(*request.kv, g).size());
    if (held * manager_->group(g).block_size() < slots) return request.noop_slots;
  }
  return slots;
}

// Runs after a step was scheduled: moves requests that now decode inside a block to skipped_.
void Scheduler::SkipDecodes() {
  const StepRecord& step = step_->record;
  if (!skips_decodes_ || step.step < no_skips_until_ || !HasBlocksFor(step.num_tokens)) return;
  bool any = false;
  for (const ScheduledRecord& record : step_->scheduled) {
    if (record.is_chunk) continue;
    SimRequest& request = *record.request;
    // In its last step without a record a request has computed `last` tokens before. That step is
    // a no-op, and its token is not the last.
    const int64_t last = std::min(NoopSlotsIfSkipped(request) - 1, request.end_tokens - 3);
    const int64_t num_steps =
        std::min(last - request.num_computed + 1, SkippedDecodes::kHorizon - 1);
    if (num_steps < kMinSkippedSteps || request.highest_computed > request.num_computed) continue;
    skipped_.Add(request, step.step, step.step + num_steps + 1);
    any = true;
  }
  if (any) {
    std::erase_if(visited_, [](const SimRequest* request) { return request->skipped_since >= 0; });
  }
}

}  // namespace kvblocks::sim
