// Checked arguments of operations as the structures that kernels take.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNEL_PARAMS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNEL_PARAMS_H_

#include <cstdint>

#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/cuda/kernels/attend_rows.h"
#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/params.h"

namespace kvblocks::attention::cuda {

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

// Attention over K/V heads; of MLA the latent part of the queries.
DenseAttention DenseAttentionOf(const PagedDecodeArgs& args);
DenseAttention DenseAttentionOf(const PagedDecodePartialArgs& args);  // no outputs
DenseAttention DenseAttentionOf(const PagedPrefillArgs& args);
// With kv_seq_lens, kv_start_loc is left to the caller.
DenseAttention DenseAttentionOf(const VarlenSelfAttentionArgs& args);
DenseAttention DenseAttentionOf(const MlaDecodeArgs& args);

// The same for the kernel that takes everything.
AttendRowsParams AttendRowsParamsOf(const DenseAttention& dense);

// Of [rows, heads] or [B, s_q, heads], or absent.
RowStatistic RowStatisticOf(const TensorView& view);

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
