// A replay with prefill and decode on replicas of their own: what replay does if it is asked for them.

#ifndef KVBLOCKS_SIM_COMMANDS_SPLIT_REPLAY_H_
#define KVBLOCKS_SIM_COMMANDS_SPLIT_REPLAY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/sim/commands/replay_exports.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/commands/split_input.h"
#include "kvblocks/sim/report/request_rows.h"
#include "kvblocks/sim/split/split.pb.h"

namespace kvblocks::sim {

// InvalidArgument for options of the report of one replica, which this one has no section for.
absl::Status CheckSplitReport(const ::kvblocks::config::v1::ReplayConfig& asked);

// The configuration as such replicas have it: engines that send or fetch KV have no hashes that look
// ahead, so the last hit block is dropped for drafters that read hidden states (V-10).
::kvblocks::config::v1::ReplayConfig OfSplitReplica(::kvblocks::config::v1::ReplayConfig config);

// What listens to a run; nothing is owned.
struct SplitOutputs {
  bool quiet = false;                // no progress line
  CsvRequestSink* rows = nullptr;    // with SplitMetrics::RowColumns()
  ReplayExports* exports = nullptr;  // open, with SplitReplicaNames()
};

// "prefill 0", ..., "decode 0", ...
std::vector<std::string> SplitReplicaNames(const SplitPlan& plan);

// Replays the trace of `config` through replicas that are all as `setup` says. Fails as a replay of one
// does.
absl::Status ReplaySplit(const ::kvblocks::config::v1::ReplayConfig& config, const ReplaySetup& setup,
                         const SplitPlan& plan, const SplitOutputs& outputs,
                         ::kvblocks::split::v1::SplitReport* report);
// The same of a trace that is open.
absl::Status ReplaySplit(TraceReader* reader, const ReplaySetup& setup, const SplitPlan& plan,
                         const SplitOutputs& outputs, ::kvblocks::split::v1::SplitReport* report);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_SPLIT_REPLAY_H_
