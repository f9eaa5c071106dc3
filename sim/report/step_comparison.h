// CompareSteps: where two schedules part.
//
// Reads both files row by row and side by side. The schedules part at the first row whose digests
// differ, or at which one file has ended; everything before was scheduled alike, to the block. Rows
// may differ before that in other columns: in times, if the time models differ, and in what waits.
// Columns that only one file has are left out. Memory: one row of each file.

#ifndef KVBLOCKS_SIM_REPORT_STEP_COMPARISON_H_
#define KVBLOCKS_SIM_REPORT_STEP_COMPARISON_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "kvblocks/sim/report/comparison.pb.h"
#include "kvblocks/sim/report/step_reader.h"

namespace kvblocks::sim {

// Reads on from where the readers are: at their first rows. `progress` is told of every 256th step.
absl::StatusOr<::kvblocks::report::v1::ScheduleComparison> CompareSteps(
    StepReader& a, StepReader& b,
    const std::function<void(int64_t equal_steps)>& progress = nullptr);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_STEP_COMPARISON_H_
