// Several replicas behind a router, as options ask for them: what of a configuration concerns the
// fleet, and not one of its engines.

#ifndef KVBLOCKS_SIM_COMMANDS_FLEET_INPUT_H_
#define KVBLOCKS_SIM_COMMANDS_FLEET_INPUT_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/sim/fleet/fleet.h"

namespace kvblocks::sim {

// Whether there is or may be more than one replica, or --replica says of what kind it is.
bool IsFleet(const ::kvblocks::config::v1::ReplayConfig& config);

// Whether there is an option of a router, with whatever value.
bool AsksForRouter(const ::kvblocks::config::v1::ReplayConfig& config);

// InvalidArgument names option, value and what is expected; also if one replica has options of a
// router, or a router those that it does not look at.
absl::StatusOr<FleetOptions> MakeFleetOptions(const ::kvblocks::config::v1::ReplayConfig& config);

// Leaves out what MakeFleetOptions would refuse because nobody looks at it. For searches, which put
// the options of one router beside another, or beside one replica alone.
void DropUnusedFleetOptions(::kvblocks::config::v1::ReplayConfig* config);

// For commands of one replica: InvalidArgument if there are more, or a router.
absl::Status RefuseFleet(const ::kvblocks::config::v1::ReplayConfig& config);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_FLEET_INPUT_H_
