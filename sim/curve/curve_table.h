// The table and the sentences that `kvsim curve` prints.

#ifndef KVBLOCKS_SIM_CURVE_CURVE_TABLE_H_
#define KVBLOCKS_SIM_CURVE_CURVE_TABLE_H_

#include <string>

#include "sim/curve/curve.pb.h"

namespace kvblocks::sim {

// Several lines of at most 100 columns, each ended. `color`: headings with terminal escapes.
std::string FormatCurve(const ::kvblocks::report::v1::CurveReport& report, bool color);

// One row per point, or per replay where sizes were replayed, with a header.
std::string CurveCsv(const ::kvblocks::report::v1::CurveReport& report);

// Answers in sentences, from the other fields of the report.
void AddSentences(::kvblocks::report::v1::CurveReport* report);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_CURVE_CURVE_TABLE_H_
