// EqualisePages: every layer cache brought to the largest page present, so that any of them can
// live in any tensor of the pool.
//
// States and rings are padded, since their pages do not grow with the block. Any other page that
// divides the largest grows by a larger block. Otherwise it is padded if the backend reads pages
// through the block stride; backends of version 0.33 do so for all kinds but the MLA ones. A layer
// that allows neither is an error; slab and native layouts need no equal pages.

#ifndef KVBLOCKS_SPECS_PLANNING_PAGE_EQUALISING_H_
#define KVBLOCKS_SPECS_PLANNING_PAGE_EQUALISING_H_

#include <optional>
#include <span>
#include <vector>

#include "kvblocks/specs/engine_version.h"
#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/layer_cache.h"
#include "kvblocks/specs/planning/plan_error.h"

namespace kvblocks {

// Specs in the order of `caches`. On failure adds one E-7 per page size that does not fit.
std::optional<std::vector<KvCacheSpec>> EqualisePages(std::span<const LayerCache> caches,
                                                      EngineVersion version,
                                                      std::vector<PlanError>* errors);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_PAGE_EQUALISING_H_
