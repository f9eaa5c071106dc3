// Error flags as kernels set them. Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DEVICE_FLAGS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DEVICE_FLAGS_H_

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/ops/device_error_bits.h"

namespace kvblocks::attention::cuda {

KVB_DEVICE void Flag(uint32_t* flags, uint32_t bit) {
  if (flags != nullptr) atomicOr(flags, bit);
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DEVICE_FLAGS_H_
