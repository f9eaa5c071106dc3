// Simulation: a trace replayed through one engine: a ReplicaSet of one, which reads the trace at
// the engine's iteration boundaries.
//
//   auto simulation = Simulation::Create(config, reader.get(), step_time.get(), observers);
//   if (!simulation.ok()) ...
//   absl::Status status = (*simulation)->Run();
//   (*simulation)->result() ...
//
// One iteration, an instant of the set: deliver arrivals and aborts that are due, schedule, advance
// the clock to the end of the oldest step under way, deliver aborts that came while it ran, process
// its outputs (see Replica). Everything else that can be known goes to the observers.
//
// Always: deterministic - the same trace, configuration and seed give the same calls to the
// observers, whatever the machine. Memory follows the live requests (see Arrivals).
// Cost: see Replica. Single-threaded; several simulations may run in several threads.

#ifndef KVBLOCKS_SIM_SIMULATION_H_
#define KVBLOCKS_SIM_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/kv_cache_manager.h"
#include "sim/cost/step_time_model.h"
#include "sim/engine/scheduler.h"
#include "sim/replica_set.h"
#include "sim/simulation_config.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

class Simulation final : private ReplicaSet::Owner {
 public:
  // InvalidArgument for a bad configuration. Reader, step times and observers are not owned and
  // must outlive the simulation.
  static absl::StatusOr<std::unique_ptr<Simulation>> Create(
      const SimulationConfig& config, TraceReader* reader, const StepTimeModel* step_time,
      const std::vector<EngineObserver*>& observers);
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // Replays the whole trace. Errors: the trace's own; OutOfRange if the clock overflows; and
  // FailedPrecondition (IsNoProgress) if nothing can ever move again, with the request, the blocks
  // it needs and what would help. result() is valid in any case, up to there. Call it once.
  absl::Status Run();

  // Where KV comes from that the pool does not hold; not owned. Before Run.
  void set_connector(KvConnector* connector) { set_.replica(0).set_connector(connector); }

  // Called every progress_interval iterations; false ends the run with Cancelled.
  void set_progress(std::function<bool(const SimulationProgress&)> progress) {
    set_.set_progress(std::move(progress));
  }

  const SimulationResult& result() const { return result_; }
  const KvCacheManager& manager() const { return set_.replica(0).manager(); }
  const Scheduler& scheduler() const { return set_.replica(0).scheduler(); }

 private:
  Simulation(const SimulationConfig& config, TraceReader* reader);

  absl::Status OnArrived(SimRequest* request) override;
  absl::Status OnGivenUp(SimRequest* turn, const SimRequest* ended, SimTime now) override;
  absl::Status OnEnded(SimRequest* request, SimTime now) override;
  std::string NameOf(int32_t replica) const override;

  ReplicaSet set_;
  SimulationResult result_;
};

// Whether a run ended because nothing could ever move again; the kvsim command exits with 3 then.
bool IsNoProgress(const absl::Status& status);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SIMULATION_H_
