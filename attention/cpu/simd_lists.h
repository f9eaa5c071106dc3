// Attention of the SIMD backend over lists of keys: each query has its own slots of a latent cache,
// and may have more of a second one. Order and repetition of slots are as listed; a slot listed
// twice counts twice.

#ifndef KVBLOCKS_ATTENTION_CPU_SIMD_LISTS_H_
#define KVBLOCKS_ATTENTION_CPU_SIMD_LISTS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/cpu/simd_states.h"
#include "kvblocks/attention/cpu/thread_pool.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention::simd {

struct KeyLists {
  ConstKvCacheView cache;
  double code_scale = 1;  // of keys and values
  // Slots of query n: slots[starts[n]] to slots[starts[n + 1]], all valid.
  std::vector<int64_t> slots, starts;
};

// Queries [B, s, H, D], query n being (n / s, n % s), against the union of all lists. Takes one or
// two states of every row, from any thread.
void AttendLists(
    const ConstTensorView& query, const std::vector<KeyLists>& lists, double scale,
    ThreadPool* threads,
    absl::FunctionRef<void(int64_t n, int64_t head, const State* states, int64_t num_states)> take);

}  // namespace kvblocks::attention::simd

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_LISTS_H_
