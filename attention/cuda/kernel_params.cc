#include "attention/cuda/kernel_params.h"

#include <algorithm>
#include <limits>

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

// What arguments over a paged cache have in common.
template <typename Args>
DenseAttention PagedAttentionOf(const ConstTensorView& q, const Args& args) {
  DenseAttention dense;
  dense.q = ConstRowsOf(q);
  dense.q_scale = ScalesOf(args.params.scales.q);
  dense.keys = PagedKeysOf(args.cache, args.params.scales, args.block_table, args.seq_lens);
  dense.scoring = ScoringOf(args.params);
  dense.num_requests = static_cast<int32_t>(args.seq_lens.extent[0]);
  dense.num_tokens = static_cast<int32_t>(q.extent[0]);
  dense.num_heads = static_cast<int32_t>(q.extent[1]);
  dense.num_kv_heads = static_cast<int32_t>(args.cache.num_kv_heads());
  dense.key_dim = static_cast<int32_t>(args.cache.key_dim());
  dense.value_dim = static_cast<int32_t>(args.cache.value_dim());
  dense.max_query_len = 1;
  dense.max_seq_len = args.max_seq_len;
  return dense;
}

template <typename Args>
void PlaceOutputs(const Args& args, DenseAttention* dense) {
  dense->out = RowsOf(args.out);
  PlaceLse(args.lse, *dense);
}

}  // namespace

Element ElementOf(DType dtype) {
  const bool known = IsQuantizedCode(dtype) || (IsComputeType(dtype) && dtype != DType::kF64);
  return known ? dtype : Element::kF32;
}

ConstRows ConstRowsOf(const ConstTensorView& view) {
  return {view.data, view.stride[0], view.rank > 2 ? view.stride[1] : 0, ElementOf(view.dtype)};
}

Rows RowsOf(const TensorView& view) {
  return {view.data, view.stride[0], view.rank > 2 ? view.stride[1] : 0, ElementOf(view.dtype)};
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
  cache.format = view.format;
  switch (view.layout) {
    case KvLayout::kNhd:
    case KvLayout::kHnd: {
      const int token = view.layout == KvLayout::kNhd ? 1 : 2, head = 3 - token;
      cache.k = TensorOf(view.k, 0, token, head);
      cache.v = TensorOf(view.v, 0, token, head);
      if (view.format == KvRowFormat::kElements) break;
      cache.k_row_scales = TensorOf(view.k_scales, 0, token, head);
      cache.v_row_scales = TensorOf(view.v_scales, 0, token, head);
      break;
    }
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
  if (mask.form == MaskForm::kRaggedBits) {
    rule.columns = tensor.num_elements();
    return scoring;
  }
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

DenseAttention DenseAttentionOf(const PagedDecodeArgs& args) {
  DenseAttention dense = PagedAttentionOf(args.q, args);
  PlaceOutputs(args, &dense);
  return dense;
}

DenseAttention DenseAttentionOf(const PagedDecodePartialArgs& args) {
  return PagedAttentionOf(args.q, args);
}

DenseAttention DenseAttentionOf(const PagedPrefillArgs& args) {
  DenseAttention dense = PagedAttentionOf(args.q, args);
  PlaceOutputs(args, &dense);
  dense.out_scale = args.out_scale;
  dense.query_start_loc = args.query_start_loc.as<int32_t>();
  dense.query_positions = args.query_positions.as<int32_t>();
  dense.max_query_len = static_cast<int32_t>(args.max_query_len);
  return dense;
}

DenseAttention DenseAttentionOf(const MlaDecodeArgs& args) {
  DenseAttention dense = PagedAttentionOf(args.q_lat, args);
  PlaceOutputs(args, &dense);
  dense.query_start_loc = args.query_start_loc.as<int32_t>();
  if (!args.kv_start_loc.absent()) {
    dense.kv_start_loc = args.kv_start_loc.as<int32_t>();
    dense.num_requests = static_cast<int32_t>(args.kv_start_loc.extent[0] - 1);
    dense.num_key_rows = args.cache.block_size();
  }
  return dense;
}

DenseAttention DenseAttentionOf(const VarlenSelfAttentionArgs& args) {
  DenseAttention dense;
  PlaceOutputs(args, &dense);
  dense.out_scale = args.out_scale;
  dense.q = ConstRowsOf(args.q);
  dense.q_scale = ScalesOf(args.params.scales.q);
  Cache& cache = dense.keys.cache;
  cache.element = ElementOf(args.k.dtype);
  cache.k = {args.k.data, 0, args.k.stride[0], args.k.stride[1]};
  cache.v = {args.v.data, 0, args.v.stride[0], args.v.stride[1]};
  cache.k_scale = ScalesOf(args.params.scales.k);
  cache.v_scale = ScalesOf(args.params.scales.v);
  dense.query_start_loc = args.query_start_loc.as<int32_t>();
  dense.query_positions = args.query_positions.as<int32_t>();
  dense.kv_start_loc =
      args.kv_start_loc.absent() ? dense.query_start_loc : args.kv_start_loc.as<int32_t>();
  dense.num_key_rows = args.k.extent[0];
  dense.scoring = ScoringOf(args.params);
  dense.num_requests = static_cast<int32_t>(args.query_start_loc.extent[0] - 1);
  dense.num_tokens = static_cast<int32_t>(args.q.extent[0]);
  dense.num_heads = static_cast<int32_t>(args.q.extent[1]);
  dense.num_kv_heads = static_cast<int32_t>(args.k.extent[1]);
  dense.key_dim = static_cast<int32_t>(args.k.extent[2]);
  dense.value_dim = static_cast<int32_t>(args.v.extent[2]);
  dense.max_seq_len = args.k.extent[0] / std::max(1, dense.num_requests);
  return dense;
}

AttendRowsParams AttendRowsParamsOf(const DenseAttention& dense) {
  AttendRowsParams params;
  params.q = dense.q;
  params.q_scale = dense.q_scale;
  params.num_rows = dense.num_tokens;
  params.num_heads = dense.num_heads;
  params.num_kv_heads = dense.num_kv_heads;
  params.key_dim = params.q_dim = dense.key_dim;
  params.value_dim = dense.value_dim;
  params.num_requests = dense.num_requests;
  params.query_start_loc = dense.query_start_loc;
  params.query_positions = dense.query_positions;
  params.keys = dense.keys;
  if (dense.kv_start_loc != nullptr) {
    params.source = KeySource::kContiguous;
    params.keys.cache.num_blocks = 1;
    params.kv_start_loc = dense.kv_start_loc;
    params.num_keys = static_cast<int32_t>(dense.num_key_rows);
  }
  params.scoring = dense.scoring;
  params.output.out = dense.out;
  params.output.out_scale = dense.out_scale;
  params.output.lse = {dense.lse, 0, dense.lse_row_stride, dense.lse_head_stride, 0};
  return params;
}

RowStatistic RowStatisticOf(const TensorView& view) {
  RowStatistic statistic;
  if (view.absent()) return statistic;
  statistic.data = view.as<float>();
  if (view.rank == 3) statistic.outer_stride = view.stride[0];
  statistic.row_stride = view.stride[view.rank - 2];
  statistic.head_stride = view.stride[view.rank - 1];
  return statistic;
}

}  // namespace kvblocks::attention::cuda
