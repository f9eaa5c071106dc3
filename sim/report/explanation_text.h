// An explanation as people read it: plain ASCII, at most 100 columns.
//
// Without a request: where the prompt tokens went, and the requests that lost most to evictions.
// With one: its life from arrival to end, each look-up with what became of every block.

#ifndef KVBLOCKS_SIM_REPORT_EXPLANATION_TEXT_H_
#define KVBLOCKS_SIM_REPORT_EXPLANATION_TEXT_H_

#include <string>

#include "kvblocks/sim/report/explanation.pb.h"

namespace kvblocks::sim {

// `color`: headings with terminal escapes. Ends with a line end.
std::string FormatExplanation(const ::kvblocks::report::v1::Explanation& explanation, bool color);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_EXPLANATION_TEXT_H_
