// KV-cache groups of a replay as a configuration file lists them, instead of those that are planned
// for a model's layers.

#ifndef KVBLOCKS_SIM_COMMANDS_KV_CACHE_GROUPS_H_
#define KVBLOCKS_SIM_COMMANDS_KV_CACHE_GROUPS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kvblocks/specs/config/kv_cache_config.pb.h"
#include "kvblocks/specs/kv_cache_config.h"

namespace kvblocks::sim {

struct ReplayGroups {
  KvCacheConfig config;
  bool sized = true;        // false: num_blocks is the most there may be, and was not asked for
  int64_t block_bytes = 0;  // on one device: of the group with most bytes; 0 in the native layout
  int64_t chunk_bytes = 0;  // likewise, in the native layout only
};

// `num_blocks` replaces that of the message unless it is 0. Refusals name the field (FieldOfError).
absl::StatusOr<ReplayGroups> MakeKvCacheGroups(const ::kvblocks::config::v1::KvCacheConfig& message,
                                               int64_t num_blocks);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_KV_CACHE_GROUPS_H_
