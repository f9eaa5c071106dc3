// KV-cache groups of a replay as a configuration file lists them, instead of those that are planned
// for a model's layers.

#ifndef KVBLOCKS_SIM_COMMANDS_KV_CACHE_GROUPS_H_
#define KVBLOCKS_SIM_COMMANDS_KV_CACHE_GROUPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/config.pb.h"
#include "kvblocks/specs/kv_cache_config.h"

namespace kvblocks::sim {

struct ReplayGroups {
  std::vector<KvCacheGroup> groups;
  int64_t block_bytes = 0;  // on one device: of the group with most bytes
};

// Messages name the group and the field.
absl::StatusOr<ReplayGroups> MakeKvCacheGroups(const ::kvblocks::config::v1::ReplayConfig& config);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_KV_CACHE_GROUPS_H_
