#include "sim/report/report_json.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

absl::StatusOr<std::string> HtmlPage(const google::protobuf::Message& report,
                                     const PageParts& others) {
  std::string data = absl::StrCat("{\"kind\":\"", report.GetDescriptor()->name(), "\"");
  PageParts parts = {{"report", &report}};
  parts.insert(parts.end(), others.begin(), others.end());
  for (const auto& [name, message] : parts) {
    const auto json = ToCompactJson(*message);
    if (!json.ok()) return json.status();
    absl::StrAppend(&data, ",\n\"", name, "\":", *json);
  }
  // In JSON "<" occurs only in strings. Anything that could end the element begins with it.
  data = absl::StrReplaceAll(data, {{"<", "\\u003c"}});
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
      "<title>kvsim</title>\n<style>\n",
      kPageStyle,
      "</style>\n</head>\n<body>\n<main id=\"page\"></main>\n"
      "<noscript>This page is drawn by JavaScript; kvsim prints the same report as a table or with "
      "--json.</noscript>\n<script type=\"application/json\" id=\"report\">",
      data, "}</script>\n<script>\n", kPageScript, "drawPage();\n</script>\n</body>\n</html>\n");
}

}  // namespace kvblocks::sim
