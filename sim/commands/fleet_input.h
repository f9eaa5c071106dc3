// FleetInput: the options of several replicas behind a router, as replay and explain take them.

#ifndef KVBLOCKS_SIM_COMMANDS_FLEET_INPUT_H_
#define KVBLOCKS_SIM_COMMANDS_FLEET_INPUT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/commands/option_parser.h"
#include "kvblocks/sim/commands/scale_input.h"
#include "kvblocks/sim/fleet/fleet.h"

namespace kvblocks::sim {

class FleetInput {
 public:
  FleetInput() = default;
  FleetInput(const FleetInput&) = delete;
  FleetInput& operator=(const FleetInput&) = delete;

  // Must outlive the parse.
  void AddOptions(OptionParser* options);

  int64_t num_replicas() const { return num_replicas_; }
  bool is_fleet() const { return num_replicas_ > 1 || scale_.is_used(); }
  // InvalidArgument names option, value and what is expected; also if a router's option is given to
  // one replica, or to a router that does not look at it.
  absl::StatusOr<FleetOptions> Configure() const;

 private:
  enum Option {
    kRouter,
    kSeed,
    kHitWeight,
    kLoadWeight,
    kQueueWeight,
    kTemperature,
    kSessionFactor,
    kTreeBlocks,
    kRouterDelay,
    kEventDelay,
    kEventLoss,
    kNumOptions,
  };

  int64_t num_replicas_ = 1;
  std::array<std::optional<std::string>, kNumOptions> texts_;
  ScaleInput scale_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_FLEET_INPUT_H_
