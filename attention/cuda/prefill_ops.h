// PagedPrefill and VarlenSelfAttention on tensor cores.
//
// Enqueues one kernel or, where keys are cut, two. A workspace is used where there is one and keys
// are worth cutting, which bounds decide, and SplitPolicy: only Auto cuts, so that with other
// policies a request does not depend on its batch.

#ifndef KVBLOCKS_ATTENTION_CUDA_PREFILL_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_PREFILL_OPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kvblocks/attention/cuda/cuda_call.h"
#include "kvblocks/attention/cuda/kernels/prefill.h"
#include "kvblocks/attention/ops/params.h"

namespace kvblocks::attention::cuda {

// Cuts keys as far as the workspace has room. REQUIRES: TakesPrefill(params).
absl::Status RunPrefill(CudaCall& call, const SplitPolicy& split, PrefillParams params);

// Gives params `count` pieces of the workspace, fewer if there is no room for their states; false if
// there is not even room for one. REQUIRES: count >= 1.
bool PlacePieces(CudaCall& call, int32_t count, PrefillParams* params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_PREFILL_OPS_H_
