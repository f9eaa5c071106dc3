// Attention of few queries per request over a paged cache, at the speed of memory: decode, and
// speculation's several tokens.
//
// Queries that share a KV head are columns of matrix products, so each key is read once per group
// of up to 16 of them. Keys are read in the pieces of a plan (decode_plan.h); pieces of a cut
// request leave float32 states, and whoever finishes last merges them in order: results do not
// depend on timing. One launch, and one more if it has to plan for itself.
//
// Takes strided caches whose rows begin at multiples of 16 bytes, and kPagedX; blocks of multiples of 8
// keys, head sizes of multiples of 8 up to 256, 16-bit queries (over e4m3 caches also e4m3 ones) and
// outputs; causal, windows, chunks, sinks, soft caps, ALiBi, masks, block-sparse rules; no
// query_positions, no out_scale. Anything else is for the general kernels. Instances for masks,
// block-sparse rules and kPagedX take 8 queries at a time.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PAGED_DECODE_H_

#include <cstddef>
#include <cstdint>

#include "kvblocks/attention/cuda/kernels/decode_plan.h"
#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct PagedDecodeParams : DenseAttention {
  SplitKind split = SplitKind::kAuto;
  int64_t split_value = 0;  // of Fixed and Count; Given: pieces
  // Of Given: keys per tile, and the window (0: none) that tiles count from.
  int32_t given_tile = 0, given_window = 0;
  // Made by LaunchDecodePlan or LaunchGivenPieces of DecodePlanOf; null: in the workspace.
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
