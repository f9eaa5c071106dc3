#include "sim/simulation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {

bool IsNoProgress(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition;
}

absl::StatusOr<std::unique_ptr<Simulation>> Simulation::Create(
    const SimulationConfig& config, TraceReader* reader, const StepTimeModel* step_time,
    const std::vector<EngineObserver*>& observers) {
  if (reader == nullptr) return absl::InvalidArgumentError("reader is null, expected a trace");
  std::unique_ptr<Simulation> simulation(new Simulation(config, reader));
  auto replica =
      Replica::Create(config, reader->info(), step_time, observers, simulation.get());
  if (!replica.ok()) return replica.status();
  simulation->replica_ = *std::move(replica);
  return simulation;
}

Simulation::Simulation(const SimulationConfig& config, TraceReader* reader)
    : config_(config),
      reader_(reader),
      arrivals_(reader, &store_, config.concurrency,
                {.jitter = config.start_jitter, .delay = config.start_delay}) {}

absl::Status Simulation::Run() {
  replica_->Start();
  const absl::Status status = RunLoop();
  replica_->End(now_);
  result_ = replica_->result();
  result_.num_skipped = num_skipped_;
  result_.peak_live_requests = store_.peak_live();
  result_.num_iterations = num_iterations_;
  return status;
}

absl::Status Simulation::RunLoop() {
  while (true) {
    ++num_iterations_;
    if (absl::Status status = DeliverArrivals(); !status.ok()) return status;
    if (absl::Status status = replica_->DeliverAborts(now_); !status.ok()) return status;
    if (absl::Status status = ReportProgress(); !status.ok()) return status;
    if (absl::Status status = replica_->Schedule(now_); !status.ok()) return status;

    std::optional<SimTime> next = replica_->NextTime();
    if (!replica_->is_busy()) {
      // Nothing happens by itself but aborts: look for what arrives first.
      const auto arrival = arrivals_.NextTime(now_);
      if (!arrival.ok()) return arrival.status();
      if (*arrival && (!next || **arrival < *next)) next = *arrival;
      if (!next && !replica_->has_work()) return absl::OkStatus();
      if (!next) {
        return absl::FailedPreconditionError(replica_->scheduler().DescribeNoProgress());
      }
    }
    now_ = std::max(now_, *next);
    if (replica_->is_step_over(now_)) {
      if (absl::Status status = replica_->FinishStep(); !status.ok()) return status;
    }
  }
}

// --- Requests coming and going ---

absl::Status Simulation::DeliverArrivals() {
  while (true) {
    const auto taken = arrivals_.TakeDue(now_);
    if (!taken.ok()) return taken.status();
    for (SimRequest* turn : arrivals_.TakeGivenUp()) {
      absl::Status status = replica_->AbortNow(turn, AbortCause::kSession, now_);
      if (!status.ok()) return status;
    }
    SimRequest* request = *taken;
    if (request == nullptr) return absl::OkStatus();
    absl::Status status;
    if (request->max_output == 0 && config_.zero_output == ZeroOutput::kSkip) {
      ++num_skipped_;
      status = OnEnded(request, now_);
    } else {
      if (request->max_output == 0 && config_.zero_output == ZeroOutput::kOne) {
        request->max_output = 1;
      }
      status = replica_->Submit(request, now_);
    }
    if (!status.ok()) return status;
  }
}

absl::Status Simulation::OnEnded(SimRequest* request, SimTime now) {
  // The others must not arrive by this request's end.
  const uint64_t session = request->spec.session;
  if (request->was_cut_short() && session != 0 &&
      request->abort_cause != AbortCause::kSession) {
    for (SimRequest* turn : arrivals_.GiveUpSession(session)) {
      absl::Status status = replica_->AbortNow(turn, AbortCause::kSession, now);
      if (!status.ok()) return status;
    }
  }
  absl::Status status = arrivals_.Resolve(*request, now);
  store_.Remove(request);
  return status;
}

absl::Status Simulation::ReportProgress() {
  if (!progress_ || num_iterations_ % config_.progress_interval != 0) return absl::OkStatus();
  if (progress_(Progress())) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("stopped at ", FormatDuration(now_)));
}

SimulationProgress Simulation::Progress() const {
  const SimulationResult& counts = replica_->result();
  const Scheduler& scheduler = replica_->scheduler();
  return {.now = now_,
          .num_arrived = counts.num_arrived,
          .num_done = counts.num_done() + num_skipped_,
          .num_output_tokens = scheduler.totals().num_output_tokens,
          .num_running = scheduler.num_running(),
          .num_waiting = scheduler.num_waiting(),
          .read = reader_->progress()};
}

}  // namespace kvblocks::sim
