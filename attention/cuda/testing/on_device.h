// CUDA's operations for tests whose tensors are in host memory.

#ifndef KVBLOCKS_ATTENTION_CUDA_TESTING_ON_DEVICE_H_
#define KVBLOCKS_ATTENTION_CUDA_TESTING_ON_DEVICE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "attention/cuda/host_tensor_ops.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {

inline const HostTensorOps& OnDevice() {
  static const auto on_device =
      HostTensorOps::Create(&Cuda(), {.workspace_bytes = 16 << 20, .arena_bytes = 64 << 20});
  return **on_device;
}
// Only those that move rows.
inline const HostTensorOps& RowsOnDevice() {
  static const CudaRowOps ops;
  static const auto on_device =
      HostTensorOps::Create(&ops, {.workspace_bytes = 16 << 20, .arena_bytes = 64 << 20});
  return **on_device;
}

// That both calls, each given a context, leave the same bytes and flags.
template <typename OnCpu, typename OnCuda>
void ExpectSameBytes(const std::vector<Tensor*>& outputs, const OnCpu& on_cpu,
                     const OnCuda& on_cuda) {
  Flagged cpu, cuda;
  std::vector<std::vector<std::byte>> before, expected;
  for (const Tensor* output : outputs) before.push_back(output->bytes);
  ASSERT_EQ(on_cpu(cpu.context), absl::OkStatus());
  for (size_t i = 0; i < outputs.size(); ++i) {
    expected.push_back(outputs[i]->bytes);
    std::copy(before[i].begin(), before[i].end(), outputs[i]->bytes.begin());
  }
  ASSERT_EQ(on_cuda(cuda.context), absl::OkStatus());
  // Not by EXPECT_EQ, which would print megabytes.
  for (size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(outputs[i]->bytes == expected[i]) << i;
  EXPECT_EQ(cuda.bits, cpu.bits);
}
// ... of `run`, an operation that moves rows, by CPU_REFERENCE and by CUDA.
template <typename Run>
void ExpectBytesOfTheCpu(const std::vector<Tensor*>& outputs, const Run& run) {
  ExpectSameBytes(
      outputs, [&](const ExecContext& context) { return run(CpuReference(), context); },
      [&](const ExecContext& context) { return run(RowsOnDevice(), context); });
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_TESTING_ON_DEVICE_H_
