#include "sim/arrivals.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"

namespace kvblocks::sim {
namespace {

// Numbers the sessions of requests without one, so that they differ from the trace's sessions.
constexpr uint64_t kSessionOfRow = uint64_t{1} << 63;

absl::Status BeyondClock(const TraceRequest& request) {
  return absl::OutOfRangeError(absl::StrCat("request ", request.id, " (line ", request.line,
                                            "): arrives at ", request.arrival_ns,
                                            " ns, beyond the clock's 106 days"));
}

}  // namespace

absl::Status Arrivals::Peek() {
  if (next_ || is_at_end_) return absl::OkStatus();
  next_.emplace();
  const absl::StatusOr<bool> more = reader_->Next(*next_);
  if (!more.ok() || !*more) {
    next_.reset();
    is_at_end_ = true;
    return more.status();
  }
  return CheckHeldBytes(store_->spec_bytes() + held_bytes_ + BytesOf(*next_), *reader_);
}

// Takes a request on the books: it is due at a known time, or waits for others.
absl::Status Arrivals::Enter(TraceRequest spec, uint64_t session, SimTime shift) {
  std::optional<SimTime> own_time = FromNanoseconds(spec.arrival_ns);
  if (own_time) own_time = CheckedAdd(*own_time, shift);
  if (!own_time) return BeyondClock(spec);

  SimRequest* request = store_->Add(std::move(spec));
  request->session_key = session;
  unresolved_[request->spec.row] = request;
  if (session != 0 && concurrency_ > 0 && sessions_[session].num_unresolved++ == 0) ++num_active_;
  if (request->spec.session != 0 && given_up_sessions_.contains(request->spec.session)) {
    request->abort_cause = AbortCause::kSession;
    given_up_.push_back(request);
    return absl::OkStatus();
  }

  Pending pending{.own_time = *own_time};
  for (int64_t row : request->spec.waits_for) {
    pending.has_dependencies = true;
    const auto dependency = unresolved_.find(row);
    if (dependency != unresolved_.end() && dependency->second != request) {
      dependents_[row].push_back(request->spec.row);
      ++pending.num_unresolved;
    } else if (row >= 0 && row < static_cast<int64_t>(finish_times_.size())) {
      pending.last_finish = std::max(pending.last_finish, finish_times_[static_cast<size_t>(row)]);
    }
  }
  if (pending.num_unresolved == 0) return SetDue(*request, pending);
  const size_t slot = static_cast<size_t>(request->slot);
  if (pending_.size() <= slot) pending_.resize(slot + 1);
  pending_[slot] = pending;
  return absl::OkStatus();
}

absl::Status Arrivals::SetDue(const SimRequest& request, const Pending& pending) {
  SimTime time = pending.own_time;
  if (pending.has_dependencies) {
    const std::optional<SimTime> think = FromNanoseconds(request.spec.think_ns);
    const std::optional<SimTime> after =
        think ? CheckedAdd(pending.last_finish, *think) : std::nullopt;
    if (!after) return BeyondClock(request.spec);
    // Where sessions start whenever there is room, the own time of a request without one is void.
    const bool is_own_time_void =
        !request.spec.has_arrival || (concurrency_ > 0 && request.session_key == 0);
    time = is_own_time_void ? *after : std::max(time, *after);
  }
  due_.push({time, request.spec.row});
  return absl::OkStatus();
}

void Arrivals::DropStale() {
  while (!due_.empty() && !unresolved_.contains(due_.top().row)) due_.pop();
}

absl::StatusOr<SimRequest*> Arrivals::TakeDue(SimTime now) {
  if (concurrency_ > 0) {
    KVBLOCKS_RETURN_IF_ERROR(FillSessions(now));
  } else {
    while (true) {
      KVBLOCKS_RETURN_IF_ERROR(Peek());
      if (!next_) break;
      // Compared in nanoseconds, rounded so that nothing due is left out.
      if (next_->arrival_ns > now / kNanosecond) break;
      TraceRequest request = *std::exchange(next_, std::nullopt);
      KVBLOCKS_RETURN_IF_ERROR(Enter(std::move(request), 0, 0));
    }
  }
  DropStale();
  if (due_.empty() || due_.top().time > now) return nullptr;
  SimRequest* request = unresolved_.at(due_.top().row);
  request->arrival = due_.top().time;
  due_.pop();
  return request;
}

absl::StatusOr<std::optional<SimTime>> Arrivals::NextTime(SimTime now) {
  if (concurrency_ > 0) {
    KVBLOCKS_RETURN_IF_ERROR(FillSessions(now));
    if (!given_up_.empty()) return now;
    DropStale();
    return due_.empty() ? std::optional<SimTime>() : due_.top().time;
  }
  while (true) {
    DropStale();
    KVBLOCKS_RETURN_IF_ERROR(Peek());
    if (!next_) break;
    if (!due_.empty() && next_->arrival_ns > due_.top().time / kNanosecond) break;
    TraceRequest request = *std::exchange(next_, std::nullopt);
    KVBLOCKS_RETURN_IF_ERROR(Enter(std::move(request), 0, 0));
  }
  // Turns of sessions given up are to be ended, also behind the last request that arrives.
  if (!given_up_.empty()) return now;
  return due_.empty() ? std::optional<SimTime>() : due_.top().time;
}

absl::Status Arrivals::Resolve(const SimRequest& request, SimTime now) {
  const int64_t row = request.spec.row;
  unresolved_.erase(row);
  if (row >= 0) {
    if (finish_times_.size() <= static_cast<size_t>(row)) {
      finish_times_.resize(static_cast<size_t>(row) + 1);
    }
    finish_times_[static_cast<size_t>(row)] = now;
  }
  if (concurrency_ > 0 && request.session_key != 0) {
    const auto session = sessions_.find(request.session_key);
    if (--session->second.num_unresolved == 0) {
      --num_active_;
      if (request.session_key & kSessionOfRow) sessions_.erase(session);
    }
  }
  const auto waiting = dependents_.find(row);
  if (waiting == dependents_.end()) return absl::OkStatus();
  const std::vector<int64_t> rows = std::move(waiting->second);
  dependents_.erase(waiting);
  for (int64_t dependent_row : rows) {
    const auto dependent = unresolved_.find(dependent_row);
    if (dependent == unresolved_.end()) continue;  // given up meanwhile
    Pending& pending = pending_[static_cast<size_t>(dependent->second->slot)];
    pending.last_finish = std::max(pending.last_finish, now);
    if (--pending.num_unresolved > 0) continue;
    KVBLOCKS_RETURN_IF_ERROR(SetDue(*dependent->second, pending));
  }
  return absl::OkStatus();
}

std::vector<SimRequest*> Arrivals::GiveUpSession(uint64_t session) {
  given_up_sessions_.insert(session);
  std::vector<SimRequest*> turns;
  for (const auto& [row, request] : unresolved_) {
    if (request->spec.session == session &&
        (request->state == RequestState::kPending || request->state == RequestState::kWaiting)) {
      turns.push_back(request);
    }
  }
  std::sort(turns.begin(), turns.end(),
            [](const SimRequest* a, const SimRequest* b) { return a->spec.row < b->spec.row; });
  return turns;
}

// --- Sessions started as others end ---

// A request without a session is one of its own, unless it waits for others: then it belongs to
// theirs.
uint64_t Arrivals::SessionOf(const TraceRequest& request) const {
  if (request.session != 0) return request.session;
  for (int64_t row : request.waits_for) {
    if (const auto it = unresolved_.find(row); it != unresolved_.end()) {
      return it->second->session_key;
    }
    for (const Held& held : held_) {
      if (held.request.row == row) return held.session;
    }
  }
  return request.waits_for.empty() ? kSessionOfRow | static_cast<uint64_t>(request.row) : 0;
}

// Enters turns of sessions that have started and holds back the others.
absl::Status Arrivals::ReadAhead() {
  while (held_.size() < kReadAhead) {
    KVBLOCKS_RETURN_IF_ERROR(Peek());
    if (!next_) break;
    const uint64_t session = SessionOf(*next_);
    TraceRequest request = *std::exchange(next_, std::nullopt);
    const auto started = sessions_.find(session);
    if (session == 0 || started != sessions_.end()) {
      const SimTime shift = session == 0 ? 0 : started->second.shift;
      KVBLOCKS_RETURN_IF_ERROR(Enter(std::move(request), session, shift));
    } else {
      held_bytes_ += BytesOf(request);
      held_.push_back({std::move(request), session});
    }
  }
  return absl::OkStatus();
}

SimTime Arrivals::NextStart(SimTime now) {
  const int64_t index = num_started_++;
  if (index >= concurrency_) return CheckedAdd(now, starts_.delay).value_or(kMaxSimTime);
  if (starts_.jitter == 0) return now;
  // The fraction's digits of multiples of the golden ratio: spread evenly, in no order.
  const uint64_t fraction = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u;
  __extension__ using Product = unsigned __int128;
  return CheckedAdd(now, static_cast<SimTime>(Product{fraction} *
                                                  static_cast<uint64_t>(starts_.jitter) >>
                                              64))
      .value_or(kMaxSimTime);
}

absl::Status Arrivals::StartSession(SimTime now) {
  const uint64_t session = held_.front().session;
  const std::optional<SimTime> first = FromNanoseconds(held_.front().request.arrival_ns);
  if (!first) return BeyondClock(held_.front().request);
  const SimTime shift = NextStart(now) - *first;
  sessions_[session].shift = shift;
  for (auto it = held_.begin(); it != held_.end();) {
    if (it->session != session) {
      ++it;
      continue;
    }
    held_bytes_ -= BytesOf(it->request);
    KVBLOCKS_RETURN_IF_ERROR(Enter(std::move(it->request), session, shift));
    it = held_.erase(it);
  }
  return absl::OkStatus();
}

absl::Status Arrivals::FillSessions(SimTime now) {
  while (true) {
    KVBLOCKS_RETURN_IF_ERROR(ReadAhead());
    if (num_active_ >= concurrency_ || held_.empty()) return absl::OkStatus();
    KVBLOCKS_RETURN_IF_ERROR(StartSession(now));
  }
}

}  // namespace kvblocks::sim
