// Apart from cuda_ops.cc, so that a program that only moves rows links no kernels that attend.

#include "kvblocks/attention/cuda/cuda_ops.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"

namespace kvblocks::attention {

#define KVBLOCKS_CUDA_ROW_OP(Op) KVBLOCKS_DEFINE_ON_CUDA(CudaRowOps, Op)
KVBLOCKS_KV_ROW_OPS(KVBLOCKS_CUDA_ROW_OP)
#undef KVBLOCKS_CUDA_ROW_OP

}  // namespace kvblocks::attention
