// Attention of few queries per request over a paged cache, at the speed of memory: decode, and
// speculation's several tokens.
//
// Queries that share a KV head are columns of matrix products, so each key is read once per group
// of up to 16 of them. Keys are read in the pieces of a plan (decode_plan.h); pieces of a cut
// request leave float32 states, and whoever finishes last merges them in order: results do not
// depend on timing. One launch, and one more if it has to plan for itself.
//
// Takes strided caches whose rows begin at multiples of 16 bytes, blocks of multiples of 8 keys,
// head sizes of multiples of 8 up to 256, 16-bit queries and outputs; causal, windows, sinks, soft
// caps, ALiBi. Anything else is for the general kernels.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_H_

#include <cstddef>
#include <cstdint>

#include "kvblocks/attention/cuda/kernels/decode_plan.h"
#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct PagedDecodeParams {
  ConstRows q;  // [T, H, D]
  Rows out;     // [T, H, Dv]
  float* lse = nullptr;
  int64_t lse_row_stride = 0, lse_head_stride = 0;
  PagedKeys keys;
  Scoring scoring;
  const int32_t* query_start_loc = nullptr;  // null: one query per request
  int32_t num_requests = 0, num_heads = 0, num_kv_heads = 0;
  int32_t key_dim = 0, value_dim = 0;
  int32_t max_query_len = 1;
  int64_t max_seq_len = 0;
  SplitKind split = SplitKind::kAuto;
  int64_t split_value = 0;
  // Made by LaunchDecodePlan of DecodePlanOf; null: in the workspace.
  void* plan = nullptr;
};

bool TakesPagedDecode(const PagedDecodeParams& params);

// What to plan with for a device of so many multiprocessors.
DecodePlanParams DecodePlanOf(const PagedDecodeParams& params, int num_multiprocessors);

// The same for all lengths within the bounds.
struct PagedDecodeWorkspace {
  size_t plan_bytes = 0, partial_bytes = 0;  // partial states follow the plan
  size_t bytes = 0;
};
PagedDecodeWorkspace WorkspaceOf(const PagedDecodeParams& params, int num_multiprocessors);

// REQUIRES: TakesPagedDecode; a workspace of WorkspaceOf(...).bytes, aligned to 16 bytes.
Error LaunchPagedDecode(const LaunchContext& context, const PagedDecodeParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_H_
