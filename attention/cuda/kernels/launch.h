// What kernel sources share: the configuration of an ordinary launch, and error flags as kernels
// set them.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_LAUNCH_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_LAUNCH_H_

#include <cstddef>
#include <cstdint>

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/params.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {

KVB_DEVICE void Flag(uint32_t* flags, uint32_t bit) {
  if (flags != nullptr) atomicOr(flags, bit);
}

inline unsigned Blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// On the context's stream; the kernel waits for the one before it itself where that is possible.
inline LaunchConfig ConfigOf(const LaunchContext& context, dim3 grid, int threads,
                             size_t shared_bytes = 0) {
  LaunchConfig config;
  config.grid = grid;
  config.block = dim3(static_cast<unsigned>(threads));
  config.shared_bytes = shared_bytes;
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return config;
}

// Whose token it is: requests by where their tokens begin. Device code, by whole warps.

// The last of `count` requests that begins at or before the token, 0 without requests; those
// without tokens end where they begin. 32 probes at a time: two loads one after another up to 1024
// requests.
KVB_DEVICE int32_t FindRequestByWarp(const int32_t* starts, int64_t stride, int32_t count,
                                     int64_t token, int lane) {
  int32_t begin = 0, end = count;
  while (end - begin > 1) {
    const int32_t step = (end - begin + 31) / 32;
    const int32_t probe = begin + lane * step;
    const bool before = probe < end && starts[probe * stride] <= token;
    const unsigned all = __ballot_sync(kFullWarp, before) | 1u;
    begin += (31 - __clz(static_cast<int>(all))) * step;
    end = begin + step < end ? begin + step : end;
  }
  return begin;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_LAUNCH_H_
