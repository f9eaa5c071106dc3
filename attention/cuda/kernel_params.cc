#include "kvblocks/attention/cuda/kernel_params.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace kvblocks::attention::cuda {
namespace {

// Distances in tokens that no length reaches mean the same as the largest int32.
int32_t Tokens(int64_t count) {
  return static_cast<int32_t>(std::min<int64_t>(count, std::numeric_limits<int32_t>::max() / 2));
}

CacheTensor TensorOf(const ConstTensorView& view, int block, int token, int head) {
  CacheTensor tensor;
  tensor.data = view.data;
  tensor.block_stride = view.stride[block];
  if (token >= 0) tensor.token_stride = view.stride[token];
  if (head >= 0) tensor.head_stride = view.stride[head];
  return tensor;
}

}  // namespace

absl::Status StatusOf(const char* operation, Error error) {
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(operation, ": CUDA reports ", ErrorName(error)));
}

absl::StatusOr<LaunchContext> LaunchContextOf(const char* operation, const ExecContext& context) {
  DeviceProperties properties;
  const Error error = PropertiesOf(context.device.ordinal, &properties);
  if (error != 0) return StatusOf(operation, error);
  LaunchContext launch;
  launch.stream = context.stream;
  if (context.error_flags != nullptr) launch.error_flags = context.error_flags->bits;
  if (context.workspace != nullptr) {
    launch.workspace = reinterpret_cast<unsigned char*>(context.workspace->device.data());
    launch.workspace_bytes = context.workspace->device.size();
  }
  launch.num_multiprocessors = properties.num_multiprocessors;
  launch.compute_capability = properties.compute_capability;
  return launch;
}

absl::Status RefuseF64(const char* operation, const char* name, const ConstTensorView& view) {
  if (view.absent() || view.dtype != DType::kF64) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(operation, ": ", name, " is f64; the CUDA backend has f32, f16 and bf16"));
}

absl::Status CheckWorkspace(const char* operation, const LaunchContext& launch, int64_t bytes) {
  if (static_cast<int64_t>(launch.workspace_bytes) >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      operation, ": the workspace has ", launch.workspace_bytes, " bytes; needs ", bytes));
}

Element ElementOf(DType dtype) {
  const bool known = IsQuantizedCode(dtype) || (IsComputeType(dtype) && dtype != DType::kF64);
  return known ? dtype : Element::kF32;
}

ConstRows ConstRowsOf(const ConstTensorView& view) {
  ConstRows rows;
  rows.data = view.data;
  rows.row_stride = view.stride[0];
  rows.head_stride = view.rank > 2 ? view.stride[1] : 0;
  rows.element = ElementOf(view.dtype);
  return rows;
}

Rows RowsOf(const TensorView& view) {
  Rows rows;
  rows.data = view.data;
  rows.row_stride = view.stride[0];
  rows.head_stride = view.rank > 2 ? view.stride[1] : 0;
  rows.element = ElementOf(view.dtype);
  return rows;
}

Scales ScalesOf(const ConstTensorView& view) {
  Scales scales;
  if (view.absent()) return scales;
  scales.data = view.as<float>();
  if (view.num_elements() == 1) return scales;
  if (view.rank == 1) {
    scales.head_stride = view.stride[0];
  } else if (view.rank == 2) {
    scales.request_stride = view.extent[0] == 1 ? 0 : view.stride[0];
    scales.head_stride = view.extent[1] == 1 ? 0 : view.stride[1];
  }
  return scales;
}

Cache CacheOf(const ConstKvCacheView& view, const KvScales& scales) {
  Cache cache;
  cache.element = ElementOf(view.k.dtype);
  cache.num_blocks = static_cast<int32_t>(view.num_blocks());
  cache.block_size = static_cast<int32_t>(view.block_size());
  cache.k_scale = ScalesOf(scales.k);
  cache.v_scale = ScalesOf(scales.v);
  cache.layout = view.layout;
  switch (view.layout) {
    case KvLayout::kNhd:
      cache.k = TensorOf(view.k, 0, 1, 2);
      cache.v = TensorOf(view.v, 0, 1, 2);
      break;
    case KvLayout::kHnd:
      cache.k = TensorOf(view.k, 0, 2, 1);
      cache.v = TensorOf(view.v, 0, 2, 1);
      break;
    case KvLayout::kPagedX:
      cache.k = TensorOf(view.k, 0, -1, 1);
      cache.v = TensorOf(view.v, 0, -1, 1);
      break;
    case KvLayout::kMlaLatent:
    case KvLayout::kMlaSplit:
    case KvLayout::kMlaFp8_656:
      cache.k = TensorOf(view.k, 0, 1, -1);
      if (!view.v.absent()) cache.v = TensorOf(view.v, 0, 1, -1);
      break;
    case KvLayout::kMlaFp8_584:
      cache.k = TensorOf(view.k, 0, -1, -1);
      break;
  }
  return cache;
}

PagedKeys PagedKeysOf(const ConstKvCacheView& view, const KvScales& scales,
                      const ConstTensorView& block_table, const ConstTensorView& seq_lens) {
  PagedKeys keys;
  keys.cache = CacheOf(view, scales);
  keys.block_table = block_table.as<int32_t>();
  keys.table_stride = block_table.stride[0];
  keys.table_columns = static_cast<int32_t>(block_table.extent[1]);
  keys.seq_lens = seq_lens.as<int32_t>();
  return keys;
}

Scoring ScoringOf(const AttnParams& params) {
  Scoring scoring;
  scoring.scale = params.scale;
  scoring.soft_cap = params.soft_cap;
  scoring.causal = params.causal;
  scoring.window_left = Tokens(params.window_left);
  scoring.window_right = Tokens(params.window_right);
  scoring.chunk = Tokens(params.chunk);
  scoring.alibi_slopes = params.alibi_slopes.as<float>();
  scoring.sinks = params.sinks.as<float>();
  const BlockSparse& sparse = params.block_sparse;
  scoring.block_sparse = {sparse.local_blocks, sparse.vert_stride, Tokens(sparse.block_size),
                          sparse.head_sliding_step, sparse.tp_rank};
  const ExplicitMask& mask = params.mask;
  MaskRule& rule = scoring.mask;
  rule.form = static_cast<uint8_t>(mask.form);
  rule.mode = mask.sparse_mode;
  rule.pre_tokens = mask.pre_tokens;
  rule.next_tokens = mask.next_tokens;
  rule.rows_are_absolute = mask.rows_are_absolute;
  if (mask.tensor.absent()) return scoring;
  const ConstTensorView& tensor = mask.tensor;
  rule.data = tensor.data;
  rule.element = ElementOf(tensor.dtype);
  rule.marker = mask.encoding == MaskEncoding::kMarker;
  rule.bytes = ElementBytes(tensor.dtype) == 1;
  if (mask.form == MaskForm::kRaggedBits) return scoring;
  const int rank = tensor.rank;
  rule.row_stride = tensor.stride[rank - 2];
  rule.column_stride = tensor.stride[rank - 1];
  rule.rows = tensor.extent[rank - 2];
  rule.columns = tensor.extent[rank - 1];
  // Extent 1 serves all.
  if (rank == 3) rule.batch_stride = tensor.extent[0] == 1 ? 0 : tensor.stride[0];
  if (rank == 4) {
    rule.batch_stride = tensor.extent[0] == 1 ? 0 : tensor.stride[0];
    rule.head_stride = tensor.extent[1] == 1 ? 0 : tensor.stride[1];
  }
  return scoring;
}

}  // namespace kvblocks::attention::cuda
