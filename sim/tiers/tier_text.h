// Tiers as a user writes them:
//
//   host:64GiB:read=50GB/s:write=40GB/s:latency=10us,disk:1TiB:read=5GB/s:policy=arc
//
// Each tier is its name, what it holds, and settings; the fastest one is first. What it holds
// and its speeds are those of one device's share, unless they are the total.
//
//   SIZE           bytes (64GiB, 500GB), or chunks of any size (1000chunks)
//   read=SPEED     bytes per second (50GB/s), or free: no time at all. It must be there
//   write=SPEED    as read, if not given
//   latency=TIME   of each transfer, both ways; 0s
//   fifo           transfers wait for each other instead of sharing
//   chunk=BLOCKS   device blocks that are stored together; 1
//   policy=NAME    which chunk is evicted; lru
//   store=NAME     write-through, on-evict, on-second-use
//   layout=NAME    packed, largest-group, all-groups
//   total          bytes and speeds are of all devices of a replica together
//   exclusive      what was loaded leaves the tier
//   prompt-only    outputs are not stored
//   shared         one for all replicas, with one link each way; behind those of one replica

#ifndef KVBLOCKS_SIM_TIERS_TIER_TEXT_H_
#define KVBLOCKS_SIM_TIERS_TIER_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/offload.h"
#include "sim/cost/link.h"

namespace kvblocks::sim {

struct SimTier {
  offload::TierOptions options;
  // Empty: free.
  std::optional<LinkOptions> read;
  std::optional<LinkOptions> write;
  bool is_shared = false;
};

// Empty for an empty text. InvalidArgument quotes the tier and says what is expected. What is a
// total is divided by `num_devices`.
absl::StatusOr<std::vector<SimTier>> ParseTiers(std::string_view text, int64_t num_devices = 1);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TIERS_TIER_TEXT_H_
