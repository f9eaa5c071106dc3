// gpu_check: every test and benchmark of the CUDA backend in one program that needs nothing but a
// driver, to be carried to a machine with a GPU.
//
//   gpu_check                      the tests (GoogleTest's flags apply)
//   gpu_check --portable           the tests with the kernels for compute capability 8.0
//   gpu_check --bench              the benchmarks
//   gpu_check --bench=decode --rounds=50 --matrix_tflops=788
//
// Exit status 0: all passed, or skipped because there is no GPU; 1: something failed, or benchmarks
// found no GPU; 2: bad arguments.

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "attention/cuda/check/gpu_bench.h"
#include "attention/cuda/cuda_ops.h"
#include "attention/cuda/host_tensor_ops.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/oracle/ops_suite.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {

const AttentionOps& OpsUnderTest() {
  static const auto* const on_device =
      new auto(cuda::HostTensorOps::Create(&Cuda(), cuda::HostTensorOps::Options{}));
  return ***on_device;
}

Tolerance ToleranceUnderTest(DType out) { return CudaTolerance(out); }
SuiteTraits TraitsUnderTest() { return {.alignment = 16, .host_sees_values = false}; }
Tolerance TileScaledToleranceUnderTest(DType out) { return CudaTileScaledTolerance(out); }

}  // namespace kvblocks::attention

namespace {

// The value of --name=value, or null.
const char* FlagValue(const char* argument, const char* name) {
  const size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0) return nullptr;
  if (argument[length] == '=') return argument + length + 1;
  return argument[length] == '\0' ? "" : nullptr;
}

// Empty if there is a GPU.
std::string WhyNoGpu() {
  int devices = 0;
  const int error = kvblocks::attention::cuda::CountDevices(&devices);
  if (error == 0 && devices > 0) return "";
  return std::string("no GPU can be used: ") +
         (error != 0 ? kvblocks::attention::cuda::ErrorName(error) : "there is none");
}

// Skips every test, by name and with the reason, where there is none. (An environment that skips would
// leave them all as passed.)
class SkipsWithoutGpu : public testing::EmptyTestEventListener {
 public:
  explicit SkipsWithoutGpu(std::string reason) : reason_(std::move(reason)) {}
  void OnTestStart(const testing::TestInfo&) override { GTEST_SKIP() << reason_; }

 private:
  std::string reason_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  bool bench = false, portable = false;
  std::string filter;
  int rounds = 25;
  double matrix_tflops = 0;
  for (int i = 1; i < argc; ++i) {
    if (const char* value = FlagValue(argv[i], "--bench")) {
      bench = true;
      filter = value;
    } else if (const char* count = FlagValue(argv[i], "--rounds")) {
      if (!absl::SimpleAtoi(count, &rounds)) rounds = 0;
    } else if (const char* rate = FlagValue(argv[i], "--matrix_tflops")) {
      if (!absl::SimpleAtod(rate, &matrix_tflops)) matrix_tflops = -1;
    } else if (std::strcmp(argv[i], "--portable") == 0) {
      portable = true;
    } else {
      std::fprintf(stderr,
                   "unknown argument %s; known: --portable --bench[=part of a name] --rounds=N "
                   "--matrix_tflops=X, and GoogleTest's\n",
                   argv[i]);
      return 2;
    }
  }
  if (rounds < 1 || rounds > 100000) {
    std::fprintf(stderr, "--rounds must be 1 to 100000\n");
    return 2;
  }
  if (!(matrix_tflops >= 0 && matrix_tflops < 1e6)) {
    std::fprintf(stderr, "--matrix_tflops must be a rate in TFLOP/s, or 0 for this program's own\n");
    return 2;
  }
  using namespace kvblocks::attention::cuda;
  if (portable) LimitComputeCapability(80);
  const std::string reason = WhyNoGpu();
  if (!bench) {
    if (!reason.empty()) {
      testing::UnitTest::GetInstance()->listeners().Append(new SkipsWithoutGpu(reason));
    }
    return RUN_ALL_TESTS();
  }
  if (!reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return 1;
  }
  GpuBench gpu(filter, rounds, matrix_tflops);
  gpu.MeasurePeaks();
  BenchDecode(gpu);
  BenchPrefill(gpu);
  BenchCascade(gpu);
  BenchMla(gpu);
  BenchCacheWrites(gpu);
  BenchStates(gpu);
  BenchBlocksAndLists(gpu);
  BenchStep(gpu);
  if (gpu.num_wanted() == 0) {
    std::fprintf(stderr, "--bench=%s: no case has that in its name; without a value all run\n",
                 filter.c_str());
    return 2;
  }
  return gpu.failures() == 0 ? 0 : 1;
}
