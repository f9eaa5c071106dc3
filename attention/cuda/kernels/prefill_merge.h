// Makes outputs of the states that prefill's pieces of keys left (PrefillPieces).
//
// States are summed in order, those without keys left out, then the sink is applied. One further
// state per row may come from elsewhere: what a cascade's requests have behind their prefix. Rows
// that no request has (from query_start_loc[R] on) are left alone. A warp takes a row of one head;
// each state is read once.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_MERGE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_MERGE_H_

#include <cstdint>

#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/prefill.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct PrefillMergeParams {
  PrefillPieces pieces;
  int32_t num_tokens = 0, num_heads = 0, value_dim = 0;  // values: a multiple of 8
  const int32_t* query_start_loc = nullptr;              // [R + 1]
  int32_t num_requests = 0;
  // Of a 16-bit type, dense; null: no further state.
  const void* other = nullptr;        // [T, H, Dv]
  const float* other_lses = nullptr;  // [T, H]
  Element other_element = Element::kBF16;

  const float* sinks = nullptr;
  float out_scale = 0;  // > 0: out holds codes
  Rows out;             // of what TakesPrefill takes
  float* lse = nullptr;
  int64_t lse_row_stride = 0, lse_head_stride = 0;
};

// What `params` computes if its pieces leave states.
PrefillMergeParams MergeOf(const PrefillParams& params);

Error LaunchPrefillMerge(const LaunchContext& context, const PrefillMergeParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PREFILL_MERGE_H_
