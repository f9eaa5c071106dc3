#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/cache_slots.h"
#include "kvblocks/attention/cuda/kernels/device_flags.h"
#include "kvblocks/attention/cuda/kernels/elements.h"
#include "kvblocks/attention/cuda/kernels/indexer.h"
#include "kvblocks/attention/cuda/kernels/indexer_rows.h"
#include "kvblocks/attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;

unsigned Blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// --- Keys ---

__global__ void __launch_bounds__(kThreads)
    IndexWriteKernel(const __grid_constant__ IndexWriteParams params, uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= params.num_tokens) return;
  const IndexRows& to = params.to;
  const int64_t num_slots = int64_t{to.num_blocks} * to.block_size;
  const int64_t slot = SlotOf(params.slots, params.slot_stride, token, num_slots, flags);
  if (slot < 0) return;
  const int64_t block = slot / to.block_size;
  const int32_t row = static_cast<int32_t>(slot - block * to.block_size);
  const int64_t from = token * params.from.row_stride;
  if (!to.planar) {
    const int64_t at = block * to.block_stride + row * to.row_stride;
    for (int d = lane; d < to.dim; d += 32) {
      StoreFloat(to.element, LoadAsFloat(params.from.element, params.from.data, from + d), to.data,
                 at + d);
    }
    return;
  }
  float amax = 0;
  for (int d = lane; d < to.dim; d += 32) {
    const float magnitude = fabsf(LoadAsFloat(params.from.element, params.from.data, from + d));
    if (magnitude <= 3.4028235e38f && magnitude > amax) amax = magnitude;
  }
  amax = WarpMax(amax);
  if (amax < 1e-4f) amax = 1e-4f;
  float scale = __fdiv_rn(amax, 448.0f);
  if (params.power_of_two) {
    // 448 = 1.75 * 2^8, so mantissas up to 1.75 stay below the power of two.
    const uint32_t bits = __float_as_uint(amax);
    const int power = static_cast<int>(bits >> 23) - 8 + ((bits & 0x7fffffu) > 0x600000u);
    scale = E8m0ToFloat(static_cast<uint8_t>(power));
  }
  const Divider quotient(scale);
  unsigned char* const codes = to.data + block * to.block_stride + int64_t{row} * to.dim;
  for (int d = lane; d < to.dim; d += 32) {
    codes[d] =
        E4m3::FromFloat(quotient(LoadAsFloat(params.from.element, params.from.data, from + d)));
  }
  if (lane == 0) *ScaleOf(to, block, row) = scale;
}

// --- Compressing ---

// A block of threads per token.
__global__ void __launch_bounds__(kThreads)
    StoreStatesKernel(const __grid_constant__ CompressParams params, bool by_fours,
                      uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t token = blockIdx.x;
  const int64_t num_slots = int64_t{params.num_blocks} * params.block_size;
  const int64_t slot = SlotOf(params.slots, params.slot_stride, token, num_slots, flags);
  if (slot < 0) return;
  const TokenAt at = FindToken(params.batch, token);
  if (at.position < 0) return;
  const int width = params.parts * params.dim;
  const int64_t block = slot / params.block_size;
  float* const to = params.states + block * params.block_stride +
                    (slot - block * params.block_size) * params.row_stride;
  const float* const bias = params.bias == nullptr
                                ? nullptr
                                : params.bias + at.position % params.ratio * params.bias_stride;
  if (by_fours) {
    const auto four = [&](const ConstRows& rows, int d) {
      float values[4];
      LoadFloats<4>(rows.element,
                    static_cast<const unsigned char*>(rows.data) +
                        (token * rows.row_stride + d) * BytesOf(rows.element),
                    values);
      return make_float4(values[0], values[1], values[2], values[3]);
    };
    for (int d = 4 * static_cast<int>(threadIdx.x); d < width; d += 4 * kThreads) {
      const float4 value = four(params.kv, d);
      float4 score = four(params.score, d);
      if (bias != nullptr) {
        const float4 more = *reinterpret_cast<const float4*>(bias + d);
        score.x += more.x, score.y += more.y, score.z += more.z, score.w += more.w;
      }
      *reinterpret_cast<float4*>(to + d) = value;
      *reinterpret_cast<float4*>(to + width + d) = score;
    }
    return;
  }
  for (int d = static_cast<int>(threadIdx.x); d < width; d += kThreads) {
    to[d] = LoadAsFloat(params.kv.element, params.kv.data, token * params.kv.row_stride + d);
    const float score =
        LoadAsFloat(params.score.element, params.score.data, token * params.score.row_stride + d);
    to[width + d] = bias == nullptr ? score : score + bias[d];
  }
}

// A block of threads per token, most of which complete no row; a thread per column.
__global__ void __launch_bounds__(kThreads)
    CompressKernel(const __grid_constant__ CompressParams params, uint32_t* flags) {
  __shared__ float squares[kWarps];
  __shared__ const float* states[kThreads];
  auto* const row = reinterpret_cast<float*>(DynamicSharedMemory());
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t token = blockIdx.x;
  const TokenAt at = FindToken(params.batch, token);
  if (at.position < 0 || (at.position + 1) % params.ratio != 0) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first = at.position + 1 - int64_t{params.parts} * params.ratio;
  const int width = params.parts * params.dim;
  const auto state_of = [&](int64_t position) -> const float* {
    const int64_t column = position / params.block_size;
    const int64_t block = BlockOf(params.batch, at.request, column, params.num_blocks, flags);
    if (block < 0) return nullptr;
    // With overlap the older tokens give their first half.
    const int half = position - first >= params.ratio ? params.parts - 1 : 0;
    return params.states + block * params.block_stride +
           (position - column * params.block_size) * params.row_stride + half * params.dim;
  };
  const int64_t begin = first < 0 ? 0 : first;
  const bool all_at_once = at.position - begin < kThreads;
  float own = 0;
  for (int base = 0; base < params.dim; base += kThreads) {
    const int d = base + thread;
    // States in runs, each by its own maximum; almost always there is one.
    float most = -INFINITY, sum = 0, weighted = 0;
    for (int64_t from = begin; from <= at.position; from += kThreads) {
      const auto count =
          static_cast<int>(at.position - from < kThreads ? at.position - from + 1 : kThreads);
      if (base == 0 || !all_at_once) {
        __syncthreads();
        if (thread < count) states[thread] = state_of(from + thread);
        __syncthreads();
      }
      if (d >= params.dim) continue;
      const float before = most;
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        if (states[i] != nullptr) most = fmaxf(most, states[i][width + d]);
      }
      if (most == -INFINITY) continue;
      const float kept = expf(before - most);
      sum *= kept, weighted *= kept;
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        if (states[i] == nullptr) continue;
        const float weight = expf(states[i][width + d] - most);
        sum += weight;
        weighted += weight * states[i][d];
      }
    }
    if (d >= params.dim) continue;
    row[d] = __fdiv_rn(weighted, sum);
    own += row[d] * row[d];
  }
  own = WarpSum(own);
  if (thread % 32 == 0) squares[thread / 32] = own;
  __syncthreads();
  float factor = 1;
  if (params.norm_weight != nullptr) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += squares[w];
    factor = __fdiv_rn(1.0f, sqrtf(sum / static_cast<float>(params.dim) + params.norm_eps));
  }
  const auto normal = [&](int d) {
    return params.norm_weight == nullptr
               ? row[d]
               : row[d] * factor * params.norm_weight[d * params.norm_stride];
  };
  const int64_t out = token * params.out.row_stride;
  const int64_t rotated_at = at.position + 1 - params.ratio;
  bool rotates = params.cos_sin != nullptr;
  if (rotates && rotated_at >= params.num_positions) {
    if (thread == 0) Flag(flags, kLengthClamped);
    rotates = false;
  }
  const int plain = params.dim - (rotates ? params.rotary : 0);
  for (int d = thread; d < plain; d += kThreads) {
    StoreFloat(params.out.element, normal(d), params.out.data, out + d);
  }
  for (int i = thread; rotates && i < params.rotary / 2; i += kThreads) {
    const float* angle = params.cos_sin + rotated_at * params.cos_sin_stride + i;
    const float cosine = angle[0], sine = angle[params.rotary / 2];
    const float x = normal(plain + 2 * i), y = normal(plain + 2 * i + 1);
    StoreFloat(params.out.element, x * cosine - y * sine, params.out.data, out + plain + 2 * i);
    StoreFloat(params.out.element, x * sine + y * cosine, params.out.data, out + plain + 2 * i + 1);
  }
}

LaunchConfig ConfigOf(const LaunchContext& context, unsigned blocks) {
  LaunchConfig config;
  config.grid = dim3(blocks);
  config.block = dim3(kThreads);
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return config;
}

// Whether all rows that states are made of begin at multiples of four values.
bool ByFours(const CompressParams& params) {
  const auto fits = [](const void* data, int64_t stride, Element element) {
    const auto unit = static_cast<uintptr_t>(4 * BytesOf(element));
    return reinterpret_cast<uintptr_t>(data) % unit == 0 && stride % 4 == 0;
  };
  return params.parts * params.dim % 4 == 0 && params.block_stride % 4 == 0 &&
         fits(params.kv.data, params.kv.row_stride, params.kv.element) &&
         fits(params.score.data, params.score.row_stride, params.score.element) &&
         fits(params.states, params.row_stride, Element::kF32) &&
         fits(params.bias, params.bias_stride, Element::kF32);
}

}  // namespace

Error LaunchIndexWrite(const LaunchContext& context, const IndexWriteParams& params) {
  if (params.num_tokens == 0) return 0;
  return Launch(ConfigOf(context, Blocks(params.num_tokens, kWarps)), IndexWriteKernel, params,
                context.error_flags);
}

Error LaunchCompress(const LaunchContext& context, const CompressParams& params) {
  if (params.num_tokens == 0) return 0;
  if (params.num_slots > 0) {
    const Error error = Launch(ConfigOf(context, static_cast<unsigned>(params.num_slots)),
                               StoreStatesKernel, params, ByFours(params), context.error_flags);
    if (error != 0) return error;
  }
  LaunchConfig config = ConfigOf(context, static_cast<unsigned>(params.num_tokens));
  config.shared_bytes = static_cast<size_t>(params.dim) * sizeof(float);
  return Launch(config, CompressKernel, params, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
