// CUDA's merging of attention states.

#ifndef KVBLOCKS_ATTENTION_CUDA_STATE_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_STATE_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

// A log-sum-exp of +infinity in device memory counts as empty and is flagged.
absl::Status CudaMergeStates(const ExecContext& context, const MergeStatesArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_STATE_OPS_H_
