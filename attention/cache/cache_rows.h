// One token's key or value row out of a cache of any layout, as exact float64.
//
// The portable definition of where each layout keeps what: references and tests read through it,
// kernels are checked against it. Codes of 8-bit caches come as the numbers they stand for, without
// the cache's scale; the rows of kMlaFp8_656 and kMlaFp8_584 carry their scales inside, and formats
// with scales in the cache have them beside: those are applied. MLA layouts have one head, 0.
//
// REQUIRES: a view that fits its layout, 0 <= slot < num_slots(), 0 <= kv_head < num_kv_heads(),
// room for key_dim() or value_dim() values. Cost: O(row), no allocation, no alignment needed.

#ifndef KVBLOCKS_ATTENTION_CACHE_CACHE_ROWS_H_
#define KVBLOCKS_ATTENTION_CACHE_CACHE_ROWS_H_

#include <cstdint>

#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

void ReadKeyRow(const ConstKvCacheView& cache, int64_t slot, int64_t kv_head, double* out);
void ReadValueRow(const ConstKvCacheView& cache, int64_t slot, int64_t kv_head, double* out);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_CACHE_ROWS_H_
