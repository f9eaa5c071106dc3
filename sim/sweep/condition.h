// Condition: what a point of a sweep must hold, like "ttft-p99<=500", "hit-rate>=0.6" or "slo"; and
// why one misses it.
//
// A bound is a number in the metric's unit, or a multiple of what another replay has, the baseline:
// "ttft-mean<=baseline", "ttft-mean<=0.9*baseline". "slo" is every percentile of --slo.

#ifndef KVBLOCKS_SIM_SWEEP_CONDITION_H_
#define KVBLOCKS_SIM_SWEEP_CONDITION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/sweep/sweep.pb.h"
#include "sim/sweep/sweep_metrics.h"

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
absl::StatusOr<Condition> ParseCondition(std::string_view text, const Prices& prices);
absl::StatusOr<std::vector<Condition>> ParseConditions(const std::vector<std::string>& texts,
                                                       const Prices& prices);

// Whether the point holds it; empty if its report lacks the figure, or the baseline's does.
std::optional<bool> Holds(const Condition& condition,
                          const ::kvblocks::sweep::v1::PointResult& result,
                          const ::kvblocks::sweep::v1::PointResult& baseline);
// Which conditions the point misses, in words, and what was short where they are about latency.
std::string DescribeMiss(const std::vector<Condition>& conditions,
                         const ::kvblocks::sweep::v1::PointResult& result,
                         const ::kvblocks::sweep::v1::PointResult& baseline);

// A probe of a capacity search: a replay judged by the limits of --slo over all of its requests,
// and why it misses them.

// Whether --slo has percentiles, or --goodput limits to be about. InvalidArgument if the text is
// bad, or --goodput has no limits.
absl::StatusOr<bool> HasLimits(std::string_view slo, double goodput);

struct Probed {
  // Objectives, shares, whether they are met, or the problem of a replay.
  ::kvblocks::sweep::v1::CapacityReport::Probe probe;
  ::kvblocks::sweep::v1::PointResult worst;  // of the replicas, the one with most of its limits
  double arrivals_per_s = 0;                 // in the replay; 0: all at one time
};

// Requests that are rejected or aborted are within no limit. `goodput`: the share of requests that
// must meet all limits; 0: none.
Probed JudgeLimits(const ::kvblocks::sweep::v1::PointResult& result, double goodput);

// Of the limits that are missed, the most times that a limit was observed; 0: none is missed.
double WorstUse(const ::kvblocks::sweep::v1::CapacityReport::Probe& probe);

// Which limits are missed, in words.
std::string DescribeMissedLimits(const ::kvblocks::sweep::v1::CapacityReport::Probe& probe,
                                 double goodput);
// What kept requests from being served sooner: "The bottleneck is ...".
std::string DescribeBottleneck(const Probed& probed);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_CONDITION_H_
