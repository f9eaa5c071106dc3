#include "kvblocks/attention/cuda/cuda_ops.h"

#include "absl/status/statusor.h"
#include "kvblocks/attention/cuda/cuda_call.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"

namespace kvblocks::attention {

#define KVBLOCKS_CUDA_OP(Op)                                                                     \
  absl::Status CudaOps::Refuse(const ExecContext& context, const Op##Args& args) const {         \
    return cuda::CheckOnCuda(context, args);                                                     \
  }                                                                                              \
  absl::Status CudaOps::Run(const Checked<Op##Args>& checked) const {                            \
    absl::StatusOr<cuda::CudaCall> call = cuda::CudaCall::Begin(#Op, checked.context());         \
    return call.ok() ? cuda::Enqueue(*call, checked) : call.status();                            \
  }
KVBLOCKS_ATTENTION_OPS(KVBLOCKS_CUDA_OP)
#undef KVBLOCKS_CUDA_OP

const AttentionOps& Cuda() {
  static const CudaOps ops;
  return ops;
}

}  // namespace kvblocks::attention
