#include "kvblocks/sim/simulation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool/check.h"

namespace kvblocks::sim {
namespace {

absl::Status ClockOverflow(SimTime now, absl::string_view what) {
  return absl::OutOfRangeError(
      absl::StrCat("the clock would pass its 106 days: ", what, " at ", FormatDuration(now)));
}

}  // namespace

bool IsNoProgress(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition;
}

absl::StatusOr<std::unique_ptr<Simulation>> Simulation::Create(
    const SimulationConfig& config, TraceReader* reader, const StepTimeModel* step_time,
    const std::vector<EngineObserver*>& observers) {
  if (reader == nullptr) return absl::InvalidArgumentError("reader is null, expected a trace");
  if (step_time == nullptr) {
    return absl::InvalidArgumentError("step_time is null, expected a StepTimeModel");
  }
  if (std::count(observers.begin(), observers.end(), nullptr) > 0) {
    return absl::InvalidArgumentError("observers holds a null, expected observers only");
  }
  if (absl::Status status = Validate(config); !status.ok()) return status;

  std::unique_ptr<Simulation> simulation(new Simulation(config, reader, step_time));
  KvCacheManagerOptions manager_options = config.manager;
  if (!manager_options.max_in_flight_tokens) {
    manager_options.max_in_flight_tokens = MaxInFlightTokens(config);
  }
  // Contents come with their hashes; nothing is drawn at random.
  if (!manager_options.hash_seed) manager_options.hash_seed = "";
  auto manager = KvCacheManager::Create(config.kv_cache, manager_options);
  if (!manager.ok()) return manager.status();
  simulation->manager_ = *std::move(manager);
  for (EngineObserver* observer : observers) simulation->observers_.Add(observer);
  auto scheduler = Scheduler::Create(config.scheduler, simulation->manager_.get(), reader->info(),
                                     &simulation->observers_);
  if (!scheduler.ok()) return scheduler.status();
  simulation->scheduler_ = *std::move(scheduler);
  if (!simulation->observers_.NeedsEveryRecord() && step_time->adds_up_decodes()) {
    simulation->scheduler_->LeaveOutQuiet();
  }
  return simulation;
}

Simulation::Simulation(const SimulationConfig& config, TraceReader* reader,
                       const StepTimeModel* step_time)
    : config_(config),
      reader_(reader),
      step_time_(step_time),
      arrivals_(reader, &store_, config.concurrency,
                {.jitter = config.start_jitter, .delay = config.start_delay}) {
  for (const KvCacheGroup& group : config_.kv_cache.groups) {
    const auto num_layers = static_cast<int64_t>(std::max<size_t>(group.layer_names.size(), 1));
    const bool is_shared = group.spec.kind() != KvCacheSpecKind::kMamba;
    const int64_t ranks = is_shared ? config_.ranks_per_block : 1;
    block_bytes_.push_back(num_layers * group.spec.page_bytes() / std::max<int64_t>(ranks, 1));
  }
}

absl::Status Simulation::Run() {
  observers_.OnRunStart({.manager = manager_.get(),
                         .scheduler = &scheduler_->options(),
                         .trace = &reader_->info(),
                         .time_source = step_time_->source()});
  const absl::Status status = RunLoop();
  result_.end_time = now_;
  result_.peak_live_requests = store_.peak_live();
  result_.scheduler = scheduler_->totals();
  result_.prefix_cache = manager_->MakePrefixCacheStats();
  observers_.OnRunEnd(now_);
  return status;
}

absl::Status Simulation::RunLoop() {
  while (true) {
    ++result_.num_iterations;
    if (absl::Status status = DeliverArrivals(); !status.ok()) return status;
    if (absl::Status status = DeliverAborts(); !status.ok()) return status;
    scheduler_->TakeConnectorEvents(now_);
    if (absl::Status status = ReportProgress(); !status.ok()) return status;

    if (scheduler_->num_running() > 0 || scheduler_->num_waiting() > 0) {
      scheduler_->Schedule(now_);
      observers_.OnStepScheduled(scheduler_->step());
      if (!scheduler_->step_is_empty()) {
        if (absl::Status status = StartStep(); !status.ok()) return status;
        if (scheduler_->num_in_flight() < scheduler_->max_in_flight()) continue;
      }
      if (scheduler_->stuck() != nullptr) {
        return absl::FailedPreconditionError(scheduler_->DescribeNoProgress());
      }
    }
    if (scheduler_->num_in_flight() > 0) {
      if (absl::Status status = FinishStep(); !status.ok()) return status;
      continue;
    }
    if (scheduler_->num_running() > 0 || scheduler_->num_waiting() > 0) {
      PublishEvents();
      if (scheduler_->step().num_preempted > 0) {
        const std::optional<SimTime> next = CheckedAdd(now_, config_.empty_step_time);
        if (!next) return ClockOverflow(now_, "empty_step_time");
        now_ = *next;
        continue;
      }
    }
    const auto next = NextEvent();
    if (!next.ok()) return next.status();
    if (*next) {
      now_ = std::max(now_, **next);
    } else if (scheduler_->num_running() > 0 || scheduler_->num_waiting() > 0 ||
               scheduler_->num_connector_debts() > 0) {
      return absl::FailedPreconditionError(scheduler_->DescribeNoProgress());
    } else {
      return absl::OkStatus();
    }
  }
}

// --- Arrivals and aborts ---

absl::Status Simulation::DeliverArrivals() {
  while (true) {
    const auto request = arrivals_.TakeDue(now_);
    if (!request.ok()) return request.status();
    for (SimRequest* turn : arrivals_.TakeGivenUp()) {
      if (absl::Status status = AbortNow(turn, AbortCause::kSession); !status.ok()) return status;
    }
    if (*request == nullptr) return absl::OkStatus();
    if (absl::Status status = Deliver(*request); !status.ok()) return status;
  }
}

absl::Status Simulation::Deliver(SimRequest* request) {
  if (request->max_output == 0) {
    if (config_.zero_output == ZeroOutput::kSkip) {
      ++result_.num_skipped;
      return Retire(request);
    }
    if (config_.zero_output == ZeroOutput::kOne) request->max_output = 1;
  }
  ++result_.num_arrived;
  observers_.OnArrival(*request, now_);
  if (!scheduler_->Submit(*request)) {
    ++result_.num_rejected;
    observers_.OnRejection(*request, now_);
    return Retire(request);
  }
  PlanAborts(request);
  return absl::OkStatus();
}

void Simulation::PlanAborts(SimRequest* request) {
  if (request->spec.abort_after_ns > 0) {
    std::optional<SimTime> time = FromNanoseconds(request->spec.abort_after_ns);
    if (time) time = CheckedAdd(request->arrival, *time);
    // An abort that the clock cannot reach never happens.
    if (time) aborts_.push({*time, request->spec.row, request, AbortCause::kAbortTime});
  }
  if (config_.max_queue_time > 0) {
    const std::optional<SimTime> time = CheckedAdd(request->arrival, config_.max_queue_time);
    if (time) aborts_.push({*time, request->spec.row, request, AbortCause::kQueueTime});
  }
}

bool Simulation::IsStale(const Abort& abort) const {
  const SimRequest& request = *abort.request;
  if (request.slot < 0 || request.spec.row != abort.row) return true;
  return abort.cause == AbortCause::kQueueTime && request.state != RequestState::kWaiting &&
         request.state != RequestState::kLoading;
}

absl::Status Simulation::DeliverAborts() {
  while (!aborts_.empty() && (aborts_.top().time <= now_ || IsStale(aborts_.top()))) {
    const Abort abort = aborts_.top();
    aborts_.pop();
    if (IsStale(abort)) continue;
    if (absl::Status status = AbortNow(abort.request, abort.cause); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Simulation::AbortNow(SimRequest* request, AbortCause cause) {
  switch (cause) {
    case AbortCause::kAbortTime:
      ++result_.num_aborted_time;
      break;
    case AbortCause::kQueueTime:
      ++result_.num_aborted_queue;
      break;
    case AbortCause::kSession:
    case AbortCause::kNone:
      ++result_.num_aborted_session;
      break;
  }
  const uint64_t session = request->spec.session;
  scheduler_->Abort(*request, cause, now_);
  observers_.OnFinish(*request, now_);
  // The others must not arrive by this request's end.
  if (session != 0 && cause != AbortCause::kSession) {
    if (absl::Status status = EndSession(session); !status.ok()) return status;
  }
  return Retire(request);
}

absl::Status Simulation::EndSession(uint64_t session) {
  for (SimRequest* turn : arrivals_.GiveUpSession(session)) {
    if (absl::Status status = AbortNow(turn, AbortCause::kSession); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Simulation::Retire(SimRequest* request) {
  absl::Status status = arrivals_.Resolve(*request, now_);
  store_.Remove(request);
  return status;
}

absl::StatusOr<std::optional<SimTime>> Simulation::NextEvent() {
  auto next = arrivals_.NextTime(now_);
  if (!next.ok()) return next.status();
  while (!aborts_.empty() && IsStale(aborts_.top())) aborts_.pop();
  if (!aborts_.empty() && (!*next || aborts_.top().time < **next)) next = aborts_.top().time;
  if (connector_ != nullptr) {
    const std::optional<SimTime> event = connector_->NextEvent();
    if (event && (!*next || *event < **next)) next = event;
  }
  return next;
}

// --- One step ---

absl::StatusOr<SimTime> Simulation::CopyTime() {
  int64_t bytes = 0;
  for (const BlockCopy& copy : scheduler_->step().copies) {
    bytes += block_bytes_[static_cast<size_t>(copy.group)];
  }
  const SimTime time = bytes == 0 ? 0 : step_time_->CopyTime(bytes);
  const std::optional<SimTime> sum = CheckedAdd(result_.copy_time, time);
  if (!sum) return ClockOverflow(now_, "copies of blocks");
  result_.copied_bytes += bytes;
  result_.copy_time = *sum;
  return time;
}

// A step of such a duration on the device, with the loads that it waits for.
std::optional<SimTime> Simulation::WithLoads(SimTime compute) {
  const StepLoadTimes loads = connector_->StepLoads(std::max(now_, device_free_));
  const std::optional<SimTime> sum = CheckedAdd(loads.sync, std::max(compute, loads.layerwise));
  const std::optional<SimTime> waited =
      sum ? CheckedAdd(result_.load_time, *sum - compute) : std::nullopt;
  if (waited) result_.load_time = *waited;
  return waited ? sum : std::nullopt;
}

absl::StatusOr<SimTime> Simulation::StepTime() {
  const StepRecord& step = scheduler_->step();
  const absl::Span<const ScheduledRecord> scheduled = step.scheduled;
  work_.clear();
  for (const ScheduledRecord& record : scheduled) {
    work_.push_back({.num_context = record.num_context,
                     .num_new = record.num_tokens,
                     .num_sampled = record.is_chunk ? 0 : 1 + record.num_verified_drafts});
  }
  const auto compute = step_time_->StepTime(
      work_, {.num_sequences = step.num_quiet, .sum_context = step.quiet_context});
  if (!compute.ok()) return compute.status();
  const auto copies = CopyTime();
  if (!copies.ok()) return copies.status();
  std::optional<SimTime> device = CheckedAdd(*compute, *copies);
  if (device && connector_ != nullptr) device = WithLoads(*device);
  if (!device) return ClockOverflow(now_, "a step");
  const std::optional<SimTime> per_request =
      CheckedMultiply(config_.host_time_per_request, step.num_requests());
  std::optional<SimTime> host =
      per_request ? CheckedAdd(*per_request, config_.host_time_per_step) : std::nullopt;
  // Host and device work side by side, or one after the other.
  if (host) host = config_.scheduler.async ? std::max(*host, *device) : CheckedAdd(*host, *device);
  if (!host) return ClockOverflow(now_, "a step");
  return *host;
}

// Hands the step just scheduled to the device.
absl::Status Simulation::StartStep() {
  const auto duration = StepTime();
  if (!duration.ok()) return duration.status();
  StepRecord& step = scheduler_->step();
  step.device_start = std::max(now_, device_free_);
  const std::optional<SimTime> end = CheckedAdd(step.device_start, *duration);
  if (!end) return ClockOverflow(now_, "a step");
  step.end = device_free_ = *end;
  return absl::OkStatus();
}

// The oldest step under way. Who gives up while it runs gets no token of it, even if it was the last
// one (V-84).
absl::Status Simulation::FinishStep() {
  now_ = scheduler_->oldest_step().end;
  if (absl::Status status = DeliverAborts(); !status.ok()) return status;
  const StepRecord& step = scheduler_->ProcessOutputs();
  result_.busy_time += step.end - step.device_start;  // at most the clock
  observers_.OnStepFinished(step);
  for (SimRequest* request : scheduler_->finished()) {
    ++result_.num_finished;
    observers_.OnFinish(*request, now_);
    if (absl::Status status = Retire(request); !status.ok()) return status;
  }
  PublishEvents();
  if (config_.check_invariants) return scheduler_->CheckInvariants();
  return absl::OkStatus();
}

void Simulation::PublishEvents() {
  if (!manager_->options().enable_events) return;
  const std::vector<KvEvent> events = manager_->TakeEvents();
  if (!events.empty()) observers_.OnKvEvents(events, now_);
}

absl::Status Simulation::ReportProgress() {
  if (!progress_ || result_.num_iterations % config_.progress_interval != 0) {
    return absl::OkStatus();
  }
  if (progress_(Progress())) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("stopped at ", FormatDuration(now_)));
}

SimulationProgress Simulation::Progress() const {
  return {.now = now_,
          .num_arrived = result_.num_arrived,
          .num_done = result_.num_finished + result_.num_rejected + result_.num_skipped +
                      result_.num_aborted_time + result_.num_aborted_queue +
                      result_.num_aborted_session,
          .num_output_tokens = scheduler_->totals().num_output_tokens,
          .num_running = scheduler_->num_running(),
          .num_waiting = scheduler_->num_waiting(),
          .read = reader_->progress()};
}

}  // namespace kvblocks::sim
