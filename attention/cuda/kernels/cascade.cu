#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/cascade.h"
#include "kvblocks/attention/cuda/kernels/device_flags.h"

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

}  // namespace

Error LaunchSuffixLengths(const LaunchContext& context, const SuffixLengthsParams& params) {
  const int64_t blocks = (int64_t{params.num_requests} + kThreads - 1) / kThreads;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(blocks < 64 ? blocks : 64));
  config.block = dim3(kThreads);
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return Launch(config, SuffixLengthsKernel, params, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
