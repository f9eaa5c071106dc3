// Condition: what a point of a sweep must hold, like "ttft-p99<=500", "hit-rate>=0.6" or "slo"; and
// why one misses it.
//
// A bound is a number in the metric's unit, or a multiple of what another replay has, the baseline:
// "ttft-mean<=baseline", "ttft-mean<=0.9*baseline". "slo" is every percentile of --slo.

#ifndef KVBLOCKS_SIM_SWEEP_CONDITION_H_
#define KVBLOCKS_SIM_SWEEP_CONDITION_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/sweep/sweep.pb.h"
#include "kvblocks/sim/sweep/sweep_metrics.h"

namespace kvblocks::sim {

struct Condition {
  std::string text;
  std::optional<SweepMetric> metric;  // none: the limits of --slo
  bool is_upper_bound = true;
  double bound = 0;  // or a factor, of a baseline
  bool is_of_baseline = false;
  double goodput = 0;  // of limits: the share of requests that must meet all of them
};

// InvalidArgument says what is expected.
absl::StatusOr<Condition> ParseCondition(std::string_view text, const DevicePrices& prices);
absl::StatusOr<std::vector<Condition>> ParseConditions(const std::vector<std::string>& texts,
                                                       const DevicePrices& prices);

// Whether the point holds it; empty if its report lacks the figure, or the baseline's does.
std::optional<bool> Holds(const Condition& condition,
                          const ::kvblocks::sweep::v1::PointResult& result,
                          const ::kvblocks::sweep::v1::PointResult& baseline);
// Which conditions the point misses, in words, and what was short where they are about latency.
std::string DescribeMiss(const std::vector<Condition>& conditions,
                         const ::kvblocks::sweep::v1::PointResult& result,
                         const ::kvblocks::sweep::v1::PointResult& baseline);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_CONDITION_H_
