#include "third_party/cuda/toolchain_probe.h"

#include <cstddef>

#include "absl/types/span.h"

namespace kvblocks {
namespace {

__global__ void Add(float* values, int count, float addend) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] += addend;
}

cudaError_t AddToDeviceCopy(absl::Span<float> values, float addend, float* device) {
  const size_t bytes = values.size() * sizeof(float);
  const int count = static_cast<int>(values.size());
  constexpr int kThreads = 128;
  if (cudaError_t error = cudaMemcpy(device, values.data(), bytes, cudaMemcpyHostToDevice)) {
    return error;
  }
  Add<<<(count + kThreads - 1) / kThreads, kThreads>>>(device, count, addend);
  if (cudaError_t error = cudaGetLastError()) return error;
  return cudaMemcpy(values.data(), device, bytes, cudaMemcpyDeviceToHost);
}

}  // namespace

cudaError_t AddOnGpu(float* values, int count, float addend) {
  float* device = nullptr;
  if (cudaError_t error = cudaMalloc(&device, count * sizeof(float))) return error;
  const cudaError_t error = AddToDeviceCopy(absl::MakeSpan(values, count), addend, device);
  cudaFree(device);
  return error;
}

}  // namespace kvblocks
