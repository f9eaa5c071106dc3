#include "kvblocks/sim/report/report_json.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"

namespace kvblocks::sim {

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("the report cannot be written as JSON: ", std::string(status.message())));
  }
  if (json.empty() || json.back() != '\n') json += '\n';
  return json;
}

}  // namespace kvblocks::sim
