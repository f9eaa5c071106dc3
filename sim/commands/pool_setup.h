// The pool of a replay: its groups, its size and what its manager does, from a configuration.

#ifndef KVBLOCKS_SIM_COMMANDS_POOL_SETUP_H_
#define KVBLOCKS_SIM_COMMANDS_POOL_SETUP_H_

#include "absl/status/status.h"
#include "kvblocks/sim/commands/model_plan.h"
#include "kvblocks/sim/commands/replay_setup.h"

namespace kvblocks::sim {

// Sets the pool's part of `setup`. InvalidArgument names the option, its value and what is expected.
// REQUIRES: an effective configuration.
absl::Status SetPool(const ::kvblocks::config::v1::ReplayConfig& config,
                     const ModelOnDevice& hardware, ReplaySetup* setup);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_POOL_SETUP_H_
