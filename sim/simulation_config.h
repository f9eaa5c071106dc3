// SimulationConfig: everything that decides a replay, except the trace and the step times.
//
// Plain data. Validate checks every field and names the field, its value and the limit; what the
// block manager checks itself is reported by it when a Simulation is created.

#ifndef KVBLOCKS_SIM_SIMULATION_CONFIG_H_
#define KVBLOCKS_SIM_SIMULATION_CONFIG_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kvblocks/kv_cache_config.h"
#include "kvblocks/kv_cache_manager.h"
#include "sim/cost/sim_time.h"
#include "sim/drafting.h"
#include "sim/engine/scheduler_options.h"

namespace kvblocks::sim {

// What becomes of a trace row without output.
enum class ZeroOutput {
  kOne,      // it produces one token
  kSkip,     // it is left out and counted
  kPrefill,  // it ends when its prompt is computed
};

struct SimulationConfig {
  // Whose rules the options below follow, as ApplyEnginePreset set them.
  EngineVersion engine = EngineVersion::kVllm033;
  // As given to ApplyDrafts.
  DraftOptions drafts;

  KvCacheConfig kv_cache;
  // Ranks that hold a block of these groups together, each its part; of states each has all. What a
  // device copies is that part.
  int64_t ranks_per_block = 1;
  // max_in_flight_tokens defaults to the tokens of all steps that can be under way at once.
  KvCacheManagerOptions manager;
  SchedulerOptions scheduler;

  ZeroOutput zero_output = ZeroOutput::kOne;
  // Sessions active at once, whose arrival times are then ignored; 0: arrivals as in the trace.
  int64_t concurrency = 0;
  // With a concurrency: the first sessions start within `start_jitter`, not all at once; a later
  // one starts `start_delay` after another ended, the time that the news take to the client and
  // back.
  SimTime start_jitter = 0;
  SimTime start_delay = 0;
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

// Tokens that all steps under way can have together: what max_in_flight_tokens is by default.
int64_t MaxInFlightTokens(const SimulationConfig& config);

// Pins the rules to a version of vLLM, keeping all other options: "vllm-0.25" or "vllm-0.33" (see
// SchedulerRules and Semantics). "vllm-main" is the last of them. InvalidArgument for another name.
absl::Status ApplyEnginePreset(std::string_view name, SimulationConfig* config);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SIMULATION_CONFIG_H_
