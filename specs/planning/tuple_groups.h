// Tuple groups: how vLLM 0.25 groups caches of MLA kinds with different pages (DeepSeek-V4).
//
// All MLA caches form one group. Sliding MLA caches are bucketed by (block size, window). A tuple
// of a bucket is one cache of each of its page sizes; each bucket is cut into groups of about N
// tuples, with one N for the model, so that the groups fill the stride of the pool about equally.

#ifndef KVBLOCKS_SPECS_PLANNING_TUPLE_GROUPS_H_
#define KVBLOCKS_SPECS_PLANNING_TUPLE_GROUPS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvblocks/specs/layer_cache.h"
#include "kvblocks/specs/planning/plan_error.h"

namespace kvblocks {

// Layers of each page size, in registration order; sizes in the order of their first layer.
std::vector<std::vector<int>> ColumnsByPage(std::span<const LayerCache> caches,
                                            std::span<const int> layers);

// Columns dealt into `num_groups` groups, layers in registration order. Some groups are empty if
// the longest column has fewer layers.
std::vector<std::vector<int>> DealTuples(std::span<const std::vector<int>> columns,
                                         int64_t num_groups);

// How many tuples are missing if every count is filled up to a multiple of `tuples_per_group`.
int64_t TuplePadding(std::span<const int64_t> counts, int64_t tuples_per_group);

// The number in [lowest, largest count] with the least padding, the larger one on a tie. REQUIRES:
// counts is not empty, 1 <= lowest <= the largest count.
int64_t ChooseTuplesPerGroup(std::span<const int64_t> counts, int64_t lowest);

// How often the most frequent page size occurs. 0 for no layers.
int64_t TupleCount(std::span<const LayerCache> caches, std::span<const int> layers);

struct TupleGroups {
  std::vector<int64_t> tuple_counts = {};  // per bucket, the MLA bucket first
  int64_t tuples_per_group = 0;
  std::vector<std::vector<int>> groups = {};  // layers in registration order
};

// Whether the procedure applies: sliding MLA caches are there, no kinds but MLA and sliding MLA,
// and pages differ.
bool CallsForTuples(std::span<const LayerCache> caches);

// Compressed attention with its windows, states and rings, and nothing else.
bool HasCompressedRows(std::span<const LayerCache> caches);

// REQUIRES: CallsForTuples(caches). Errors: E-6 if MLA caches have different block sizes, E-7 if
// the page sizes of a bucket do not occur equally often.
std::optional<TupleGroups> GroupByTuples(std::span<const LayerCache> caches,
                                         std::vector<PlanError>* errors);

// Bytes that one block id costs in the layout before the packed slab, which upstream's memory check
// still assumes: the sum of the distinct pages, where sliding pages grow to the next MLA page,
// times the largest tuple count of a group. `groups` may be projected on one worker.
int64_t TupleProductBytes(std::span<const LayerCache> caches,
                          std::span<const std::vector<int>> groups);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_TUPLE_GROUPS_H_
