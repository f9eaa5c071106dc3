// CUDA's multi-head latent attention: dense decode through block tables, sparse decode and prefill
// by lists of slots.
//
// As dense_ops.h has it. Sparse decode cuts lists as Auto cuts keys, as far as the workspace goes.

#ifndef KVBLOCKS_ATTENTION_CUDA_MLA_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_MLA_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

absl::Status CudaMlaDecode(const ExecContext& context, const MlaDecodeArgs& args);
absl::Status CudaSparseMlaDecode(const ExecContext& context, const SparseMlaDecodeArgs& args);
absl::Status CudaSparseMlaPrefill(const ExecContext& context, const SparseMlaPrefillArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_MLA_OPS_H_
