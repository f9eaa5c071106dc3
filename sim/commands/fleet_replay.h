// A replay of several replicas: what replay and explain do if --replicas is above 1.

#ifndef KVBLOCKS_SIM_COMMANDS_FLEET_REPLAY_H_
#define KVBLOCKS_SIM_COMMANDS_FLEET_REPLAY_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/sim/commands/fleet_input.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/fleet/fleet.pb.h"
#include "kvblocks/sim/report/request_selector.h"

namespace kvblocks::sim {

// Replays the trace of `config` through replicas that are all as `setup` says. `quiet`: no progress
// line. Fails as a replay of one does.
absl::Status ReplayFleet(const ::kvblocks::config::v1::ReplayConfig& config, ReplaySetup& setup,
                         const FleetInput& input, bool quiet,
                         ::kvblocks::fleet::v1::FleetReport* report);

// Why the request went where it went. NotFound if it was not sent anywhere.
absl::Status ExplainRouting(const ::kvblocks::config::v1::ReplayConfig& config, ReplaySetup& setup,
                            const FleetInput& input, const RequestSelector& selector, bool quiet,
                            ::kvblocks::fleet::v1::RoutingExplanation* out);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_FLEET_REPLAY_H_
