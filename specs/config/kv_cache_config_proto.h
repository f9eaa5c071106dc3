// KvCacheConfig from and to its protobuf message.
//
// FromProto(ToProto(config)) == config for every valid config whose groups have layers. A refusal
// names the field as a path into the message, groups[1].spec.sliding_window.block_size for one, in
// its text and through FieldOfError.

#ifndef KVBLOCKS_SPECS_CONFIG_KV_CACHE_CONFIG_PROTO_H_
#define KVBLOCKS_SPECS_CONFIG_KV_CACHE_CONFIG_PROTO_H_

#include "absl/status/statusor.h"
#include "kvblocks/specs/config/kv_cache_config.pb.h"
#include "kvblocks/specs/kv_cache_config.h"

namespace kvblocks {

absl::StatusOr<KvCacheConfig> FromProto(const config::v1::KvCacheConfig& message);

config::v1::KvCacheConfig ToProto(const KvCacheConfig& config);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CONFIG_KV_CACHE_CONFIG_PROTO_H_
