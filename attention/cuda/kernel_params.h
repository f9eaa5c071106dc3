// Checked arguments of operations as the structures that kernels take.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNEL_PARAMS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNEL_PARAMS_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/indexer.h"
#include "attention/cuda/kernels/params.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention::cuda {

// The type itself if kernels know it. Else kF32: fp8 rows are bytes whose layout says what they
// hold, and masks of bytes are marked so.
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

// Checked arguments of the indexer and the compressor as the structures that their kernels take.

inline IndexRows IndexRowsOf(const ConstIndexCacheView& cache, int64_t dim) {
  IndexRows rows;
  rows.data = const_cast<unsigned char*>(cache.rows.as<unsigned char>());
  rows.element = ElementOf(cache.rows.dtype);
  rows.planar = cache.planar();
  rows.block_stride = cache.rows.stride[0];
  rows.row_stride = cache.planar() ? 0 : cache.rows.stride[1];
  rows.num_blocks = static_cast<int32_t>(cache.num_blocks());
  rows.block_size = static_cast<int32_t>(cache.block_size());
  rows.dim = static_cast<int32_t>(dim);
  return rows;
}

template <typename Args>
RowBatch RowBatchOf(const Args& args) {
  RowBatch batch;
  batch.query_start_loc = args.query_start_loc.template as<int32_t>();
  batch.seq_lens = args.seq_lens.template as<int32_t>();
  batch.block_table = args.block_table.template as<int32_t>();
  batch.starts_stride = args.query_start_loc.stride[0];
  batch.lens_stride = args.seq_lens.stride[0];
  batch.table_stride = args.block_table.stride[0];
  batch.num_requests = static_cast<int32_t>(args.seq_lens.extent[0]);
  batch.columns = static_cast<int32_t>(std::min<int64_t>(args.block_table.extent[1], INT32_MAX));
  return batch;
}

// Scales are read as floats.
inline absl::Status PlanarAligned(const char* op, const ConstIndexCacheView& cache) {
  const auto address = reinterpret_cast<uintptr_t>(cache.rows.data);
  if (!cache.planar() || (address % 4 == 0 && cache.rows.stride[0] % 4 == 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": cache.rows is ", cache.rows.DebugString(),
                   "; on CUDA planar blocks begin at multiples of 4 bytes"));
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNEL_PARAMS_H_
