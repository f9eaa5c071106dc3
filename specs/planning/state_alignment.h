// AlignStates: blocks of attention layers made large enough for a page to hold a state-space
// layer's state, and the states padded to that page, so that both can live in one tensor.
//
// With t bytes of attention per token and the largest state of s bytes, B = a * ceil(s / (a * t)).
// Only layouts with equal pages need this; it is what makes their blocks hundreds of tokens long.

#ifndef KVBLOCKS_SPECS_PLANNING_STATE_ALIGNMENT_H_
#define KVBLOCKS_SPECS_PLANNING_STATE_ALIGNMENT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/layer_cache.h"
#include "kvblocks/specs/planning/plan_error.h"

namespace kvblocks {

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

#endif  // KVBLOCKS_SPECS_PLANNING_STATE_ALIGNMENT_H_
