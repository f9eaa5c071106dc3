// A report as JSON: protobuf's own mapping, with the fields' names as in report.proto, so that the same
// report always gives the same bytes.

#ifndef KVBLOCKS_SIM_REPORT_REPORT_JSON_H_
#define KVBLOCKS_SIM_REPORT_REPORT_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace kvblocks::sim {

// For people: indented, with all fields. Ends with a line end.
absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message);
// For programs: without white space and without fields that have their default.
absl::StatusOr<std::string> ToCompactJson(const google::protobuf::Message& message);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REPORT_JSON_H_
