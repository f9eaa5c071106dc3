#include "attention/cuda/kernels/indexer.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_slots.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/indexer_scores.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
// For rows of so many states and more: few rows, which need many loads under way each.
constexpr int kManyThreads = 1024, kManyStates = 32;

// --- Keys ---

__global__ void __launch_bounds__(kThreads)
    IndexWriteKernel(const __grid_constant__ IndexWriteParams params, uint32_t* flags) {
  OverlapNeighbours();
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

// As many warps per token as `warps`; with all of a block a token's loads are under way at once,
// with one a multiprocessor has many tokens under way, and looks for all of them at the same time.
__global__ void __launch_bounds__(kThreads)
    StoreStatesKernel(const __grid_constant__ CompressParams params, SlotDivision slots, int warps,
                      bool by_fours, uint32_t* flags) {
  OverlapNeighbours();
  const int thread = static_cast<int>(threadIdx.x), threads = 32 * warps;
  const int64_t token = int64_t{blockIdx.x} * (kThreads / threads) + thread / threads;
  if (token >= params.num_slots) return;
  const int64_t num_slots = int64_t{params.num_blocks} * params.block_size;
  const int64_t slot = SlotOf(params.slots, params.slot_stride, token, num_slots, flags);
  if (slot < 0) return;
  const TokenAt at = FindToken(params.batch, token);
  if (at.position < 0) return;
  const int width = params.parts * params.dim;
  const BlockAndOffset place = slots.Of(slot);
  float* const to =
      params.states + place.block * params.block_stride + place.offset * params.row_stride;
  const float* const bias =
      params.bias == nullptr
          ? nullptr
          : params.bias + static_cast<int32_t>(at.position) % params.ratio * params.bias_stride;
  if (by_fours) {
    const auto four = [&](const ConstRows& rows, int d) {
      float values[4];
      LoadFloats<4>(rows.element,
                    static_cast<const unsigned char*>(rows.data) +
                        (token * rows.row_stride + d) * BytesOf(rows.element),
                    values);
      return make_float4(values[0], values[1], values[2], values[3]);
    };
#pragma unroll 4
    for (int d = 4 * (thread % threads); d < width; d += 4 * threads) {
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
  for (int d = thread % threads; d < width; d += threads) {
    to[d] = LoadAsFloat(params.kv.element, params.kv.data, token * params.kv.row_stride + d);
    const float score =
        LoadAsFloat(params.score.element, params.score.data, token * params.score.row_stride + d);
    to[width + d] = bias == nullptr ? score : score + bias[d];
  }
}

// Neighbouring floats.
template <int kUnit>
struct Unit {
  float values[kUnit];
};
template <int kUnit>
KVB_DEVICE Unit<kUnit> LoadUnit(const float* from) {
  if constexpr (kUnit == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    return {{four.x, four.y, four.z, four.w}};
  } else {
    static_assert(kUnit == 1);
    return {{from[0]}};
  }
}

// Weights of scores, and of values by them, of states taken together: relative to the largest
// score.
struct WeightedSum {
  float most = -INFINITY, sum = 0, weighted = 0;

  // From now on relative to a score that is as large, or to 0 as long as all scores are -infinity.
  KVB_DEVICE float Raise(float score) {
    const float before = most;
    most = fmaxf(most, score);
    const float base = most == -INFINITY ? 0.0f : most;
    const float kept = expf(before - base);
    sum *= kept, weighted *= kept;
    return base;
  }
};

// A thread per unit of columns, or several, which then have every state whose turn it is; at most
// `threads` units at a time.
KVB_HOST_DEVICE int ColumnThreads(int units, int threads) {
  int columns = 1;
  while (columns < units && columns < threads) columns *= 2;
  return columns;
}

// The row that the token at `position` completes, by a block of threads. In shared memory: the row,
// then what threads have of it.
template <int kUnit, int kRowThreads>
KVB_DEVICE void CompressRow(const CompressParams& params, int32_t request, int64_t token,
                            int32_t position, uint32_t* flags) {
  constexpr int kRowWarps = kRowThreads / 32, kAtOnce = 4;
  __shared__ float squares[kRowWarps];
  __shared__ const float* states[kRowThreads];
  auto* const row = reinterpret_cast<float*>(DynamicSharedMemory());
  auto* const sums = reinterpret_cast<WeightedSum*>(row + params.dim);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t most = int64_t{params.parts} * params.ratio;
  const auto begin = most > position ? 0 : static_cast<int32_t>(position + 1 - most);
  const int width = params.parts * params.dim;
  const auto state_of = [&](int32_t at) -> const float* {
    const int32_t column = at / params.block_size;
    const int64_t block = BlockOf(params.batch, request, column, params.num_blocks, flags);
    if (block < 0) return nullptr;
    // With overlap the older tokens give their first half.
    const int half = position - at < params.ratio ? params.parts - 1 : 0;
    return params.states + block * params.block_stride +
           (at - column * params.block_size) * params.row_stride + half * params.dim;
  };
  const bool all_at_once = position - begin < kRowThreads;
  const int units = params.dim / kUnit, columns = ColumnThreads(units, kRowThreads);
  const int shares = kRowThreads / columns, share = thread / columns, column = thread % columns;
  float own = 0;
  for (int base = 0; base < units; base += columns) {
    const int d = (base + column) * kUnit;
    WeightedSum mine[kUnit];
    for (int32_t from = begin; from <= position; from += kRowThreads) {
      const int count = position - from < kRowThreads ? position - from + 1 : kRowThreads;
      if (base == 0 || !all_at_once) {
        __syncthreads();  // others are done with what was there
        if (thread < count) states[thread] = state_of(from + thread);
        __syncthreads();
      }
      if (d >= params.dim) continue;
      for (int i = share; i < count; i += kAtOnce * shares) {
        Unit<kUnit> scores[kAtOnce], values[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const float* const state = i + k * shares < count ? states[i + k * shares] : nullptr;
          if (state != nullptr) {
            scores[k] = LoadUnit<kUnit>(state + width + d), values[k] = LoadUnit<kUnit>(state + d);
          } else {
#pragma unroll
            for (int u = 0; u < kUnit; ++u)
              scores[k].values[u] = -INFINITY, values[k].values[u] = 0;
          }
        }
#pragma unroll
        for (int u = 0; u < kUnit; ++u) {
          float largest = scores[0].values[u];
#pragma unroll
          for (int k = 1; k < kAtOnce; ++k) largest = fmaxf(largest, scores[k].values[u]);
          const float relative_to = mine[u].Raise(largest);
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            const float weight = expf(scores[k].values[u] - relative_to);
            mine[u].sum += weight;
            mine[u].weighted += weight * values[k].values[u];
          }
        }
      }
    }
    // Of one column: what each share has.
#pragma unroll
    for (int u = 0; u < kUnit; ++u) sums[(u * columns + column) * shares + share] = mine[u];
    __syncthreads();
    for (int i = thread; i < kUnit * columns; i += kRowThreads) {
      const int at = (base + i % columns) * kUnit + i / columns;
      if (at >= params.dim) continue;
      WeightedSum all = sums[i * shares];
      for (int other = 1; other < shares; ++other) {
        const WeightedSum& theirs = sums[i * shares + other];
        const float kept = expf(theirs.most - all.Raise(theirs.most));
        all.sum += kept * theirs.sum;
        all.weighted += kept * theirs.weighted;
      }
      row[at] = __fdiv_rn(all.weighted, all.sum);
      own += row[at] * row[at];
    }
    __syncthreads();
  }
  own = WarpSum(own);
  if (thread % 32 == 0) squares[thread / 32] = own;
  __syncthreads();
  float factor = 1;
  if (params.norm_weight != nullptr) {
    float sum = 0;
    for (int w = 0; w < kRowWarps; ++w) sum += squares[w];
    factor = __fdiv_rn(1.0f, sqrtf(sum / static_cast<float>(params.dim) + params.norm_eps));
  }
  const auto normal = [&](int d) {
    return params.norm_weight == nullptr
               ? row[d]
               : row[d] * factor * params.norm_weight[d * params.norm_stride];
  };
  const int64_t out = token * params.out.row_stride;
  const int64_t rotated_at = int64_t{position} + 1 - params.ratio;
  bool rotates = params.cos_sin != nullptr;
  if (rotates && rotated_at >= params.num_positions) {
    if (thread == 0) Flag(flags, kLengthClamped);
    rotates = false;
  }
  const int plain = params.dim - (rotates ? params.rotary : 0);
  for (int d = thread; d < plain; d += kRowThreads) {
    StoreFloat(params.out.element, normal(d), params.out.data, out + d);
  }
  for (int i = thread; rotates && i < params.rotary / 2; i += kRowThreads) {
    const float* angle = params.cos_sin + rotated_at * params.cos_sin_stride + i;
    const float cosine = angle[0], sine = angle[params.rotary / 2];
    const float x = normal(plain + 2 * i), y = normal(plain + 2 * i + 1);
    StoreFloat(params.out.element, x * cosine - y * sine, params.out.data, out + plain + 2 * i);
    StoreFloat(params.out.element, x * sine + y * cosine, params.out.data, out + plain + 2 * i + 1);
  }
}

// A block of threads per `tokens` tokens, of which few complete a row.
template <int kUnit, int kRowThreads>
__global__ void __launch_bounds__(kRowThreads)
    CompressKernel(const __grid_constant__ CompressParams params, int32_t tokens, uint32_t* flags) {
  OverlapNeighbours();
  int64_t token = int64_t{blockIdx.x} * tokens;
  const int64_t end = token + tokens < params.num_tokens ? token + tokens : params.num_tokens;
  while (token < end) {
    const TokenAt at = FindToken(params.batch, token);
    if (at.position < 0) {
      if (at.last == INT64_MAX) return;  // padding
      ++token;
      continue;
    }
    // The next of its request that completes one.
    const auto position = static_cast<int32_t>(at.position);
    const int32_t more = params.ratio - 1 - position % params.ratio;
    if (token + more >= at.last) {
      token = at.last;
      continue;
    }
    token += more;
    if (token >= end) return;
    CompressRow<kUnit, kRowThreads>(params, at.request, token, position + more, flags);
    __syncthreads();  // the next row goes to the same place
    ++token;
  }
}

bool FitFours(const void* data, int64_t stride, Element element) {
  const auto unit = static_cast<uintptr_t>(4 * BytesOf(element));
  return reinterpret_cast<uintptr_t>(data) % unit == 0 && stride % 4 == 0;
}
// Whether the halves of all states begin at multiples of four values.
bool StatesFitFours(const CompressParams& params) {
  return params.dim % 4 == 0 && params.block_stride % 4 == 0 &&
         FitFours(params.states, params.row_stride, Element::kF32);
}
// And all rows that states are made of.
bool InputsFitFours(const CompressParams& params) {
  return StatesFitFours(params) &&
         FitFours(params.kv.data, params.kv.row_stride, params.kv.element) &&
         FitFours(params.score.data, params.score.row_stride, params.score.element) &&
         FitFours(params.bias, params.bias_stride, Element::kF32);
}

template <int kUnit, int kRowThreads>
Error LaunchRows(const LaunchContext& context, const CompressParams& params) {
  // So many tokens of a request complete one row; as many as requests have on average.
  const int32_t requests = params.batch.num_requests < 1 ? 1 : params.batch.num_requests;
  int32_t tokens = params.num_tokens / requests;
  tokens = tokens < params.ratio ? tokens : params.ratio;
  tokens = tokens < 1 ? 1 : tokens;
  const size_t shared_bytes =
      static_cast<size_t>(params.dim) * sizeof(float) + kRowThreads * kUnit * sizeof(WeightedSum);
  return Launch(ConfigOf(context, Blocks(params.num_tokens, tokens), kRowThreads, shared_bytes),
                CompressKernel<kUnit, kRowThreads>, params, tokens, context.error_flags);
}

}  // namespace

Error LaunchIndexWrite(const LaunchContext& context, const IndexWriteParams& params) {
  if (params.num_tokens == 0) return 0;
  return Launch(ConfigOf(context, Blocks(params.num_tokens, kWarps), kThreads), IndexWriteKernel,
                params, context.error_flags);
}

Error LaunchCompress(const LaunchContext& context, const CompressParams& params) {
  if (params.num_tokens == 0) return 0;
  if (params.num_slots > 0) {
    // A block per token as long as that leaves no multiprocessor with several.
    const int warps = params.num_slots <= context.num_multiprocessors ? kWarps : 1;
    const SlotDivision slots(params.block_size, int64_t{params.num_blocks} * params.block_size);
    const Error error = Launch(
        ConfigOf(context, Blocks(params.num_slots, kWarps / warps), kThreads), StoreStatesKernel,
        params, slots, warps, InputsFitFours(params), context.error_flags);
    if (error != 0) return error;
  }
  if (!StatesFitFours(params)) return LaunchRows<1, kThreads>(context, params);
  return int64_t{params.parts} * params.ratio >= kManyStates
             ? LaunchRows<4, kManyThreads>(context, params)
             : LaunchRows<4, kThreads>(context, params);
}

}  // namespace kvblocks::attention::cuda
