// Writing and reading the cache on a GPU; AttentionOps says what each operation does.

#ifndef KVBLOCKS_ATTENTION_CUDA_CACHE_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_CACHE_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

absl::Status CudaReshapeAndCache(const ExecContext& context, const ReshapeAndCacheArgs& args);
absl::Status CudaConcatAndCacheMla(const ExecContext& context, const ConcatAndCacheMlaArgs& args);
// Needs 3 * 528 * 4 bytes of workspace per scale of the tensor with most of them.
absl::Status CudaComputeKvScales(const ExecContext& context, const ComputeKvScalesArgs& args);
absl::Status CudaGatherCache(const ExecContext& context, const GatherCacheArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CACHE_OPS_H_
