#include "sim/report/report_json.h"

#include <cstdint>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"

namespace kvblocks::sim {

namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;

// The end of the text in quotes that begins at `begin`: behind its closing quote.
size_t EndOfText(const std::string& json, size_t begin) {
  size_t end = begin + 1;
  while (json[end] != '"') end += json[end] == '\\' ? 2 : 1;
  return end + 1;
}

// Protobuf writes whole numbers of 64 bits as texts. This takes the quotes off those that every
// reader of JSON has exactly, up to 2^53; larger ones stay texts.
std::string UnquoteNumbers(const std::string& json, const Descriptor* type) {
  constexpr int64_t kMostExact = int64_t{1} << 53;
  struct Object {
    const Descriptor* type;
    const FieldDescriptor* field;  // whose value is read
  };
  std::vector<Object> open;
  std::string out;
  out.reserve(json.size());
  for (size_t i = 0; i < json.size();) {
    if (json[i] == '{') {
      open.push_back({open.empty() ? type : open.back().field->message_type(), nullptr});
    } else if (json[i] == '}') {
      open.pop_back();
    } else if (json[i] == '"') {
      const size_t end = EndOfText(json, i);
      const std::string text = json.substr(i + 1, end - i - 2);
      int64_t number;
      if (json[end] == ':') {
        open.back().field = open.back().type->FindFieldByName(text);
      } else if (const auto kind = open.back().field->cpp_type();
                 (kind == FieldDescriptor::CPPTYPE_INT64 ||
                  kind == FieldDescriptor::CPPTYPE_UINT64) &&
                 absl::SimpleAtoi(text, &number) && number >= -kMostExact &&
                 number <= kMostExact) {
        out += text;
        i = end;
        continue;
      }
      out.append(json, i, end - i);
      i = end;
      continue;
    }
    out += json[i++];
  }
  return out;
}

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
  return UnquoteNumbers(json, message.GetDescriptor());
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
