// A curve as a page of charts and tables, drawn from its report.

#ifndef KVBLOCKS_SIM_CURVE_CURVE_PAGE_H_
#define KVBLOCKS_SIM_CURVE_CURVE_PAGE_H_

#include <string>

#include "kvblocks/sim/curve/curve.pb.h"

namespace kvblocks::sim {

// The text of an HTML file. Bounds, samples, replays, variants and tiers are there if the report has
// them.
std::string CurvePage(const ::kvblocks::report::v1::CurveReport& report);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_CURVE_PAGE_H_
