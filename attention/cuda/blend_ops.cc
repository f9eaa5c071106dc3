// The operations of CacheBlend.

#include <utility>

#include "kvblocks/attention/cuda/cuda_checker.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/blend.h"
#include "kvblocks/attention/ops/hkvd_count.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks::attention::cuda {

absl::Status CheckOnCuda(const ExecContext& context, const SelectHkvdArgs& args) {
  CudaChecker check("SelectHkvd", context, args);
  return check.Moved("v_new", args.v_new).Moved("v_old", args.v_old).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<SelectHkvdArgs>& checked) {
  const SelectHkvdArgs& args = checked.args();
  const int64_t n = args.v_new.extent[0];
  if (n == 0) return absl::OkStatus();
  SelectParams params;
  params.v_new = ConstRowsOf(args.v_new);
  params.v_old = ConstRowsOf(args.v_old);
  params.num_tokens = n - args.suffix_len;
  params.heads = static_cast<int32_t>(args.v_new.extent[1]);
  params.dim = static_cast<int32_t>(args.v_new.extent[2]);
  params.num_selected = HkvdCount(n, args.suffix_len, args.ratio);
  params.suffix_len = args.suffix_len;
  params.imp = args.imp.as<int32_t>();
  params.imp_stride = args.imp.stride[0];
  if (!args.diffs.absent()) {
    params.diffs = args.diffs.as<float>();
    params.diffs_stride = args.diffs.stride[0];
  }
  absl::Status status = call.RequireWorkspace(SelectWorkspaceBytes(params.num_tokens));
  return status.ok() ? call.Launch(LaunchSelect, params) : status;
}

absl::Status CheckOnCuda(const ExecContext& context, const FuseKvArgs& args) {
  CudaChecker check("FuseKv", context, args);
  return check.Moved("k_old", args.k_old).Moved("v_old", args.v_old).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<FuseKvArgs>& checked) {
  const FuseKvArgs& args = checked.args();
  if (args.imp.empty() || args.k_old.extent[1] == 0) return absl::OkStatus();
  FuseParams params;
  params.imp = args.imp.as<int32_t>();
  params.imp_stride = args.imp.stride[0];
  params.num_rows = args.imp.extent[0];
  params.num_tokens = args.k_old.extent[0];
  params.from[0] = ConstRowsOf(args.k_new);
  params.from[1] = ConstRowsOf(args.v_new);
  params.to[0] = RowsOf(args.k_old);
  params.to[1] = RowsOf(args.v_old);
  params.heads = static_cast<int32_t>(args.k_old.extent[1]);
  params.dim[0] = static_cast<int32_t>(args.k_old.extent[2]);
  params.dim[1] = static_cast<int32_t>(args.v_old.extent[2]);
  return call.Launch(LaunchFuse, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const GatherRowsArgs& args) {
  CudaChecker check("GatherRows", context, args);
  for (const auto& [name, view] : {std::pair("in", args.in), {"out", ConstTensorView(args.out)}}) {
    int64_t dense = 1;
    for (int dim = view.rank - 1; dim >= 1; --dim) {
      if (view.extent[dim] > 1 && view.stride[dim] != dense && !view.empty()) {
        check.Take(InvalidArgument("GatherRows: ", name, " is ", view.DebugString(),
                                   "; on CUDA the elements of a row follow each other"));
      }
      dense *= view.extent[dim];
    }
  }
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<GatherRowsArgs>& checked) {
  const GatherRowsArgs& args = checked.args();
  if (args.out.empty()) return absl::OkStatus();
  const int64_t bytes = ElementBytes(args.in.dtype);
  GatherRowsParams params;
  params.index = args.index.as<int32_t>();
  params.index_stride = args.index.stride[0];
  params.num_rows = args.index.extent[0];
  params.num_sources = args.in.extent[0];
  params.row_bytes = args.out.num_elements() / args.out.extent[0] * bytes;
  params.from = args.in.data;
  params.from_stride = args.in.stride[0] * bytes;
  params.to = args.out.data;
  params.to_stride = args.out.stride[0] * bytes;
  return call.Launch(LaunchGatherRows, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const RotateKeysArgs& args) {
  CudaChecker check("RotateKeys", context, args);
  return check.Moved("in", args.in).Moved("out", args.out).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<RotateKeysArgs>& checked) {
  const RotateKeysArgs& args = checked.args();
  if (args.in.empty()) return absl::OkStatus();
  RotateParams params;
  params.from = ConstRowsOf(args.in);
  params.to = RowsOf(args.out);
  params.num_tokens = args.in.extent[0];
  params.heads = static_cast<int32_t>(args.in.extent[1]);
  params.dim = static_cast<int32_t>(args.in.extent[2]);
  params.rotary_dim = static_cast<int32_t>(args.rotary_dim == 0 ? params.dim : args.rotary_dim);
  params.positions = args.positions.data;
  params.positions_stride = args.positions.stride[0];
  params.positions_are_wide = args.positions.dtype == DType::kI64;
  if (!args.from_positions.absent()) {
    params.from_positions = args.from_positions.data;
    params.from_positions_stride = args.from_positions.stride[0];
    params.from_positions_are_wide = args.from_positions.dtype == DType::kI64;
  }
  params.theta = args.theta;
  params.interleaved = args.pairs == RotaryPairs::kInterleaved;
  return call.Launch(LaunchRotate, params);
}

}  // namespace kvblocks::attention::cuda
