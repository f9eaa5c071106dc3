#include "attention/cuda/cuda_ops.h"

#include "attention/cuda/dense_ops.h"
#include "attention/cuda/mla_ops.h"
#include "attention/cuda/state_ops.h"

namespace kvblocks::attention {

absl::Status CudaOps::PagedDecode(const ExecContext& context, const PagedDecodeArgs& args) const {
  return cuda::CudaPagedDecode(context, args);
}

absl::Status CudaOps::PagedDecodePartial(const ExecContext& context,
                                         const PagedDecodePartialArgs& args) const {
  return cuda::CudaPagedDecodePartial(context, args);
}

absl::Status CudaOps::ReduceSplits(const ExecContext& context, const ReduceSplitsArgs& args) const {
  return cuda::CudaReduceSplits(context, args);
}

absl::Status CudaOps::PagedPrefill(const ExecContext& context, const PagedPrefillArgs& args) const {
  return cuda::CudaPagedPrefill(context, args);
}

absl::Status CudaOps::VarlenSelfAttention(const ExecContext& context,
                                          const VarlenSelfAttentionArgs& args) const {
  return cuda::CudaVarlenSelfAttention(context, args);
}

absl::Status CudaOps::Cascade(const ExecContext& context, const CascadeArgs& args) const {
  return cuda::CudaCascade(context, args);
}

absl::Status CudaOps::MlaDecode(const ExecContext& context, const MlaDecodeArgs& args) const {
  return cuda::CudaMlaDecode(context, args);
}

absl::Status CudaOps::SparseMlaDecode(const ExecContext& context,
                                      const SparseMlaDecodeArgs& args) const {
  return cuda::CudaSparseMlaDecode(context, args);
}

absl::Status CudaOps::SparseMlaPrefill(const ExecContext& context,
                                       const SparseMlaPrefillArgs& args) const {
  return cuda::CudaSparseMlaPrefill(context, args);
}

absl::Status CudaOps::MergeStates(const ExecContext& context, const MergeStatesArgs& args) const {
  return cuda::CudaMergeStates(context, args);
}

const AttentionOps& Cuda() {
  static const CudaOps ops;
  return ops;
}

}  // namespace kvblocks::attention
