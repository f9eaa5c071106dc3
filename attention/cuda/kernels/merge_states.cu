#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/row_elements.h"
#include "attention/cuda/kernels/row_units.h"
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
  OverlapNeighbours();
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
      StoreFloat(params.out.element, value, params.out.data, out_at + d);
    }
  }
  // The lse may take the place of one that other lanes still weigh by.
  __syncwarp();
  if (lane == 0 && params.lse != nullptr) {
    params.lse[outer * params.lse_outer_stride + inner * params.lse_row_stride +
               head * params.lse_head_stride] = lse;
  }
  if (infinite && error_flags != nullptr) atomicOr(error_flags, kMergeOfInfinity);
}

// Few states of many rows, at the speed of memory: a thread takes eight values of each of a few
// (row, head), loads them of all states before it looks at any, and has the weights to itself. The
// same arithmetic as above, but that 16-bit states are multiplied by the inverse of the
// denominator.
constexpr int kFew = 4;
constexpr int kFewThreads = 256;

bool IsFew(const MergeStatesParams& params) {
  const auto aligned = [](const void* data, int64_t row, int64_t head, Element element) {
    const int64_t step = element == Element::kF32 ? 4 : 8;
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row % step == 0 && head % step == 0;
  };
  const int pieces = params.value_dim / 8;
  return params.state_offsets == nullptr && params.exp_sums.data == nullptr &&
         params.num_states >= 1 && params.num_states <= kFew && params.out_scale == 0 &&
         params.inner_rows == INT32_MAX && params.value_dim % 8 == 0 && pieces > 0 &&
         int64_t{params.num_rows} * params.num_heads <= INT32_MAX &&
         pieces <= 32 && 32 % pieces == 0 && !IsCode(params.outs.element) &&
         !IsCode(params.out.element) &&
         aligned(params.outs.data, params.outs.row_stride, params.outs.head_stride,
                 params.outs.element) &&
         aligned(params.outs.data, params.out_state_stride, 0, params.outs.element) &&
         aligned(params.out.data, params.out.row_stride, params.out.head_stride,
                 params.out.element);
}

struct FewPlan {
  FastDivisor heads;
  int32_t unit_bits = 0;  // log2 of the units of eight values of a head
};

template <int kStates, int kPairs, bool kWide>
__global__ void __launch_bounds__(kFewThreads)
    MergeFewStatesKernel(const __grid_constant__ MergeStatesParams params,
                         const __grid_constant__ FewPlan plan, uint32_t* error_flags) {
  OverlapNeighbours();
  const int thread = static_cast<int>(threadIdx.x);
  const int pairs_per_pass = kFewThreads >> plan.unit_bits;
  const int first = (thread & ((1 << plan.unit_bits) - 1)) * kUnit;
  const int64_t first_pair =
      int64_t{blockIdx.x} * kPairs * pairs_per_pass + (thread >> plan.unit_bits);
  const int64_t num_pairs = int64_t{params.num_rows} * params.num_heads;
  const int bytes = BytesOf(params.outs.element);

  float lses[kPairs][kStates];
  RawUnit<kWide> units[kPairs][kStates];
  int rows[kPairs], heads[kPairs];
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const int64_t pair = first_pair + p * pairs_per_pass;
    const bool exists = pair < num_pairs;
    const uint32_t at = exists ? static_cast<uint32_t>(pair) : 0;
    rows[p] = static_cast<int>(plan.heads.Quotient(at));
    heads[p] = static_cast<int>(at) - rows[p] * params.num_heads;
    const int begin = params.tokens_with_context >= 0 && rows[p] >= params.tokens_with_context
                          ? params.num_states - 1
                          : 0;
    const float* lse = params.lses.data + rows[p] * params.lses.row_stride +
                       heads[p] * params.lses.head_stride;
    const auto* from = static_cast<const unsigned char*>(params.outs.data) +
                       (rows[p] * params.outs.row_stride + heads[p] * params.outs.head_stride +
                        first) * bytes;
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      lses[p][n] = -INFINITY;
      if (!exists || n < begin || n >= params.num_states) continue;
      lses[p][n] = lse[n * params.lses.state_stride];
      units[p][n] = LoadUnit<kWide>(kWide, from + n * params.out_state_stride * bytes);
    }
    if (!exists) rows[p] = -1;
  }

  bool infinite = false;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    float max = -INFINITY;
    int contributing = 0;
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      if (params.infinity_is_empty && lses[p][n] == INFINITY) {
        infinite = true;
        lses[p][n] = -INFINITY;
      }
      max = fmaxf(max, lses[p][n]);
      contributing += lses[p][n] == -INFINITY ? 0 : 1;
    }
    const float shift = max == -INFINITY ? 0.0f : max;
    float sum = 0, sums[kUnit] = {};
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
      if (lses[p][n] == -INFINITY) continue;
      const float weight = __expf(lses[p][n] - shift);
      sum = __fadd_rn(sum, weight);
      const float factor = contributing == 1 ? 1.0f : weight;
      float values[kUnit];
      UnpackUnit(params.outs.element, units[p][n], values);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) sums[i] = __fadd_rn(sums[i], __fmul_rn(factor, values[i]));
    }
    const bool empty = contributing == 0;
    const int row = rows[p], head = heads[p];
    float lse = -INFINITY;
    float denominator = contributing == 1 ? 1.0f : sum;
    if (!empty && (params.sinks != nullptr || params.lse != nullptr)) {
      lse = shift + logf(sum);
      if (params.sinks != nullptr) denominator *= 1 + expf(params.sinks[head] - lse);
    }
    // What is written may take the place of what lanes of the same row still read.
    __syncwarp();
    if (row < 0) continue;
    // A sink of +infinity leaves +0, whatever the sign was.
    const bool nothing = empty || denominator == INFINITY;
    const float inverse = __fdiv_rn(1.0f, denominator);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      sums[i] = nothing ? 0.0f : kWide ? sums[i] / denominator : sums[i] * inverse;
    }
    const int64_t at = row * params.out.row_stride + head * params.out.head_stride + first;
    if (params.out.element == Element::kF32) {
      auto* to = reinterpret_cast<float4*>(static_cast<float*>(params.out.data) + at);
      to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
      to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
    } else {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pairs[i] = params.out.element == Element::kF16 ? F16::Pack(sums[2 * i], sums[2 * i + 1])
                                                       : Bf16::Pack(sums[2 * i], sums[2 * i + 1]);
      }
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(params.out.data) + at) =
          make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    if (first == 0 && params.lse != nullptr) {
      params.lse[row * params.lse_row_stride + head * params.lse_head_stride] = lse;
    }
  }
  if (infinite && first == 0 && error_flags != nullptr) {
    atomicOr(error_flags, kMergeOfInfinity);
  }
}

template <int kStates, int kPairs, bool kWide>
Error MergeFew(const LaunchContext& context, const MergeStatesParams& params) {
  FewPlan plan;
  plan.heads = FastDivisor(params.num_heads);
  while ((kUnit << plan.unit_bits) < params.value_dim) ++plan.unit_bits;
  const int64_t pairs = int64_t{params.num_rows} * params.num_heads;
  const int per_block = kPairs * (kFewThreads >> plan.unit_bits);
  return Launch(ConfigOf(context, Blocks(pairs, per_block), kFewThreads),
                MergeFewStatesKernel<kStates, kPairs, kWide>, params, plan, context.error_flags);
}

}  // namespace

Error LaunchMergeStates(const LaunchContext& context, const MergeStatesParams& params) {
  if (params.num_rows == 0 || params.num_heads == 0) return cudaSuccess;
  if (IsFew(params)) {
    if (params.outs.element == Element::kF32) return MergeFew<kFew, 1, true>(context, params);
    return params.num_states <= 2 ? MergeFew<2, 1, false>(context, params)
                                  : MergeFew<kFew, 1, false>(context, params);
  }
  // Few rows go to as many multiprocessors as there are.
  const int64_t pairs = int64_t{params.num_rows} * params.num_heads;
  const int warps = pairs < int64_t{8} * context.num_multiprocessors ? 1 : kMaxWarps;
  const int64_t blocks = (pairs + warps - 1) / warps;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  return Launch(ConfigOf(context, static_cast<unsigned>(blocks), 32 * warps), MergeStatesKernel,
                params, context.error_flags);
}

}  // namespace kvblocks::attention::cuda
