// MapMemory: the allocations of each worker, and where in them every layer cache lies.
//
// Within a group no two layers overlap; layers of different groups may, since a block id belongs to
// one group at a time.

#ifndef KVBLOCKS_SPECS_PLANNING_MEMORY_MAP_H_
#define KVBLOCKS_SPECS_PLANNING_MEMORY_MAP_H_

#include "kvblocks/specs/planning/grouping.h"
#include "kvblocks/specs/planning/plan_options.h"
#include "kvblocks/specs/planning/pool_sizing.h"

namespace kvblocks {

// Fills in the tensors and descriptors of pool->workers.
void MapMemory(const Grouping& grouping, const ProjectedGroups& projected, PoolLayout layout,
               PoolSize* pool);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_MEMORY_MAP_H_
