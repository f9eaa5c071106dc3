// Simulation: a trace replayed through scheduler and block manager on a simulated clock.
//
//   auto simulation = Simulation::Create(config, reader.get(), step_time.get(), observers);
//   if (!simulation.ok()) ...
//   absl::Status status = (*simulation)->Run();
//   (*simulation)->result() ...
//
// One iteration: deliver arrivals and aborts that are due, schedule, advance the clock to the end
// of the oldest step under way, deliver aborts that came while it ran, process its outputs.
// Synchronously that is the step just scheduled;
// with asynchronous scheduling it is the one before, and the device takes the new one up when it is
// done with it. Everything else that can be known is told to the observers.
//
// Always: deterministic - the same trace, configuration and seed give the same calls to the
// observers, whatever the machine. Memory follows the live requests (see Arrivals).
// Cost: about 0.2 us per step and 50 ns per record in it, observers included; requests that decode
// inside a block have none (see Scheduler), unless an observer needs them.
// Single-threaded; several simulations may run in several threads.

#ifndef KVBLOCKS_SIM_SIMULATION_H_
#define KVBLOCKS_SIM_SIMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/sim/arrivals.h"
#include "kvblocks/sim/cost/step_time_model.h"
#include "kvblocks/sim/engine/observer_list.h"
#include "kvblocks/sim/engine/request_store.h"
#include "kvblocks/sim/engine/scheduler.h"
#include "kvblocks/sim/simulation_config.h"
#include "kvblocks/sim/trace/trace_reader.h"

namespace kvblocks::sim {

struct SimulationResult {
  SimTime end_time = 0;   // the clock when the run ended
  SimTime busy_time = 0;  // sum of the steps' durations
  SimTime copy_time = 0;  // the part of it that copies of blocks took
  SimTime load_time = 0;  // and that steps waited for KV from elsewhere
  int64_t copied_bytes = 0;  // on one device
  // Requests.
  int64_t num_arrived = 0;
  int64_t num_rejected = 0;
  int64_t num_finished = 0;       // to their length
  int64_t num_aborted_time = 0;   // abort time reached
  int64_t num_aborted_queue = 0;  // waited for too long
  int64_t num_aborted_session = 0;
  int64_t num_skipped = 0;  // without output, left out
  int64_t peak_live_requests = 0;
  int64_t num_iterations = 0;
  // Tokens, steps and preemptions.
  SchedulerTotals scheduler;
  PrefixCacheStats prefix_cache;

  friend bool operator==(const SimulationResult&, const SimulationResult&) = default;
};

struct SimulationProgress {
  SimTime now = 0;
  int64_t num_arrived = 0;
  int64_t num_done = 0;  // finished, rejected, aborted or skipped
  int64_t num_output_tokens = 0;
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  ReadProgress read;
};

class Simulation {
 public:
  // InvalidArgument for a bad configuration. Reader, step times and observers are not owned and
  // must outlive the simulation.
  static absl::StatusOr<std::unique_ptr<Simulation>> Create(
      const SimulationConfig& config, TraceReader* reader, const StepTimeModel* step_time,
      const std::vector<EngineObserver*>& observers);
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // Where KV comes from that the pool does not hold; not owned. Before Run.
  void set_connector(KvConnector* connector) {
    connector_ = connector;
    scheduler_->set_connector(connector);
  }

  // Replays the whole trace. Errors: the trace's own; OutOfRange if the clock overflows; and
  // FailedPrecondition (IsNoProgress) if nothing can ever move again, with the request, the blocks
  // it needs and what would help. result() is valid in any case, up to there. Call it once.
  absl::Status Run();

  // Called every progress_interval iterations; false ends the run with Cancelled.
  void set_progress(std::function<bool(const SimulationProgress&)> progress) {
    progress_ = std::move(progress);
  }

  const SimulationResult& result() const { return result_; }
  const KvCacheManager& manager() const { return *manager_; }
  const Scheduler& scheduler() const { return *scheduler_; }

 private:
  struct Abort {
    SimTime time;
    int64_t row;
    SimRequest* request;
    AbortCause cause;
    friend bool operator>(const Abort& a, const Abort& b) {
      if (a.time != b.time) return a.time > b.time;
      return a.row != b.row ? a.row > b.row : a.cause > b.cause;
    }
  };

  Simulation(const SimulationConfig& config, TraceReader* reader, const StepTimeModel* step_time);

  absl::Status RunLoop();
  absl::Status DeliverArrivals();
  absl::Status Deliver(SimRequest* request);
  void PlanAborts(SimRequest* request);
  absl::Status DeliverAborts();
  bool IsStale(const Abort& abort) const;
  absl::Status AbortNow(SimRequest* request, AbortCause cause);
  absl::Status EndSession(uint64_t session);
  absl::Status Retire(SimRequest* request);
  absl::StatusOr<std::optional<SimTime>> NextEvent();
  absl::StatusOr<SimTime> StepTime();
  absl::StatusOr<SimTime> CopyTime();
  std::optional<SimTime> WithLoads(SimTime compute);
  absl::Status StartStep();
  absl::Status FinishStep();
  absl::Status ReportProgress();
  void PublishEvents();
  SimulationProgress Progress() const;

  const SimulationConfig config_;
  TraceReader* const reader_;
  const StepTimeModel* const step_time_;
  KvConnector* connector_ = nullptr;
  std::function<bool(const SimulationProgress&)> progress_;

  std::unique_ptr<KvCacheManager> manager_;
  RequestStore store_;  // after the manager: its requests give blocks back when destroyed
  ObserverList observers_;
  std::unique_ptr<Scheduler> scheduler_;
  Arrivals arrivals_;
  // May name requests that are gone; their slot may be another's by then.
  std::priority_queue<Abort, std::vector<Abort>, std::greater<Abort>> aborts_;

  SimTime now_ = 0;
  SimTime device_free_ = 0;         // when the device is done with all steps handed to it
  std::vector<SequenceWork> work_;  // scratch
  std::vector<int64_t> block_bytes_;  // per group, on one device: what copying one of its blocks copies
  SimulationResult result_;
};

// Whether a run ended because nothing could ever move again; the kvsim command exits with 3 then.
bool IsNoProgress(const absl::Status& status);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SIMULATION_H_
