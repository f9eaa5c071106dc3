// ScaleInput: the options of replicas that start, stop and crash, as replay and explain take them.

#ifndef KVBLOCKS_SIM_COMMANDS_SCALE_INPUT_H_
#define KVBLOCKS_SIM_COMMANDS_SCALE_INPUT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/commands/option_parser.h"
#include "kvblocks/sim/fleet/scaling.h"

namespace kvblocks::sim {

class ScaleInput {
 public:
  // Must outlive the parse.
  void AddOptions(OptionParser* options, const char* group);

  bool is_used() const { return texts_[kScale].has_value() || texts_[kRule].has_value(); }
  // InvalidArgument names option, value and what is expected; also for an option that means nothing
  // without another. `num_replicas`: at the beginning.
  absl::StatusOr<ScalingOptions> Configure(int64_t num_replicas) const;

 private:
  enum Option {
    kScale,
    kRule,
    kLeast,
    kMost,
    kInterval,
    kCoolDown,
    kStartTime,
    kLost,
    kNumOptions,
  };

  std::array<std::optional<std::string>, kNumOptions> texts_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_SCALE_INPUT_H_
