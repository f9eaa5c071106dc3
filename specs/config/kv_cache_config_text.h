// KvCacheConfig from protobuf text format or JSON (the message is in kv_cache_config.proto, with an
// example). A refusal names the place, "FILE:LINE:COLUMN: error: ..." (see config_source.h).

#ifndef KVBLOCKS_SPECS_CONFIG_KV_CACHE_CONFIG_TEXT_H_
#define KVBLOCKS_SPECS_CONFIG_KV_CACHE_CONFIG_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/specs/config/config_source.h"
#include "kvblocks/specs/kv_cache_config.h"

namespace kvblocks {

// `source_name` is used in messages only.
absl::StatusOr<KvCacheConfig> KvCacheConfigFromText(std::string_view text,
                                                    std::string_view source_name);
absl::StatusOr<KvCacheConfig> KvCacheConfigFromJson(std::string_view json,
                                                    std::string_view source_name);

// A file in either form; limits and errors as ReadConfigFile has them.
absl::StatusOr<KvCacheConfig> LoadKvCacheConfig(const std::string& path);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CONFIG_KV_CACHE_CONFIG_TEXT_H_
