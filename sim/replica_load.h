// ReplicaLoad: what a router knows of a replica's work.

#ifndef KVBLOCKS_SIM_REPLICA_LOAD_H_
#define KVBLOCKS_SIM_REPLICA_LOAD_H_

#include <cstdint>

namespace kvblocks::sim {

struct ReplicaLoad {
  int64_t num_requests = 0;        // sent there and not over
  int64_t num_tokens = 0;          // prompt and output tokens of these so far
  int64_t num_waiting_tokens = 0;  // prompt tokens of those that were not admitted yet
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPLICA_LOAD_H_
