// Coordinate descent over options: one after the other is set to its best value while the others
// stay, until a whole round changes none.
//
// What comes out is a local optimum of the lattice that the axes span: no single step to a
// neighbouring value of one option is better, and such steps were all tried. Options of many numbers
// are searched by sections, which take the objective as having one peak along them.
// Same input, same points, whatever the number of threads.

#ifndef KVBLOCKS_SIM_SWEEP_TUNE_SEARCH_H_
#define KVBLOCKS_SIM_SWEEP_TUNE_SEARCH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/sim/sweep/point_runner.h"
#include "kvblocks/sim/sweep/sweep.pb.h"
#include "kvblocks/sim/sweep/sweep_metrics.h"

namespace kvblocks::sim {

struct TuneOptions {
  ::kvblocks::config::v1::ReplayConfig asked;
  std::vector<::kvblocks::sweep::v1::Axis> axes;  // one or more
  SweepMetric objective;
};

struct TuneResult {
  std::vector<::kvblocks::sweep::v1::PointResult> evaluated;  // in the order of their evaluation
  size_t best = 0;
  bool is_feasible = false;  // the best one meets the percentiles of --slo
  std::vector<std::string> steps;
};

// A point that misses a percentile of --slo is worse than any that meets all; among those that miss,
// the nearest to its limits is best. FailedPrecondition if no point has the objective's value.
absl::StatusOr<TuneResult> Tune(const TuneOptions& options, PointRunner* runner,
                                ContentHashes* hashes, ProgressLine* progress);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_TUNE_SEARCH_H_
