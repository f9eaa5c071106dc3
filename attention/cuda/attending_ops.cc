// Attention over K/V heads: decode, its splits and their reduction, prefill, contiguous keys,
// cascades.

#include <algorithm>
#include <cstdint>

#include "attention/cuda/attend_launch.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/enqueue_ops.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/paged_decode_ops.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention::cuda {
namespace {

// As many pieces as the plan gives the request it cuts most.
SplitPolicy PolicyOf(const PagedDecodeArgs& args) {
  if (args.plan == nullptr) return args.params.split;
  int64_t most = 1;
  for (int64_t b = 0; b < args.plan->num_requests(); ++b) {
    most = std::max<int64_t>(most, args.plan->num_splits(b));
  }
  return most == 1 ? SplitPolicy::None() : SplitPolicy::Count(most);
}

CudaChecker& CheckQueries(CudaChecker& check, const PagedPrefillArgs& args) {
  return check.Values("q", args.q)
      .Values("out", args.out)
      .Paged(args)
      .Dense("query_start_loc", args.query_start_loc)
      .Dense("query_positions", args.query_positions);
}

absl::Status RunPagedPrefill(CudaCall& call, const PagedPrefillArgs& args, int64_t shared_prefix) {
  // Faster kernels are chosen here.
  if (shared_prefix > 0) {
    const absl::StatusOr<bool> done = RunCascadeInParts(call, {args, shared_prefix});
    if (!done.ok() || *done) return done.status();
  } else {
    const PagedDecodeParams decode = PagedDecodeParamsOf(args);
    if (TakesPagedDecode(decode)) return RunPagedDecode(call, decode);
    const PrefillParams prefill{decode};
    if (TakesPrefill(prefill)) return RunPrefill(call, args.params.split, prefill);
  }

  AttendRowsParams params = AttendRowsParamsOf(DenseAttentionOf(args));
  params.shared_prefix = static_cast<int32_t>(std::min<int64_t>(shared_prefix, INT32_MAX));
  KVBLOCKS_RETURN_IF_ERROR(PrepareMask(call, params));
  return call.Launch(LaunchAttendRows, params);
}

}  // namespace

absl::Status CheckOnCuda(const ExecContext& context, const PagedDecodeArgs& args) {
  CudaChecker check("PagedDecode", context, args);
  check.Values("q", args.q).Values("out", args.out).Paged(args);
  if (check.status().ok()) check.Take(CheckPlans(args));
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<PagedDecodeArgs>& checked) {
  const PagedDecodeArgs& args = checked.args();
  const PagedDecodeParams decode = PagedDecodeParamsOf(args);
  if (TakesPagedDecode(decode)) return RunPagedDecode(call, decode, args.plan);

  AttendRowsParams params = AttendRowsParamsOf(decode);
  KVBLOCKS_RETURN_IF_ERROR(PrepareMask(call, params));
  KVBLOCKS_ASSIGN_OR_RETURN(params.pieces,
                            PiecesOf(call, PolicyOf(args), params, args.max_seq_len));
  return AttendInPieces(call, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const PagedDecodePartialArgs& args) {
  CudaChecker check("PagedDecodePartial", context, args);
  return check.Values("q", args.q).Values("tmp_out", args.tmp_out).Paged(args).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<PagedDecodePartialArgs>& checked) {
  const PagedDecodePartialArgs& args = checked.args();
  AttendRowsParams params = AttendRowsParamsOf(DenseAttentionOf(args));
  KVBLOCKS_RETURN_IF_ERROR(PrepareMask(call, params));
  KVBLOCKS_ASSIGN_OR_RETURN(params.pieces, PiecesOf(call, SplitPolicy::Fixed(args.partition_tokens),
                                                    params, args.max_seq_len));
  if (args.max_logits.extent[2] == 0) return absl::OkStatus();
  params.scoring.sinks = nullptr;
  const auto statistic = [](const TensorView& view) {
    return RowStatistic{view.as<float>(), 0, view.stride[0], view.stride[1], view.stride[2]};
  };
  const TensorView& out = args.tmp_out;
  params.output.out = {out.data, out.stride[0], out.stride[1], Element::kF32};
  params.output.out_piece_stride = out.stride[2];
  params.output.max_logits = statistic(args.max_logits);
  params.output.exp_sums = statistic(args.exp_sums);
  return call.Launch(LaunchAttendRows, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const ReduceSplitsArgs& args) {
  CudaChecker check("ReduceSplits", context, args);
  check.Values("max_logits", args.max_logits).Values("tmp_out", args.tmp_out);
  return check.Values("out", args.out).Dense("sinks", args.sinks).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<ReduceSplitsArgs>& checked) {
  const ReduceSplitsArgs& args = checked.args();
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
  return call.Launch(LaunchMergeStates, merge);
}

absl::Status CheckOnCuda(const ExecContext& context, const PagedPrefillArgs& args) {
  CudaChecker check("PagedPrefill", context, args);
  return CheckQueries(check, args).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<PagedPrefillArgs>& checked) {
  return RunPagedPrefill(call, checked.args(), 0);
}

absl::Status CheckOnCuda(const ExecContext& context, const CascadeArgs& args) {
  CudaChecker check("Cascade", context, args);
  return CheckQueries(check, args.prefill).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<CascadeArgs>& checked) {
  return RunPagedPrefill(call, checked.args().prefill, checked.args().common_prefix_len);
}

absl::Status CheckOnCuda(const ExecContext& context, const VarlenSelfAttentionArgs& args) {
  CudaChecker check("VarlenSelfAttention", context, args);
  check.Values("q", args.q).Values("k", args.k).Values("v", args.v).Values("out", args.out);
  check.Dense("query_start_loc", args.query_start_loc).Dense("kv_start_loc", args.kv_start_loc);
  check.Dense("kv_seq_lens", args.kv_seq_lens).Dense("query_positions", args.query_positions);
  return check.Params(args.params).HeadDims(args.k.extent[2], args.v.extent[2]).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<VarlenSelfAttentionArgs>& checked) {
  const VarlenSelfAttentionArgs& args = checked.args();
  DenseAttention dense = DenseAttentionOf(args);
  if (!args.kv_seq_lens.absent()) {
    KVBLOCKS_ASSIGN_OR_RETURN(int32_t* const starts, call.Take<int32_t>(dense.num_requests + 1));
    const KeyStartsParams key_starts = {args.kv_seq_lens.as<int32_t>(), dense.num_requests,
                                        dense.num_key_rows, starts};
    KVBLOCKS_RETURN_IF_ERROR(call.Launch(LaunchKeyStarts, key_starts));
    dense.kv_start_loc = starts;
  }
  if (const PrefillParams prefill{dense}; TakesPrefill(prefill)) {
    return RunPrefill(call, args.params.split, prefill);
  }
  AttendRowsParams params = AttendRowsParamsOf(dense);
  KVBLOCKS_RETURN_IF_ERROR(PrepareMask(call, params));
  return call.Launch(LaunchAttendRows, params);
}

// Merging attention states.

absl::Status CheckOnCuda(const ExecContext& context, const MergeStatesArgs& args) {
  CudaChecker check("MergeStates", context, args);
  check.Values("outs", args.outs).Values("out", args.out).Dense("sinks", args.sinks);
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<MergeStatesArgs>& checked) {
  const MergeStatesArgs& args = checked.args();
  MergeStatesParams merge;
  merge.outs = {args.outs.data, args.outs.stride[1], args.outs.stride[2],
                ElementOf(args.outs.dtype)};
  merge.out_state_stride = args.outs.stride[0];
  merge.lses = {args.lses.as<float>(), args.lses.stride[0], args.lses.stride[1],
                args.lses.stride[2]};
  merge.num_states = static_cast<int32_t>(args.outs.extent[0]);
  merge.num_rows = static_cast<int32_t>(args.out.extent[0]);
  merge.num_heads = static_cast<int32_t>(args.out.extent[1]);
  merge.value_dim = static_cast<int32_t>(args.out.extent[2]);
  merge.tokens_with_context = static_cast<int32_t>(args.tokens_with_context);
  merge.infinity_is_empty = true;
  merge.sinks = args.sinks.as<float>();
  merge.out_scale = args.out_scale;
  merge.out = RowsOf(args.out);
  PlaceLse(args.lse, merge);
  return call.Launch(LaunchMergeStates, merge);
}

// The operation that chooses rows. Not in row_ops.cc, since its kernels multiply matrices:
// a program that only moves rows links none of those.

namespace {

constexpr int64_t kMostIndexDim = 512;

}  // namespace

absl::Status CheckOnCuda(const ExecContext& context, const IndexTopkArgs& args) {
  CudaChecker check("IndexTopk", context, args);
  check.Values("q", args.q).Values("cache.rows", args.cache.rows).Dense("weights", args.weights);
  check.Dense("block_table", args.block_table).Dense("indices", args.indices);
  check.Take(PlanarAligned("IndexTopk", args.cache));
  if (check.status().ok() && args.q.extent[2] > kMostIndexDim) {
    check.Take(absl::UnimplementedError(absl::StrCat("IndexTopk: keys of ", args.q.extent[2],
                                                     " values; CUDA is built for at most ",
                                                     kMostIndexDim)));
  }
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<IndexTopkArgs>& checked) {
  const IndexTopkArgs& args = checked.args();
  if (args.q.extent[0] == 0) return absl::OkStatus();
  IndexTopkParams params;
  params.q = ConstRowsOf(args.q);
  params.weights = args.weights.as<float>();
  params.weight_stride = args.weights.stride[0];
  params.rows = IndexRowsOf(args.cache, args.q.extent[2]);
  params.batch = RowBatchOf(args);
  params.num_tokens = static_cast<int32_t>(args.q.extent[0]);
  params.heads = static_cast<int32_t>(args.q.extent[1]);
  params.ratio = static_cast<int32_t>(args.ratio);
  const int64_t covered = args.block_table.extent[1] * args.cache.block_size();
  params.most_rows =
      static_cast<int32_t>(std::min({args.max_seq_len / args.ratio, covered, int64_t{INT32_MAX}}));
  params.as_slots = args.as_slots;
  params.indices = args.indices.as<int32_t>();
  params.index_stride = args.indices.stride[0];
  params.width = static_cast<int32_t>(args.indices.extent[1]);
  params.lens = args.lens.as<int32_t>();
  params.lens_stride = args.lens.stride[0];
  absl::Status status =
      call.RequireWorkspace(IndexTopkWorkspaceBytes(params.num_tokens, params.most_rows));
  return status.ok() ? call.Launch(LaunchIndexTopk, params) : status;
}

}  // namespace kvblocks::attention::cuda

namespace kvblocks::attention {

#define KVBLOCKS_CUDA_OP(Op) KVBLOCKS_DEFINE_ON_CUDA(CudaOps, Op)
KVBLOCKS_ATTENDING_OPS(KVBLOCKS_CUDA_OP)
#undef KVBLOCKS_CUDA_OP

const AttentionOps& Cuda() {
  static const CudaOps ops;
  return ops;
}

}  // namespace kvblocks::attention
