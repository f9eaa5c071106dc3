// Replicas that start, stop and crash, as options ask for them.

#ifndef KVBLOCKS_SIM_COMMANDS_SCALE_INPUT_H_
#define KVBLOCKS_SIM_COMMANDS_SCALE_INPUT_H_

#include "absl/status/statusor.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/sim/fleet/scaling.h"

namespace kvblocks::sim {

// Whether there is a plan or a rule.
bool AsksForScaling(const ::kvblocks::config::v1::ReplayConfig& config);

// InvalidArgument names option, value and what is expected; also for an option that means nothing
// without another.
absl::StatusOr<ScalingOptions> MakeScalingOptions(
    const ::kvblocks::config::v1::ReplayConfig& config);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_SCALE_INPUT_H_
