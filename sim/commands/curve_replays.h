// Replays of one workload with pools of several sizes, side by side.

#ifndef KVBLOCKS_SIM_COMMANDS_CURVE_REPLAYS_H_
#define KVBLOCKS_SIM_COMMANDS_CURVE_REPLAYS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/sim/commands/curve_run.h"

namespace kvblocks::sim {

// Replays each size, in usable blocks, as `kvsim replay --num-blocks` would. What ends one early is
// in its `problem`; other errors are returned.
absl::Status ReplaySizes(const ::kvblocks::config::v1::ReplayConfig& config,
                         const std::vector<int64_t>& sizes, int num_threads,
                         ProgressLine* progress, std::vector<::kvblocks::report::v1::CurveReplay>* out);

// The curve of a hybrid model: no single pass is exact where several groups, windows or states
// decide together what a hit is.
absl::Status RunCurveOfReplays(const ::kvblocks::config::v1::ReplayConfig& config,
                               const CurveOptions& options, const CurveSetup& setup,
                               ProgressLine* progress, ::kvblocks::report::v1::CurveReport* report);

// Runs the replay whose pool never evicts, and fills the report from it. `order` is the order-mode
// run of the same workload, which says how large that pool must be.
absl::Status RunScheduleCurve(const ::kvblocks::config::v1::ReplayConfig& config,
                              const CurveOptions& options, CurveSetup& setup, const OrderRun& order,
                              ProgressLine* progress, ::kvblocks::report::v1::CurveReport* report);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_CURVE_REPLAYS_H_
