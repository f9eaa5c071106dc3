#include "kvblocks/attention/ops/kv_group_key.h"

#include "absl/strings/str_cat.h"

namespace kvblocks::attention {

std::string DebugString(const KvGroupKey& key) {
  return absl::StrCat("{block_size=", key.block_size, ", window=", key.window,
                      ", compression_ratio=", key.compression_ratio, "}");
}

}  // namespace kvblocks::attention
