#if defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/machine_peaks.cc"
// clang-format off: before whatever is compiled for each target.
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format on
#include "bench/machine_peaks.h"

#include <sys/mman.h>
#include <time.h>

#include <cstdlib>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvblocks::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
constexpr DF kF;
constexpr int kLanes = HWY_MAX_BYTES / sizeof(float);

double SumImpl(const float* from, int64_t count) {
  auto a = hn::Zero(kF), b = a, c = a, d = a;
  for (int64_t i = 0; i + 4 * kLanes <= count; i += 4 * kLanes) {
    a = hn::Add(a, hn::LoadU(kF, from + i));
    b = hn::Add(b, hn::LoadU(kF, from + i + kLanes));
    c = hn::Add(c, hn::LoadU(kF, from + i + 2 * kLanes));
    d = hn::Add(d, hn::LoadU(kF, from + i + 3 * kLanes));
  }
  return hn::GetLane(hn::SumOfLanes(kF, hn::Add(hn::Add(a, b), hn::Add(c, d))));
}

// C [6, V vectors] += A [6, 64] * B [64, V vectors]; returns the float operations done.
constexpr int kRows = 6, kDepth = 64, kVectors = kLanes >= 16 ? 4 : 2;

double MultiplyImpl(int64_t repetitions, double* result) {
  alignas(64) float a[kRows * kDepth], b[kDepth * kVectors * kLanes];
  for (float& x : a) x = 1e-3f;
  for (float& x : b) x = 1e-3f;
  hn::Vec<DF> c[kRows * kVectors];
  for (auto& x : c) x = hn::Zero(kF);
  for (int64_t repetition = 0; repetition < repetitions; ++repetition) {
    for (int k = 0; k < kDepth; ++k) {
      hn::Vec<DF> columns[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        columns[v] = hn::Load(kF, b + (k * kVectors + v) * kLanes);
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const auto weight = hn::Set(kF, a[r * kDepth + k]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          c[r * kVectors + v] = hn::MulAdd(weight, columns[v], c[r * kVectors + v]);
        }
      }
    }
  }
  auto sum = hn::Zero(kF);
#pragma GCC unroll 24
  for (int i = 0; i < kRows * kVectors; ++i) sum = hn::Add(sum, c[i]);
  *result = hn::GetLane(hn::SumOfLanes(kF, sum));
  return 2.0 * kRows * kDepth * kVectors * kLanes * static_cast<double>(repetitions);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvblocks::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace kvblocks::bench {
namespace {

HWY_EXPORT(SumImpl);
HWY_EXPORT(MultiplyImpl);

constexpr size_t kHugePage = size_t{1} << 21;

}  // namespace

HugeBuffer::HugeBuffer(int64_t bytes) {
  const size_t rounded = (static_cast<size_t>(bytes) + kHugePage) / kHugePage * kHugePage;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded));
  if (data_ == nullptr) std::abort();
  // Where there are none, small pages do.
  (void)madvise(data_, rounded, MADV_HUGEPAGE);
  std::memset(data_, 0, rounded);
}

HugeBuffer::~HugeBuffer() { std::free(data_); }

double Seconds(bool processor_time, int threads) {
  timespec now;
  clock_gettime(processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  const double seconds = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  return processor_time ? seconds / threads : seconds;
}

MachinePeaks::MachinePeaks(attention::ThreadPool* threads, bool processor_time, bool smoke)
    : threads_(threads),
      processor_time_(processor_time),
      smoke_(smoke),
      floats_(int64_t{1} << (smoke ? 19 : 26)),
      buffer_(floats_ * 4),
      sums_(static_cast<size_t>(attention::NumThreads(threads)) * 8) {}

double MachinePeaks::MeasureReads() {
  constexpr int64_t kPart = 1 << 18;
  const int64_t parts = floats_ / kPart;
  const float* floats = reinterpret_cast<const float*>(buffer_.data());
  const double start = Seconds(processor_time_, attention::NumThreads(threads_));
  attention::ParallelFor(threads_, parts, [&](int64_t part, int thread) {
    sums_[thread * 8] += HWY_DYNAMIC_DISPATCH(SumImpl)(floats + part * kPart, kPart);
  });
  return static_cast<double>(parts * kPart * 4) /
         (Seconds(processor_time_, attention::NumThreads(threads_)) - start);
}

double MachinePeaks::MeasureMatrixFlops() {
  const int64_t items = attention::NumThreads(threads_) * 16;
  double flops = 0;
  const double start = Seconds(processor_time_, attention::NumThreads(threads_));
  attention::ParallelFor(threads_, items, [&](int64_t item, int thread) {
    const double done = HWY_DYNAMIC_DISPATCH(MultiplyImpl)(smoke_ ? 10 : 2000, &sums_[thread * 8]);
    if (item == 0) flops = done;
  });
  return flops * static_cast<double>(items) /
         (Seconds(processor_time_, attention::NumThreads(threads_)) - start);
}

}  // namespace kvblocks::bench

#endif  // HWY_ONCE
