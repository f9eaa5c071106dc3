// The operations of CacheBlend on a GPU; AttentionOps says what each does.

#ifndef KVBLOCKS_ATTENTION_CUDA_BLEND_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_BLEND_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

// Needs 8 bytes of workspace per token.
absl::Status CudaSelectHkvd(const ExecContext& context, const SelectHkvdArgs& args);
absl::Status CudaFuseKv(const ExecContext& context, const FuseKvArgs& args);
absl::Status CudaRotateKeys(const ExecContext& context, const RotateKeysArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_BLEND_OPS_H_
