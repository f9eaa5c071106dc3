// A report as JSON: protobuf's own mapping, with the fields' names as in report.proto, and whole
// numbers as numbers: those beyond 2^53, which not every reader has exactly, stay texts. The same
// report always gives the same bytes.

#ifndef KVBLOCKS_SIM_REPORT_REPORT_JSON_H_
#define KVBLOCKS_SIM_REPORT_REPORT_JSON_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace kvblocks::sim {

// For people: indented, with all fields. Ends with a line end.
absl::StatusOr<std::string> ToJson(const google::protobuf::Message& message);
// For programs: without white space and without fields that have their default.
absl::StatusOr<std::string> ToCompactJson(const google::protobuf::Message& message);

// HtmlPage: a report as one HTML file for a browser without network.
//
//   HtmlPage(report)                                          any report of kvsim
//   HtmlPage(comparison, {{"a", &report_a}, {"b", &report_b}})
//
// The file holds the report as JSON, and page/*.js, which draw everything from it: tables, charts
// and the headline. Nothing here knows what a report says. Fields with default values are left out.
// Texts of the report cannot end the element they are in, and the page may fetch nothing.

// Messages beside the report, by their names in the page.
using PageParts = std::vector<std::pair<std::string, const google::protobuf::Message*>>;

absl::StatusOr<std::string> HtmlPage(const google::protobuf::Message& report,
                                     const PageParts& others = {});

// Of page/, put together by the build.
extern const char kPageScript[];  // *.js
extern const char kPageStyle[];   // page.css

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REPORT_JSON_H_
