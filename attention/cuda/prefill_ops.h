// PagedPrefill and VarlenSelfAttention on tensor cores: arguments to kernels.
//
// Both refuse with Unimplemented what the kernels do not take (TakesPrefill); a caller with another
// way to compute it asks first. Enqueues one kernel; no workspace.

#ifndef KVBLOCKS_ATTENTION_CUDA_PREFILL_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_PREFILL_OPS_H_

#include "absl/status/status.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/ops/args.h"
#include "attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

// Of checked arguments.
PrefillParams PrefillParamsOf(const PagedPrefillArgs& args);
PrefillParams PrefillParamsOf(const VarlenSelfAttentionArgs& args);

absl::Status CudaPrefill(const ExecContext& context, const PagedPrefillArgs& args);
absl::Status CudaPrefill(const ExecContext& context, const VarlenSelfAttentionArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_PREFILL_OPS_H_
