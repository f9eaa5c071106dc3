// RowsOf: what a page of a layer cache looks like inside, for those who address it from outside.

#ifndef KVBLOCKS_SPECS_PLANNING_ROW_LAYOUT_H_
#define KVBLOCKS_SPECS_PLANNING_ROW_LAYOUT_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvblocks/specs/kv_cache_spec.h"

namespace kvblocks {

struct RowLayout {
  int64_t rows = 0;  // stored per page
  // Scales and footers included: rows * row_bytes is the page without padding.
  int64_t row_bytes = 0;
  std::vector<std::string_view> dims = {};  // in memory order
};

// As the usual backends lay it out, tokens before heads: {block, kv, token, head, value}, or
// {block, token, head, value} where K and V differ in size and lie in one row; {block, token,
// value} for latent rows; {block, state} for states; {block, page} for registered kinds with pages
// of their own.
RowLayout RowsOf(const KvCacheSpec& spec);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_ROW_LAYOUT_H_
