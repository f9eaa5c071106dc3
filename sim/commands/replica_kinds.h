// Replicas of several kinds, as --replica lists them:
// "2:device=h200:tensor-parallel=2;num-blocks=4000" are two of the first kind and one of the
// second, with the options of the command for the rest.

#ifndef KVBLOCKS_SIM_COMMANDS_REPLICA_KINDS_H_
#define KVBLOCKS_SIM_COMMANDS_REPLICA_KINDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/config.pb.h"

namespace kvblocks::sim {

struct ReplicaKind {
  int64_t count = 1;
  std::string options = {};  // that differ, as "device=h200 tensor-parallel=2"
  ::kvblocks::config::v1::ReplayConfig given = {};   // the same
  ::kvblocks::config::v1::ReplayConfig config = {};  // effective
};

// In the order of the replicas; one kind without --replica. InvalidArgument names the part and what
// is wrong with it: a bad count, an option that is none of an engine, a value out of range, or a
// sum that is not --replicas. REQUIRES: an effective configuration.
absl::StatusOr<std::vector<ReplicaKind>> ReplicaKinds(
    const ::kvblocks::config::v1::ReplayConfig& config);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_REPLICA_KINDS_H_
