#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/merge_states.h"
#include "attention/cuda/kernels/row_elements.h"
#include "attention/cuda/kernels/row_visibility.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kMaxWarps = 4;
constexpr int kSums = 4;  // values that a lane sums at a time

// What a state weighs: sum * e^max; -infinity for nothing.
struct Weight {
  float max = -INFINITY, sum = 1;
};
KVB_DEVICE Weight WeightOf(const MergeStatesParams& params, int n, int row, int head,
                           bool& infinite) {
  Weight weight;
  const StateStatistic& lses = params.lses;
  weight.max = lses.data[n * lses.state_stride + row * lses.row_stride + head * lses.head_stride];
  if (params.exp_sums.data != nullptr) {
    const StateStatistic& sums = params.exp_sums;
    weight.sum = sums.data[n * sums.state_stride + row * sums.row_stride + head * sums.head_stride];
    if (weight.sum == 0) weight.max = -INFINITY;
  }
  if (params.infinity_is_empty && weight.max == INFINITY) {
    infinite = true;
    weight.max = -INFINITY;
  }
  return weight;
}

__global__ void __launch_bounds__(32 * kMaxWarps)
    MergeStatesKernel(const __grid_constant__ MergeStatesParams params, uint32_t* error_flags) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t pair = int64_t{blockIdx.x} * (blockDim.x / 32) + static_cast<int>(threadIdx.x) / 32;
  if (pair >= int64_t{params.num_rows} * params.num_heads) return;
  const int out_row = static_cast<int>(pair / params.num_heads);
  const int head = static_cast<int>(pair % params.num_heads);

  int begin = 0, end = params.num_states, row = out_row;
  if (params.state_offsets != nullptr) {
    const int request = out_row / params.rows_per_request;
    row = out_row % params.rows_per_request;
    begin = params.state_offsets[request];
    end = params.state_offsets[request + 1];
    if (params.single_states_are_done && end - begin == 1) return;
  }
  if (params.tokens_with_context >= 0 && out_row >= params.tokens_with_context && end > begin) {
    begin = end - 1;
  }

  bool infinite = false;
  float max = -INFINITY;
  for (int n = begin + lane; n < end; n += 32) {
    const Weight weight = WeightOf(params, n, row, head, infinite);
    if (weight.max == -INFINITY) continue;
    max = fmaxf(max, weight.max);
  }
  max = WarpMax(max);
  // All are NaN.
  const float shift = max == -INFINITY ? 0.0f : max;

  // Every lane sums the weights itself, in order.
  float sum = 0;
  int contributing = 0;
  for (int n = begin; n < end; ++n) {
    const Weight weight = WeightOf(params, n, row, head, infinite);
    if (weight.max == -INFINITY) continue;
    sum = __fadd_rn(sum, __fmul_rn(weight.sum, __expf(weight.max - shift)));
    ++contributing;
  }
  const bool empty = contributing == 0;
  float lse = empty ? -INFINITY : shift + logf(sum);
  float denominator = contributing == 1 ? 1.0f : sum;
  if (params.sinks != nullptr && !empty) denominator *= 1 + expf(params.sinks[head] - lse);

  const int64_t outer = out_row / params.inner_rows, inner = out_row % params.inner_rows;
  const int64_t out_at = outer * params.out_outer_stride + inner * params.out.row_stride +
                         head * params.out.head_stride;
  for (int first = lane; first < params.value_dim; first += 32 * kSums) {
    float sums[kSums] = {};
    for (int n = begin; n < end; ++n) {
      const Weight weight = WeightOf(params, n, row, head, infinite);
      if (weight.max == -INFINITY) continue;
      const float factor = contributing == 1 ? 1.0f : weight.sum * __expf(weight.max - shift);
      const int64_t at = n * params.out_state_stride + row * params.outs.row_stride +
                         head * params.outs.head_stride;
      WithElement(params.outs.element, [&](auto tag) {
        using E = decltype(tag);
        const auto* values = static_cast<const typename E::Bits*>(params.outs.data) + at;
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          const int d = first + 32 * i;
          // Not fused: two states give the same bits in either order.
          if (d < params.value_dim) {
            sums[i] = __fadd_rn(sums[i], __fmul_rn(factor, E::ToFloat(values[d])));
          }
        }
      });
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int d = first + 32 * i;
      if (d >= params.value_dim) continue;
      // As in attend_rows.cu: no negative zeros.
      float value = empty ? 0.0f : sums[i] / denominator + 0.0f;
      if (params.out_scale > 0) value /= params.out_scale;
      StoreElementAt(params.out.element, params.out.data, out_at + d, value);
    }
  }
  // The lse may take the place of one that other lanes still weigh by.
  __syncwarp();
  if (lane == 0 && params.lse != nullptr) {
    params.lse[outer * params.lse_outer_stride + inner * params.lse_row_stride +
               head * params.lse_head_stride] = lse;
  }
  if (infinite && error_flags != nullptr) atomicOr(error_flags, kFlagMergeOfInfinity);
}

}  // namespace

Error LaunchMergeStates(const LaunchContext& context, const MergeStatesParams& params) {
  if (params.num_rows == 0 || params.num_heads == 0) return cudaSuccess;
  // Few rows go to as many multiprocessors as there are.
  const int64_t pairs = int64_t{params.num_rows} * params.num_heads;
  const int warps = pairs < int64_t{8} * context.num_multiprocessors ? 1 : kMaxWarps;
  const int64_t blocks = (pairs + warps - 1) / warps;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(blocks));
  config.block = dim3(static_cast<unsigned>(32 * warps));
  config.stream = context.stream;
  return Launch(config, MergeStatesKernel, params, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
