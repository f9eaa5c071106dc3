// What tests of the emulated prefill kernels have in common: each runs for both kernels.

#ifndef KVBLOCKS_ATTENTION_CUDA_TESTING_PREFILL_FIXTURE_H_
#define KVBLOCKS_ATTENTION_CUDA_TESTING_PREFILL_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/attend_launch.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_ops.h"

namespace kvblocks::attention::cuda {

struct PrefillKernel {
  int capability;  // 80: the mma.sync kernel, 90: the wgmma one
  int pieces = 0;  // that keys are cut into, whose states are merged; 0: not cut
};

class PrefillFixture : public testing::TestWithParam<PrefillKernel> {
 protected:
  static LaunchContext Context(uint32_t* flags, int num_multiprocessors = 4) {
    LaunchContext context;
    context.error_flags = flags;
    context.num_multiprocessors = num_multiprocessors;
    context.compute_capability = GetParam().capability;
    return context;
  }
  // With a workspace of so many bytes, all of them 0xff: states that were never written are NaN.
  CudaCall CallWith(uint32_t* flags, size_t bytes) {
    memory_.assign(bytes, std::byte{0xff});
    LaunchContext launch = Context(flags);
    launch.workspace = reinterpret_cast<unsigned char*>(memory_.data());
    launch.workspace_bytes = bytes;
    return CudaCall("PagedPrefill", launch);
  }
  void Launch(PrefillParams params, int pieces, uint32_t expected_flags = 0) {
    ASSERT_TRUE(TakesPrefill(params));
    uint32_t flags = 0;
    CudaCall call = CallWith(&flags, pieces == 0 ? 0 : pieces * PrefillPieceBytes(params) + 1024);
    if (pieces > 0) {
      ASSERT_TRUE(PlacePieces(call, pieces, &params));
      ASSERT_EQ(params.pieces.count, pieces);
    }
    ASSERT_EQ(LaunchPrefill(call.launch(), params), 0);
    if (pieces > 0) {
      ASSERT_EQ(LaunchPrefillMerge(call.launch(), MergeOf(params)), 0);
    }
    EXPECT_EQ(flags, expected_flags);
  }
  // Arguments that are not meant to be flagged by the kernel pass the host's checks.
  template <typename Args>
  void Launch(const Args& args, uint32_t expected_flags = 0) {
    const absl::Status status = Check(ExecContext{}, args);
    EXPECT_TRUE(status.ok() || expected_flags != 0) << status;
    Launch(PrefillParams{DenseAttentionOf(args)}, GetParam().pieces, expected_flags);
  }
  static void ExpectExact(const PagedCase& paged) {
    EXPECT_EQ(paged.Mismatch(CudaTolerance(paged.out.view.dtype)), "");
  }
  void ExpectPrefillIsExact(PagedCase& paged, uint32_t expected_flags = 0) {
    paged.ClearOutputs();
    Launch(paged.PrefillArgs(), expected_flags);
    ExpectExact(paged);
  }
  void ExpectVarlenIsExact(PagedCase& paged) {
    paged.ClearOutputs();
    Launch(paged.VarlenArgs());
    ExpectExact(paged);
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

 private:
  std::vector<std::byte> memory_;
};

inline auto BothPrefillKernels() { return testing::Values(PrefillKernel{80}, PrefillKernel{90}); }
inline std::string NameOfPrefillKernel(const testing::TestParamInfo<PrefillKernel>& info) {
  const std::string name = absl::StrCat("Sm", info.param.capability);
  return info.param.pieces == 0 ? name : absl::StrCat(name, "In", info.param.pieces, "Pieces");
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_TESTING_PREFILL_FIXTURE_H_
