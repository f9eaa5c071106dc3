#include "sim/lockstep_group.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "checks/status_macros.h"

namespace kvblocks::sim {

LockstepGroup::LockstepGroup(const LockstepOptions& options, std::vector<Replica*> engines)
    : options_(options),
      engines_(std::move(engines)),
      depth_(static_cast<size_t>(engines_.front()->scheduler().max_in_flight())),
      totals_(engines_.size()),
      own_(engines_.size()) {}

bool LockstepGroup::wants_round() const {
  return std::any_of(engines_.begin(), engines_.end(),
                     [](const Replica* engine) { return engine->wants_schedule(); });
}

bool LockstepGroup::IsStepUnderWay() const {
  return std::any_of(engines_.begin(), engines_.end(), [](const Replica* engine) {
    return engine->scheduler().num_in_flight() > 0;
  });
}

// Passes without requests may be under way; the devices finish them.
void LockstepGroup::BecomeIdle() {
  for (Replica* engine : engines_) engine->ReturnToBoundary();
  ends_.clear();
  num_passes_ = 0;
  is_over_ = false;
}

absl::Status LockstepGroup::Round(SimTime now) {
  const size_t num_under_way = ends_.size();
  std::erase_if(ends_, [&](SimTime end) { return end <= now; });
  if (ends_.size() < num_under_way) {
    const bool asks = num_passes_ == 1 || num_passes_ % options_.sync_interval == 0;
    is_over_ |= asks && std::none_of(engines_.begin(), engines_.end(),
                                     [](const Replica* engine) { return engine->had_work(); });
    if (is_over_ && IsStepUnderWay()) {
      for (Replica* engine : engines_) engine->HoldUntil(ends_.front());
      return absl::OkStatus();
    }
    if (is_over_) BecomeIdle();
  }
  const bool holds = num_passes_ % options_.prefill_interval != 0;
  for (failed_ = 0; failed_ < engines_.size(); ++failed_) {
    KVBLOCKS_RETURN_IF_ERROR(engines_[failed_]->ScheduleOpen(now, holds));
  }
  if (!GoesOn()) {
    BecomeIdle();
    return absl::OkStatus();
  }
  return BeginPass(now);
}

// Whether there is a pass, be it without requests.
bool LockstepGroup::GoesOn() const {
  bool has_work = false;
  for (const Replica* engine : engines_) {
    const Scheduler& scheduler = engine->scheduler();
    if (engine->has_open_step() || scheduler.num_in_flight() > 0) return true;
    const bool has_requests = scheduler.num_running() > 0 || scheduler.num_waiting() > 0;
    if (has_requests && engine->open_step().num_preempted > 0) return true;
    has_work |= has_requests;
  }
  // An engine that has requests and can begin none of them needs more than a pass.
  return num_passes_ > 0 && !has_work;
}

absl::Status LockstepGroup::BeginPass(SimTime now) {
  StepPeers peers;
  int64_t most = 0;
  bool is_any_open = false;
  for (const Replica* engine : engines_) {
    const bool is_open = engine->has_open_step();
    const int64_t num_tokens = is_open ? engine->open_step().num_tokens : 1;
    peers.num_tokens += num_tokens;
    peers.num_decode_tokens += is_open ? engine->open_step().num_decode_tokens : 1;
    most = std::max(most, num_tokens);
    is_any_open |= is_open;
  }
  if (most <= options_.graph_tokens) {
    const int64_t all = most * static_cast<int64_t>(engines_.size());
    peers.num_decode_tokens += all - peers.num_tokens;
    peers.num_tokens = all;
    peers.padded_tokens = most;
  }
  SimTime longest = 0;
  for (failed_ = 0; failed_ < engines_.size(); ++failed_) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto time, engines_[failed_]->TimeOpenStep(peers));
    own_[failed_] = time;
    longest = std::max(longest, time);
  }
  failed_ = 0;
  const SimTime start = std::max(now, device_free_);
  const std::optional<SimTime> end = CheckedAdd(start, longest);
  if (!end) return absl::OutOfRangeError("the clock would pass its 106 days: a step");
  device_free_ = *end;
  ends_.push_back(*end);
  ++num_passes_;
  const bool has_room = ends_.size() < depth_;
  for (size_t i = 0; i < engines_.size(); ++i) {
    LockstepTotals& totals = totals_[i];
    if (engines_[i]->has_open_step()) {
      engines_[i]->CloseStep(start, own_[i], *end);
      ++totals.num_steps;
      totals.own_time += own_[i];
      totals.lost_time += longest - own_[i];
    } else if (is_any_open) {
      ++totals.num_dummies;
      totals.dummy_time += longest;
    } else {
      ++totals.num_idle;
      totals.idle_time += longest;
    }
    if (has_room) {
      engines_[i]->CallAgain();
    } else {
      engines_[i]->HoldUntil(ends_.front());
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
