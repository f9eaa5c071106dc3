#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kThreads = 256;

// Lets the next kernel begin only when all before have ended: what overlaps this one may rely on
// it.
__global__ void __launch_bounds__(kThreads)
    SuffixLengthsKernel(const __grid_constant__ SuffixLengthsParams params, uint32_t* error_flags) {
  WaitForPreviousKernel();
  AllowNextKernel();
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t b = int64_t{blockIdx.x} * kThreads + threadIdx.x; b < params.num_requests;
       b += step) {
    const int32_t queries = params.query_start_loc[b + 1] - params.query_start_loc[b];
    const int32_t length =
        params.seq_lens[b] > params.prefix ? params.seq_lens[b] - params.prefix : 0;
    if (queries > length) Flag(error_flags, kLengthClamped);
    params.suffix_lens[b] = length;
  }
}

// Calls store(b, sum of the lengths before b) for all requests, by one warp; returns the whole sum.
// Modulo 2^64: lengths may be anything.
template <typename LengthOf, typename Store>
KVB_DEVICE uint64_t SumLengths(int num_requests, const LengthOf& length_of, const Store& store) {
  const int lane = static_cast<int>(threadIdx.x);
  uint64_t before = 0;
  for (int first = 0; first < num_requests; first += 32) {
    const int b = first + lane;
    const uint64_t length = b < num_requests ? length_of(b) : 0;
    uint64_t sum = length;  // of this lane and those below
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const uint64_t below = __shfl_up_sync(kFullWarp, sum, lanes);
      if (lane >= lanes) sum += below;
    }
    if (b < num_requests) store(b, before + sum - length);
    before += __shfl_sync(kFullWarp, sum, 31);
  }
  return before;
}

__global__ void __launch_bounds__(32)
    KeyStartsKernel(const __grid_constant__ KeyStartsParams params, uint32_t* error_flags) {
  WaitForPreviousKernel();
  AllowNextKernel();
  const auto clamped = [&](uint64_t start) {
    const auto most = static_cast<uint64_t>(params.num_keys);
    if (start > most) Flag(error_flags, kLengthClamped);
    return static_cast<int32_t>(start > most ? most : start);
  };
  const uint64_t all = SumLengths(
      params.num_requests,
      [&](int b) {
        if (params.seq_lens[b] < 0) Flag(error_flags, kLengthClamped);
        return static_cast<uint64_t>(params.seq_lens[b] < 0 ? 0 : params.seq_lens[b]);
      },
      [&](int b, uint64_t start) { params.starts[b] = clamped(start); });
  if (threadIdx.x == 0) params.starts[params.num_requests] = clamped(all);
}

__global__ void __launch_bounds__(32) MaskBitsKernel(const MaskBitsParams params) {
  SumLengths(
      params.num_requests,
      [&](int b) {
        const int64_t queries =
            params.query_start_loc == nullptr
                ? 1
                : int64_t{params.query_start_loc[b + 1]} - params.query_start_loc[b];
        const int64_t length = params.seq_lens != nullptr
                                   ? params.seq_lens[b]
                                   : int64_t{params.kv_start_loc[b + 1]} - params.kv_start_loc[b];
        return queries > 0 && length > 0
                   ? static_cast<uint64_t>(queries) * static_cast<uint64_t>(length)
                   : uint64_t{0};
      },
      [&](int b, uint64_t bits) { params.bits_before[b] = static_cast<int64_t>(bits); });
}

}  // namespace

Error LaunchSuffixLengths(const LaunchContext& context, const SuffixLengthsParams& params) {
  const int64_t blocks = (int64_t{params.num_requests} + kThreads - 1) / kThreads;
  return Launch(ConfigOf(context, static_cast<unsigned>(blocks < 64 ? blocks : 64), kThreads),
                SuffixLengthsKernel, params, context.error_flags);
}

Error LaunchKeyStarts(const LaunchContext& context, const KeyStartsParams& params) {
  return Launch(ConfigOf(context, 1, 32), KeyStartsKernel, params, context.error_flags);
}

Error LaunchMaskBits(const LaunchContext& context, const MaskBitsParams& params) {
  if (params.num_requests == 0) return cudaSuccess;
  LaunchConfig config;
  config.block = dim3(32);
  config.stream = context.stream;
  return Launch(config, MaskBitsKernel, params);
}

}  // namespace kvblocks::attention::cuda
