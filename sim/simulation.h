// Simulation: a trace replayed through one engine (a Replica) on a simulated clock.
//
//   auto simulation = Simulation::Create(config, reader.get(), step_time.get(), observers);
//   if (!simulation.ok()) ...
//   absl::Status status = (*simulation)->Run();
//   (*simulation)->result() ...
//
// One iteration: deliver arrivals and aborts that are due, schedule, advance the clock to the end
// of the oldest step under way, deliver aborts that came while it ran, process its outputs (see
// Replica). Everything else that can be known goes to the observers.
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
#include "sim/arrivals.h"
#include "sim/cost/step_time_model.h"
#include "sim/engine/request_store.h"
#include "sim/engine/scheduler.h"
#include "sim/replica.h"
#include "sim/simulation_config.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

struct SimulationProgress {
  SimTime now = 0;
  int64_t num_arrived = 0;
  int64_t num_done = 0;  // finished, rejected, aborted or skipped
  int64_t num_output_tokens = 0;
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  ReadProgress read;
};

class Simulation final : private Replica::Owner {
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
  void set_connector(KvConnector* connector) { replica_->set_connector(connector); }

  // Called every progress_interval iterations; false ends the run with Cancelled.
  void set_progress(std::function<bool(const SimulationProgress&)> progress) {
    progress_ = std::move(progress);
  }

  const SimulationResult& result() const { return result_; }
  const KvCacheManager& manager() const { return replica_->manager(); }
  const Scheduler& scheduler() const { return replica_->scheduler(); }

 private:
  Simulation(const SimulationConfig& config, TraceReader* reader);

  absl::Status RunLoop();
  absl::Status DeliverArrivals();
  absl::Status OnEnded(SimRequest* request, SimTime now) override;
  absl::Status ReportProgress();
  SimulationProgress Progress() const;

  const SimulationConfig config_;
  TraceReader* const reader_;
  std::function<bool(const SimulationProgress&)> progress_;

  std::unique_ptr<Replica> replica_;
  RequestStore store_;  // after the replica: its requests give blocks back when destroyed
  Arrivals arrivals_;

  SimTime now_ = 0;
  int64_t num_iterations_ = 0;
  int64_t num_skipped_ = 0;
  SimulationResult result_;
};

// Whether a run ended because nothing could ever move again; the kvsim command exits with 3 then.
bool IsNoProgress(const absl::Status& status);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SIMULATION_H_
