// OpenMetricsText: metrics in the OpenMetrics 1.0 text format, family by family.
//
//   OpenMetricsText text({{"model_name", "llama"}, {"engine", "0"}});
//   text.BeginFamily("kvsim_steps", "counter", "", "Steps that computed something.");
//   text.Sample("_total", {}, "12");
//   text.Finish()     // "# TYPE kvsim_steps counter\n..."
//
// The caller keeps the order that the format asks for: all samples of a family together, of one set
// of labels together, in the order of their times.

#ifndef KVBLOCKS_SIM_REPORT_OPEN_METRICS_H_
#define KVBLOCKS_SIM_REPORT_OPEN_METRICS_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvblocks::sim {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class OpenMetricsText {
 public:
  // Labels that every sample has, before its own.
  explicit OpenMetricsText(const MetricLabels& common);

  // `unit` is the end of the name, "seconds", or empty.
  void BeginFamily(std::string_view name, std::string_view type, std::string_view unit,
                   std::string_view help);
  // `suffix` of the family's name: "_total", "_bucket"; `timestamp` in seconds as text, empty:
  // none.
  void Sample(std::string_view suffix, const MetricLabels& labels, std::string_view value,
              std::string_view timestamp = "");
  // With the end mark. REQUIRES: called once.
  std::string Finish();

 private:
  void AppendLabels(const MetricLabels& labels);

  const MetricLabels common_;
  std::string name_;
  std::string out_;
};

// The texts of several sources as one: families in the order in which they are met first, each with
// the samples of all. REQUIRES: no two samples have the same labels.
std::string MergeOpenMetrics(const std::vector<std::string>& texts);

// A bucket's bound as Prometheus clients write it: "0.025", "1.0", "16384.0", "2e+06".
// REQUIRES: value > 0; at most 6 significant digits.
std::string BucketBound(double value);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_OPEN_METRICS_H_
