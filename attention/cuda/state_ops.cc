// Merging attention states.

#include "kvblocks/attention/cuda/cuda_checker.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/merge_states.h"

namespace kvblocks::attention::cuda {

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

}  // namespace kvblocks::attention::cuda
