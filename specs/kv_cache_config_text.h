// KvCacheConfig from a file in protobuf text format (the message is in kv_cache_config.proto, with
// an example).
//
// A refusal points at the place: "FILE:LINE:COL: error: FIELD: got VALUE, expected WHAT (HINT)".
// Lines and columns count from 1, columns in bytes; a field that is missing is reported where its
// enclosing message begins. Only the first error is told.

#ifndef KVBLOCKS_SPECS_KV_CACHE_CONFIG_TEXT_H_
#define KVBLOCKS_SPECS_KV_CACHE_CONFIG_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/specs/kv_cache_config.h"

namespace kvblocks {

inline constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// `file_name` is used in messages only.
absl::StatusOr<KvCacheConfig> ParseKvCacheConfig(std::string_view text, std::string_view file_name);

// Refuses a path that cannot be read (NotFound, PermissionDenied or what else the system says), a
// directory, and a file of more than kMaxConfigBytes, of which no more than that is read.
absl::StatusOr<KvCacheConfig> LoadKvCacheConfig(const std::string& path);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_KV_CACHE_CONFIG_TEXT_H_
