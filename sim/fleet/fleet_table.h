// A fleet's report, and the explanation of one routing decision, as tables for people.

#ifndef KVBLOCKS_SIM_FLEET_FLEET_TABLE_H_
#define KVBLOCKS_SIM_FLEET_FLEET_TABLE_H_

#include <string>

#include "kvblocks/sim/fleet/fleet.pb.h"

namespace kvblocks::sim {

// `color`: labels with terminal escapes. Ends with a line end. Of more than 16 replicas the first 16
// have a row.
std::string FormatFleet(const ::kvblocks::fleet::v1::FleetReport& report, bool color);
std::string FormatRouting(const ::kvblocks::fleet::v1::RoutingExplanation& routing, bool color);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_FLEET_TABLE_H_
