// ScheduleReplayer: runs the requests of a recorded schedule through the simulator - the scheduler
// and the engine loop of `kvsim replay`, with steps of fixed length - and compares every call of
// the scheduler and everything that came out of it with the recording.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_REPLAYER_H_
#define KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_REPLAYER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/conformance/schedule.h"

namespace kvblocks::conformance {

struct ScheduleReplayOptions {
  bool exact_steps = false;  // look at every request in every step; the result is the same
};

struct ScheduleReplayResult {
  int64_t num_steps = 0;
  int64_t differing_line = 0;  // 1-based; 0: every line agreed
  std::string difference;      // both sides
};

// Replays a whole file, gzip or plain. An error status means that it could not be read or makes no
// sense, and names the line.
absl::StatusOr<ScheduleReplayResult> ReplayScheduleFile(const std::string& path,
                                                        const ScheduleReplayOptions& options);
// The same for lines in memory; `name` stands for the file in messages.
absl::StatusOr<ScheduleReplayResult> ReplayScheduleLines(const std::string& name,
                                                         const std::vector<std::string>& lines,
                                                         const ScheduleReplayOptions& options);

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_SCHEDULE_REPLAYER_H_
