// PagedPrefill and VarlenSelfAttention on tensor cores: arguments to kernels.
//
// Both refuse with Unimplemented what the kernels do not take (TakesPrefill); a caller with another
// way to compute it asks first. Enqueues one kernel or, where keys are cut, two. A workspace is
// used where there is one and keys are worth cutting, which bounds decide, and SplitPolicy: only
// Auto cuts, so that with other policies a request does not depend on its batch.

#ifndef KVBLOCKS_ATTENTION_CUDA_PREFILL_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_PREFILL_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/backends/workspace.h"
#include "kvblocks/attention/cuda/kernels/prefill.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

// Of checked arguments.
PrefillParams PrefillParamsOf(const PagedPrefillArgs& args);
PrefillParams PrefillParamsOf(const VarlenSelfAttentionArgs& args);

// Cuts keys as far as the arena has room; takes the states from it. REQUIRES: TakesPrefill(params).
absl::Status RunPrefill(const char* operation, const LaunchContext& launch, WorkspaceArena& arena,
                        const SplitPolicy& split, const PrefillParams& params);

// Gives params `count` pieces of the arena, fewer if there is no room for their states; false if
// there is not even room for one. REQUIRES: count >= 1.
bool PlacePieces(WorkspaceArena& arena, int64_t arena_bytes, int32_t count, PrefillParams* params);

absl::Status CudaPrefill(const ExecContext& context, const PagedPrefillArgs& args);
absl::Status CudaPrefill(const ExecContext& context, const VarlenSelfAttentionArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_PREFILL_OPS_H_
