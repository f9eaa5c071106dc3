
#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/kernels/prefill_tile.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kAtOnce = 8;  // states whose values are under way at a time
constexpr int kValues = 4;  // of a lane
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

KVB_DEVICE void Add(float (&sums)[kValues], float weight, const float4& values) {
  sums[0] += weight * values.x, sums[1] += weight * values.y;
  sums[2] += weight * values.z, sums[3] += weight * values.w;
}

KVB_DEVICE void Store(const PrefillMergeParams& params, int64_t at,
                      const float (&values)[kValues]) {
  if (params.out_scale > 0) [[unlikely]] {
#pragma unroll 1
    for (int i = 0; i < kValues; ++i) {
      StoreFloat(params.out.element, values[i] / params.out_scale, params.out.data, at + i);
    }
    return;
  }
  const bool bf16 = params.out.element == Element::kBF16;
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(params.out.data) + at) =
      make_uint2(bf16 ? Bf16::Pack(values[0], values[1]) : F16::Pack(values[0], values[1]),
                 bf16 ? Bf16::Pack(values[2], values[3]) : F16::Pack(values[2], values[3]));
}

__global__ void __launch_bounds__(32 * kWarps)
    PrefillMergeKernel(const __grid_constant__ PrefillMergeParams params) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int64_t rows = int64_t{params.num_tokens} * params.num_heads;
  if (row >= rows) return;
  const auto heads = static_cast<uint32_t>(params.num_heads);
  const int64_t token = static_cast<uint32_t>(row) / heads;
  const int32_t head = static_cast<int32_t>(static_cast<uint32_t>(row) % heads);
  const int count = params.pieces.count;
  const bool has_other = params.other != nullptr;

  // All that is needed first is under way before any is looked at. Lane n has what state n weighs.
  const int32_t end = LoadFromOthers4(params.query_start_loc + params.num_requests);
  float2 stat = make_float2(-INFINITY, 0);
  if (lane < count) stat = LoadFromOthers8(params.pieces.stats + 2 * (lane * rows + row));
  if (has_other && lane == count) {
    const float lse = params.other_lses[row];
    stat = make_float2(lse * kLog2E, lse == -INFINITY ? 0.0f : 1.0f);
  }
  float4 values[kAtOnce];
  const float* from = params.pieces.outs + row * params.value_dim + kValues * lane;
  const int64_t step = rows * params.value_dim;
#pragma unroll
  for (int n = 0; n < kAtOnce; ++n) {
    if (n < count && kValues * lane < params.value_dim)
      values[n] = LoadFromOthers16(from + n * step);
  }
  if (token >= end) return;

  // NaN stays in the sum, and is no maximum.
  const bool sees = stat.y != 0;
  const uint32_t seen = __ballot_sync(kFullWarp, sees);
  const float max = WarpMax(sees ? fmaxf(stat.x, -INFINITY) : -INFINITY);
  const float shift = max == -INFINITY ? 0.0f : max;
  const float weight = sees ? Exp2(stat.x - shift) : 0.0f;
  const float sum = WarpSum(sees ? weight * stat.y : 0.0f);
  float denominator = sum;
  if (params.sinks != nullptr || params.lse != nullptr) {
    const float merged = seen == 0 ? -INFINITY : (shift + log2f(sum)) * kLn2;
    if (params.sinks != nullptr && seen != 0) denominator *= 1 + expf(params.sinks[head] - merged);
    if (lane == 0 && params.lse != nullptr) {
      params.lse[token * params.lse_row_stride + head * params.lse_head_stride] = merged;
    }
  }
  // A sink of +infinity leaves +0, whatever the sign was.
  const bool nothing = seen == 0 || denominator == INFINITY;
  const float inverse = __fdiv_rn(1.0f, denominator);

  const int64_t out = token * params.out.row_stride + head * params.out.head_stride;
  for (int d = kValues * lane; __any_sync(kFullWarp, d < params.value_dim); d += 32 * kValues) {
    const bool active = d < params.value_dim;
    float sums[kValues] = {};
    for (int base = 0; base < count; base += kAtOnce) {
      if (base > 0 || d >= 32 * kValues) {
        const float* at = params.pieces.outs + row * params.value_dim + d + base * step;
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          if (base + n < count && active) values[n] = LoadFromOthers16(at + n * step);
        }
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const float w = __shfl_sync(kFullWarp, weight, (base + n) % 32);
        if (base + n < count && (seen >> (base + n) & 1) != 0 && active) Add(sums, w, values[n]);
      }
    }
    const float w = __shfl_sync(kFullWarp, weight, count);
    if (!active) continue;
    if (has_other && (seen >> count & 1) != 0) {
      float last[kValues];
      LoadFloats<kValues>(params.other_element,
                          static_cast<const uint16_t*>(params.other) + row * params.value_dim + d,
                          last);
      Add(sums, w, make_float4(last[0], last[1], last[2], last[3]));
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) sums[i] = nothing ? 0.0f : sums[i] * inverse;
    Store(params, out + d, sums);
  }
}

}  // namespace

PrefillMergeParams MergeOf(const PrefillParams& params) {
  PrefillMergeParams merge;
  merge.pieces = params.pieces;
  merge.num_tokens = params.num_tokens;
  merge.num_heads = params.num_heads;
  merge.value_dim = params.value_dim;
  merge.query_start_loc = params.query_start_loc;
  merge.num_requests = params.num_requests;
  merge.sinks = params.scoring.sinks;
  merge.out_scale = params.out_scale;
  merge.out = params.out;
  merge.lse = params.lse;
  merge.lse_row_stride = params.lse_row_stride;
  merge.lse_head_stride = params.lse_head_stride;
  return merge;
}

Error LaunchPrefillMerge(const LaunchContext& context, const PrefillMergeParams& params) {
  const int64_t rows = int64_t{params.num_tokens} * params.num_heads;
  if (rows == 0 || params.num_requests == 0) return 0;
  const int64_t blocks = (rows + kWarps - 1) / kWarps;
  if (rows > INT32_MAX) return cudaErrorInvalidConfiguration;
  return Launch(ConfigOf(context, static_cast<unsigned>(blocks), 32 * kWarps), PrefillMergeKernel,
                params);
}

int64_t PrefillPieceBytes(const PrefillParams& params) {
  return int64_t{params.num_tokens} * params.num_heads * (params.value_dim + 2) * 4;
}

int32_t PiecesForPrefill(const LaunchContext& context, const PrefillParams& params) {
  // Of what multiprocessors do at a time, in tiles of 128 keys: a row tile's beginning and end, a
  // launch that merges, and 2^20 bytes written and read.
  constexpr double kPerItem = 4, kPerMerge = 3, kPerMegabyte = 0.45;
  if (params.num_tokens == 0 || params.num_requests == 0) return 1;
  const bool hopper = context.compute_capability == 90 && TakesPrefillHopper(params);
  const int widest = params.is_special() ? 128 : 192;
  const bool pairs = !hopper && (params.key_dim <= widest && params.value_dim <= 128);
  const int64_t slots = int64_t{context.num_multiprocessors} * (pairs ? 2 : 1);
  PrefillParams whole = params;
  whole.pieces.count = 1;
  const int64_t items = OrderTiles(whole, kPrefillRows).items;
  if (items >= 4 * slots) return 1;
  int64_t keys = params.max_seq_len;
  const Scoring& scoring = params.scoring;
  if (scoring.window_left >= 0 && (scoring.causal || scoring.window_right >= 0)) {
    const int64_t right = scoring.causal ? 0 : scoring.window_right;
    const int64_t seen = scoring.window_left + right + kPrefillRows;
    if (seen < keys) keys = seen;
  }
  if (scoring.chunk > 0 && scoring.chunk + kPrefillRows < keys) keys = scoring.chunk + kPrefillRows;
  const int64_t tiles = (keys + kPieceKeys - 1) / kPieceKeys;
  const double megabytes = static_cast<double>(PrefillPieceBytes(params)) / (1 << 20);
  int32_t best = 1;
  double least = 0;
  for (int32_t pieces = 1; pieces <= kMostPrefillPieces && pieces <= tiles; ++pieces) {
    const auto rounds = static_cast<double>((items * pieces + slots - 1) / slots);
    const auto longest = static_cast<double>((tiles + pieces - 1) / pieces);
    double time = rounds * (longest + kPerItem);
    if (pieces > 1) time += kPerMerge + pieces * megabytes * kPerMegabyte;
    if (pieces == 1 || time < least) best = pieces, least = time;
  }
  return best;
}

}  // namespace kvblocks::attention::cuda
