// What came of replicas that start, stop and crash: the section of the fleet's report, and its lines.

#ifndef KVBLOCKS_SIM_FLEET_SCALING_REPORT_H_
#define KVBLOCKS_SIM_FLEET_SCALING_REPORT_H_

#include <string>
#include <utility>
#include <vector>

#include "kvblocks/sim/fleet/fleet.h"
#include "kvblocks/sim/fleet/fleet.pb.h"
#include "kvblocks/sim/report/text_page.h"

namespace kvblocks::sim {

void FillScaling(const FleetOptions& options, const FleetResult& result,
                 ::kvblocks::fleet::v1::Scaling* out);
void AddScaling(const ::kvblocks::fleet::v1::Scaling& scaling,
                std::vector<std::pair<std::string, std::string>>* figures);
void AddTimeline(const ::kvblocks::fleet::v1::Scaling& scaling, TextPage& page);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_SCALING_REPORT_H_
