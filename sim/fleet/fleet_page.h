// A fleet's report as a page of tables and charts: what each replica did, and over time the load of
// each, its hits, and what better choices would have found.

#ifndef KVBLOCKS_SIM_FLEET_FLEET_PAGE_H_
#define KVBLOCKS_SIM_FLEET_FLEET_PAGE_H_

#include <string>

#include "kvblocks/sim/fleet/fleet.pb.h"

namespace kvblocks::sim {

// The text of an HTML file. Lines of at most 16 replicas are drawn; bars and tables have all.
std::string FleetPage(const ::kvblocks::fleet::v1::FleetReport& report);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_FLEET_PAGE_H_
