// FitHiddenState: a hidden-state cache beside groups whose pages are all equal.
//
// Nothing attends to it, so its block may be of any size. Upstream makes it as large as the common
// page allows, but a divisor of every other block, and pads the page.

#ifndef KVBLOCKS_SPECS_PLANNING_HIDDEN_STATES_H_
#define KVBLOCKS_SPECS_PLANNING_HIDDEN_STATES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/layer_cache.h"
#include "kvblocks/specs/planning/plan_error.h"

namespace kvblocks {

// `block_unit` is the greatest common divisor of the other groups' block sizes. Error: E-7 if not
// even one token fits the page. Cost: O(sqrt(block_unit)).
std::optional<KvCacheSpec> FitHiddenState(const LayerCache& cache, int64_t block_unit,
                                          int64_t page_bytes, std::vector<PlanError>* errors);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_HIDDEN_STATES_H_
