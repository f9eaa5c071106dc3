#include "kvblocks/specs/planning/row_layout.h"

#include "kvblocks/specs/kv_cache_kind.h"

namespace kvblocks {

RowLayout RowsOf(const KvCacheSpec& spec) {
  RowLayout layout = {.rows = spec.storage_block_size()};
  layout.row_bytes = spec.unpadded_page_bytes() / layout.rows;
  if (spec.registered_kind() != nullptr && spec.registered_kind()->page_bytes != nullptr) {
    return {.rows = 1, .row_bytes = spec.unpadded_page_bytes(), .dims = {"block", "page"}};
  }
  switch (spec.kind()) {
    case KvCacheSpecKind::kMamba:
      layout.dims = {"block", "state"};
      break;
    case KvCacheSpecKind::kMlaAttention:
    case KvCacheSpecKind::kSlidingWindowMla:
      layout.dims = {"block", "token", "value"};
      break;
    default:
      if (spec.head_size() == spec.head_size_v()) {
        layout.dims = {"block", "kv", "token", "head", "value"};
      } else {
        layout.dims = {"block", "token", "head", "value"};
      }
  }
  return layout;
}

}  // namespace kvblocks
