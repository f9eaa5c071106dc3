#include "kvblocks/sim/report/report_json.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"

namespace kvblocks::sim {
namespace {

absl::StatusOr<std::string> Print(const google::protobuf::Message& message, bool is_complete) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = is_complete;
  options.always_print_primitive_fields = is_complete;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("the report cannot be written as JSON: ", std::string(status.message())));
  }
  return json;
}

}  // namespace

absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message) {
  auto json = Print(message, /*is_complete=*/true);
  if (json.ok() && (json->empty() || json->back() != '\n')) *json += '\n';
  return json;
}

absl::StatusOr<std::string> ToCompactJson(const google::protobuf::Message& message) {
  return Print(message, /*is_complete=*/false);
}

}  // namespace kvblocks::sim
