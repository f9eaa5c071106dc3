#include "kvblocks/attention/cuda/cuda_ops.h"

#include "kvblocks/attention/cuda/enqueue_ops.h"

namespace kvblocks::attention {

#define KVBLOCKS_CUDA_OP(Op) KVBLOCKS_DEFINE_ON_CUDA(CudaOps, Op)
KVBLOCKS_ATTENDING_OPS(KVBLOCKS_CUDA_OP)
#undef KVBLOCKS_CUDA_OP

const AttentionOps& Cuda() {
  static const CudaOps ops;
  return ops;
}

}  // namespace kvblocks::attention
