// A plan report for people: what each layer stores, then both plans side by side.

#ifndef KVBLOCKS_SIM_REPORT_PLAN_TABLE_H_
#define KVBLOCKS_SIM_REPORT_PLAN_TABLE_H_

#include <string>

#include "kvblocks/sim/report/plan.pb.h"

namespace kvblocks::sim {

// At most 100 columns. `color`: headings in bold.
std::string FormatPlan(const ::kvblocks::report::v1::PlanReport& report, bool color);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_PLAN_TABLE_H_
