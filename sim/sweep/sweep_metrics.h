// Metrics of points: figures of a report by short names, which of two values is better, and the
// Pareto front over several of them.

#ifndef KVBLOCKS_SIM_SWEEP_SWEEP_METRICS_H_
#define KVBLOCKS_SIM_SWEEP_SWEEP_METRICS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/config.pb.h"
#include "sim/sweep/sweep.pb.h"

namespace kvblocks::sim {

// In the user's money, for an hour.
struct Prices {
  std::map<std::string, double> devices = {};  // of one device, by its name in the catalogue
  std::map<std::string, double> tiers = {};    // of a GiB, by the tier's name
};

// What a run costs for an hour.
struct HourlyCost {
  double replicas = 0;  // devices, and tiers of their own
  double shared = 0;    // tiers that they share

  double total() const { return replicas + shared; }
};
// InvalidArgument names the device or tier that has no price. A tier has none, too, if it counts
// chunks instead of bytes. Without prices of tiers these cost nothing.
absl::StatusOr<HourlyCost> CostOf(const ::kvblocks::report::v1::Report& report,
                                  const Prices& prices);
// Per million output tokens; none without tokens.
std::optional<double> CostPer1mTokens(const ::kvblocks::report::v1::Report& report,
                                      double cost_per_hour);

// In the order of the text, with a price for each or 0 for all.
using PricedDevices = std::vector<std::pair<std::string, double>>;
// "h100:2.5,h200:3.5" or "h100,h200".
absl::StatusOr<PricedDevices> ParseDevices(std::string_view text,
                                           const ::kvblocks::config::v1::ReplayConfig& config);

// "h100:2.5,h200:3.5" of devices, by names of the catalogue, and "host:0.004,disk:0.08/month" of
// tiers; a month has 730 hours. InvalidArgument for prices of tiers alone.
absl::StatusOr<Prices> ParsePrices(std::string_view devices, std::string_view tiers,
                                   const ::kvblocks::config::v1::ReplayConfig& config);
absl::StatusOr<std::map<std::string, double>> ParseTierPrices(std::string_view text);

struct SweepMetric {
  std::string name;
  bool larger_is_better = true;
  int decimals = 2;         // of tables
  bool is_percent = false;  // tables show a share times 100
  // Empty where the report has no such figure.
  std::function<std::optional<double>(const ::kvblocks::report::v1::Report&)> value;
};

// A name of SweepMetricNames(), or any number of a report by its fields, with what is better:
// "min:pool.usage.mean", "max:throughput.budget_use". The prices are copied.
absl::StatusOr<SweepMetric> FindSweepMetric(std::string_view name, const Prices& prices);
// The same for several, with commas between them.
absl::StatusOr<std::vector<SweepMetric>> FindSweepMetrics(std::string_view names,
                                                          const Prices& prices);
// For helps and messages, in the order of documentation.
std::vector<std::string> SweepMetricNames();

// The value; empty without a report.
std::optional<double> ValueOf(const SweepMetric& metric,
                              const ::kvblocks::sweep::v1::PointResult& result);

// A value as tables show it.
std::string MetricText(const SweepMetric& metric, double value);

// Which points no other point beats: none is at least as good in every metric and better in one.
// Points that lack a value, or that `is_candidate` leaves out, are never on it. O(n^2) at worst.
std::vector<bool> ParetoFront(const std::vector<::kvblocks::sweep::v1::PointResult>& results,
                              const std::vector<SweepMetric>& metrics,
                              const std::vector<bool>& is_candidate);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_SWEEP_METRICS_H_
