// Several replicas behind a router, as options ask for them: what of a configuration concerns the
// fleet, and not one of its engines.

#ifndef KVBLOCKS_SIM_COMMANDS_FLEET_INPUT_H_
#define KVBLOCKS_SIM_COMMANDS_FLEET_INPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/commands/replay_setup.h"
#include "sim/config.pb.h"
#include "sim/fleet/fleet.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

// Whether prefill and decode run on replicas of their own.
bool IsSplit(const ReplayConfig& config);

// Whether there is or may be more than one replica, or --replica says of what kind it is.
bool IsFleet(const ReplayConfig& config);

// Whether there is a plan or a rule by which replicas start and stop.
bool AsksForScaling(const ReplayConfig& config);

// InvalidArgument names option, value and what is expected.
absl::StatusOr<FleetOptions> MakeFleetOptions(const ReplayConfig& config);

// Of prefill and decode replicas; `setup` is that of each. Also InvalidArgument for models whose KV
// has no size per token.
absl::StatusOr<FleetOptions> MakeHandoverOptions(const ReplaySetup& setup);

// For commands of one replica: InvalidArgument if there are more, or a router.
absl::Status RefuseFleet(const ReplayConfig& config);

// Of --replica: "2:device=h200:tensor-parallel=2;num-blocks=4000" are two of the first kind and one
// of the second, with the options of the command for the rest.
struct ReplicaKind {
  int64_t count = 1;
  std::string options = {};  // that differ, as "device=h200 tensor-parallel=2"
  ReplayConfig given = {};   // the same
  ReplayConfig config = {};  // effective
};

// In the order of the replicas; one kind without --replica. InvalidArgument names the part and what
// is wrong with it: a bad count, an option that is none of an engine, a value out of range, or a
// sum that is not --replicas. REQUIRES: an effective configuration.
absl::StatusOr<std::vector<ReplicaKind>> ReplicaKinds(const ReplayConfig& config);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_FLEET_INPUT_H_
