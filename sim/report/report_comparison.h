// CompareReports: what differs between two reports, and whether it may.
//
// The configuration is compared field by field and never judged. Everything else is a metric: two
// of one name are compared, with absolute and relative change, and judged by the tolerance that
// applies to the name, if any. Texts and flags exceed only a tolerance of 0; a metric that only one
// report has exceeds any but "inf". Metrics are found by reflection (metric_list.h).

#ifndef KVBLOCKS_SIM_REPORT_REPORT_COMPARISON_H_
#define KVBLOCKS_SIM_REPORT_REPORT_COMPARISON_H_

#include "absl/status/status.h"
#include "kvblocks/sim/report/comparison.pb.h"
#include "kvblocks/sim/report/report.pb.h"
#include "kvblocks/sim/report/tolerance.h"

namespace kvblocks::sim {

struct ReportComparisonOptions {
  ToleranceSet tolerances;
  bool all = false;  // equal metrics and each element of unnamed lists, too
};

// Fills all but file names and schedule. InvalidArgument if a tolerance names no metric of either
// report.
absl::Status CompareReports(const ::kvblocks::report::v1::Report& a,
                            const ::kvblocks::report::v1::Report& b,
                            const ReportComparisonOptions& options,
                            ::kvblocks::report::v1::Comparison* out);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REPORT_COMPARISON_H_
