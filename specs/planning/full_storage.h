// StoreInFull: specs of local layers turned into specs that keep every token, so that one kind of
// block table serves the whole model.
//
// Compute stays local; only storage grows. The window or chunk stays on the new spec as a label,
// the quantisation mode is carried over, and the block size becomes that of the full layers if they
// agree on one.

#ifndef KVBLOCKS_SPECS_PLANNING_FULL_STORAGE_H_
#define KVBLOCKS_SPECS_PLANNING_FULL_STORAGE_H_

#include <optional>
#include <span>
#include <vector>

#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/layer_cache.h"
#include "kvblocks/specs/planning/plan_error.h"

namespace kvblocks {

// Specs in the order of `caches`. Where all layers are local, or none is, nothing changes. Adds to
// `errors` and returns nothing if a spec cannot be stored in full.
std::optional<std::vector<KvCacheSpec>> StoreInFull(std::span<const LayerCache> caches,
                                                    std::vector<PlanError>* errors);

// E-8 unless the specs merge or are of one uniform type, with E-15 if they are of one kind.
bool CheckOneType(std::span<const LayerCache> caches, std::span<const KvCacheSpec> specs,
                  std::vector<PlanError>* errors);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_FULL_STORAGE_H_
