#include "kvblocks/attention/cuda/cuda_ops.h"

#include "kvblocks/attention/cuda/blend_ops.h"
#include "kvblocks/attention/cuda/cache_ops.h"
#include "kvblocks/attention/cuda/dense_ops.h"
#include "kvblocks/attention/cuda/mla_ops.h"
#include "kvblocks/attention/cuda/state_ops.h"

namespace kvblocks::attention {

#define KVBLOCKS_CUDA_OP(Op)                                                              \
  absl::Status CudaOps::Op(const ExecContext& context, const Op##Args& args) const {      \
    return cuda::Cuda##Op(context, args);                                                 \
  }
KVBLOCKS_ATTENTION_OPS(KVBLOCKS_CUDA_OP)
#undef KVBLOCKS_CUDA_OP

const AttentionOps& Cuda() {
  static const CudaOps ops;
  return ops;
}

}  // namespace kvblocks::attention
