// Checked arguments of operations as the structures that kernels take, and their errors as statuses.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNEL_PARAMS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNEL_PARAMS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/ops/params.h"

namespace kvblocks::attention::cuda {

// Internal, with the name of the CUDA error; OK for 0.
absl::Status StatusOf(const char* operation, Error error);

// The context's stream, flags, workspace and device. Internal if the device cannot be asked.
absl::StatusOr<LaunchContext> LaunchContextOf(const char* operation, const ExecContext& context);

// Kernels compute in float32 and narrower: Unimplemented for f64 tensors.
absl::Status RefuseF64(const char* operation, const char* name, const ConstTensorView& view);

// ResourceExhausted, with the bytes there are and those needed, unless the workspace has `bytes`.
absl::Status CheckWorkspace(const char* operation, const LaunchContext& launch, int64_t bytes);

// The type itself if kernels know it. Else kF32: fp8 rows are bytes whose layout says what they hold,
// and masks of bytes are marked so.
Element ElementOf(DType dtype);

ConstRows ConstRowsOf(const ConstTensorView& view);  // [rows, heads, dim], or [rows, dim]
Rows RowsOf(const TensorView& view);
Scales ScalesOf(const ConstTensorView& view);  // absent, one element, [Hkv], or [R, Hkv]
Cache CacheOf(const ConstKvCacheView& view, const KvScales& scales);
PagedKeys PagedKeysOf(const ConstKvCacheView& view, const KvScales& scales,
                      const ConstTensorView& block_table, const ConstTensorView& seq_lens);
// Everything but MaskRule::bits_before.
Scoring ScoringOf(const AttnParams& params);

// Where log-sum-exps go, in parameters with lse, lse_row_stride and lse_head_stride; nowhere if
// absent.
template <typename Params>
void PlaceLse(const TensorView& lse, Params& params) {
  if (lse.absent()) return;
  params.lse = lse.as<float>();
  params.lse_row_stride = lse.stride[0];
  params.lse_head_stride = lse.stride[1];
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNEL_PARAMS_H_
