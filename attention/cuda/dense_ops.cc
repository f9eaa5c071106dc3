#include "kvblocks/attention/cuda/dense_ops.h"

#include <algorithm>

#include "kvblocks/attention/cuda/attend_launch.h"
#include "kvblocks/attention/cuda/cascade_ops.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/attend_rows.h"
#include "kvblocks/attention/cuda/kernels/merge_states.h"
#include "kvblocks/attention/cuda/paged_decode_ops.h"
#include "kvblocks/attention/cuda/prefill_ops.h"
#include "kvblocks/attention/ops/checks.h"
#include "kvblocks/attention/ops/split_planner.h"

namespace kvblocks::attention::cuda {
namespace {

// Of a statistic [rows, heads], or absent.
RowStatistic RowStatisticOf(const TensorView& view) {
  RowStatistic statistic;
  if (view.absent()) return statistic;
  statistic.data = view.as<float>();
  statistic.row_stride = view.stride[0];
  statistic.head_stride = view.stride[1];
  return statistic;
}

// What attention over a paged cache has in common; rows, outputs and pieces are left.
AttendRowsParams PagedParams(const ConstTensorView& q, const ConstKvCacheView& cache,
                             const ConstTensorView& block_table, const ConstTensorView& seq_lens,
                             const AttnParams& attn) {
  AttendRowsParams params;
  params.q = ConstRowsOf(q);
  params.num_rows = static_cast<int32_t>(q.extent[0]);
  params.num_heads = static_cast<int32_t>(q.extent[1]);
  params.num_kv_heads = static_cast<int32_t>(cache.num_kv_heads());
  params.key_dim = params.q_dim = static_cast<int32_t>(cache.key_dim());
  params.value_dim = static_cast<int32_t>(cache.value_dim());
  params.num_requests = static_cast<int32_t>(seq_lens.extent[0]);
  params.keys = PagedKeysOf(cache, attn.scales, block_table, seq_lens);
  params.scoring = ScoringOf(attn);
  return params;
}

// As many pieces as the plan gives the request it cuts most.
SplitPolicy PolicyOf(const PagedDecodeArgs& args) {
  if (args.plan == nullptr) return args.params.split;
  int64_t most = 1;
  for (int64_t b = 0; b < args.plan->num_requests(); ++b) {
    most = std::max<int64_t>(most, args.plan->num_splits(b));
  }
  return most == 1 ? SplitPolicy::None() : SplitPolicy::Count(most);
}

absl::Status RunPagedPrefill(const char* op, const ExecContext& context,
                             const PagedPrefillArgs& args, int64_t shared_prefix) {
  CudaChecker check(op, context);
  check.Values("q", args.q).Values("out", args.out).KvCache("cache", args.cache);
  check.Dense("block_table", args.block_table).Dense("seq_lens", args.seq_lens);
  check.Dense("query_start_loc", args.query_start_loc);
  check.Dense("query_positions", args.query_positions).Params(args.params);
  check.HeadDims(args.cache.key_dim(), args.cache.value_dim());
  if (!check.status().ok()) return check.status();
  absl::StatusOr<CudaCall> call = BeginCall(op, context);
  if (!call.ok()) return call.status();

  // Faster kernels are chosen here.
  if (shared_prefix > 0) {
    const absl::StatusOr<bool> done = RunCascadeInParts(op, context, {args, shared_prefix});
    if (!done.ok() || *done) return done.status();
  }
  if (shared_prefix == 0 && IsForPagedDecode(args)) {
    const PagedDecodeParams decode = PagedDecodeParamsOf(args);
    if (TakesPagedDecode(decode)) return RunPagedDecode(op, context, decode);
  }
  if (shared_prefix == 0) {
    const PrefillParams prefill = PrefillParamsOf(args);
    if (TakesPrefill(prefill)) {
      return RunPrefill(op, call->launch, call->arena, args.params.split, prefill);
    }
  }

  AttendRowsParams params =
      PagedParams(args.q, args.cache, args.block_table, args.seq_lens, args.params);
  params.query_start_loc = args.query_start_loc.as<int32_t>();
  params.query_positions = args.query_positions.as<int32_t>();
  params.shared_prefix = static_cast<int32_t>(std::min<int64_t>(shared_prefix, INT32_MAX));
  params.output.out = RowsOf(args.out);
  params.output.out_scale = args.out_scale;
  params.output.lse = RowStatisticOf(args.lse);
  if (absl::Status status = PrepareMask(op, *call, args.params, params); !status.ok()) {
    return status;
  }
  return StatusOf(op, LaunchAttendRows(call->launch, params));
}

}  // namespace

absl::Status CudaPagedDecode(const ExecContext& context, const PagedDecodeArgs& args) {
  constexpr char kOp[] = "PagedDecode";
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  if (absl::Status status = CheckDevicePlan(args); !status.ok()) return status;
  CudaChecker check(kOp, context);
  check.Values("q", args.q).Values("out", args.out).KvCache("cache", args.cache);
  check.Dense("block_table", args.block_table).Dense("seq_lens", args.seq_lens);
  check.Params(args.params).HeadDims(args.cache.key_dim(), args.cache.value_dim());
  if (!check.status().ok()) return check.status();
  absl::StatusOr<CudaCall> call = BeginCall(kOp, context);
  if (!call.ok()) return call.status();

  // Faster kernels are chosen here. A plan of the host says how many pieces there are; they would plan
  // on the device.
  if (args.plan == nullptr) {
    const PagedDecodeParams decode = PagedDecodeParamsOf(args);
    if (TakesPagedDecode(decode)) return RunPagedDecode(kOp, context, decode);
  }

  AttendRowsParams params =
      PagedParams(args.q, args.cache, args.block_table, args.seq_lens, args.params);
  params.output.out = RowsOf(args.out);
  params.output.lse = RowStatisticOf(args.lse);
  if (absl::Status status = PrepareMask(kOp, *call, args.params, params); !status.ok()) {
    return status;
  }
  const absl::StatusOr<Pieces> pieces =
      PiecesOf(kOp, *call, PolicyOf(args), params, args.max_seq_len);
  if (!pieces.ok()) return pieces.status();
  params.pieces = *pieces;
  return AttendInPieces(kOp, *call, params);
}

absl::Status CudaPagedDecodePartial(const ExecContext& context,
                                    const PagedDecodePartialArgs& args) {
  constexpr char kOp[] = "PagedDecodePartial";
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  CudaChecker check(kOp, context);
  check.Values("q", args.q).Values("tmp_out", args.tmp_out).KvCache("cache", args.cache);
  check.Dense("block_table", args.block_table).Dense("seq_lens", args.seq_lens);
  check.Params(args.params).HeadDims(args.cache.key_dim(), args.cache.value_dim());
  if (!check.status().ok()) return check.status();
  absl::StatusOr<CudaCall> call = BeginCall(kOp, context);
  if (!call.ok()) return call.status();

  AttendRowsParams params =
      PagedParams(args.q, args.cache, args.block_table, args.seq_lens, args.params);
  if (absl::Status status = PrepareMask(kOp, *call, args.params, params); !status.ok()) {
    return status;
  }
  const absl::StatusOr<Pieces> pieces =
      PiecesOf(kOp, *call, SplitPolicy::Fixed(args.partition_tokens), params, args.max_seq_len);
  if (!pieces.ok()) return pieces.status();
  params.pieces = *pieces;
  if (args.max_logits.extent[2] == 0) return absl::OkStatus();
  params.scoring.sinks = nullptr;
  const TensorView& out = args.tmp_out;
  params.output.out = {out.data, out.stride[0], out.stride[1], Element::kF32};
  params.output.out_piece_stride = out.stride[2];
  params.output.max_logits = RowStatisticOf(args.max_logits);
  params.output.max_logits.piece_stride = args.max_logits.stride[2];
  params.output.exp_sums = RowStatisticOf(args.exp_sums);
  params.output.exp_sums.piece_stride = args.exp_sums.stride[2];
  return StatusOf(kOp, LaunchAttendRows(call->launch, params));
}

absl::Status CudaReduceSplits(const ExecContext& context, const ReduceSplitsArgs& args) {
  constexpr char kOp[] = "ReduceSplits";
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  CudaChecker check(kOp, context);
  check.Values("max_logits", args.max_logits).Values("tmp_out", args.tmp_out);
  check.Values("out", args.out).Dense("sinks", args.sinks);
  if (!check.status().ok()) return check.status();
  absl::StatusOr<CudaCall> call = BeginCall(kOp, context);
  if (!call.ok()) return call.status();

  const auto statistic = [](const ConstTensorView& view) {
    return StateStatistic{view.as<float>(), view.stride[2], view.stride[0], view.stride[1]};
  };
  const ConstTensorView& outs = args.tmp_out;
  MergeStatesParams merge;
  merge.outs = {outs.data, outs.stride[0], outs.stride[1], Element::kF32};
  merge.out_state_stride = outs.stride[2];
  merge.lses = statistic(args.max_logits);
  merge.exp_sums = statistic(args.exp_sums);
  merge.num_states = static_cast<int32_t>(outs.extent[2]);
  merge.num_rows = static_cast<int32_t>(args.out.extent[0]);
  merge.num_heads = static_cast<int32_t>(args.out.extent[1]);
  merge.value_dim = static_cast<int32_t>(args.out.extent[2]);
  merge.sinks = args.sinks.as<float>();
  merge.out = RowsOf(args.out);
  PlaceLse(args.lse, merge);
  return StatusOf(kOp, LaunchMergeStates(call->launch, merge));
}

absl::Status CudaPagedPrefill(const ExecContext& context, const PagedPrefillArgs& args) {
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  return RunPagedPrefill("PagedPrefill", context, args, 0);
}

absl::Status CudaCascade(const ExecContext& context, const CascadeArgs& args) {
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  return RunPagedPrefill("Cascade", context, args.prefill, args.common_prefix_len);
}

absl::Status CudaVarlenSelfAttention(const ExecContext& context,
                                     const VarlenSelfAttentionArgs& args) {
  constexpr char kOp[] = "VarlenSelfAttention";
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  CudaChecker check(kOp, context);
  check.Values("q", args.q).Values("k", args.k).Values("v", args.v).Values("out", args.out);
  check.Dense("query_start_loc", args.query_start_loc).Dense("kv_start_loc", args.kv_start_loc);
  check.Dense("query_positions", args.query_positions).Params(args.params);
  check.HeadDims(args.k.extent[2], args.v.extent[2]);
  if (!check.status().ok()) return check.status();
  absl::StatusOr<CudaCall> call = BeginCall(kOp, context);
  if (!call.ok()) return call.status();

  // Faster kernels are chosen here.
  if (const PrefillParams prefill = PrefillParamsOf(args); TakesPrefill(prefill)) {
    return RunPrefill(kOp, call->launch, call->arena, args.params.split, prefill);
  }

  AttendRowsParams params;
  params.q = ConstRowsOf(args.q);
  params.num_rows = static_cast<int32_t>(args.q.extent[0]);
  params.num_heads = static_cast<int32_t>(args.q.extent[1]);
  params.num_kv_heads = static_cast<int32_t>(args.k.extent[1]);
  params.key_dim = params.q_dim = static_cast<int32_t>(args.k.extent[2]);
  params.value_dim = static_cast<int32_t>(args.v.extent[2]);
  params.num_requests = static_cast<int32_t>(args.query_start_loc.extent[0] - 1);
  params.query_start_loc = args.query_start_loc.as<int32_t>();
  params.query_positions = args.query_positions.as<int32_t>();
  params.source = KeySource::kContiguous;
  params.kv_start_loc =
      args.kv_start_loc.absent() ? params.query_start_loc : args.kv_start_loc.as<int32_t>();
  params.num_keys = static_cast<int32_t>(args.k.extent[0]);
  Cache& cache = params.keys.cache;
  cache.element = ElementOf(args.k.dtype);
  cache.k = {args.k.data, 0, args.k.stride[0], args.k.stride[1]};
  cache.v = {args.v.data, 0, args.v.stride[0], args.v.stride[1]};
  cache.num_blocks = 1;
  params.scoring = ScoringOf(args.params);
  params.output.out = RowsOf(args.out);
  params.output.out_scale = args.out_scale;
  params.output.lse = RowStatisticOf(args.lse);
  if (absl::Status status = PrepareMask(kOp, *call, args.params, params); !status.ok()) {
    return status;
  }
  return StatusOf(kOp, LaunchAttendRows(call->launch, params));
}

}  // namespace kvblocks::attention::cuda
