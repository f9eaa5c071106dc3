// From options to a clock: which step times a replay has, and why.

#ifndef KVBLOCKS_SIM_COMMANDS_STEP_TIME_SETUP_H_
#define KVBLOCKS_SIM_COMMANDS_STEP_TIME_SETUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/commands/model_plan.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/sim/cost/step_time_model.h"

namespace kvblocks::sim {

struct StepTimeSetup {
  std::unique_ptr<StepTimeModel> model;
  bool latency_is_meaningful = false;
  std::string note;  // why it is not what one would expect; may be empty
};

// REQUIRES: an effective configuration whose limits are chosen.
absl::StatusOr<StepTimeSetup> MakeStepTime(const ::kvblocks::config::v1::ReplayConfig& config,
                                           const ModelOnDevice& hardware);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_STEP_TIME_SETUP_H_
