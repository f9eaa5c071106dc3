// Limits of a step that an engine chooses for a device when nobody sets them.

#ifndef KVBLOCKS_SIM_COMMANDS_STEP_LIMITS_H_
#define KVBLOCKS_SIM_COMMANDS_STEP_LIMITS_H_

#include <cstdint>

#include "kvblocks/sim/engine/scheduler_rules.h"
#include "kvblocks/specs/catalogue/model_facts.h"

namespace kvblocks::sim {

struct StepLimits {
  int64_t max_num_batched_tokens = 0;
  int64_t max_num_seqs = 0;
};

// By memory and name of the device, and whether requests come over the network or from a program
// that holds them all (V-79).
StepLimits LimitsOf(EngineVersion version, const DeviceFacts& device, bool is_offline);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_STEP_LIMITS_H_
