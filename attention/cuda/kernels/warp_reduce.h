// Sums, maxima and bits over a warp: every lane gets the same, always by the same tree. Device
// code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_WARP_REDUCE_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_WARP_REDUCE_H_

#include "attention/cuda/device/gpu.h"

namespace kvblocks::attention::cuda {

// A NaN counts as -infinity.
KVB_DEVICE float WarpMax(float value) {
  if (!(value == value)) value = -INFINITY;
#ifdef KVBLOCKS_CUDA_EMULATION
  const auto all = emulation::Exchange(kFullWarp, "WarpMax", value);
  for (unsigned lane = 0; lane < 32; ++lane) value = fmaxf(value, all[lane]);
  return value;
#else
  // Integers in the order of the floats, in one instruction.
  const int bits = __float_as_int(value);
  const int max = __reduce_max_sync(kFullWarp, bits >= 0 ? bits : bits ^ 0x7fffffff);
  return __int_as_float(max >= 0 ? max : max ^ 0x7fffffff);
#endif
}

// The bits that any lane has.
KVB_DEVICE uint32_t WarpOr(uint32_t value) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const auto all = emulation::Exchange(kFullWarp, "WarpOr", value);
  for (unsigned lane = 0; lane < 32; ++lane) value |= all[lane];
  return value;
#else
  return __reduce_or_sync(kFullWarp, value);
#endif
}

KVB_DEVICE uint32_t WarpLargest(uint32_t value) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const auto all = emulation::Exchange(kFullWarp, "WarpLargest", value);
  for (unsigned lane = 0; lane < 32; ++lane) value = all[lane] > value ? all[lane] : value;
  return value;
#else
  return __reduce_max_sync(kFullWarp, value);
#endif
}
KVB_DEVICE uint32_t WarpLeast(uint32_t value) { return ~WarpLargest(~value); }
KVB_DEVICE uint32_t WarpTotal(uint32_t value) {
#ifdef KVBLOCKS_CUDA_EMULATION
  const auto all = emulation::Exchange(kFullWarp, "WarpTotal", value);
  value = 0;
  for (unsigned lane = 0; lane < 32; ++lane) value += all[lane];
  return value;
#else
  return __reduce_add_sync(kFullWarp, value);
#endif
}

KVB_DEVICE float WarpSum(float value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, lanes);
  }
  return value;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_WARP_REDUCE_H_
