// KvCacheConfig from and to its protobuf message.
//
// FromProto(ToProto(config)) == config for every valid config whose groups have layers. A refusal
// names the field as a path into the message, groups[1].spec.sliding_window.block_size for one, in
// its text and through FieldOfError.

#ifndef KVBLOCKS_SPECS_CONFIG_KV_CACHE_CONFIG_PROTO_H_
#define KVBLOCKS_SPECS_CONFIG_KV_CACHE_CONFIG_PROTO_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/config_source.h"
#include "kvblocks/kv_cache_config.h"
#include "specs/config/kv_cache_config.pb.h"

namespace kvblocks {

absl::StatusOr<KvCacheConfig> FromProto(const config::v1::KvCacheConfig& message);

config::v1::KvCacheConfig ToProto(const KvCacheConfig& config);

// KvCacheConfig from protobuf text format or JSON (the message is in kv_cache_config.proto, with an
// example). A refusal names the place, "FILE:LINE:COLUMN: error: ..." (see config_source.h).

// `source_name` is used in messages only.
absl::StatusOr<KvCacheConfig> KvCacheConfigFromText(std::string_view text,
                                                    std::string_view source_name);
absl::StatusOr<KvCacheConfig> KvCacheConfigFromJson(std::string_view json,
                                                    std::string_view source_name);

// A file in either form; limits and errors as ReadConfigFile has them.
absl::StatusOr<KvCacheConfig> LoadKvCacheConfig(const std::string& path);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CONFIG_KV_CACHE_CONFIG_PROTO_H_
