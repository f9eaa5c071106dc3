// PointRunner: replays points on several threads over shared traces, and never one that is finished.
//
// Always: a point's result is what `kvsim replay` reports with the same options, whatever the number
// of threads. A point without figures (options that contradict each other, a pool that admits nobody,
// a trace that cannot be read that way) says why and stops no other.

#ifndef KVBLOCKS_SIM_SWEEP_POINT_RUNNER_H_
#define KVBLOCKS_SIM_SWEEP_POINT_RUNNER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/sweep/decoded_trace.h"
#include "kvblocks/sim/sweep/result_log.h"
#include "kvblocks/sim/sweep/sweep.pb.h"
#include "kvblocks/sim/sweep/sweep_points.h"

namespace kvblocks::sim {

// One replay. Any number of threads may run points of the same traces.
::kvblocks::sweep::v1::PointResult RunPoint(const PlannedPoint& point, DecodedTraces* traces);

class PointRunner {
 public:
  // Nothing is owned. `num_threads` 0: as many as the machine has.
  PointRunner(DecodedTraces* traces, ResultLog* log, int num_threads, ProgressLine* progress);

  // The results of the points, in their order, of those that the log has from there. Longest first.
  // An error is that of writing results.
  absl::StatusOr<std::vector<::kvblocks::sweep::v1::PointResult>> Run(
      const std::vector<PlannedPoint>& points);

  int num_threads() const { return num_threads_; }
  int64_t num_run() const { return num_run_; }        // points replayed so far
  int64_t num_reused() const { return num_reused_; }  // that the log had, or that came twice

 private:
  DecodedTraces* traces_;
  ResultLog* log_;
  int num_threads_;
  ProgressLine* progress_;
  int64_t num_run_ = 0;
  int64_t num_reused_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_POINT_RUNNER_H_
