// A comparison as people read it: what was configured otherwise, every metric that differs, and
// where the schedules part, side by side.
//
// Lines have at most 100 columns, unless a name alone is longer.

#ifndef KVBLOCKS_SIM_REPORT_COMPARISON_TABLE_H_
#define KVBLOCKS_SIM_REPORT_COMPARISON_TABLE_H_

#include <string>

#include "kvblocks/sim/report/comparison.pb.h"

namespace kvblocks::sim {

// `color`: headings with terminal escapes. Ends with a line end.
std::string FormatComparison(const ::kvblocks::report::v1::Comparison& comparison, bool color);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_COMPARISON_TABLE_H_
