// A fleet's report in the words of one engine's, so that what compares replays compares fleets, too.

#ifndef KVBLOCKS_SIM_FLEET_FLEET_SUMMARY_H_
#define KVBLOCKS_SIM_FLEET_FLEET_SUMMARY_H_

#include "kvblocks/sim/fleet/fleet.pb.h"
#include "kvblocks/sim/report/report.pb.h"

namespace kvblocks::sim {

// Counts of all replicas, latencies and limits of all requests; configuration, pool and clock are the
// first replica's. Sections that only one engine can have are absent.
::kvblocks::report::v1::Report FleetSummary(const ::kvblocks::fleet::v1::FleetReport& fleet);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_FLEET_SUMMARY_H_
