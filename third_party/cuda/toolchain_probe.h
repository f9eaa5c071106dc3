// One kernel, to show that the CUDA of this build compiles, links and, where there is a GPU, runs.

#ifndef KVBLOCKS_THIRD_PARTY_CUDA_TOOLCHAIN_PROBE_H_
#define KVBLOCKS_THIRD_PARTY_CUDA_TOOLCHAIN_PROBE_H_

#include <cuda_runtime.h>

namespace kvblocks {

// Adds `addend` to every element of `values`, an array in host memory, on the current GPU.
cudaError_t AddOnGpu(float* values, int count, float addend);

}  // namespace kvblocks

#endif  // KVBLOCKS_THIRD_PARTY_CUDA_TOOLCHAIN_PROBE_H_
