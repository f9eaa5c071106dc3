#include "attention/cuda/check/gpu_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "attention/cuda/check/bench_kernels.h"
#include "attention/cuda/cuda_call.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{512} << 20;

// Rounds before times count, besides the time that options give: after a case that freed gigabytes
// the next one was measured to be 12 % slower over its first 10 ms, and as fast as alone over 50.
constexpr int kWarmRounds = 3;
constexpr absl::Duration kPause = absl::Milliseconds(300);

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int CopiesFor(double bytes, int most) {
  constexpr double kWanted = 1.5e9;
  return std::clamp(static_cast<int>(kWanted / std::max(bytes, 1.0)) + 1, 2, most);
}

GpuBench::GpuBench(GpuBenchOptions options)
    : options_(std::move(options)),
      workspace_memory_(DType::kU8, {kWorkspaceBytes}),
      flags_memory_(DType::kI32, {1}) {
  workspace_.device = absl::MakeSpan(workspace_memory_.view.data, kWorkspaceBytes);
  // Plans keep counters there, which begin at zero.
  workspace_memory_.FillByte(0);
  flags_memory_.FillByte(0);
  flags_.bits = flags_memory_.view.as<uint32_t>();
  context_.device = {DeviceKind::kCuda, 0};
  context_.workspace = &workspace_;
  context_.error_flags = &flags_;
  if (CreateStream(&context_.stream) != 0) std::abort();
  (void)Synchronize(nullptr);
}

GpuBench::~GpuBench() { (void)DestroyStream(context_.stream); }

double GpuBench::MedianMs(const std::function<absl::Status(const ExecContext&)>& enqueue) {
  const auto report = [this](const std::string& what) {
    std::printf("  FAILED: %s\n", what.c_str());
    ++failures_;
    return -1.0;
  };
  // Once outside of a graph: modules are loaded, and failures are seen as what they are.
  absl::Status status = enqueue(context_);
  if (!status.ok()) return report(std::string(status.message()));
  Error error = Synchronize(context_.stream);
  if (error != 0) return report(ErrorName(error));
  error = BeginCapture(context_.stream);
  if (error != 0) return report(ErrorName(error));
  status = enqueue(context_);
  void* graph = nullptr;
  error = EndCapture(context_.stream, &graph);
  if (!status.ok()) return report(std::string(status.message()));
  if (error != 0) return report(ErrorName(error));
  void *begin = nullptr, *end = nullptr;
  if (CreateEvent(&begin) != 0 || CreateEvent(&end) != 0) return report("events");
  std::vector<double> times;
  double warm_ms = 0;
  if (options_.warm_ms == 0) absl::SleepFor(kPause);
  for (int round = 0; static_cast<int>(times.size()) < options_.rounds; ++round) {
    error = RecordEvent(begin, context_.stream);
    if (error == 0) error = LaunchGraph(graph, context_.stream);
    if (error == 0) error = RecordEvent(end, context_.stream);
    if (error == 0) error = Synchronize(context_.stream);
    float ms = 0;
    if (error == 0) error = ElapsedMs(begin, end, &ms);
    if (error != 0) return report(ErrorName(error));
    if (round >= kWarmRounds && warm_ms >= options_.warm_ms) {
      times.push_back(ms);
    } else {
      warm_ms += ms;
    }
  }
  (void)DestroyEvent(begin);
  (void)DestroyEvent(end);
  (void)DestroyGraph(graph);
  return Median(times);
}

void GpuBench::MeasurePeaks() {
  DeviceProperties properties;
  if (PropertiesOf(0, &properties) != 0) std::abort();
  constexpr int64_t kBytes = int64_t{4} << 30;
  {
    DeviceTensor from(DType::kBF16, {kBytes / 2}), to(DType::kBF16, {kBytes / 2});
    from.FillNormal(1);
    (void)Synchronize(nullptr);
    const double read_ms = MedianMs([&](const ExecContext& context) {
      const auto call = CudaCall::Begin("ReadAll", context);
      return StatusOf(call->op(), LaunchReadAll(call->launch(), from.view.data, kBytes,
                                               flags_memory_.view.as<uint32_t>()));
    });
    const double copy_ms = MedianMs([&](const ExecContext& context) {
      const auto call = CudaCall::Begin("CopyAll", context);
      return StatusOf(call->op(),
                      LaunchCopyAll(call->launch(), to.view.data, from.view.data, kBytes));
    });
    constexpr int kLaunches = 40;
    const double empty_ms = MedianMs([&](const ExecContext& context) {
      const auto call = CudaCall::Begin("Empty", context);
      Error error = 0;
      for (int i = 0; i < kLaunches && error == 0; ++i) error = LaunchEmpty(call->launch());
      return StatusOf(call->op(), error);
    });
    read_tbs_ = kBytes / read_ms * 1e-9;
    copy_tbs_ = 2 * kBytes / copy_ms * 1e-9;
    std::printf("%s, %d multiprocessors, %.1f GB\n", properties.name,
                properties.num_multiprocessors, properties.total_bytes * 1e-9);
    std::printf("read %.2f TB/s, copy %.2f TB/s (read and written); an empty launch %.2f us\n",
                read_tbs_, copy_tbs_, empty_ms * 1e3 / kLaunches);
  }
  constexpr int kRounds = 4096;
  DeviceTensor sink(DType::kF32, {1});
  double flops = 0;
  const double ms = MedianMs([&](const ExecContext& context) {
    const auto call = CudaCall::Begin("MatrixLoop", context);
    flops = MatrixLoopFlops(call->launch(), kRounds);
    return StatusOf(call->op(), LaunchMatrixLoop(call->launch(), kRounds, sink.view.as<float>()));
  });
  const double loop = flops / ms * 1e-9;
  std::printf("mma.sync %.0f TFLOP/s", loop);
  if (options_.matrix_tflops > 0) {
    std::printf("; matrix products of a library %.0f TFLOP/s", options_.matrix_tflops);
  } else {
    options_.matrix_tflops = loop;
  }
  std::printf("\n%-58s %9s %7s %5s %6s %8s %5s\n", "case", "us", "TB/s", "%", "% copy", "TFLOP/s",
              "%");
}

void GpuBench::PrintRow(const BenchCase& bench_case, double ms) {
  std::printf("%-58s ", bench_case.name.c_str());
  if (ms < 0) return;
  const double us = ms * 1e3 / bench_case.copies;
  const double tbs = bench_case.bytes / us * 1e-6, tflops = bench_case.flops / us * 1e-6;
  std::printf("%9.2f %7.3f %5.1f ", us, tbs, 100 * tbs / read_tbs_);
  if (bench_case.moves) {
    std::printf("%6.1f ", 100 * tbs / copy_tbs_);
  } else {
    std::printf("%6s ", "");
  }
  std::printf("%8.1f %5.1f\n", tflops, 100 * tflops / options_.matrix_tflops);
  std::fflush(stdout);
}

}  // namespace kvblocks::attention::cuda
