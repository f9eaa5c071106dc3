#include "sim/simulation.h"

#include <utility>

#include "checks/status_macros.h"

namespace kvblocks::sim {

bool IsNoProgress(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition;
}

absl::StatusOr<std::unique_ptr<Simulation>> Simulation::Create(
    const SimulationConfig& config, TraceReader* reader, const StepTimeModel* step_time,
    const std::vector<EngineObserver*>& observers) {
  if (reader == nullptr) return absl::InvalidArgumentError("reader is null, expected a trace");
  std::unique_ptr<Simulation> simulation(new Simulation(config, reader));
  KVBLOCKS_RETURN_IF_ERROR(
      simulation->set_.Add({.config = config, .step_time = step_time, .observers = observers}));
  return simulation;
}

Simulation::Simulation(const SimulationConfig& config, TraceReader* reader)
    : set_(config, reader, this, ReplicaSet::Reading::kAtBoundaries) {}

absl::Status Simulation::Run() {
  const absl::Status status = set_.Run();
  result_ = set_.replica(0).result();
  result_.num_skipped = set_.num_skipped();
  result_.peak_live_requests = set_.peak_live_requests();
  result_.num_iterations = set_.num_instants();
  return status;
}

absl::Status Simulation::OnArrived(SimRequest* request) { return set_.Submit(request, 0); }

absl::Status Simulation::OnGivenUp(SimRequest* turn, const SimRequest*, SimTime now) {
  return set_.replica(0).AbortNow(turn, AbortCause::kSession, now);
}

absl::Status Simulation::OnEnded(SimRequest* request, SimTime now) {
  return set_.End(request, now);
}

// There is no other that could be meant.
std::string Simulation::NameOf(int32_t) const { return ""; }

}  // namespace kvblocks::sim
