// SplitInput: the options of prefill and decode replicas, as replay takes them.

#ifndef KVBLOCKS_SIM_COMMANDS_SPLIT_INPUT_H_
#define KVBLOCKS_SIM_COMMANDS_SPLIT_INPUT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/sim/commands/option_parser.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/split/split_fleet.h"

namespace kvblocks::sim {

// How many replicas of each kind, and how KV travels between them.
struct SplitPlan {
  int64_t num_prefill = 1;
  int64_t num_decode = 1;
  SplitOptions options;
};

class SplitInput {
 public:
  SplitInput() = default;
  SplitInput(const SplitInput&) = delete;
  SplitInput& operator=(const SplitInput&) = delete;

  // With the numbers of replicas, or without them for who sets these. Must outlive the parse.
  void AddOptions(OptionParser* options, bool with_replicas);

  // Whether replicas of the two kinds are asked for.
  bool is_split() const { return num_prefill_ > 0 && num_decode_ > 0; }
  // InvalidArgument names option, value and what is expected; also for models whose KV has no size per
  // token.
  absl::StatusOr<SplitPlan> Configure(const ReplaySetup& setup) const;

 private:
  enum Option {
    kPrefillRouter,
    kDecodeRouter,
    kFirstToken,
    kLinkBandwidth,
    kLinkLatency,
    kLinkSharing,
    kLinkScope,
    kTransfer,
    kLocalTokens,
    kNumOptions,
  };

  int64_t num_prefill_ = 0, num_decode_ = 0;
  std::array<std::optional<std::string>, kNumOptions> texts_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_SPLIT_INPUT_H_
