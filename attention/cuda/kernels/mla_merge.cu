// Merges pieces of latent attention: few rows of 512 values, many states. A block takes a row and
// head, so that a thread has four dimensions and several states' loads under way at a time.

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/mla_attend.h"
#include "attention/cuda/kernels/row_elements.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kThreads = kMlaValueDim / 4;

__global__ void __launch_bounds__(kThreads)
    MlaMergeKernel(const __grid_constant__ MergeStatesParams params) {
  __shared__ float weights[kMlaMaxPieces];
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) / params.num_heads;
  const int head = static_cast<int>(blockIdx.x) % params.num_heads;
  const int states = params.num_states;
  const StateStatistic& lses = params.lses;
  if (thread < states) {
    weights[thread] =
        lses.data[thread * lses.state_stride + row * lses.row_stride + head * lses.head_stride];
  }
  __syncthreads();
  float max = -INFINITY;
  for (int n = 0; n < states; ++n) max = fmaxf(max, weights[n]);
  const float shift = max == -INFINITY ? 0.0f : max;
  __syncthreads();
  if (thread < states) weights[thread] = __expf(weights[thread] - shift);
  __syncthreads();
  float sum = 0;
  for (int n = 0; n < states; ++n) sum += weights[n];

  const auto* from = static_cast<const float*>(params.outs.data) + row * params.outs.row_stride +
                     head * params.outs.head_stride + 4 * thread;
  float4 value = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int n = 0; n < states; ++n) {
    const float weight = weights[n];
    float4 part = *reinterpret_cast<const float4*>(from + n * params.out_state_stride);
    // Nothing was written for a piece without keys.
    if (weight == 0) part = make_float4(0, 0, 0, 0);
    value.x += weight * part.x, value.y += weight * part.y;
    value.z += weight * part.z, value.w += weight * part.w;
  }
  const bool empty = sum == 0;
  const float lse = empty ? -INFINITY : max + logf(sum);
  float factor = 0;
  if (!empty) {
    factor = 1 / sum;
    if (params.sinks != nullptr) factor /= 1 + expf(params.sinks[head] - lse);
  }
  // +0 without keys and with an infinite sink, whatever the sums.
  if (factor == 0) value = make_float4(0, 0, 0, 0);
  const int64_t outer = row / params.inner_rows, inner = row % params.inner_rows;
  const int64_t at = outer * params.out_outer_stride + inner * params.out.row_stride +
                     head * params.out.head_stride + 4 * thread;
  StoreFloat(params.out.element, value.x * factor, params.out.data, at);
  StoreFloat(params.out.element, value.y * factor, params.out.data, at + 1);
  StoreFloat(params.out.element, value.z * factor, params.out.data, at + 2);
  StoreFloat(params.out.element, value.w * factor, params.out.data, at + 3);
  if (thread == 0 && params.lse != nullptr) {
    params.lse[outer * params.lse_outer_stride + inner * params.lse_row_stride +
               head * params.lse_head_stride] = lse;
  }
}

}  // namespace

Error LaunchMlaMerge(const LaunchContext& context, const MergeStatesParams& params) {
  const int64_t blocks = int64_t{params.num_rows} * params.num_heads;
  if (blocks == 0) return cudaSuccess;
  if (blocks > INT32_MAX || params.num_states > kMlaMaxPieces || params.value_dim != kMlaValueDim) {
    return cudaErrorInvalidConfiguration;
  }
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(blocks));
  config.block = dim3(kThreads);
  config.stream = context.stream;
  return Launch(config, MlaMergeKernel, params);
}

}  // namespace kvblocks::attention::cuda
