// SimulationResult: what one engine did in a run, in numbers.

#ifndef KVBLOCKS_SIM_SIMULATION_RESULT_H_
#define KVBLOCKS_SIM_SIMULATION_RESULT_H_

#include <cstdint>

#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/engine/scheduler.h"

namespace kvblocks::sim {

struct SimulationResult {
  SimTime end_time = 0;   // the clock when the run ended
  SimTime busy_time = 0;  // in which steps were on the device
  SimTime stage_time = 0;  // sum over pipeline stages of the time that they compute
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
  int64_t num_failed = 0;   // a load of theirs failed, and the policy was to let them fail
  int64_t num_lost = 0;     // this engine crashed while it had them
  int64_t num_skipped = 0;  // without output, left out
  int64_t peak_live_requests = 0;
  int64_t num_iterations = 0;
  // Tokens, steps and preemptions.
  SchedulerTotals scheduler;
  PrefixCacheStats prefix_cache;

  // Requests that are over, in whatever way.
  int64_t num_done() const {
    return num_finished + num_rejected + num_skipped + num_aborted_time + num_aborted_queue +
           num_aborted_session + num_lost + num_failed;
  }

  friend bool operator==(const SimulationResult&, const SimulationResult&) = default;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SIMULATION_RESULT_H_
