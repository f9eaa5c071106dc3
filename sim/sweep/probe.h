// A probe of a capacity search: replays judged by the limits of --slo over all of their requests,
// and why they miss them.

#ifndef KVBLOCKS_SIM_SWEEP_PROBE_H_
#define KVBLOCKS_SIM_SWEEP_PROBE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/sim/sweep/sweep.pb.h"

namespace kvblocks::sim {

// Whether --slo has percentiles, or --goodput limits to be about. InvalidArgument if the text is
// bad, or --goodput has no limits.
absl::StatusOr<bool> HasLimits(std::string_view slo, double goodput);

struct Probed {
  // Objectives, shares, whether they are met, or the problem of a replay.
  ::kvblocks::sweep::v1::CapacityReport::Probe probe;
  ::kvblocks::sweep::v1::PointResult worst;  // of the replicas, the one with most of its limits
  double arrivals_per_s = 0;                 // in the replay; 0: all at one time
};

// `results` are those of independent replicas, or one of a replica or of several behind a router.
// Requests that are rejected or aborted are within no limit. `goodput`: the share of requests that
// must meet all limits; 0: none.
Probed JudgeLimits(absl::Span<const ::kvblocks::sweep::v1::PointResult> results, double goodput);

// Of the limits that are missed, the most times that a limit was observed; 0: none is missed.
double WorstUse(const ::kvblocks::sweep::v1::CapacityReport::Probe& probe);

// Which limits are missed, in words.
std::string DescribeMissedLimits(const ::kvblocks::sweep::v1::CapacityReport::Probe& probe,
                                 double goodput);
// What kept requests from being served sooner: "The bottleneck is ...".
std::string DescribeBottleneck(const Probed& probed);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_PROBE_H_
