// Cascade on tensor cores: the shared prefix once for all queries, the rest per request, merged.
//
// Both parts are PagedPrefill to the kernels of decode and prefill, the prefix as one request whose
// keys are cut into pieces where row tiles are few; it begins while the last of the other part are
// still under way. The workspace takes float32 states of all rows for each piece, one of q's type
// of the part behind the prefix, and what decode needs for its own plan. How many pieces follows
// from bounds and the workspace.

#ifndef KVBLOCKS_ATTENTION_CUDA_CASCADE_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_CASCADE_OPS_H_

#include "absl/status/statusor.h"
#include "kvblocks/attention/cuda/cuda_call.h"
#include "kvblocks/attention/ops/args.h"

namespace kvblocks::attention::cuda {

// Whether it was enqueued; else nothing of the workspace is taken. Not for what these kernels are not built for (float32, ALiBi, positions,
// scales per request) nor where the workspace is too small. REQUIRES: checked arguments.
absl::StatusOr<bool> RunCascadeInParts(const CudaCall& call, const CascadeArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CASCADE_OPS_H_
