// A fleet's report, and the explanation of one routing decision, as tables for people; and the
// report in the words of one engine's, so that what compares replays compares fleets, too.

#ifndef KVBLOCKS_SIM_FLEET_FLEET_TABLE_H_
#define KVBLOCKS_SIM_FLEET_FLEET_TABLE_H_

#include <string>

#include "sim/fleet/fleet.pb.h"
#include "sim/report/report.pb.h"

namespace kvblocks::sim {

// `color`: labels with terminal escapes. Ends with a line end. Of more than 16 replicas the first
// 16 have a row.
std::string FormatFleet(const ::kvblocks::fleet::v1::FleetReport& report, bool color);
std::string FormatRouting(const ::kvblocks::fleet::v1::RoutingExplanation& routing, bool color);

// Counts of all replicas, latencies and limits of all requests; configuration, pool and clock are
// the first replica's. Sections that only one engine can have are absent.
::kvblocks::report::v1::Report FleetSummary(const ::kvblocks::fleet::v1::FleetReport& fleet);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_FLEET_TABLE_H_
