// Multi-head latent attention: dense decode through block tables, sparse decode and prefill by lists of
// slots.

#include "kvblocks/attention/cuda/attend_launch.h"
#include "kvblocks/attention/cuda/cuda_checker.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/attend_rows.h"
#include "kvblocks/attention/cuda/mla_launch.h"
#include "kvblocks/attention/tensor/dtype.h"

namespace kvblocks::attention::cuda {
namespace {

SlotLists ListsOf(const SparseKeys& keys, const ConstTensorView& kv_scale) {
  SlotLists lists;
  if (keys.cache.absent()) return lists;
  lists.cache = CacheOf(keys.cache, {});
  // Rows with scales of their own take no other.
  if (IsQuantizedCode(keys.cache.k.dtype)) lists.cache.k_scale = ScalesOf(kv_scale);
  lists.slots = keys.indices.as<int32_t>();
  lists.outer_stride = keys.indices.stride[0];
  lists.row_stride = keys.indices.stride[1];
  lists.num_entries = static_cast<int32_t>(keys.indices.extent[2]);
  lists.lengths = keys.topk_len.as<int32_t>();
  return lists;
}

}  // namespace

absl::Status CheckOnCuda(const ExecContext& context, const MlaDecodeArgs& args) {
  CudaChecker check("MlaDecode", context, args);
  check.Values("q_lat", args.q_lat).Values("q_pe", args.q_pe).Values("out", args.out);
  check.Paged(args).Dense("query_start_loc", args.query_start_loc);
  return check.Dense("kv_start_loc", args.kv_start_loc).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<MlaDecodeArgs>& checked) {
  const MlaDecodeArgs& args = checked.args();
  AttendRowsParams params = AttendRowsParamsOf(DenseAttentionOf(args));
  params.q_dim = static_cast<int32_t>(args.q_lat.extent[2]);
  if (!args.q_pe.absent()) params.q_tail = ConstRowsOf(args.q_pe);
  if (absl::Status status = PrepareMask(call, params); !status.ok()) return status;
  return LaunchMla(call, args.params.split, args.max_seq_len, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const SparseMlaDecodeArgs& args) {
  CudaChecker check("SparseMlaDecode", context, args);
  check.Values("q", args.q).Values("out", args.out).Dense("sinks", args.sinks);
  check.KvCache("main.cache", args.main.cache).Dense("main.indices", args.main.indices);
  check.Dense("main.topk_len", args.main.topk_len).KvCache("extra.cache", args.extra.cache);
  check.Dense("extra.indices", args.extra.indices).Dense("extra.topk_len", args.extra.topk_len);
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<SparseMlaDecodeArgs>& checked) {
  const SparseMlaDecodeArgs& args = checked.args();
  const int64_t rows = args.q.extent[0] * args.q.extent[1];
  if (rows == 0) return absl::OkStatus();
  AttendRowsParams params;
  params.q = {args.q.data, args.q.stride[1], args.q.stride[2], ElementOf(args.q.dtype)};
  params.q_outer_stride = args.q.stride[0];
  params.q_dim = params.key_dim = static_cast<int32_t>(args.main.cache.key_dim());
  params.num_rows = static_cast<int32_t>(rows);
  params.num_heads = static_cast<int32_t>(args.q.extent[2]);
  params.value_dim = static_cast<int32_t>(args.main.cache.value_dim());
  params.inner_rows = static_cast<int32_t>(args.q.extent[1]);
  params.source = KeySource::kLists;
  params.main = ListsOf(args.main, args.kv_scale);
  params.extra = ListsOf(args.extra, args.kv_scale);
  params.scoring.scale = args.scale;
  params.scoring.causal = false;
  params.scoring.sinks = args.sinks.as<float>();
  params.output.out = {args.out.data, args.out.stride[1], args.out.stride[2],
                       ElementOf(args.out.dtype)};
  params.output.out_outer_stride = args.out.stride[0];
  params.output.lse = RowStatisticOf(args.lse);
  return LaunchMla(call, SplitPolicy::Auto(),
                   int64_t{params.main.num_entries} + params.extra.num_entries, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const SparseMlaPrefillArgs& args) {
  CudaChecker check("SparseMlaPrefill", context, args);
  check.Values("q", args.q).Values("kv", args.kv).Values("out", args.out);
  check.Dense("indices", args.indices).Dense("topk_len", args.topk_len);
  check.Dense("sinks", args.sinks).HeadDims(args.kv.extent[2], args.out.extent[2]);
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<SparseMlaPrefillArgs>& checked) {
  const SparseMlaPrefillArgs& args = checked.args();
  AttendRowsParams params;
  params.q = ConstRowsOf(args.q);
  params.q_dim = params.key_dim = static_cast<int32_t>(args.q.extent[2]);
  params.num_rows = static_cast<int32_t>(args.q.extent[0]);
  params.num_heads = static_cast<int32_t>(args.q.extent[1]);
  params.value_dim = static_cast<int32_t>(args.out.extent[2]);
  params.inner_rows = 1;  // each row has a length of its own
  params.q_outer_stride = args.q.stride[0];
  params.source = KeySource::kLists;
  // The tensor is a latent cache of one block.
  SlotLists& lists = params.main;
  lists.cache.layout = Layout::kMlaLatent;
  lists.cache.element = ElementOf(args.kv.dtype);
  lists.cache.k = {args.kv.data, 0, args.kv.stride[0], 0};
  lists.cache.num_blocks = args.kv.extent[0] > 0 ? 1 : 0;
  lists.cache.block_size = static_cast<int32_t>(args.kv.extent[0] > 0 ? args.kv.extent[0] : 1);
  lists.slots = args.indices.as<int32_t>();
  lists.outer_stride = args.indices.stride[0];
  lists.num_entries = static_cast<int32_t>(args.indices.extent[2]);
  lists.lengths = args.topk_len.as<int32_t>();
  params.scoring.scale = args.scale;
  params.scoring.causal = false;
  params.scoring.sinks = args.sinks.as<float>();
  params.output.out = RowsOf(args.out);
  params.output.out_outer_stride = params.output.out.row_stride;
  params.output.lse = RowStatisticOf(args.lse);
  params.output.lse.outer_stride = params.output.lse.row_stride;
  params.output.max_logits = RowStatisticOf(args.max_logits);
  params.output.max_logits.outer_stride = params.output.max_logits.row_stride;
  return LaunchMla(call, SplitPolicy::None(), params.main.num_entries, params);
}

}  // namespace kvblocks::attention::cuda
