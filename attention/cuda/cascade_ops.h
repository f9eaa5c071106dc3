// Cascade on tensor cores: the shared prefix once for all queries, the rest per request, merged.
//
// Both parts are PagedPrefill to the kernels of decode and prefill. Where all rows of queries make
// fewer tiles than the device has multiprocessors, the prefix is cut into pieces, each for all
// queries. Parts leave outputs of q's type and float32 log-sum-exps in the workspace: (pieces + 1)
// of each, for several pieces as many copies of q, and what decode needs for its own plan. How many
// pieces follows from bounds and the workspace.

#ifndef KVBLOCKS_ATTENTION_CUDA_CASCADE_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_CASCADE_OPS_H_

#include "absl/status/statusor.h"
#include "attention/ops/args.h"
#include "attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

// Whether it was enqueued: not for what these kernels are not built for (float32, ALiBi, positions,
// scales per request) nor where the workspace is too small. REQUIRES: checked arguments.
absl::StatusOr<bool> RunCascadeInParts(const char* op, const ExecContext& context,
                                       const CascadeArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CASCADE_OPS_H_
