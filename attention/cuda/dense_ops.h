// CUDA's attention over K/V heads: decode, its splits and their reduction, prefill, contiguous
// keys, cascades.
//
// Each checks its arguments, takes the fastest kernel built for them, and launches; it neither
// allocates nor synchronises. Decode with pieces needs a workspace: Fixed and Count always, Auto
// cuts no finer than what there is. A plan says how many pieces there are; where they begin is up
// to the kernel. Cascade's two parts (cascade_ops.h) need a workspace; without, or where tensor
// cores do not serve, one pass looks the shared keys up in row 0 of the table. PagedPrefill and
// VarlenSelfAttention take a row's keys in one piece whatever params.split says.

#ifndef KVBLOCKS_ATTENTION_CUDA_DENSE_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_DENSE_OPS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention::cuda {

absl::Status CudaPagedDecode(const ExecContext& context, const PagedDecodeArgs& args);
absl::Status CudaPagedDecodePartial(const ExecContext& context, const PagedDecodePartialArgs& args);
absl::Status CudaReduceSplits(const ExecContext& context, const ReduceSplitsArgs& args);
absl::Status CudaPagedPrefill(const ExecContext& context, const PagedPrefillArgs& args);
absl::Status CudaVarlenSelfAttention(const ExecContext& context,
                                     const VarlenSelfAttentionArgs& args);
absl::Status CudaCascade(const ExecContext& context, const CascadeArgs& args);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DENSE_OPS_H_
