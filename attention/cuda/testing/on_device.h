// CUDA's operations for tests whose tensors are in host memory.

#ifndef KVBLOCKS_ATTENTION_CUDA_TESTING_ON_DEVICE_H_
#define KVBLOCKS_ATTENTION_CUDA_TESTING_ON_DEVICE_H_

#include "attention/cuda/host_tensor_ops.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {

inline const AttentionOps& OnDevice() {
  static const auto on_device =
      HostTensorOps::Create(&Cuda(), {.workspace_bytes = 16 << 20, .arena_bytes = 64 << 20});
  return **on_device;
}
// Only those that move rows.
inline const AttentionOps& RowsOnDevice() {
  static const CudaRowOps ops;
  static const auto on_device =
      HostTensorOps::Create(&ops, {.workspace_bytes = 16 << 20, .arena_bytes = 64 << 20});
  return **on_device;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_TESTING_ON_DEVICE_H_
