// The fast paged decode behind the arguments of PagedDecode and PagedPrefill.
//
// Only enqueues: no allocation, no synchronisation, no reading of device memory, so that everything
// can be captured in a graph. Bounds come from shapes and max_seq_len; lengths are read by kernels.

#ifndef KVBLOCKS_ATTENTION_CUDA_PAGED_DECODE_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_PAGED_DECODE_OPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/cuda/kernels/paged_decode.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

// As kernels take them. REQUIRES: checked arguments.
PagedDecodeParams PagedDecodeParamsOf(const PagedDecodeArgs& args);
// Of few queries per request, without query_positions and out_scale.
PagedDecodeParams PagedDecodeParamsOf(const PagedPrefillArgs& args);
bool IsForPagedDecode(const PagedPrefillArgs& args);

// Bytes of device workspace that LaunchChecked needs.
absl::StatusOr<int64_t> PagedDecodeWorkspaceBytes(const ExecContext& context,
                                                  const PagedDecodeParams& params);

// FailedPrecondition if args.device_plan was made for other shapes, naming what differs.
absl::Status CheckDevicePlan(const PagedDecodeArgs& args);

// ResourceExhausted for a workspace too small. REQUIRES: TakesPagedDecode(params).
absl::Status RunPagedDecode(const char* operation, const ExecContext& context,
                            const PagedDecodeParams& params);

// Check, then the above; Unimplemented for what the kernel does not take.
absl::Status CudaFastPagedDecode(const ExecContext& context, const PagedDecodeArgs& args);
absl::Status CudaFastPagedPrefill(const ExecContext& context, const PagedPrefillArgs& args);

// Makes a plan for all layers of a step that have the shapes of `args`: PagedDecode takes it as
// args.device_plan. Check'ed like PagedDecode; memory too small is ResourceExhausted.
absl::Status CudaPlanDecode(const ExecContext& context, const PagedDecodeArgs& args,
                            DeviceDecodePlan* plan);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_PAGED_DECODE_OPS_H_
