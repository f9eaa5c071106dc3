#include "kvblocks/attention/cuda/blend_ops.h"

#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/blend.h"
#include "kvblocks/attention/ops/checks.h"
#include "kvblocks/attention/ops/hkvd_count.h"

namespace kvblocks::attention::cuda {

absl::Status CudaSelectHkvd(const ExecContext& context, const SelectHkvdArgs& args) {
  constexpr char kName[] = "SelectHkvd";
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  absl::Status status = RefuseF64(kName, "v_new", args.v_new);
  status.Update(RefuseF64(kName, "v_old", args.v_old));
  const int64_t n = args.v_new.extent[0];
  if (!status.ok() || n == 0) return status;
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
  const absl::StatusOr<LaunchContext> launch = LaunchContextOf(kName, context);
  if (!launch.ok()) return launch.status();
  status = CheckWorkspace(kName, *launch, SelectWorkspaceBytes(params.num_tokens));
  if (!status.ok()) return status;
  return StatusOf(kName, LaunchSelect(*launch, params));
}

absl::Status CudaFuseKv(const ExecContext& context, const FuseKvArgs& args) {
  constexpr char kName[] = "FuseKv";
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  absl::Status status = RefuseF64(kName, "k_old", args.k_old);
  status.Update(RefuseF64(kName, "v_old", args.v_old));
  if (!status.ok() || args.imp.empty() || args.k_old.extent[1] == 0) return status;
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
  const absl::StatusOr<LaunchContext> launch = LaunchContextOf(kName, context);
  if (!launch.ok()) return launch.status();
  return StatusOf(kName, LaunchFuse(*launch, params));
}

absl::Status CudaRotateKeys(const ExecContext& context, const RotateKeysArgs& args) {
  constexpr char kName[] = "RotateKeys";
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  absl::Status status = RefuseF64(kName, "in", args.in);
  status.Update(RefuseF64(kName, "out", args.out));
  if (!status.ok() || args.in.empty()) return status;
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
  const absl::StatusOr<LaunchContext> launch = LaunchContextOf(kName, context);
  if (!launch.ok()) return launch.status();
  return StatusOf(kName, LaunchRotate(*launch, params));
}

}  // namespace kvblocks::attention::cuda
