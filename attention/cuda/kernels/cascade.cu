#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/cascade.h"
#include "attention/cuda/kernels/device_flags.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 8;  // elements of 16 bytes

__global__ void __launch_bounds__(kThreads)
    CascadeInputsKernel(const __grid_constant__ CascadeParams params, uint32_t* error_flags) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t b = first; b < params.num_requests; b += step) {
    const int32_t queries = params.query_start_loc[b + 1] - params.query_start_loc[b];
    const int32_t length =
        params.seq_lens[b] > params.prefix ? params.seq_lens[b] - params.prefix : 0;
    if (queries > length) Flag(error_flags, kLengthClamped);
    params.suffix_lens[b] = length;
  }
  for (int64_t i = first; i <= params.num_pieces; i += step) {
    params.piece_starts[i] = static_cast<int32_t>(i * params.num_tokens);
    if (i == params.num_pieces) break;
    const int64_t left = params.prefix - i * params.piece_keys;
    params.piece_lens[i] =
        static_cast<int32_t>(left < params.piece_keys ? left : params.piece_keys);
  }
  if (params.num_pieces == 1) return;
  const int32_t row_units = params.key_dim / kUnit;
  const int64_t units = int64_t{params.num_tokens} * params.num_heads * row_units;
  const auto* from = static_cast<const uint16_t*>(params.q.data);
  auto* to = static_cast<uint4*>(params.piece_q);
  for (int64_t u = first; u < units; u += step) {
    const int64_t row = u / row_units, token = row / params.num_heads;
    const uint4 unit = *reinterpret_cast<const uint4*>(
        from + token * params.q.row_stride +
        (row - token * params.num_heads) * params.q.head_stride + (u - row * row_units) * kUnit);
    for (int32_t i = 0; i < params.num_pieces; ++i) to[i * units + u] = unit;
  }
}

}  // namespace

Error LaunchCascadeInputs(const LaunchContext& context, const CascadeParams& params) {
  int64_t work =
      params.num_requests > params.num_pieces ? params.num_requests : params.num_pieces + 1;
  const int64_t units = int64_t{params.num_tokens} * params.num_heads * (params.key_dim / kUnit);
  if (params.num_pieces > 1 && units > work) work = units;
  const int64_t blocks = (work + kThreads - 1) / kThreads;
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(blocks < 2048 ? blocks : 2048));
  config.block = dim3(kThreads);
  config.stream = context.stream;
  return Launch(config, CascadeInputsKernel, params, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
