// The report as people read it: one screen of plain ASCII, the most telling facts first.
//
// Lines have at most 100 columns. There are about 35 of them; a run with everything at once
// (hybrid groups, drafts, salts, tenants, sessions, preemptions, objectives, rejections) has at
// most
// 60. --top-prefixes adds its lines.

#ifndef KVBLOCKS_SIM_REPORT_HUMAN_TABLE_H_
#define KVBLOCKS_SIM_REPORT_HUMAN_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kvblocks/sim/report/report.pb.h"

namespace kvblocks::sim {

// `color`: headings with terminal escapes, which add no columns. Ends with a line end.
std::string FormatReport(const ::kvblocks::report::v1::Report& report, bool color);

// "12,031".
std::string WithThousands(int64_t value);
// "3 h 35 min", "58 min 57 s", "3.20 s", "12 ms".
std::string Span(double seconds);
// "1 request", "12,031 requests".
std::string Plural(int64_t count, std::string_view noun);
// "34.10 %".
std::string Percent(double share);
// "mean 3.20 s, p50 12 ms, p90 ...".
std::string LatencyText(const ::kvblocks::report::v1::Distribution& latency);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_HUMAN_TABLE_H_
