#include "sim/replica.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {

absl::StatusOr<std::unique_ptr<Replica>> Replica::Create(
    const SimulationConfig& config, const TraceInfo& trace, const StepTimeModel* step_time,
    const std::vector<EngineObserver*>& observers, Owner* owner) {
  if (step_time == nullptr) {
    return absl::InvalidArgumentError("step_time is null, expected a StepTimeModel");
  }
  if (owner == nullptr) {
    return absl::InvalidArgumentError("owner is null, expected one that submits requests");
  }
  if (std::count(observers.begin(), observers.end(), nullptr) > 0) {
    return absl::InvalidArgumentError("observers holds a null, expected observers only");
  }
  if (absl::Status status = Validate(config); !status.ok()) return status;
  if (step_time->num_stages() != config.scheduler.pipeline_stages) {
    return absl::InvalidArgumentError(
        absl::StrCat("step_time has ", step_time->num_stages(), " pipeline stages, expected ",
                     config.scheduler.pipeline_stages, " as scheduler.pipeline_stages"));
  }

  std::unique_ptr<Replica> replica(new Replica(config, trace, step_time, owner));
  KvCacheManagerOptions manager_options = config.manager;
  if (!manager_options.max_in_flight_tokens) {
    manager_options.max_in_flight_tokens = MaxInFlightTokens(config);
  }
  // Nothing is drawn at random: contents come with their hashes, or have vLLM's root.
  if (!manager_options.hash_seed && manager_options.hash_algorithm != HashAlgorithm::kSha256Cbor) {
    manager_options.hash_seed = "";
  }
  auto manager = KvCacheManager::Create(config.kv_cache, manager_options);
  if (!manager.ok()) return manager.status();
  replica->manager_ = *std::move(manager);
  for (EngineObserver* observer : observers) replica->observers_.Add(observer);
  auto scheduler = Scheduler::Create(config.scheduler, replica->manager_.get(), trace,
                                     &replica->observers_);
  if (!scheduler.ok()) return scheduler.status();
  replica->scheduler_ = *std::move(scheduler);
  if (!replica->observers_.NeedsEveryRecord() && step_time->adds_up_decodes()) {
    replica->scheduler_->EnableSkips();
  }
  return replica;
}

Replica::Replica(const SimulationConfig& config, const TraceInfo& trace,
                 const StepTimeModel* step_time, Owner* owner)
    : config_(config),
      trace_(trace),
      step_time_(step_time),
      owner_(owner),
      stage_free_(static_cast<size_t>(step_time->num_stages())),
      stage_times_(stage_free_.size()),
      send_times_(stage_free_.size() - 1) {
  for (const KvCacheGroup& group : config_.kv_cache.groups) {
    const auto num_layers = static_cast<int64_t>(std::max<size_t>(group.layer_names.size(), 1));
    const bool is_shared = group.spec.kind() != KvCacheSpecKind::kMamba;
    const int64_t ranks = is_shared ? config_.ranks_per_block : 1;
    const int64_t devices = std::max<int64_t>(ranks, 1) * step_time->num_stages();
    block_bytes_.push_back(num_layers * group.spec.page_bytes() / devices);
  }
}

void Replica::Start() {
  observers_.OnRunStart({.manager = manager_.get(),
                         .scheduler = &scheduler_->options(),
                         .trace = &trace_,
                         .time_source = step_time_->source()});
}

void Replica::End(SimTime now) {
  clock_ = std::max(clock_, now);
  result_.end_time = now;
  result_.scheduler = scheduler_->totals();
  result_.prefix_cache = manager_->MakePrefixCacheStats();
  observers_.OnRunEnd(now);
}

absl::Status Replica::ClockOverflow(absl::string_view what) const {
  return absl::OutOfRangeError(
      absl::StrCat("the clock would pass its 106 days: ", what, " at ", FormatDuration(clock_)));
}

// --- When it wants to be called ---

void Replica::DropStaleAborts() {
  while (!aborts_.empty() && IsStale(aborts_.top())) aborts_.pop();
}

std::optional<SimTime> Replica::NextTime() {
  if (in_step_) return std::max(clock_, step_end_);
  const SimTime soonest = std::max(clock_, retry_time_);
  if (wants_schedule_ || !inbox_.empty()) return soonest;
  DropStaleAborts();
  std::optional<SimTime> next;
  if (!aborts_.empty()) next = aborts_.top().time;
  if (connector_ != nullptr) {
    const std::optional<SimTime> event = connector_->NextEvent();
    if (event && (!next || *event < *next)) next = event;
  }
  if (!next) return std::nullopt;
  return std::max(soonest, *next);
}

absl::Status Replica::Advance(SimTime now) {
  while (true) {
    const std::optional<SimTime> next = NextTime();
    if (!next || *next > now) return absl::OkStatus();
    if (is_step_over(*next)) {
      if (absl::Status status = FinishStep(); !status.ok()) return status;
    }
    if (absl::Status status = DeliverAborts(*next); !status.ok()) return status;
    if (absl::Status status = Schedule(*next); !status.ok()) return status;
  }
}

// --- Requests coming ---

absl::Status Replica::Submit(SimRequest* request, SimTime now) {
  clock_ = now;
  if (!IsAtBoundary(now)) {
    inbox_.push_back(request);
    return absl::OkStatus();
  }
  if (absl::Status status = DeliverInbox(now); !status.ok()) return status;
  return Deliver(request, now);
}

absl::Status Replica::DeliverInbox(SimTime now) {
  for (SimRequest*& entry : inbox_) {
    SimRequest* request = std::exchange(entry, nullptr);
    if (request == nullptr) continue;
    if (absl::Status status = Deliver(request, now); !status.ok()) return status;
  }
  inbox_.clear();
  return absl::OkStatus();
}

absl::Status Replica::Deliver(SimRequest* request, SimTime now) {
  ++result_.num_arrived;
  observers_.OnArrival(*request, now);
  if (!scheduler_->Submit(*request)) {
    ++result_.num_rejected;
    observers_.OnRejection(*request, now);
    return owner_->OnEnded(request, now);
  }
  wants_schedule_ = true;
  PlanAborts(request);
  return absl::OkStatus();
}

// --- Requests given up ---

void Replica::PlanAborts(SimRequest* request) {
  if (request->spec.abort_after_ns > 0) {
    std::optional<SimTime> time = FromNanoseconds(request->spec.abort_after_ns);
    if (time) time = CheckedAdd(request->arrival, *time);
    // An abort that the clock cannot reach never happens.
    if (time) PlanAbort(request, AbortCause::kAbortTime, *time);
  }
  if (config_.max_queue_time > 0) {
    const std::optional<SimTime> time =
        CheckedAdd(std::max(request->arrival, request->resent), config_.max_queue_time);
    if (time) PlanAbort(request, AbortCause::kQueueTime, *time);
  }
}

void Replica::PlanAbort(SimRequest* request, AbortCause cause, SimTime time) {
  aborts_.push({time, request->spec.row, request, cause});
}

bool Replica::IsStale(const Abort& abort) const {
  const SimRequest& request = *abort.request;
  if (request.slot < 0 || request.spec.row != abort.row) return true;
  if (request.state == RequestState::kFinished) return true;  // its owner has yet to forget it
  return abort.cause != AbortCause::kAbortTime && request.state != RequestState::kWaiting &&
         request.state != RequestState::kPending && request.state != RequestState::kLoading;
}

absl::Status Replica::DeliverAll(SimTime now) {
  if (!IsAtBoundary(now)) return absl::OkStatus();
  if (absl::Status status = DeliverInbox(now); !status.ok()) return status;
  if (absl::Status status = TakeAborts(now); !status.ok()) return status;
  return TakeConnectorEvents(now);
}

absl::Status Replica::TakeConnectorEvents(SimTime now) {
  if (connector_ == nullptr) return absl::OkStatus();
  const std::optional<SimTime> event = connector_->NextEvent();
  if (event && *event <= now) wants_schedule_ = true;
  scheduler_->TakeConnectorEvents(now);
  for (SimRequest* request : scheduler_->failed()) {
    ++result_.num_failed;
    observers_.OnFinish(*request, now);
    if (absl::Status status = owner_->OnEnded(request, now); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Replica::TakeAborts(SimTime now) {
  while (!aborts_.empty() && (aborts_.top().time <= now || IsStale(aborts_.top()))) {
    const Abort abort = aborts_.top();
    aborts_.pop();
    if (IsStale(abort)) continue;
    if (absl::Status status = AbortNow(abort.request, abort.cause, now); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Replica::AbortNow(SimRequest* request, AbortCause cause, SimTime now) {
  switch (cause) {
    case AbortCause::kAbortTime:
      ++result_.num_aborted_time;
      break;
    case AbortCause::kQueueTime:
      ++result_.num_aborted_queue;
      break;
    case AbortCause::kCrash:
      ++result_.num_lost;
      break;
    case AbortCause::kSession:
    case AbortCause::kNone:
      ++result_.num_aborted_session;
      break;
  }
  if (request->state == RequestState::kPending) {
    std::replace(inbox_.begin(), inbox_.end(), request, static_cast<SimRequest*>(nullptr));
  }
  scheduler_->Abort(*request, cause, now);
  wants_schedule_ = true;
  observers_.OnFinish(*request, now);
  return owner_->OnEnded(request, now);
}

absl::Status Replica::Crash(SimTime now) {
  if (connector_ != nullptr) {
    return absl::FailedPreconditionError(
        "an engine with a connector cannot crash: its loads go on");
  }
  clock_ = now;
  if (absl::Status status = TakeAborts(now); !status.ok()) return status;
  for (size_t i = 0; i < inbox_.size(); ++i) {
    SimRequest* request = inbox_[i];
    if (request == nullptr) continue;
    // It has reached the engine, which had no time for it.
    ++result_.num_arrived;
    observers_.OnArrival(*request, now);
    absl::Status status = AbortNow(request, AbortCause::kCrash, now);
    if (!status.ok()) return status;
  }
  inbox_.clear();
  while (SimRequest* request = scheduler_->AnyRequest()) {
    absl::Status status = AbortNow(request, AbortCause::kCrash, now);
    if (!status.ok()) return status;
  }
  while (scheduler_->num_in_flight() > 0) {
    StepRecord& step = scheduler_->oldest_step();
    step.device_start = std::min(step.device_start, now);
    step.end = std::min(step.end, now);
    step.stage_time = std::min(step.stage_time, step.end - step.device_start);
    result_.busy_time += std::max<SimTime>(step.end - std::max(step.device_start, busy_until_), 0);
    busy_until_ = step.end;
    result_.stage_time += step.stage_time;
    observers_.OnStepFinished(scheduler_->ProcessOutputs());
  }
  aborts_ = {};
  in_step_ = wants_schedule_ = false;
  retry_time_ = 0;
  std::fill(stage_free_.begin(), stage_free_.end(), now);
  if (!manager_->ResetPrefixCache()) {
    return absl::InternalError("blocks are held of requests that a crashed engine had");
  }
  if (manager_->options().enable_events) (void)manager_->TakeEvents();
  return absl::OkStatus();
}

// --- One step ---

absl::Status Replica::Schedule(SimTime now) {
  clock_ = now;
  if (!IsAtBoundary(now)) return absl::OkStatus();
  wants_schedule_ = false;
  if (scheduler_->num_running() > 0 || scheduler_->num_waiting() > 0) {
    scheduler_->Schedule(now);
    observers_.OnStepScheduled(scheduler_->step());
    if (!scheduler_->step_is_empty()) {
      if (absl::Status status = StartStep(); !status.ok()) return status;
      if (scheduler_->has_room()) {
        wants_schedule_ = true;
        return absl::OkStatus();
      }
    }
    if (scheduler_->stuck() != nullptr) {
      return absl::FailedPreconditionError(scheduler_->DescribeNoProgress());
    }
    if (scheduler_->num_in_flight() > 0 && scheduler_->has_room()) {
      wants_schedule_ = true;
      return absl::OkStatus();
    }
  }
  if (scheduler_->num_in_flight() > 0) {
    HoldUntil(scheduler_->oldest_step().end);
    return absl::OkStatus();
  }
  if (scheduler_->num_running() > 0 || scheduler_->num_waiting() > 0) {
    PublishEvents();
    if (scheduler_->step().num_preempted > 0) {
      const std::optional<SimTime> next = CheckedAdd(now, config_.empty_step_time);
      if (!next) return ClockOverflow("empty_step_time");
      retry_time_ = *next;
      wants_schedule_ = true;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SimTime> Replica::CopyTime() {
  int64_t bytes = 0;
  for (const BlockCopy& copy : scheduler_->step().copies) {
    bytes += block_bytes_[static_cast<size_t>(copy.group)];
  }
  const SimTime time = bytes == 0 ? 0 : step_time_->CopyTime(bytes);
  const std::optional<SimTime> sum = CheckedAdd(result_.copy_time, time);
  if (!sum) return ClockOverflow("copies of blocks");
  result_.copied_bytes += bytes;
  result_.copy_time = *sum;
  return time;
}

// A step of such a duration on the device, with the loads that it waits for.
std::optional<SimTime> Replica::WithLoads(SimTime compute) {
  const StepLoadTimes loads = connector_->StepLoads(std::max(clock_, stage_free_[0]));
  const std::optional<SimTime> sum = CheckedAdd(loads.sync, std::max(compute, loads.layerwise));
  const std::optional<SimTime> waited =
      sum ? CheckedAdd(result_.load_time, *sum - compute) : std::nullopt;
  if (waited) result_.load_time = *waited;
  return waited ? sum : std::nullopt;
}

// How long each stage takes for the step just scheduled.
absl::Status Replica::TimeStages(const StepPeers* peers) {
  const StepRecord& step = scheduler_->step();
  work_.clear();
  for (const ScheduledRecord& record : step.scheduled) {
    work_.push_back({.num_context = record.num_context,
                     .num_new = record.num_tokens,
                     .num_sampled = record.is_chunk ? 0 : 1 + record.num_verified_drafts});
  }
  const Decodes decodes = {.num_sequences = step.num_skipped, .sum_context = step.skipped_context};
  if (peers != nullptr) {
    const auto time = step_time_->StepTimeAmong(work_, decodes, *peers);
    if (!time.ok()) return time.status();
    stage_times_[0] = *time;
  } else {
    absl::Status status =
        step_time_->StageTimes(work_, decodes, absl::MakeSpan(stage_times_),
                               absl::MakeSpan(send_times_));
    if (!status.ok()) return status;
  }
  step_time_->Tally(work_, decodes, peers != nullptr ? *peers : StepPeers(), &result_.step_tally);
  const auto copies = CopyTime();
  if (!copies.ok()) return copies.status();
  for (SimTime& stage : stage_times_) {
    const std::optional<SimTime> sum = CheckedAdd(stage, *copies);
    if (!sum) return ClockOverflow("a step");
    stage = *sum;
  }
  if (connector_ != nullptr) {
    const std::optional<SimTime> sum = WithLoads(stage_times_[0]);
    if (!sum) return ClockOverflow("a step");
    stage_times_[0] = *sum;
  }
  return AddHostTime(&stage_times_[0]);
}

// Host and device work side by side, or one after the other.
absl::Status Replica::AddHostTime(SimTime* stage) {
  const std::optional<SimTime> per_request =
      CheckedMultiply(config_.host_time_per_request, scheduler_->step().num_requests());
  std::optional<SimTime> host =
      per_request ? CheckedAdd(*per_request, config_.host_time_per_step) : std::nullopt;
  if (host) host = config_.scheduler.async ? std::max(*host, *stage) : CheckedAdd(*host, *stage);
  if (!host) return ClockOverflow("a step");
  *stage = *host;
  return absl::OkStatus();
}

// Hands the step just scheduled to the device.
absl::Status Replica::StartStep() {
  if (absl::Status status = TimeStages(nullptr); !status.ok()) return status;
  StepRecord& step = scheduler_->step();
  step.device_start = std::max({clock_, stage_free_[0], scheduler_->InputsReady()});
  std::optional<SimTime> at = step.device_start;
  for (size_t s = 0; s < stage_times_.size() && at; ++s) {
    if (s > 0) at = CheckedAdd(*at, send_times_[s - 1]);
    if (at) at = CheckedAdd(std::max(*at, stage_free_[s]), stage_times_[s]);
    if (!at) break;
    stage_free_[s] = *at;
    step.stage_time += stage_times_[s];
  }
  if (!at) return ClockOverflow("a step");
  step.end = *at;
  return absl::OkStatus();
}

// --- In lockstep ---

absl::Status Replica::ScheduleOpen(SimTime now, bool holds_prompts) {
  clock_ = now;
  wants_schedule_ = has_open_step_ = false;
  if (scheduler_->num_running() == 0 && scheduler_->num_waiting() == 0) return absl::OkStatus();
  scheduler_->HoldPrompts(holds_prompts);
  scheduler_->Schedule(now);
  observers_.OnStepScheduled(scheduler_->step());
  has_open_step_ = !scheduler_->step_is_empty();
  if (has_open_step_) return absl::OkStatus();
  if (scheduler_->stuck() != nullptr) {
    return absl::FailedPreconditionError(scheduler_->DescribeNoProgress());
  }
  if (scheduler_->num_in_flight() == 0) PublishEvents();
  return absl::OkStatus();
}

absl::StatusOr<SimTime> Replica::TimeOpenStep(const StepPeers& peers) {
  if (!has_open_step_) {
    work_.assign(1, {.num_context = 0, .num_new = 1, .num_sampled = 1});
    return step_time_->StepTimeAmong(work_, Decodes(), peers);
  }
  if (absl::Status status = TimeStages(&peers); !status.ok()) return status;
  return stage_times_[0];
}

void Replica::CloseStep(SimTime start, SimTime own, SimTime end) {
  StepRecord& step = scheduler_->step();
  step.device_start = start;
  step.end = end;
  step.stage_time = own;
  has_open_step_ = false;
}

void Replica::HoldUntil(SimTime end) {
  in_step_ = true;
  step_end_ = end;
}

// --- The end of a step ---

absl::Status Replica::FinishStep() {
  clock_ = step_end_;
  in_step_ = false;
  if (absl::Status status = TakeAborts(clock_); !status.ok()) return status;
  wants_schedule_ = true;
  // In lockstep it may have had no part in it.
  if (scheduler_->num_in_flight() == 0 || scheduler_->oldest_step().end > clock_) {
    had_work_ = scheduler_->num_running() > 0 || scheduler_->num_waiting() > 0;
    return DeliverInbox(clock_);
  }
  const StepRecord& step = scheduler_->ProcessOutputs();
  result_.busy_time += step.end - std::max(step.device_start, busy_until_);  // at most the clock
  busy_until_ = step.end;
  result_.stage_time += step.stage_time;
  observers_.OnStepFinished(step);
  for (SimRequest* request : scheduler_->finished()) {
    ++result_.num_finished;
    observers_.OnFinish(*request, clock_);
    if (absl::Status status = owner_->OnEnded(request, clock_); !status.ok()) return status;
  }
  PublishEvents();
  if (config_.check_invariants) {
    if (absl::Status status = scheduler_->CheckInvariants(); !status.ok()) return status;
  }
  had_work_ = scheduler_->num_running() > 0 || scheduler_->num_waiting() > 0;
  return DeliverInbox(clock_);
}

bool Replica::ResetPrefixCache() {
  const bool is_empty = manager_->ResetPrefixCache();
  PublishEvents();
  return is_empty;
}

void Replica::PublishEvents() {
  if (manager_->pool().has_events()) observers_.OnKvEvents(manager_->TakeEvents(), clock_);
}

}  // namespace kvblocks::sim
