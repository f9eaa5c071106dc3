// ReplicaSet: replicas that run by themselves, and requests sent ahead of the clock.

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "kvblocks/sim/replica_set.h"
#include "kvblocks/sim/run_in_parallel.h"

namespace kvblocks::sim {
namespace {

// So many instants of one replica before progress is told.
constexpr int64_t kInstantsPerTurn = 4096;

// Of requests sent ahead at once: enough of them that starting threads costs nothing beside, and few
// enough that what is kept of them, a look at each replica and the hashes of their prompts, stays within
// some megabytes.
constexpr size_t kMostAhead = 1024;
constexpr size_t kMostLooks = size_t{1} << 18;
constexpr int64_t kMostTokensAhead = int64_t{1} << 22;

// Fewer are not worth the start of a thread.
constexpr size_t kAheadForThreads = 32;

}  // namespace

bool ReplicaSet::MayRunApart() const {
  return config_.concurrency == 0 && !sessions_may_end_ && !arrivals_.has_waiting() &&
         groups_.empty() && owner_->RunsApart();
}

// The next arrivals whose places no replica has a say in.
absl::Status ReplicaSet::GatherAhead() {
  ahead_.clear();
  if (owner_->NextTime() != kNever) return absl::OkStatus();
  const size_t most = std::clamp<size_t>(kMostLooks / replicas_.size(), 1, kMostAhead);
  int64_t num_tokens = 0;
  while (ahead_.size() < most && num_tokens < kMostTokensAhead) {
    const auto taken = arrivals_.TakeAhead([this](const SimRequest& request) {
      return !MayEndSession(request) && owner_->IsPlaceKnown(request);
    });
    if (!taken.ok()) return taken.status();
    SimRequest* request = *taken;
    if (request == nullptr) break;
    is_arrival_known_ = false;
    ++num_arrived_;
    if (SkipsForNoOutput(request)) {
      if (absl::Status status = End(request, request->arrival); !status.ok()) return status;
      continue;
    }
    const int32_t replica = owner_->SendAhead(ahead_.size(), request);
    SentOf(*request) = {.replica = replica, .num_outputs = request->num_outputs()};
    ahead_.push_back({request->arrival, request, replica});
    num_tokens += request->num_prompt;
  }
  return absl::OkStatus();
}

// All instants before `limit`, each replica for itself; or, if there are requests to be sent ahead, all up
// to the last of them, which is sent: what else there is to do at that instant remains. Of several
// errors the earliest is told.
absl::Status ReplicaSet::RunApart(SimTime limit) {
  if (absl::Status status = GatherAhead(); !status.ok()) return status;
  if (!ahead_.empty()) {
    limit = ahead_.back().time;
  } else if (std::all_of(next_.begin(), next_.end(), [limit](SimTime t) { return t >= limit; })) {
    return absl::OkStatus();
  }
  const bool is_worth_threads = ahead_.size() >= kAheadForThreads || limit == kNever;
  const int num_threads = is_worth_threads ? num_threads_ : 1;

  owner_->OnApart();
  is_apart_ = true;
  for (Alone& alone : alone_) alone = Alone();
  PrepareAhead(num_threads);
  SimTime failed_at = kNever;
  size_t failed = 0;
  while (true) {
    turn_.clear();
    for (size_t r = 0; r < replicas_.size(); ++r) {
      const SimTime at = ReachedBy(r);
      const bool is_done = ahead_.empty() ? at >= limit : alone_[r].num_seen == ahead_.size();
      if (!is_done && alone_[r].status.ok() && at <= failed_at) turn_.push_back(r);
    }
    if (turn_.empty()) break;
    RunTurn(num_threads, limit);
    for (const size_t r : turn_) {
      num_instants_ += std::exchange(alone_[r].num_instants, 0);
      const SimTime at = ReachedBy(r);
      if (alone_[r].status.ok() || at > failed_at || (at == failed_at && r > failed)) continue;
      failed_at = at;
      failed = r;
    }
    if (absl::Status status = ReportProgress(); !status.ok()) return status;
  }
  is_apart_ = false;
  if (failed_at != kNever) {
    now_ = std::max(now_, failed_at);
    return OfReplica(static_cast<int32_t>(failed), alone_[failed].status);
  }
  if (absl::Status status = TellApart(); !status.ok()) return status;
  // An instant may have nothing to tell.
  for (const Alone& alone : alone_) now_ = std::max(now_, alone.last);
  if (ahead_.empty()) return absl::OkStatus();
  num_sent_ahead_ += static_cast<int64_t>(ahead_.size());
  now_ = ahead_.back().time;
  due_.clear();
  for (size_t r = 0; r < replicas_.size(); ++r) {
    if (next_[r] <= now_) due_.push_back(static_cast<int32_t>(r));
  }
  return absl::OkStatus();
}

SimTime ReplicaSet::ReachedBy(size_t replica) const {
  const size_t num_seen = alone_[replica].num_seen;
  const SimTime look = num_seen < ahead_.size() ? ahead_[num_seen].time : kNever;
  return std::min(next_[replica], look);
}

void ReplicaSet::PrepareAhead(int num_threads) {
  constexpr size_t kAtOnce = 16;
  const auto prepare = [this](size_t first) {
    const size_t end = std::min(first + kAtOnce, ahead_.size());
    for (size_t i = first; i < end; ++i) owner_->PrepareAhead(i, *ahead_[i].request);
  };
  std::vector<std::function<void()>> tasks;
  for (size_t first = 0; first < ahead_.size(); first += kAtOnce) {
    if (num_threads == 1) {
      prepare(first);
    } else {
      tasks.push_back([&prepare, first] { prepare(first); });
    }
  }
  if (!tasks.empty()) RunInParallel(num_threads, tasks);
}

void ReplicaSet::RunTurn(int num_threads, SimTime limit) {
  if (num_threads == 1) {
    for (const size_t r : turn_) RunAlone(r, limit);
    return;
  }
  std::vector<std::function<void()>> tasks;
  for (const size_t r : turn_) tasks.push_back([this, r, limit] { RunAlone(r, limit); });
  RunInParallel(num_threads, tasks);
}

// By one thread among several: nothing is written here but what is this replica's own.
void ReplicaSet::RunAlone(size_t index, SimTime limit) {
  Replica& replica = *replicas_[index];
  Alone& alone = alone_[index];
  SimTime next = next_[index];
  const auto iterate = [&](SimTime now) {
    absl::Status status = replica.DeliverAborts(now);
    if (status.ok() && replica.wants_schedule()) status = replica.Schedule(now);
    if (status.ok()) next = replica.NextTime().value_or(kNever);
    return status;
  };
  absl::Status status;
  while (status.ok() && alone.num_instants < kInstantsPerTurn) {
    const bool is_any_ahead = alone.num_seen < ahead_.size();
    const SimTime until = is_any_ahead ? ahead_[alone.num_seen].time : limit;
    if (next < until) {
      ++alone.num_instants;
      alone.last = next;
      if (replica.is_step_over(next)) status = replica.FinishStep();
      if (status.ok()) status = iterate(next);
      continue;
    }
    if (!is_any_ahead) break;
    // As at an instant that is common to all: steps that end, arrivals, then everything else.
    ++alone.num_instants;
    if (next <= until && replica.is_step_over(until)) status = replica.FinishStep();
    while (status.ok() && alone.num_seen < ahead_.size() && ahead_[alone.num_seen].time == until) {
      const size_t i = alone.num_seen++;
      owner_->LookAhead(i, static_cast<int32_t>(index), LoadOf(index));
      if (ahead_[i].replica != static_cast<int32_t>(index)) continue;
      next = std::min(next, until);
      status = SubmitAt(ahead_[i].request, index, until);
    }
    if (alone.num_seen == ahead_.size()) break;
    if (status.ok() && next <= until) status = iterate(until);
  }
  next_[index] = next;
  alone.status = std::move(status);
}

// What happened meanwhile, to the owner, in order of time: of one instant ends of steps, requests that were sent, then
// everything else.
absl::Status ReplicaSet::TellApart() {
  size_t num_sent = 0;
  const auto tell_sent = [&](size_t until) {
    for (; num_sent < until; ++num_sent) {
      const Ahead& sent = ahead_[num_sent];
      now_ = std::max(now_, sent.time);
      owner_->OnSentAhead(num_sent, *sent.request, sent.replica);
    }
  };
  absl::Status status;
  told_.TakeAll([&](size_t replica, const Told::Order& order, const Told& told) {
    tell_sent(order.first);
    now_ = std::max(now_, order.second);
    if (told.admitted != nullptr) {
      owner_->OnAdmission(static_cast<int32_t>(replica), *told.admitted, told.num_hit_tokens,
                          order.second);
    } else if (status.ok()) {
      status = owner_->OnEnded(told.ended, order.second);
    }
  });
  tell_sent(ahead_.size());
  owner_->OnTogether();
  return status;
}

}  // namespace kvblocks::sim
