#include "kvblocks/specs/planning/row_layout.h"

#include "kvblocks/specs/kv_cache_kind.h"

namespace kvblocks {

RowLayout RowsOf(const KvCacheSpec& spec) {
  RowLayout layout = {.rows = spec.storage_block_size()};
  layout.row_bytes = spec.unpadded_page_bytes() / layout.rows;
  if (spec.registered_kind() != nullptr && spec.registered_kind()->page_bytes != nullptr) {
    return {.rows = 1, .row_bytes = spec.unpadded_page_bytes(), .dims = {"block", "page"}};
  }
  if (spec.kind() == KvCacheSpecKind::kMamba) {
    layout.dims = {"block", "state"};
  } else if (spec.has_one_vector_per_row()) {
    layout.dims = {"block", "token", "value"};
  } else if (spec.head_size() == spec.head_size_v()) {
    layout.dims = {"block", "kv", "token", "head", "value"};
  } else {
    layout.dims = {"block", "token", "head", "value"};
  }
  return layout;
}

}  // namespace kvblocks
