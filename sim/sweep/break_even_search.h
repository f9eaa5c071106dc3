// The bandwidth of a tier below which it makes a latency worse than having no tier at all (SM-106).
//
// One tier's read speed is varied, and its write speed with it unless the text gives one of its own;
// everything else stays. A speed is worse if the metric there is worse than without any tier.
//
// The search takes this as monotone: from a speed that is worse and one that is not it closes in on
// the place between, to a tolerance. A probe that contradicts is told in the report. Same input, same
// probes, whatever the number of threads.

#ifndef KVBLOCKS_SIM_SWEEP_BREAK_EVEN_SEARCH_H_
#define KVBLOCKS_SIM_SWEEP_BREAK_EVEN_SEARCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/sim/sweep/point_runner.h"
#include "kvblocks/sim/sweep/sweep.pb.h"

namespace kvblocks::sim {

struct BreakEvenOptions {
  ::kvblocks::config::v1::ReplayConfig asked;  // what is set, the tiers among it
  std::string tier;                            // whose speed; empty: the only one
  std::string metric = "ttft-mean";            // of SweepMetricNames()
  double tolerance = 0.05;                     // share of the speed that is found
};

// InvalidArgument names the option. FailedPrecondition if a replay has a problem.
absl::StatusOr<::kvblocks::sweep::v1::BreakEvenReport> FindBreakEven(
    const BreakEvenOptions& options, PointRunner* runner, ContentHashes* hashes);

// A screen for people, and one row per probe.
std::string FormatBreakEven(const ::kvblocks::sweep::v1::BreakEvenReport& report, bool color);
std::string BreakEvenCsv(const ::kvblocks::sweep::v1::BreakEvenReport& report);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_BREAK_EVEN_SEARCH_H_
