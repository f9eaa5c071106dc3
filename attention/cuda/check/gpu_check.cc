// gpu_check: every test and benchmark of the CUDA backend in one program that needs nothing but a
// driver, to be carried to a machine with a GPU.
//
//   gpu_check                      the tests (GoogleTest's flags apply)
//   gpu_check --portable           the tests with the kernels for compute capability 8.0
//   gpu_check --bench              the benchmarks
//   gpu_check --bench=decode --rounds=50 --matrix-tflops=788
//
// Exit status 0: all passed, or skipped because there is no GPU; 1: something failed, or benchmarks
// found no GPU; 2: bad arguments.

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "attention/cuda/check/gpu_bench.h"
#include "attention/cuda/host_tensor_ops.h"
#include "attention/cuda/kernels/runtime.h"
#include "attention/testing/ops_suite.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::attention {

const AttentionOps& OpsUnderTest() {
  static const auto* const on_device =
      new auto(cuda::HostTensorOps::Create(&Cuda(), cuda::HostTensorOps::Options{}));
  return ***on_device;
}

Tolerance ToleranceUnderTest(DType out) { return CudaTolerance(out); }
SuiteTraits TraitsUnderTest() { return {.alignment = 16, .host_sees_values = false}; }
Tolerance CodeProductsToleranceUnderTest(DType out) { return CudaCodeProductsTolerance(out); }
Tolerance TileScaledToleranceUnderTest(DType out) { return CudaTileScaledTolerance(out); }

}  // namespace kvblocks::attention

namespace {

// Empty if there is a GPU.
std::string WhyNoGpu() {
  int devices = 0;
  const int error = kvblocks::attention::cuda::CountDevices(&devices);
  if (error == 0 && devices > 0) return "";
  return std::string("no GPU can be used: ") +
         (error != 0 ? kvblocks::attention::cuda::ErrorName(error) : "there is none");
}

// Skips every test, by name and with the reason, where there is none. (An environment that skips
// would leave them all as passed.)
class SkipsWithoutGpu : public testing::EmptyTestEventListener {
 public:
  explicit SkipsWithoutGpu(std::string reason) : reason_(std::move(reason)) {}
  void OnTestStart(const testing::TestInfo&) override { GTEST_SKIP() << reason_; }

 private:
  std::string reason_;
};

// A number from 0 to `most`; unlike CLI::Range it refuses NaN.
CLI::Validator UpTo(double most) {
  return CLI::Validator(
      [most](const std::string& text) -> std::string {
        double value;
        if (absl::SimpleAtod(text, &value) && value >= 0 && value <= most) return "";
        return absl::StrCat("got ", text, ", expected a number from 0 to ", most);
      },
      "");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Tests and benchmarks of kvblocks' CUDA backend in one program that needs only a driver. "
      "Without a GPU the tests are skipped, by name and with the reason.");
  app.footer(
      "\nGoogleTest's flags choose tests: --gtest_list_tests, --gtest_filter=*Decode*, "
      "--gtest_repeat=N, and the environment's RC_PARAMS=\"max_success=N seed=N\" what properties "
      "draw.\n"
      "Exit status: 0 all passed or skipped, 1 something failed or benchmarks found no GPU, 2 bad "
      "arguments.");
  bool portable = false;
  using namespace kvblocks::attention::cuda;
  GpuBenchOptions options;
  app.add_flag("--portable", portable,
               "use the kernels for compute capability 8.0, whatever the GPU");
  CLI::Option* const bench =
      app.add_option("--bench", options.filter,
                     "benchmark instead of testing: all cases, or those with this in their name")
          ->expected(0, 1)
          ->type_name("[PART]");
  app.add_option("--rounds", options.rounds, "of which the median counts")
      ->check(CLI::Range(1, 100000).description(""))
      ->needs(bench)
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--warm-ms", options.warm_ms,
                 "for how long a case runs before times count; 0: it begins after a pause, before "
                 "the power cap takes hold")
      ->check(UpTo(1e5))
      ->needs(bench)
      ->type_name("MS")
      ->capture_default_str();
  app.add_option(
         "--matrix-tflops,--matrix_tflops", options.matrix_tflops,
         "rate that arithmetic is compared with, say that of a library's product; 0: what this "
         "program's own loop of products reaches")
      ->check(UpTo(1e6))
      ->needs(bench)
      ->type_name("X")
      ->capture_default_str();
  // The rest is GoogleTest's, which takes away what it knows.
  app.allow_extras();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::vector<std::string> rest = app.remaining();
  std::vector<char*> others = {argv[0]};
  for (std::string& argument : rest) others.push_back(argument.data());
  int num_others = static_cast<int>(others.size());
  testing::InitGoogleTest(&num_others, others.data());
  if (num_others > 1) {
    std::fprintf(stderr, "unknown argument %s; --help tells which there are\n", others[1]);
    return 2;
  }
  if (portable) LimitComputeCapability(80);
  const std::string reason = WhyNoGpu();
  if (bench->count() == 0) {
    if (!reason.empty()) {
      testing::UnitTest::GetInstance()->listeners().Append(new SkipsWithoutGpu(reason));
    }
    return RUN_ALL_TESTS();
  }
  if (!reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return 1;
  }
  GpuBench gpu(options);
  gpu.MeasurePeaks();
  BenchDecode(gpu);
  BenchPrefill(gpu);
  BenchCascade(gpu);
  BenchMla(gpu);
  BenchIndex(gpu);
  BenchCacheWrites(gpu);
  BenchStates(gpu);
  BenchBlocksAndLists(gpu);
  BenchStep(gpu);
  BenchLayer(gpu);
  if (gpu.num_wanted() == 0) {
    std::fprintf(stderr, "--bench=%s: no case has that in its name; without a value all run\n",
                 options.filter.c_str());
    return 2;
  }
  return gpu.failures() == 0 ? 0 : 1;
}
