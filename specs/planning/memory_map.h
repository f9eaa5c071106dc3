// MapMemory: the allocations of each worker, and where in them every layer cache lies.
//
// Within a group no two layers overlap; layers of different groups may, since a block id belongs to
// one group at a time.

#ifndef KVBLOCKS_SPECS_PLANNING_MEMORY_MAP_H_
#define KVBLOCKS_SPECS_PLANNING_MEMORY_MAP_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/plan.h"
#include "specs/planning/grouping.h"
#include "specs/planning/pool_sizing.h"

namespace kvblocks {

// Fills in the tensors and descriptors of pool->workers.
void MapMemory(const Grouping& grouping, const ProjectedGroups& projected, PoolLayout layout,
               PoolSize* pool);

// RowsOf: the rows inside a page of a layer cache, for callers that address it directly.

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

#endif  // KVBLOCKS_SPECS_PLANNING_MEMORY_MAP_H_
