// Recorded steps: the n-th step takes what the n-th entry of a file says.
//
// The file is plain or gzip, and either one duration per line ("12.5ms"; blank lines and those that
// begin with # do not count) or rows as `kvsim replay --steps` writes them: columns start_ms and
// end_ms, of which a step's own time on the device follows. Asked for more steps than there are, it
// says so with an error: no time is invented.
//
// The clock counts its calls, so it serves one run; work plays no part.

#ifndef KVBLOCKS_SIM_COST_RECORDED_STEPS_H_
#define KVBLOCKS_SIM_COST_RECORDED_STEPS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sim/cost/step_time_model.h"

namespace kvblocks::sim {

// `source` names the text in messages.
absl::StatusOr<std::unique_ptr<StepTimeModel>> ParseRecordedSteps(const std::string& text,
                                                                  const std::string& source);
absl::StatusOr<std::unique_ptr<StepTimeModel>> LoadRecordedSteps(const std::string& path);

// A whole file, decompressed if it is gzip. NotFound, DataLoss, or ResourceExhausted above 256 MiB.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_RECORDED_STEPS_H_
