#include "examples/engine/cuda/step_kernels.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::engine {
namespace {

using namespace attention::cuda;  // NOLINT: kernels speak its language

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kUnit = 8;  // values that a thread moves at a time

KVB_DEVICE void LoadUnit(const Bf16Bits* from, float (&values)[kUnit]) {
  LoadFloats<kUnit>(Element::kBF16, from, values);
}
KVB_DEVICE void StoreUnit(const float (&values)[kUnit], Bf16Bits* to) {
  *reinterpret_cast<uint4*>(to) =
      make_uint4(Bf16::Pack(values[0], values[1]), Bf16::Pack(values[2], values[3]),
                 Bf16::Pack(values[4], values[5]), Bf16::Pack(values[6], values[7]));
}

// A block per row.
__global__ void __launch_bounds__(kThreads)
    TakeRowsKernel(const __grid_constant__ TakeRowsParams params) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t row = blockIdx.x, from = params.indices[row];
  const bool is_there = from >= 0 && from < params.table_rows;
  for (int i = static_cast<int>(threadIdx.x) * kUnit; i < params.size; i += kThreads * kUnit) {
    uint4 unit = make_uint4(0, 0, 0, 0);
    if (is_there) unit = *reinterpret_cast<const uint4*>(params.table + from * params.size + i);
    *reinterpret_cast<uint4*>(params.out + row * params.size + i) = unit;
  }
}

// A block per row, which each thread finds in the cache when it reads its part again.
__global__ void __launch_bounds__(kThreads)
    AddAndNormKernel(const __grid_constant__ NormParams params) {
  __shared__ float sums[kWarps];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t begin = int64_t{blockIdx.x} * params.size;
  Bf16Bits* const x = params.x + begin;
  float squares = 0;
  for (int i = thread * kUnit; i < params.size; i += kThreads * kUnit) {
    float values[kUnit];
    LoadUnit(x + i, values);
    if (params.added != nullptr) {
      float added[kUnit];
      LoadUnit(params.added + begin + i, added);
#pragma unroll
      for (int u = 0; u < kUnit; ++u) values[u] += added[u];
      StoreUnit(values, x + i);
    }
#pragma unroll
    for (int u = 0; u < kUnit; ++u) squares += values[u] * values[u];
  }
  squares = WarpSum(squares);
  if (thread % 32 == 0) sums[thread / 32] = squares;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp];
  const float factor = rsqrtf(sum / static_cast<float>(params.size) + params.eps);
  for (int i = thread * kUnit; i < params.size; i += kThreads * kUnit) {
    float values[kUnit], weights[kUnit];
    LoadUnit(x + i, values);
    LoadUnit(params.weight + i, weights);
#pragma unroll
    for (int u = 0; u < kUnit; ++u) values[u] *= factor * weights[u];
    StoreUnit(values, params.out + begin + i);
  }
}

// A warp per head.
__global__ void __launch_bounds__(kThreads)
    RotateKernel(const __grid_constant__ RotateParams params) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int turned = params.heads + params.kv_heads;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t row = index / turned;
  if (row >= params.num_rows) return;
  const auto head = static_cast<int>(index - row * turned);
  Bf16Bits* const x =
      params.qkv + (row * (turned + params.kv_heads) + head) * params.head_size;
  const Bf16Bits* const weight = head < params.heads ? params.q_weight : params.k_weight;
  const int half = params.head_size / 2;
  float factor = 1;
  if (weight != nullptr) {
    float squares = 0;
    for (int i = lane; i < params.head_size; i += 32) {
      const float value = Bf16::ToFloat(x[i]);
      squares += value * value;
    }
    factor = rsqrtf(WarpSum(squares) / static_cast<float>(params.head_size) + params.eps);
  }
  const auto position = static_cast<float>(params.positions[row]);
  for (int i = lane; i < half; i += 32) {
    float a = Bf16::ToFloat(x[i]), b = Bf16::ToFloat(x[half + i]);
    if (weight != nullptr) {
      a *= factor * Bf16::ToFloat(weight[i]);
      b *= factor * Bf16::ToFloat(weight[half + i]);
    }
    const float angle = position * params.frequencies[i];
    const float cosine = cosf(angle) * params.scale, sine = sinf(angle) * params.scale;
    x[i] = Bf16::FromFloat(a * cosine - b * sine);
    x[half + i] = Bf16::FromFloat(b * cosine + a * sine);
  }
}

__global__ void __launch_bounds__(kThreads)
    GateKernel(const __grid_constant__ GateParams params) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kUnit;
  if (i >= params.size) return;
  const int64_t row = blockIdx.x;
  const Bf16Bits* const gate = params.gate_up + row * 2 * params.size + i;
  float gates[kUnit], ups[kUnit];
  LoadUnit(gate, gates);
  LoadUnit(gate + params.size, ups);
#pragma unroll
  for (int u = 0; u < kUnit; ++u) gates[u] = gates[u] / (1 + expf(-gates[u])) * ups[u];
  StoreUnit(gates, params.out + row * params.size + i);
}

constexpr int kArgmaxThreads = 1024;

// A block per row.
__global__ void __launch_bounds__(kArgmaxThreads)
    ArgmaxKernel(const __grid_constant__ ArgmaxParams params) {
  __shared__ float largest[kArgmaxThreads / 32];
  __shared__ int32_t places[kArgmaxThreads / 32];
  AllowNextKernel();
  WaitForPreviousKernel();
  const int thread = static_cast<int>(threadIdx.x);
  const float* const logits = params.logits + int64_t{blockIdx.x} * params.size;
  float best = -INFINITY;
  int32_t place = params.size;
  for (int i = thread * 4; i < params.size; i += kArgmaxThreads * 4) {
    const float4 four = *reinterpret_cast<const float4*>(logits + i);
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      if (values[u] > best) best = values[u], place = i + u;
    }
  }
  // Every lane gets the same largest, and the first place of it.
  const auto reduce = [&] {
    const float all = WarpMax(best);
    place = static_cast<int32_t>(
        WarpLeast(best == all ? static_cast<uint32_t>(place) : UINT32_MAX));
    best = all;
  };
  reduce();
  if (thread % 32 == 0) largest[thread / 32] = best, places[thread / 32] = place;
  __syncthreads();
  if (thread >= 32) return;
  best = largest[thread], place = places[thread];
  reduce();
  // Nothing but NaN: the first, as a loop on the host would say.
  if (thread == 0) params.out[blockIdx.x] = place < params.size ? place : 0;
}

}  // namespace

Error LaunchTakeRows(const LaunchContext& context, const TakeRowsParams& params) {
  if (params.num_rows == 0) return 0;
  return Launch(ConfigOf(context, static_cast<unsigned>(params.num_rows), kThreads),
                TakeRowsKernel, params);
}

Error LaunchAddAndNorm(const LaunchContext& context, const NormParams& params) {
  if (params.num_rows == 0) return 0;
  return Launch(ConfigOf(context, static_cast<unsigned>(params.num_rows), kThreads),
                AddAndNormKernel, params);
}

Error LaunchRotate(const LaunchContext& context, const RotateParams& params) {
  if (params.num_rows == 0) return 0;
  const int64_t warps = params.num_rows * (params.heads + params.kv_heads);
  return Launch(ConfigOf(context, Blocks(warps, kWarps), kThreads), RotateKernel, params);
}

Error LaunchGate(const LaunchContext& context, const GateParams& params) {
  if (params.num_rows == 0) return 0;
  const dim3 grid(static_cast<unsigned>(params.num_rows), Blocks(params.size, kThreads * kUnit));
  return Launch(ConfigOf(context, grid, kThreads), GateKernel, params);
}

Error LaunchArgmax(const LaunchContext& context, const ArgmaxParams& params) {
  if (params.num_rows == 0) return 0;
  return Launch(ConfigOf(context, static_cast<unsigned>(params.num_rows), kArgmaxThreads),
                ArgmaxKernel, params);
}

}  // namespace kvblocks::engine
