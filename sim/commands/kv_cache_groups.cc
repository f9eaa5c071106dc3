#include "kvblocks/sim/commands/kv_cache_groups.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kvblocks/checks/field_error.h"
#include "kvblocks/specs/config/kv_cache_config_proto.h"

namespace kvblocks::sim {

absl::StatusOr<ReplayGroups> MakeKvCacheGroups(const ::kvblocks::config::v1::KvCacheConfig& message,
                                               int64_t num_blocks) {
  if (message.groups().empty()) return FieldError("groups", "nothing", "at least one group");
  ReplayGroups result;
  ::kvblocks::config::v1::KvCacheConfig sized = message;
  result.sized = num_blocks > 0 || message.has_num_blocks() || message.has_native();
  if (num_blocks > 0 || !result.sized) {
    sized.set_num_blocks(num_blocks > 0 ? num_blocks : kMaxNumBlocks);
  }
  auto config = FromProto(sized);
  if (!config.ok()) return config.status();
  result.config = *std::move(config);
  for (size_t g = 0; g < result.config.groups.size(); ++g) {
    const KvCacheGroup& group = result.config.groups[g];
    const auto num_layers = static_cast<int64_t>(group.layer_names.size());
    const std::optional<NativeLayout>& native = result.config.native;
    const int64_t pages =
        native ? native->pages_per_chunk[static_cast<size_t>(native->class_of_group[g])] : 1;
    int64_t bytes;
    if (__builtin_mul_overflow(group.spec.page_bytes(), num_layers, &bytes) ||
        __builtin_mul_overflow(bytes, pages, &bytes)) {
      return FieldError("groups[" + std::to_string(g) + "]",
                        std::to_string(num_layers) + " layers of " +
                            std::to_string(group.spec.page_bytes()) + " bytes per block",
                        "bytes that fit 63 bits", "use a smaller block size");
    }
    int64_t& most = native ? result.chunk_bytes : result.block_bytes;
    most = std::max(most, bytes);
  }
  return result;
}

}  // namespace kvblocks::sim
