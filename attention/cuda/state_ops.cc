#include "kvblocks/attention/cuda/state_ops.h"

#include "kvblocks/attention/cuda/attend_launch.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/merge_states.h"
#include "kvblocks/attention/ops/checks.h"

namespace kvblocks::attention::cuda {

absl::Status CudaMergeStates(const ExecContext& context, const MergeStatesArgs& args) {
  constexpr char kOp[] = "MergeStates";
  if (absl::Status status = Check(context, args); !status.ok()) return status;
  CudaChecker check(kOp, context);
  check.Values("outs", args.outs).Values("out", args.out).Dense("sinks", args.sinks);
  if (!check.status().ok()) return check.status();
  absl::StatusOr<CudaCall> call = BeginCall(kOp, context);
  if (!call.ok()) return call.status();

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
  return StatusOf(kOp, LaunchMergeStates(call->launch, merge));
}

}  // namespace kvblocks::attention::cuda
