// SimulationConfig: everything that decides a replay, apart from the trace and the step times.
//
// Plain data. Validate checks every field and names the field, its value and the limit; what the
// block manager checks itself is reported by it when a Simulation is created.

#ifndef KVBLOCKS_SIM_SIMULATION_CONFIG_H_
#define KVBLOCKS_SIM_SIMULATION_CONFIG_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/engine/scheduler_options.h"
#include "kvblocks/specs/kv_cache_config.h"

namespace kvblocks::sim {

// What becomes of a trace row without output.
enum class ZeroOutput {
  kOne,      // it produces one token
  kSkip,     // it is left out and counted
  kPrefill,  // it ends when its prompt is computed
};

struct SimulationConfig {
  KvCacheConfig kv_cache;
  // max_in_flight_tokens defaults to the tokens of all steps that can be under way at once.
  KvCacheManagerOptions manager;
  SchedulerOptions scheduler;

  ZeroOutput zero_output = ZeroOutput::kOne;
  // Sessions active at once, whose arrival times are then ignored; 0: arrivals as in the trace.
  int64_t concurrency = 0;
  // A request that waited this long without having run is aborted; 0: never.
  SimTime max_queue_time = 0;
  // Between a step that preempted and scheduled nothing and the next one.
  SimTime empty_step_time = 0;
  // Host time. A synchronous engine adds it to every step; in an asynchronous one a step takes the
  // longer of host and device.
  SimTime host_time_per_step = 0;
  SimTime host_time_per_request = 0;

  // After every step; costs O(number of blocks).
#ifdef NDEBUG
  bool check_invariants = false;
#else
  bool check_invariants = true;
#endif
  // Iterations between two calls of the progress callback.
  int64_t progress_interval = 65536;
};

absl::Status Validate(const SimulationConfig& config);

// Pins the scheduling options to a version of vLLM, keeping all others: "vllm-0.10" (synchronous,
// no whole-sequence gate, freed blocks to the back of the queue), "vllm-0.19" (asynchronous, gate,
// freed blocks to the back), "vllm-main" (asynchronous, gate, key-less blocks to the front).
// InvalidArgument for another name.
absl::Status ApplyEnginePreset(std::string_view name, SimulationConfig* config);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SIMULATION_CONFIG_H_
