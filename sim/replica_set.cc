#include "sim/replica_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {
std::string ReplicaSet::Owner::NameOf(int32_t replica) const {
  return absl::StrCat("replica ", replica);
}

// What the set itself must see of a replica.
class ReplicaSet::Watcher final : public EngineObserver {
 public:
  Watcher(ReplicaSet* set, int32_t replica) : set_(set), replica_(replica) {}

  bool NeedsEveryRecord() const override { return false; }

  void OnAdmission(const AdmissionRecord& record, SimTime now) override {
    const SimRequest& request = *record.request;
    if (std::exchange(set_->SentOf(request).is_admitted, true)) return;
    const auto r = static_cast<size_t>(replica_);
    set_->loads_[r].num_waiting_tokens -= request.num_prompt;
    set_->owner_->OnAdmission(replica_, request, record.num_hit_tokens, now);
  }

 private:
  ReplicaSet* const set_;
  const int32_t replica_;
};

ReplicaSet::ReplicaSet(const SimulationConfig& config, TraceReader* reader, Owner* owner,
                       Reading reading)
    : config_(config),
      reader_(reader),
      owner_(owner),
      reads_at_boundaries_(reading == Reading::kAtBoundaries),
      arrivals_(reader, &store_, config.concurrency,
                {.jitter = config.start_jitter, .delay = config.start_delay}) {
  if (reads_at_boundaries_) due_ = {0};  // for good
}

ReplicaSet::~ReplicaSet() = default;

absl::Status ReplicaSet::Add(ReplicaSetup setup) {
  const auto index = static_cast<int32_t>(replicas_.size());
  if (!reads_at_boundaries_) {
    watchers_.push_back(std::make_unique<Watcher>(this, index));
    setup.observers.push_back(watchers_.back().get());
  }
  auto replica =
      Replica::Create(setup.config, reader_->info(), setup.step_time, setup.observers, this);
  if (!replica.ok()) return OfReplica(index, replica.status());
  if (setup.connector != nullptr) (*replica)->set_connector(setup.connector);
  replicas_.push_back(*std::move(replica));
  next_.push_back(kNever);
  is_coupled_.push_back(0);
  loads_.emplace_back();
  ended_outputs_.push_back(0);
  return absl::OkStatus();
}

absl::Status ReplicaSet::Couple(size_t first, size_t count, const LockstepOptions& options) {
  if (count < 2 || first + count > replicas_.size()) {
    return InvalidArgument("a lockstep group of replicas ", first, " to ", first + count - 1,
                           ", expected at least two of ", replicas_.size());
  }
  std::vector<Replica*> engines;
  for (size_t r = first; r < first + count; ++r) {
    const SchedulerOptions& scheduler = replicas_[r]->scheduler().options();
    const char* why = is_coupled_[r]                  ? "is in a lockstep group already"
                      : scheduler.pipeline_stages > 1 ? "has pipeline stages, which no group has"
                      : scheduler.async != replicas_[first]->scheduler().options().async
                          ? "is not asynchronous as the first of its group is, or alone is"
                          : nullptr;
    if (why != nullptr) {
      return OfReplica(static_cast<int32_t>(r), absl::InvalidArgumentError(why));
    }
    engines.push_back(replicas_[r].get());
    is_coupled_[r] = 1;
  }
  groups_.push_back(std::make_unique<LockstepGroup>(options, std::move(engines)));
  first_of_group_.push_back(static_cast<int32_t>(first));
  return absl::OkStatus();
}

absl::Status ReplicaSet::OfReplica(int32_t replica, const absl::Status& status) const {
  const std::string name = NameOf(replica);
  if (status.ok() || name.empty()) return status;
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

absl::Status ReplicaSet::Run() {
  for (const auto& replica : replicas_) replica->Start();
  const absl::Status status = RunLoop();
  for (const auto& replica : replicas_) replica->End(now_);
  return status;
}

absl::Status ReplicaSet::RunLoop() {
  next_report_ = config_.progress_interval;
  while (true) {
    KVBLOCKS_RETURN_IF_ERROR(FinishSteps());
    KVBLOCKS_RETURN_IF_ERROR(owner_->BeforeArrivals());
    KVBLOCKS_RETURN_IF_ERROR(TakeArrivals());
    KVBLOCKS_RETURN_IF_ERROR(owner_->AfterArrivals());
    ++num_instants_;
    KVBLOCKS_RETURN_IF_ERROR(Iterate());

    KVBLOCKS_RETURN_IF_ERROR(ReadNextArrival());
    const SimTime next = NextInstant(std::min(next_arrival_, owner_->NextTime()));
    if (next == kNever) return NoProgress();
    now_ = std::max(now_, next);
  }
}

// --- One instant ---

absl::Status ReplicaSet::FinishSteps() {
  for (at_ = 0; at_ < due_.size(); ++at_) {
    const int32_t r = due_[at_];
    Replica& replica = *replicas_[static_cast<size_t>(r)];
    if (!replica.is_step_over(now_)) continue;
    if (absl::Status status = replica.FinishStep(); !status.ok()) return OfReplica(r, status);
  }
  return absl::OkStatus();
}

absl::Status ReplicaSet::TakeArrivals() {
  if (is_arrival_known_ && next_arrival_ > now_) return absl::OkStatus();
  is_arrival_known_ = false;
  while (true) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto taken, arrivals_.TakeDue(now_));
    for (SimRequest* turn : arrivals_.TakeGivenUp()) {
      ++num_arrived_;
      KVBLOCKS_RETURN_IF_ERROR(owner_->OnGivenUp(turn, nullptr, now_));
    }
    SimRequest* request = taken;
    if (request == nullptr) return absl::OkStatus();
    ++num_arrived_;
    if (SkipsForNoOutput(request)) {
      KVBLOCKS_RETURN_IF_ERROR(End(request, now_));
      continue;
    }
    KVBLOCKS_RETURN_IF_ERROR(owner_->OnArrived(request));
  }
}

bool ReplicaSet::SkipsForNoOutput(SimRequest* request) {
  if (request->max_output > 0) return false;
  if (config_.zero_output == ZeroOutput::kOne) request->max_output = 1;
  num_skipped_ += config_.zero_output == ZeroOutput::kSkip;
  return config_.zero_output == ZeroOutput::kSkip;
}

absl::Status ReplicaSet::Iterate() {
  // All aborts first: a session that ends takes turns along that others would admit.
  if (due_.size() > 1) {
    for (at_ = 0; at_ < due_.size(); ++at_) {
      const auto r = static_cast<size_t>(due_[at_]);
      absl::Status status = replicas_[r]->DeliverAborts(now_);
      if (!status.ok()) return OfReplica(static_cast<int32_t>(r), status);
    }
  }
  for (at_ = 0; at_ < due_.size(); ++at_) {
    const auto r = static_cast<size_t>(due_[at_]);
    absl::Status status = replicas_[r]->DeliverAborts(now_);
    if (status.ok() && at_ == 0) {
      KVBLOCKS_RETURN_IF_ERROR(ReportProgress());
    }
    if (status.ok() && !is_coupled_[r] &&
        (reads_at_boundaries_ || replicas_[r]->wants_schedule())) {
      status = replicas_[r]->Schedule(now_);
    }
    if (!status.ok()) return OfReplica(static_cast<int32_t>(r), status);
    next_[r] = replicas_[r]->NextTime().value_or(kNever);
  }
  return groups_.empty() ? absl::OkStatus() : IterateGroups();
}

absl::Status ReplicaSet::IterateGroups() {
  for (size_t g = 0; g < groups_.size(); ++g) {
    LockstepGroup& group = *groups_[g];
    if (!group.wants_round()) continue;
    const auto first = static_cast<size_t>(first_of_group_[g]);
    if (absl::Status status = group.Round(now_); !status.ok()) {
      return OfReplica(static_cast<int32_t>(first + group.failed()), status);
    }
    for (size_t i = 0; i < group.engines().size(); ++i) {
      next_[first + i] = group.engines()[i]->NextTime().value_or(kNever);
    }
  }
  return absl::OkStatus();
}

// --- From one to the next ---

absl::Status ReplicaSet::ReadNextArrival() {
  if (is_arrival_known_) return absl::OkStatus();
  next_arrival_ = kNever;
  if (reads_at_boundaries_ && replicas_.front()->is_busy()) return absl::OkStatus();
  KVBLOCKS_ASSIGN_OR_RETURN(const auto arrival, arrivals_.NextTime(now_));
  next_arrival_ = arrival.value_or(kNever);
  is_arrival_known_ = !reads_at_boundaries_;
  return absl::OkStatus();
}

// Of replicas, and of what else happens at `events`.
SimTime ReplicaSet::NextInstant(SimTime events) {
  if (reads_at_boundaries_) return std::min(events, next_.front());
  SimTime next = events;
  due_.clear();
  for (size_t r = 0; r < next_.size(); ++r) {
    if (next_[r] > next || next_[r] == kNever) continue;
    if (next_[r] < next) due_.clear();
    next = next_[r];
    due_.push_back(static_cast<int32_t>(r));
  }
  return next;
}

// Nothing will ever happen by itself: the end, unless someone still has work.
absl::Status ReplicaSet::NoProgress() const {
  for (size_t r = 0; r < replicas_.size(); ++r) {
    if (!replicas_[r]->has_work()) continue;
    return OfReplica(static_cast<int32_t>(r), absl::FailedPreconditionError(
                                                  replicas_[r]->scheduler().DescribeNoProgress()));
  }
  return absl::OkStatus();
}

absl::Status ReplicaSet::ReportProgress() {
  if (!progress_ || num_instants_ < next_report_) return absl::OkStatus();
  next_report_ = num_instants_ + config_.progress_interval;
  SimulationProgress progress = {.now = now_,
                                 .num_arrived = num_arrived_,
                                 .num_done = num_ended_,
                                 .read = reader_->progress()};
  for (const auto& replica : replicas_) {
    progress.num_output_tokens += replica->scheduler().totals().num_output_tokens;
    progress.num_running += replica->scheduler().num_running();
    progress.num_waiting += replica->scheduler().num_waiting();
  }
  if (progress_(progress)) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("stopped at ", FormatDuration(now_)));
}

// --- Requests ---

ReplicaSet::Sent& ReplicaSet::SentOf(const SimRequest& request) {
  const auto slot = static_cast<size_t>(request.slot);
  if (slot >= sent_.size()) sent_.resize(slot + 1);
  return sent_[slot];
}

int32_t ReplicaSet::replica_of(const SimRequest& request) const {
  const auto slot = static_cast<size_t>(request.slot);
  return slot < sent_.size() ? sent_[slot].replica : -1;
}

void ReplicaSet::GetLoads(size_t first, size_t count, std::vector<ReplicaLoad>* loads) const {
  loads->clear();
  for (size_t i = 0; i < count; ++i) loads->push_back(LoadOf(first + i));
}

ReplicaLoad ReplicaSet::LoadOf(size_t replica) const {
  ReplicaLoad load = loads_[replica];
  load.num_tokens +=
      replicas_[replica]->scheduler().totals().num_output_tokens - ended_outputs_[replica];
  return load;
}

void ReplicaSet::CallNow(int32_t replica) {
  SimTime& next = next_[static_cast<size_t>(replica)];
  if (next <= now_) return;
  next = now_;
  if (reads_at_boundaries_) return;  // it is called in any case
  // One before the place that a pass over them has reached is called in the next round.
  const auto place = due_.insert(std::upper_bound(due_.begin(), due_.end(), replica), replica);
  if (static_cast<size_t>(place - due_.begin()) <= at_) ++at_;
}

absl::Status ReplicaSet::Submit(SimRequest* request, int32_t replica) {
  SentOf(*request) = {.replica = replica, .num_outputs = request->num_outputs()};
  CallNow(replica);
  ReplicaLoad& load = loads_[static_cast<size_t>(replica)];
  load.num_requests += 1;
  load.num_tokens += request->num_prompt;
  load.num_waiting_tokens += request->num_prompt;
  absl::Status status = replicas_[static_cast<size_t>(replica)]->Submit(request, now_);
  return status.ok() ? status : OfReplica(replica, status);
}

absl::Status ReplicaSet::Crash(int32_t replica) {
  absl::Status status = replicas_[static_cast<size_t>(replica)]->Crash(now_);
  CallNow(replica);
  return status.ok() ? status : OfReplica(replica, status);
}

void ReplicaSet::Restart(SimRequest* request) {
  SentOf(*request) = Sent();
  request->resent = now_;
  store_.Restart(request);
}

bool ReplicaSet::is_any_due() const {
  return next_arrival_ != kNever ||
         std::any_of(next_.begin(), next_.end(), [](SimTime time) { return time != kNever; });
}

absl::Status ReplicaSet::OnEnded(SimRequest* request, SimTime now) {
  const Sent& sent = SentOf(*request);
  if (sent.replica >= 0) {
    const auto r = static_cast<size_t>(sent.replica);
    loads_[r].num_requests -= 1;
    loads_[r].num_tokens -= request->num_prompt;
    if (!sent.is_admitted) loads_[r].num_waiting_tokens -= request->num_prompt;
    ended_outputs_[r] += request->num_outputs() - sent.num_outputs;
  }
  return owner_->OnEnded(request, now);
}

absl::Status ReplicaSet::End(SimRequest* request, SimTime now) {
  const uint64_t session = request->spec.session;
  if (request->was_cut_short() && session != 0 &&
      request->abort_cause != AbortCause::kSession) {
    // The others must not arrive by this request's end.
    for (SimRequest* turn : arrivals_.GiveUpSession(session)) {
      KVBLOCKS_RETURN_IF_ERROR(owner_->OnGivenUp(turn, request, now));
    }
  }
  ++num_ended_;
  SentOf(*request) = Sent();
  is_arrival_known_ = false;
  absl::Status status = arrivals_.Resolve(*request, now);
  store_.Remove(request);
  return status;
}

void ReplicaSet::RemovePart(SimRequest* part) {
  SentOf(*part) = Sent();
  store_.Remove(part);
}

}  // namespace kvblocks::sim
