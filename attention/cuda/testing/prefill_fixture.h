// What tests of the emulated prefill kernels have in common: each runs for both kernels.

#ifndef KVBLOCKS_ATTENTION_CUDA_TESTING_PREFILL_FIXTURE_H_
#define KVBLOCKS_ATTENTION_CUDA_TESTING_PREFILL_FIXTURE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/kernel_params.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention::cuda {

// The parameter is a compute capability, 80 for the mma.sync kernel or 90 for the wgmma one.
class PrefillFixture : public testing::TestWithParam<int> {
 protected:
  static LaunchContext Context(uint32_t* flags, int num_multiprocessors = 4) {
    LaunchContext context;
    context.error_flags = flags;
    context.num_multiprocessors = num_multiprocessors;
    context.compute_capability = GetParam();
    return context;
  }
  // Arguments that are not meant to be flagged by the kernel pass the host's checks.
  template <typename Args>
  static void ExpectValid(const Args& args, uint32_t expected_flags) {
    const absl::Status status = Check(ExecContext{}, args);
    EXPECT_TRUE(status.ok() || expected_flags != 0) << status;
  }
  // 16-bit queries over a cache of the same type, heads of 64 values.
  static PagedCaseOptions Options(DType type = DType::kBF16) {
    return {.key_dim = 64, .value_dim = 64, .q_dtype = type, .cache_dtype = type};
  }
  static PagedCaseOptions Options(std::vector<int64_t> lengths, std::vector<int64_t> q_lens = {}) {
    PagedCaseOptions options = Options();
    options.lengths = std::move(lengths);
    options.q_lens = std::move(q_lens);
    return options;
  }
};

inline auto BothPrefillKernels() { return testing::Values(80, 90); }
inline std::string NameOfPrefillKernel(const testing::TestParamInfo<int>& param) {
  return absl::StrCat("Sm", param.param);
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_TESTING_PREFILL_FIXTURE_H_
