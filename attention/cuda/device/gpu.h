// The API that kernel sources use: CUDA, or its emulation on the host.
//
// A kernel source (*.cu) includes this header instead of CUDA's own and is built twice: by nvcc for
// GPUs, and by the host compiler with KVBLOCKS_CUDA_EMULATION defined, where each thread of a block
// is a fiber (emulation/emulation.h). The second build is what tests without a GPU run, under
// sanitizers, too; it is slow and knows no time.
//
// Kernels are ordinary CUDA C++ with these rules, so that both builds take them: launches go
// through Launch(), dynamic shared memory is got by DynamicSharedMemory(), instructions that C++
// has no function for come from device/ptx.h, and threads that wait for memory written by others
// call something that waits (a barrier, a shuffle), never spin on plain loads.

#ifndef KVBLOCKS_ATTENTION_CUDA_DEVICE_GPU_H_
#define KVBLOCKS_ATTENTION_CUDA_DEVICE_GPU_H_

#include <cstddef>
#include <cstdint>

#ifdef KVBLOCKS_CUDA_EMULATION

#include "attention/cuda/emulation/emulation.h"

#define KVB_DEVICE inline
#define KVB_HOST_DEVICE inline

#else

#include <cuda_runtime.h>

#define KVB_DEVICE __device__ __forceinline__
#define KVB_HOST_DEVICE __host__ __device__ __forceinline__

#endif

namespace kvblocks::attention::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// How a kernel is launched.
struct LaunchConfig {
  dim3 grid = dim3(1, 1, 1);
  dim3 block = dim3(32, 1, 1);
  size_t shared_bytes = 0;  // dynamic
  void* stream = nullptr;   // a cudaStream_t
  // Start while the kernel before it on the stream still runs: the kernel must call
  // WaitForPreviousKernel() (ptx.h) before it reads what that one writes. Needs compute capability
  // 9.
  bool overlap_previous = false;
  // Blocks of a cluster, neighbours along x; divides grid.x. Up to 16, on compute capability 9.
  unsigned cluster = 1;
};

#ifdef KVBLOCKS_CUDA_EMULATION

template <typename... Params, typename... Args>
cudaError_t Launch(const LaunchConfig& config, void (*kernel)(Params...), const Args&... args) {
  return emulation::RunGrid(
      config.grid, config.block, config.shared_bytes, [&] { kernel(static_cast<Params>(args)...); },
      config.cluster);
}

// The start of the block's dynamic shared memory, aligned to 1024 bytes.
inline unsigned char* DynamicSharedMemory() { return emulation::DynamicShared(); }

#elif defined(__CUDACC__)

template <typename... Params, typename... Args>
cudaError_t Launch(const LaunchConfig& config, void (*kernel)(Params...), const Args&... args) {
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return cudaSuccess;
  if (config.shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(config.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (config.overlap_previous) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (config.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[num_attributes++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = config.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (config.cluster > 8) {
    const cudaError_t error = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = config.shared_bytes;
  launch.stream = static_cast<cudaStream_t>(config.stream);
  launch.attrs = attributes;
  launch.numAttrs = num_attributes;
  return cudaLaunchKernelEx(&launch, kernel, static_cast<Params>(args)...);
}

__device__ __forceinline__ unsigned char* DynamicSharedMemory() {
  extern __shared__ __align__(1024) unsigned char kvblocks_dynamic_shared_memory[];
  return kvblocks_dynamic_shared_memory;
}

#endif

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DEVICE_GPU_H_
