// A validation as a message and as a page for people.

#ifndef KVBLOCKS_SIM_REPORT_VALIDATION_REPORT_H_
#define KVBLOCKS_SIM_REPORT_VALIDATION_REPORT_H_

#include <string>

#include "sim/report/validation.pb.h"
#include "sim/trace/validation.h"

namespace kvblocks::sim {

// Whether nothing is wrong; `strict` counts warnings.
bool IsGood(const TraceValidation& validation, bool strict);

::kvblocks::report::v1::TraceValidation ToProto(const TraceValidation& validation, bool strict);

// Facts, counts of each kind of problem, the messages, and the verdict. Lines end; only messages
// are longer than 100 columns. `color`: labels with terminal escapes.
std::string FormatValidation(const TraceValidation& validation, bool strict, bool color);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_VALIDATION_REPORT_H_
