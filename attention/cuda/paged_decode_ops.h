// The fast paged decode behind the arguments of PagedDecode and PagedPrefill, and its plans.
//
// Only enqueues: no allocation, no synchronisation, no reading of device memory, so that everything
// can be captured in a graph. Bounds come from shapes and max_seq_len; lengths are read by kernels.

#ifndef KVBLOCKS_ATTENTION_CUDA_PAGED_DECODE_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_PAGED_DECODE_OPS_H_

#include "absl/status/status.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernels/decode_plan.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention::cuda {

// As kernels take them, without a plan of the host.
PagedDecodeParams PagedDecodeParamsOf(const PagedDecodeArgs& args);
PagedDecodeParams PagedDecodeParamsOf(const PagedPrefillArgs& args);

// FailedPrecondition if a plan was made for other shapes, naming what differs. A plan of the host
// must be one that the fast decode takes, where it takes the rest of the arguments.
// REQUIRES: arguments that pass ops/checks.h.
absl::Status CheckPlans(const PagedDecodeArgs& args);

// With the pieces of `plan`, unless that is null. ResourceExhausted for a workspace too small.
// REQUIRES: TakesPagedDecode(params); nothing was taken from the workspace; CheckPlans.
absl::Status RunPagedDecode(CudaCall& call, PagedDecodeParams params,
                            const SplitPlan* plan = nullptr);

// Makes a plan for all layers of a step that have the shapes of `args`: PagedDecode takes it as
// args.device_plan. Checked like PagedDecode; Unimplemented for what the fast decode does not take;
// memory too small is ResourceExhausted.
absl::Status CudaPlanDecode(const ExecContext& context, const PagedDecodeArgs& args,
                            DeviceDecodePlan* plan);

// Its bytes; 0 where each call plans inside of its kernel, is taken by another, or is refused.
int64_t CudaDecodePlanBytes(const ExecContext& context, const PagedDecodeArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_PAGED_DECODE_OPS_H_
