#include "kvblocks/specs/planning/row_layout.h"

#include <optional>
#include <type_traits>

namespace kvblocks {

int64_t UnpaddedPageBytes(const KvCacheSpec& spec) {
  return spec.Visit([&spec](const auto& s) {
    using Spec = std::remove_cvref_t<decltype(s)>;
    typename Spec::Options options = s.options();
    options.page_size_padded = std::nullopt;
    if constexpr (requires { options.alignment; }) options.alignment = std::nullopt;
    const absl::StatusOr<Spec> plain = Spec::Create(options);
    return plain.ok() ? plain->page_bytes() : spec.page_bytes();
  });
}

RowLayout RowsOf(const KvCacheSpec& spec) {
  RowLayout layout = {.rows = spec.storage_block_size()};
  layout.row_bytes = UnpaddedPageBytes(spec) / layout.rows;
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
