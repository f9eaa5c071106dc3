// Scheduler: requests whose next steps are quiet are left alone until something may happen to them.

#include <algorithm>

#include "kvblocks/block_pool/check.h"
#include "kvblocks/sim/engine/scheduler.h"

namespace kvblocks::sim {
namespace {

// Fewer steps than this are not worth the trouble.
constexpr int64_t kMinQuietSteps = 3;
// Steps for which all requests stay awake after all had to be woken.
constexpr int64_t kWakefulSteps = 32;

bool EnteredBefore(const SimRequest* a, const SimRequest* b) { return a->admission < b->admission; }

}  // namespace

// Before a step is scheduled: wakes who must be looked at in it.
void Scheduler::WakeForStep() {
  if (quiet_.size() == 0) return;
  const int64_t next = num_scheduled_steps_;
  if (!IsCalm()) {
    WakeAll();
    wakeful_until_ = next + kWakefulSteps;
    return;
  }
  woken_.clear();
  quiet_.TakeDue(next, &woken_);
  for (SimRequest* request : woken_) {
    Wake(*request);
    awake_.insert(std::upper_bound(awake_.begin(), awake_.end(), request, EnteredBefore), request);
  }
}

void Scheduler::WakeAll() {
  if (quiet_.size() == 0) return;
  woken_.clear();
  quiet_.TakeAll(num_scheduled_steps_, &woken_);
  for (SimRequest* request : woken_) Wake(*request);
  awake_.insert(awake_.end(), woken_.begin(), woken_.end());
  std::sort(awake_.begin(), awake_.end(), EnteredBefore);
}

// Whether neither blocks nor tokens can run short for the running requests of the next step. Then
// quiet ones need not be asked: they cannot be preempted and get their token.
bool Scheduler::IsCalm() const {
  const int64_t budget = token_budget_ - quiet_.size();
  int64_t wanted = 0;
  for (const SimRequest* request : awake_) {
    if (wanted >= budget) return false;
    const int64_t tokens = request->num_known + request->num_placeholders - request->num_computed;
    wanted += std::clamp<int64_t>(tokens, 0, longest_part_);
  }
  // The last one may get less than it wants if no quiet one comes after it.
  if (wanted > budget && awake_.back()->admission < quiet_.latest_admission()) return false;
  return HasBlocksFor(std::min(wanted, budget));
}

// Whether all running requests together can compute so many tokens, however they are distributed.
bool Scheduler::HasBlocksFor(int64_t num_tokens) const {
  const int64_t most = manager_->num_groups() * (num_tokens / boundary_tokens_ + num_running() + 1);
  return manager_->pool().num_free() >= most;
}

// Brings the request's counters up to date, and gives it the records that it lacks in steps that
// are under way.
void Scheduler::Wake(SimRequest& request) {
  const int64_t first = request.quiet_since + 1;
  const int64_t num_scheduled = num_scheduled_steps_ - first;
  const int64_t num_processed = std::clamp<int64_t>(totals_.num_steps - first, 0, num_scheduled);
  const int64_t num_under_way = num_scheduled - num_processed;
  for (int64_t i = num_in_flight_ - num_under_way; i < num_in_flight_; ++i) {
    Step& step = InFlight(i);
    step.scheduled.push_back({.request = &request,
                              .num_context = request.num_computed + step.record.step - first,
                              .num_tokens = 1});
    --step.record.num_quiet;
  }
  request.quiet_since = -1;
  request.num_computed += num_scheduled;
  request.num_steps_in_flight += static_cast<int32_t>(num_under_way);
  if (options_.async) request.num_placeholders += static_cast<int32_t>(num_under_way);
  if (num_processed == 0) return;
  request.num_known += num_processed;
  request.num_settled += num_processed;
  request.highest_computed = std::max(request.highest_computed, request.num_settled);
  observer_->OnQuietDecodes(request, num_processed);
}

// An asynchronous step makes a slot for a token that is not known yet, so a block is registered a step
// after its last slot was made: one more step is quiet where the blocks have a slot for it.
int64_t Scheduler::QuietSlotsAtRest(const SimRequest& request) const {
  const int64_t slots = request.quiet_slots + 1;
  if (!options_.async) return request.quiet_slots;
  for (GroupId g = 0; g < manager_->num_groups(); ++g) {
    const auto held = static_cast<int64_t>(manager_->GetBlocks(*request.kv, g).size());
    if (held * manager_->group(g).block_size() < slots) return request.quiet_slots;
  }
  return slots;
}

// After a step was scheduled: lets those rest who will decode inside a block from now on.
void Scheduler::LetRest() {
  const StepRecord& step = step_->record;
  if (!leaves_out_quiet_ || step.step < wakeful_until_ || !HasBlocksFor(step.num_tokens)) return;
  bool any = false;
  for (const ScheduledRecord& record : step_->scheduled) {
    if (record.is_chunk) continue;
    SimRequest& request = *record.request;
    // In its last step without a record a request has computed `last` tokens before. That step is
    // quiet, and its token is not the last.
    const int64_t last = std::min(QuietSlotsAtRest(request) - 1, request.end_tokens - 3);
    const int64_t num_steps = std::min(last - request.num_computed + 1, QuietDecodes::kHorizon - 1);
    if (num_steps < kMinQuietSteps || request.highest_computed > request.num_computed) continue;
    quiet_.Add(request, step.step, step.step + num_steps + 1);
    any = true;
  }
  if (any) {
    std::erase_if(awake_, [](const SimRequest* request) { return request->quiet_since >= 0; });
  }
}

}  // namespace kvblocks::sim
