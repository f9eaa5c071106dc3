// StoreInFull: specs of local layers turned into specs that keep every token, so that one kind of
// block table serves the whole model.
//
// Compute stays local; only storage grows. The window or chunk stays on the new spec as a label,
// the quantisation mode is carried over, and the block size becomes that of the full layers if they
// agree on one.

#ifndef KVBLOCKS_SPECS_PLANNING_STORED_SPECS_H_
#define KVBLOCKS_SPECS_PLANNING_STORED_SPECS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/model_facts.h"
#include "kvblocks/plan.h"

namespace kvblocks {

// Specs in the order of `caches`. Where all layers are local, or none is, nothing changes. Adds to
// `errors` and returns nothing if a spec cannot be stored in full.
std::optional<std::vector<KvCacheSpec>> StoreInFull(std::span<const LayerCache> caches,
                                                    std::vector<PlanError>* errors);

// E-8 unless the specs merge or are of one uniform type, with E-15 if they are of one kind.
bool CheckOneType(std::span<const LayerCache> caches, std::span<const KvCacheSpec> specs,
                  std::vector<PlanError>* errors);

// FitHiddenState: a hidden-state cache beside groups whose pages are all equal.
//
// Nothing attends to it, so its block may be of any size. Upstream makes it as large as the common
// page allows, but a divisor of every other block, and pads the page.

// `block_unit` is the greatest common divisor of the other groups' block sizes. Error: E-7 if not
// even one token fits the page. Cost: O(sqrt(block_unit)).
std::optional<KvCacheSpec> FitHiddenState(const LayerCache& cache, int64_t block_unit,
                                          int64_t page_bytes, std::vector<PlanError>* errors);

// EqualisePages: every layer cache brought to the largest page present, so that any of them can
// live in any tensor of the pool.
//
// States and rings are padded, since their pages do not grow with the block. Any other page that
// divides the largest grows by a larger block. Otherwise it is padded if the backend reads pages
// through the block stride; backends of version 0.33 do so for all kinds but the MLA ones. A layer
// that allows neither is an error; slab and native layouts need no equal pages.

// Specs in the order of `caches`. On failure adds one E-7 per page size that does not fit.
std::optional<std::vector<KvCacheSpec>> EqualisePages(std::span<const LayerCache> caches,
                                                      EngineVersion version,
                                                      std::vector<PlanError>* errors);

// AlignStates: blocks of attention layers made large enough for a page to hold a state-space
// layer's state, and the states padded to that page, so that both can live in one tensor.
//
// With t bytes of attention per token and the largest state of s bytes, B = a * ceil(s / (a * t)).
// Only layouts with equal pages need this; it is what makes their blocks hundreds of tokens long.

// Tokens per block of the attention layers. `unit` is what blocks are a multiple of. REQUIRES: all
// at least 1.
int64_t StateBlockSize(int64_t state_bytes, int64_t attention_bytes_per_token, int64_t unit);

// Specs in the order of `caches`; unchanged unless there are both states and attention. The unit is
// the larger of the attention block size and `smallest_kernel_block`, or a multiple of it and
// `state_chunk_tokens` if a state is kept at every block. E-7 if a block cannot grow.
std::optional<std::vector<KvCacheSpec>> AlignStates(std::span<const LayerCache> caches,
                                                    int64_t smallest_kernel_block,
                                                    int64_t state_chunk_tokens,
                                                    std::vector<PlanError>* errors);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_STORED_SPECS_H_
