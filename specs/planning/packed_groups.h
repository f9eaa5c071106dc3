// Packed groups: how vLLM since 0.29 groups caches whose pages differ in a block-outermost pool
// (V-91).
//
// A block id costs the widest group, and each group lays its pages from the block's start. Caches
// that need the same blocks form a bucket. A bucket is balanced if each of its page sizes occurs
// equally often, say n times; it then has n tuples of one page of each size. Where a balanced
// bucket mixes page sizes, all balanced buckets are cut into groups of about N tuples, with one N
// for the model. Buckets of states, whose blocks do not grow with the request, are cut further,
// until their groups fit what the others take anyway.

#ifndef KVBLOCKS_SPECS_PLANNING_PACKED_GROUPS_H_
#define KVBLOCKS_SPECS_PLANNING_PACKED_GROUPS_H_

#include <span>
#include <vector>

#include "kvblocks/specs/layer_cache.h"

namespace kvblocks {

// Groups in the order of their buckets' first layers; layers of a group in registration order.
// Where all buckets are of states none is cut for another's sake. Cost: for n layers O(n^2)
// comparisons in the worst case, of as many buckets.
std::vector<std::vector<int>> PackGroups(std::span<const LayerCache> caches);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_PACKED_GROUPS_H_
