// CompareReports: what differs between two reports, and whether it may.
//
// The configuration is compared field by field and never judged. Everything else is a metric: two
// of one name are compared, with absolute and relative change, and judged by the tolerance that
// applies to the name, if any. Texts and flags exceed only a tolerance of 0; a metric that only one
// report has exceeds any but "inf". Metrics are found by reflection (metric_list.h).

#ifndef KVBLOCKS_SIM_REPORT_REPORT_COMPARISON_H_
#define KVBLOCKS_SIM_REPORT_REPORT_COMPARISON_H_

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/report/comparison.pb.h"
#include "sim/report/report.pb.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {

// Tolerances: by how much which metric may change.
//
//   "0.01"  "1%"            relative change, of all metrics
//   "NAME:0.01"             of those whose name has the parts of NAME next to each other:
//                           token_hit_rate, latency.ttft, causes[evicted].tokens
//   "NAME:abs:5"            absolute change
//   "NAME:inf"              anything goes
// The most specific one counts (most parts of the name), of several the last. Comparison of whole
// numbers is exact.

// The parts of a metric's name, an element with its list: "causes[evicted]" is one part.
std::vector<std::string> SplitMetricName(std::string_view name);

// Signed and unsigned 64-bit numbers both fit the first.
using MetricNumber = std::variant<__int128, double>;

class Tolerance {
 public:
  // InvalidArgument names the text and what is expected.
  static absl::StatusOr<Tolerance> Parse(const std::string& text);

  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }  // empty: all metrics
  size_t num_parts() const { return parts_.size(); }
  bool Matches(const std::vector<std::string>& metric) const;

  bool Allows(const MetricNumber& a, const MetricNumber& b) const;
  // Of texts, of lists, and of what only one report has: whether it may change.
  bool AllowsAnything() const { return is_infinite_; }
  bool AllowsNothing() const { return !is_infinite_ && limit_.numerator == 0; }

 private:
  std::string text_;
  std::string name_;
  std::vector<std::string> parts_;
  bool is_absolute_ = false;
  bool is_infinite_ = false;
  Rational limit_;
};

class ToleranceSet {
 public:
  static absl::StatusOr<ToleranceSet> Parse(const std::vector<std::string>& texts);

  // Null if none applies.
  const Tolerance* Find(std::string_view metric) const;
  const std::vector<Tolerance>& all() const { return tolerances_; }

 private:
  std::vector<Tolerance> tolerances_;
};

struct ReportComparisonOptions {
  ToleranceSet tolerances;
  bool all = false;  // equal metrics and each element of unnamed lists, too
};

// Fills everything except file names and schedule. InvalidArgument if a tolerance names no metric
// of either report.
absl::Status CompareReports(const ::kvblocks::report::v1::Report& a,
                            const ::kvblocks::report::v1::Report& b,
                            const ReportComparisonOptions& options,
                            ::kvblocks::report::v1::Comparison* out);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REPORT_COMPARISON_H_
