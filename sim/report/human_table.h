// What kvsim prints for people, as plain ASCII of at most 100 columns: reports, and what else has a
// message of its own. `color`: headings with terminal escapes, which add no columns. Each text ends
// with a line end.

#ifndef KVBLOCKS_SIM_REPORT_HUMAN_TABLE_H_
#define KVBLOCKS_SIM_REPORT_HUMAN_TABLE_H_

#include <string>

#include "sim/report/report.pb.h"
#include "sim/report/text_page.h"

namespace kvblocks::report::v1 {
class Comparison;
class Explanation;
class PlanReport;
class RoutingExplanation;
}  // namespace kvblocks::report::v1

namespace kvblocks::sim {

// One screen, the most telling facts first: about 35 lines. A run with everything at once (hybrid
// groups, drafts, salts, tenants, sessions, preemptions, objectives, rejections) has at most 60.
// --top-prefixes adds its lines, several replicas theirs.
std::string FormatReport(const ::kvblocks::report::v1::Report& report, bool color);

// Its sentences without its tables and notes.
::kvblocks::report::v1::Facts FactsOf(const ::kvblocks::report::v1::Report& report);

// What was configured otherwise, every metric that differs, and where the schedules part, side by
// side. Lines are longer where a name alone is.
std::string FormatComparison(const ::kvblocks::report::v1::Comparison& comparison, bool color);

// Without a request: where the prompt tokens went, and the requests that lost most to evictions.
// With one: its life from arrival to end, each look-up with what became of every block.
std::string FormatExplanation(const ::kvblocks::report::v1::Explanation& explanation, bool color);

// Why a request went to which of several replicas.
std::string FormatRouting(const ::kvblocks::report::v1::RoutingExplanation& routing, bool color);

// What each layer stores, then both plans side by side.
std::string FormatPlan(const ::kvblocks::report::v1::PlanReport& report, bool color);

// "mean 3.20 s, p50 12 ms, p90 ...".
std::string LatencyText(const ::kvblocks::report::v1::Distribution& latency);

// Of FormatReport: several replicas and their router as they are set, and what came of that.
void AddFleet(const ::kvblocks::report::v1::Report& report, TextPage& page);
void AddReplicas(const ::kvblocks::report::v1::Report& report, TextPage& page);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_HUMAN_TABLE_H_
