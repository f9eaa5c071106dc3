// MakeSmallPlan: the memory of a verified run, planned for small layers.
//
// A verified run does steps with layers of one small head, but on the block tables of the model's
// manager. So its memory is laid out by the planner's own rule (MapMemory) for the same groups,
// block ids and layout, with the bytes of the small layers: what PlannedMemory makes of it, and
// what is attended through, is what a model runner would have.

#ifndef KVBLOCKS_SIM_VERIFY_SMALL_PLAN_H_
#define KVBLOCKS_SIM_VERIFY_SMALL_PLAN_H_

#include <cstdint>
#include <vector>

#include "kvblocks/kv_cache_config.h"
#include "kvblocks/plan.h"

namespace kvblocks::sim {

// A layer's stored rows, float32.
struct SmallGroup {
  int64_t num_layers = 0;  // 0: it stores nothing
  int64_t rows = 0;        // per block
  int64_t key_floats = 0, value_floats = 0;  // per row; no values: one vector
};

// One worker, layers of all groups in order. `num_blocks` ids, of which the config's are the first;
// in the native layout there are no others. REQUIRES: a valid config, one SmallGroup for each of
// its groups, at least one layer, and for kNative a config with chunks.
Plan MakeSmallPlan(const KvCacheConfig& config, int64_t num_blocks, PoolLayout layout,
                   const std::vector<SmallGroup>& groups);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_VERIFY_SMALL_PLAN_H_
