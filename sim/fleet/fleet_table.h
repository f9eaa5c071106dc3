// A fleet's report, and the explanation of one routing decision, as tables for people.

#ifndef KVBLOCKS_SIM_FLEET_FLEET_TABLE_H_
#define KVBLOCKS_SIM_FLEET_FLEET_TABLE_H_

#include <string>
#include <utility>
#include <vector>

#include "kvblocks/sim/fleet/fleet.pb.h"

namespace kvblocks::sim {

// `color`: labels with terminal escapes. Ends with a line end. Of more than 16 replicas the first 16
// have a row.
std::string FormatFleet(const ::kvblocks::fleet::v1::FleetReport& report, bool color);
std::string FormatRouting(const ::kvblocks::fleet::v1::RoutingExplanation& routing, bool color);

// What tables and pages say of the whole fleet, name and text; and of its replicas, the number first.
std::vector<std::pair<std::string, std::string>> FleetFigures(
    const ::kvblocks::fleet::v1::FleetReport& report);
std::vector<std::string> ReplicaColumns(const ::kvblocks::fleet::v1::FleetReport& report);
std::vector<std::string> ReplicaCells(const ::kvblocks::fleet::v1::FleetReport& report,
                                      const ::kvblocks::fleet::v1::ReplicaRow& row);

// Whether the router claims hits.
bool LooksAtContent(const ::kvblocks::fleet::v1::RouterSetup& router);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_FLEET_TABLE_H_
