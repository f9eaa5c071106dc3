// Options of a manager as text and JSON.

#ifndef KVBLOCKS_KV_CACHE_MANAGER_CONFIG_H_
#define KVBLOCKS_KV_CACHE_MANAGER_CONFIG_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/config_source.h"
#include "kvblocks/kv_cache_config.h"
#include "kvblocks/kv_cache_manager.h"

// What a KvCacheManager is made from, as a file states it: the message KvCacheManagerConfig of
// specs/config/kv_cache_config.proto in protobuf text format or JSON.
//
//   cache { num_blocks: 1024 groups { ... } }
//   options { max_model_len: 8192 }
//
// Options that are left out have the defaults of KvCacheManagerOptions. What is checked here is
// that the file can be read; KvCacheManager::Create checks what the options mean together.

namespace kvblocks {

namespace config::v1 {
class KvCacheManagerConfig;
}

struct KvCacheManagerConfig {
  KvCacheConfig cache;
  KvCacheManagerOptions options;
};

// Refusals name the field (FieldOfError).
absl::StatusOr<KvCacheManagerConfig> FromProto(const config::v1::KvCacheManagerConfig& message);

// Refusals name the place, "SOURCE:LINE:COLUMN: error: ...".
absl::StatusOr<KvCacheManagerConfig> ReadKvCacheManagerConfig(
    std::string_view text, std::string_view source_name,
    ConfigSyntax syntax = ConfigSyntax::kDetect);

}  // namespace kvblocks

#endif  // KVBLOCKS_KV_CACHE_MANAGER_CONFIG_H_
