#include <cuda_runtime.h>

#include <vector>

#include "gtest/gtest.h"
#include "third_party/cuda/toolchain_probe.h"

namespace kvblocks {
namespace {

TEST(CudaToolchainTest, RunsAKernel) {
  int num_gpus = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_gpus);
  if (error != cudaSuccess || num_gpus == 0) {
    GTEST_SKIP() << "no GPU to run on: " << cudaGetErrorString(error);
  }
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const cudaError_t status = AddOnGpu(values.data(), static_cast<int>(values.size()), 0.5f);
  ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], static_cast<float>(i) + 0.5f) << "element " << i;
  }
}

// Without a GPU, too: the runtime answers, and with an error that it can name.
TEST(CudaToolchainTest, RuntimeIsOfTheReleaseOfTheHeaders) {
  int version = 0;
  ASSERT_EQ(cudaRuntimeGetVersion(&version), cudaSuccess);
  EXPECT_EQ(version / 10, CUDART_VERSION / 10);
}

}  // namespace
}  // namespace kvblocks
