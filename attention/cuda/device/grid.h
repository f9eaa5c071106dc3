// All blocks of a launch meet. Launched by LaunchConfig::cooperative, which lets the grid begin only where
// all of it runs at once, so that waiting for each other ends. With its emulation: a grid of up to 16
// blocks, one after another in x.
//
// The word that they count in must be zero modulo 2^31 before, and is again after: it needs no preparation
// between launches, and replayed graphs find it as they need it. No two launches may use it at a time.

#ifndef KVBLOCKS_ATTENTION_CUDA_DEVICE_GRID_H_
#define KVBLOCKS_ATTENTION_CUDA_DEVICE_GRID_H_

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/ptx.h"

namespace kvblocks::attention::cuda {

// All threads of all blocks: what they wrote before is seen by all after (past L1: LoadFromOthers*).
// REQUIRES: a grid of one dimension.
KVB_DEVICE void GridSync(int32_t* counter) {
#ifdef KVBLOCKS_CUDA_EMULATION
  static_cast<void>(counter);
  emulation::ClusterSync();
#else
  __syncthreads();
  if (threadIdx.x == 0) {
    // The top bit turns when the last block has come.
    const uint32_t own = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    __threadfence();
    const uint32_t before = atomicAdd(reinterpret_cast<uint32_t*>(counter), own);
    while (((static_cast<uint32_t>(LoadFromOthers4(counter)) ^ before) & 0x80000000u) == 0) {
    }
    __threadfence();
  }
  __syncthreads();
#endif
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DEVICE_GRID_H_
