// A report as JSON: protobuf's own mapping, with all fields and their names as in report.proto, so
// that the same report always gives the same bytes. Ends with a line end.

#ifndef KVBLOCKS_SIM_REPORT_REPORT_JSON_H_
#define KVBLOCKS_SIM_REPORT_REPORT_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace kvblocks::sim {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REPORT_JSON_H_
