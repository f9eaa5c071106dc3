// Slab groups of the exact policy: layers of any pages in groups that fill one stride.
//
// A block id costs the bytes of the largest group, so a good cut makes groups about equally large.
// Buckets whose layers already share a table are cut into as few groups as stay below a stride, and
// the stride is chosen by what a request of typical length then costs.

#ifndef KVBLOCKS_SPECS_PLANNING_SLAB_GROUPS_H_
#define KVBLOCKS_SPECS_PLANNING_SLAB_GROUPS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvblocks {

// Layers that may share a table, with the page of each.
struct SlabBucket {
  std::vector<int> layers = {};
  std::vector<int64_t> page_bytes = {};
  int64_t blocks = 0;  // of a request of typical length, in one group
};

// Per bucket its groups, layers in their order in the bucket. Minimises
//   stride * sum of groups * blocks + table_cost_bytes * groups,
// fewer groups on a tie. Cost: for n layers, O(n^2) additions.
std::vector<std::vector<std::vector<int>>> CheapestSlabGroups(std::span<const SlabBucket> buckets,
                                                              int64_t table_cost_bytes);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_SLAB_GROUPS_H_
