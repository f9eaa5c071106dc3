// What a report says beside its figures: configuration, names, and the notes without which a reader
// would take a figure for something else.

#ifndef KVBLOCKS_SIM_COMMANDS_REPLAY_NOTES_H_
#define KVBLOCKS_SIM_COMMANDS_REPLAY_NOTES_H_

#include "absl/status/status.h"
#include "sim/commands/replay_setup.h"
#include "sim/config.pb.h"
#include "sim/report/report.pb.h"
#include "sim/simulation.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

// REQUIRES: the measured sections are filled.
void DescribeReplay(const ReplayConfig& config, const ReplaySetup& setup, const TraceReader& reader,
                    ::kvblocks::report::v1::Report* report);

// Of a replica, or of all of a fleet. REQUIRES: as DescribeReplay.
void NoteStepsOutside(::kvblocks::report::v1::Report* report);

// FailedPrecondition if every request was rejected, with the smallest pool that takes them.
absl::Status CheckSomethingRan(const SimulationResult& result, const ReplayConfig& config,
                               const ReplaySetup& setup);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_REPLAY_NOTES_H_
