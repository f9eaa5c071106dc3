// ListMetrics: every figure of a report message, by name, found by reflection - so that a metric
// that is added to report.proto is compared without further code.
//
// Names are those of the fields, "whole_run.token_hit_rate.numerator". Elements of a list are named
// by their first text field, "first_admission_misses.causes[evicted].tokens" (of several with one
// text, "[ttft#2]" is the second), or, if they have none, by their index: "series.points[7].usage".
// Messages that are absent have no metrics; everything else is listed, in the order of the schema.
// Long names are cut. Memory is bounded, whatever the report: see kMostMetricBytes.

#ifndef KVBLOCKS_SIM_REPORT_METRIC_LIST_H_
#define KVBLOCKS_SIM_REPORT_METRIC_LIST_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"

namespace kvblocks::sim {

struct Metric {
  std::string name;
  // Set for elements of lists without names: the name with "[]" for the (outermost) index.
  std::string list;
  int64_t element = 0;
  // 64-bit numbers, signed or not, share the first alternative.
  std::variant<__int128, double, std::string, bool> value;
};

// Of names and values; a report of a long run has about 2 MB.
inline constexpr size_t kMostMetricBytes = size_t{256} << 20;

// `skip`: fields of `message` itself that are left out. ResourceExhausted beyond kMostMetricBytes.
absl::StatusOr<std::vector<Metric>> ListMetrics(const google::protobuf::Message& message,
                                                const std::vector<std::string>& skip = {});

// All digits that matter and no more: 0.1, 6.5e-05, 18446744073709551615.
std::string MetricText(const Metric& metric);
std::string ExactText(double value);
std::string ExactText(__int128 value);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_METRIC_LIST_H_
