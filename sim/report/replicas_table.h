// What FormatReport says of several replicas beside what it says of one: how requests came to them,
// and a row for each.

#ifndef KVBLOCKS_SIM_REPORT_REPLICAS_TABLE_H_
#define KVBLOCKS_SIM_REPORT_REPLICAS_TABLE_H_

#include "sim/report/report.pb.h"
#include "sim/report/text_page.h"

namespace kvblocks::sim {

// Replicas and router as they are set.
void AddFleet(const ::kvblocks::report::v1::Report& report, TextPage& page);

// What came of that.
void AddReplicas(const ::kvblocks::report::v1::Report& report, TextPage& page);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REPLICAS_TABLE_H_
