// What tests of the emulated decode share: memory of exactly so many bytes, and a runner that
// expects the fast decode.

#ifndef KVBLOCKS_ATTENTION_CUDA_TESTING_DECODE_RUNNER_H_
#define KVBLOCKS_ATTENTION_CUDA_TESTING_DECODE_RUNNER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "attention/cuda/paged_decode_ops.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention::cuda {

// 16-byte aligned memory of exactly so many bytes, full of garbage.
struct DeviceMemory {
  explicit DeviceMemory(size_t bytes) : size((bytes + 15) / 16 * 16) {
    data.reset(static_cast<std::byte*>(std::aligned_alloc(16, std::max<size_t>(size, 16))));
    std::fill_n(data.get(), size, std::byte{0xa5});
  }
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  size_t size;
  std::unique_ptr<std::byte, Free> data;
};

// PagedCase keeps its cache in vectors, which are 16-byte aligned by their allocator.
inline PagedCaseOptions DecodeOptions(std::vector<int64_t> lengths = {1, 63, 64, 65, 0, 150},
                                      std::vector<int64_t> q_lens = {}) {
  return {.lengths = std::move(lengths),
          .q_lens = std::move(q_lens),
          .key_dim = 64,
          .value_dim = 64,
          .q_dtype = DType::kBF16,
          .cache_dtype = DType::kBF16};
}

class DecodeRunner {
 public:
  explicit DecodeRunner(size_t workspace_bytes = size_t{1} << 22) : memory_(workspace_bytes) {
    workspace_.device = absl::MakeSpan(memory_.data.get(), memory_.size);
    flags_.bits = &bits_;
    context_.workspace = &workspace_;
    context_.error_flags = &flags_;
  }
  const ExecContext& context() const { return context_; }
  uint32_t flags() const { return bits_; }

  // These expect the fast decode.
  absl::Status Decode(PagedCase& paged) { return Decode(paged, paged.DecodeArgs()); }
  absl::Status Decode(PagedCase& paged, const PagedDecodeArgs& args) {
    paged.ClearOutputs();
    EXPECT_TRUE(TakesPagedDecode(PagedDecodeParamsOf(args)));
    return Cuda().PagedDecode(context_, args);
  }
  absl::Status Prefill(PagedCase& paged) {
    paged.ClearOutputs();
    EXPECT_TRUE(TakesPagedDecode(PagedDecodeParamsOf(paged.PrefillArgs())));
    return Cuda().PagedPrefill(context_, paged.PrefillArgs());
  }
  absl::Status Run(const PagedDecodeParams& params) const {
    absl::StatusOr<CudaCall> call = CudaCall::Begin("PagedDecode", context_);
    return call.ok() ? RunPagedDecode(*call, params) : call.status();
  }
  // As on a GPU of so many multiprocessors that has clusters.
  Error DecodeInClusters(PagedCase& paged, int num_multiprocessors) {
    paged.ClearOutputs();
    LaunchContext launch;
    launch.error_flags = &bits_;
    launch.workspace = reinterpret_cast<unsigned char*>(memory_.data.get());
    launch.workspace_bytes = memory_.size;
    launch.num_multiprocessors = num_multiprocessors;
    launch.compute_capability = 90;
    return LaunchPagedDecode(launch, PagedDecodeParamsOf(paged.DecodeArgs()));
  }
  void ExpectDecode(PagedCase& paged) {
    ASSERT_EQ(Decode(paged), absl::OkStatus());
    EXPECT_EQ(paged.Mismatch(CudaTolerance(paged.options().q_dtype)), "");
  }
  void ExpectPrefill(PagedCase& paged) {
    ASSERT_EQ(Prefill(paged), absl::OkStatus());
    EXPECT_EQ(paged.Mismatch(CudaTolerance(paged.options().q_dtype)), "");
  }

 private:
  DeviceMemory memory_;
  Workspace workspace_;
  uint32_t bits_ = 0;
  DeviceErrorFlags flags_;
  ExecContext context_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_TESTING_DECODE_RUNNER_H_
