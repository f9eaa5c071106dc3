#include "attention/cuda/kernels/blend.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/device_flags.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/row_units.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8;

unsigned Blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// --- Selection ---

KVB_DEVICE uint64_t BitsOf(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// A warp per token, several units of both tensors under way at a time. Sums of squares are not
// negative, so their bits are ordered as they are. Differences of 16-bit elements are rounded to
// float32, which most of them fit; kWide: of float32 ones, not.
template <bool kWide>
__global__ void __launch_bounds__(kWarps * 32, 3)
    DifferenceKernel(const __grid_constant__ SelectParams params, FastDivisor units_per_head,
                     uint64_t* keys, uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= params.num_tokens) return;
  const Element new_type = params.v_new.element, old_type = params.v_old.element;
  const int new_bytes = BytesOf(new_type), old_bytes = BytesOf(old_type);
  const auto* now = static_cast<const unsigned char*>(params.v_new.data) +
                    token * params.v_new.row_stride * new_bytes;
  const auto* then = static_cast<const unsigned char*>(params.v_old.data) +
                     token * params.v_old.row_stride * old_bytes;
  const auto per_head = static_cast<int>(units_per_head.divisor());
  const int units = per_head * params.heads;
  constexpr int kUnroll = kWide ? 2 : 4;
  double sum = 0;
  for (int first = lane; first < units; first += 32 * kUnroll) {
    RawUnit<kWide> a[kUnroll], b[kUnroll];
    bool whole[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int unit = first + 32 * u;
      const auto head = static_cast<int>(units_per_head.Quotient(unit));
      const int d = (unit - head * per_head) * kUnit;
      whole[u] = unit < units && d + kUnit <= params.dim;
      if (!whole[u]) continue;
      a[u] = LoadUnit<kWide>(new_type == Element::kF32,
                             now + (head * params.v_new.head_stride + d) * new_bytes);
      b[u] = LoadUnit<kWide>(old_type == Element::kF32,
                             then + (head * params.v_old.head_stride + d) * old_bytes);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (!whole[u]) continue;
      float x[kUnit], y[kUnit];
      UnpackUnit(new_type, a[u], x);
      UnpackUnit(old_type, b[u], y);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        const double difference = kWide ? static_cast<double>(x[i]) - static_cast<double>(y[i])
                                        : static_cast<double>(x[i] - y[i]);
        sum = fma(difference, difference, sum);
      }
    }
  }
  // What is left of heads that are no whole number of units.
  const int covered = params.dim / kUnit * kUnit, left = params.dim - covered;
  for (int i = lane; i < left * params.heads; i += 32) {
    const int head = i / left, d = covered + i - head * left;
    const double difference =
        static_cast<double>(LoadAsFloat(new_type, now, head * params.v_new.head_stride + d)) -
        static_cast<double>(LoadAsFloat(old_type, then, head * params.v_old.head_stride + d));
    sum = fma(difference, difference, sum);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kFullWarp, sum, lanes);
  if (lane != 0) return;
  if (!(sum == sum)) {
    Flag(flags, kNonFiniteInput);
    sum = __int_as_float(0x7f800000);
  }
  keys[token] = BitsOf(sum);
  if (params.diffs != nullptr) params.diffs[token * params.diffs_stride] = static_cast<float>(sum);
}

constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / 32;
constexpr int kDigitBits = 11, kDigits = 1 << kDigitBits;

// The sum of the values of the lanes before this one, and of all lanes.
KVB_DEVICE uint32_t SumBefore(uint32_t value, int lane, uint32_t* all = nullptr) {
  uint32_t sum = value;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint32_t before = __shfl_up_sync(kFullWarp, sum, lanes);
    if (lane >= lanes) sum += before;
  }
  if (all != nullptr) *all = __shfl_sync(kFullWarp, sum, 31);
  return sum - value;
}

// One block; a warp has a stretch of tokens, of which the first 32 kOwn stay in registers. Digit by
// digit, from the first bit in which keys differ, the keys that share the digits so far are counted by
// the next; the digit in which the last selected key lies is fixed. Keys that share digits are put on
// a list once they are few. Ends early when all that share the digits are selected. Then every warp
// writes what is selected of its stretch.
template <int kOwn>
__global__ void __launch_bounds__(kSelectThreads)
    SelectKernel(const __grid_constant__ SelectParams params, const uint64_t* keys) {
  __shared__ uint32_t counts[kDigits];
  __shared__ uint32_t sums[2][kSelectWarps];
  __shared__ uint32_t differing[2];
  __shared__ uint32_t chosen_digit, chosen_above;
  __shared__ uint64_t listed[kSelectThreads];
  __shared__ uint32_t num_listed;
  AllowNextKernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const auto num_tokens = static_cast<int>(params.num_tokens);
  if (thread < 2) differing[thread] = 0;
  if (thread == 0) num_listed = 0;
  __syncthreads();
  WaitForPreviousKernel();
  for (int64_t i = thread; i < params.suffix_len; i += kSelectThreads) {
    params.imp[(params.num_selected + i) * params.imp_stride] = static_cast<int32_t>(num_tokens + i);
  }
  if (params.num_selected == 0) return;
  // Lane l has keys l, l + 32, ... of the warp's stretch.
  const int steps = (num_tokens + kSelectThreads - 1) / kSelectThreads;
  const int first = warp * steps * 32 + lane;
  uint64_t own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    own[i] = i < steps && first + i * 32 < num_tokens ? keys[first + i * 32] : 0;
  }
  const uint64_t any_key = keys[0];
  // Calls visit(index of the token, key) for the keys of this lane.
  const auto each_key = [&](const auto& visit) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (i < steps && first + i * 32 < num_tokens) visit(first + i * 32, own[i]);
    }
    for (int i = kOwn; i < steps && first + i * 32 < num_tokens; ++i) {
      visit(first + i * 32, keys[first + i * 32]);
    }
  };
  uint64_t differs = 0;
  each_key([&](int, uint64_t key) { differs |= key ^ any_key; });
  const uint32_t low = WarpOr(static_cast<uint32_t>(differs));
  const uint32_t high = WarpOr(static_cast<uint32_t>(differs >> 32));
  if (lane == 0) {
    if (low != 0) atomicOr(&differing[0], low);
    if (high != 0) atomicOr(&differing[1], high);
  }
  __syncthreads();

  // Selected: keys above `prefix` in the digits that `mask` covers, and the first `needed` of those
  // that share them.
  int bits_left = differing[1] != 0 ? 64 - __clz(static_cast<int>(differing[1]))
                                    : 32 - __clz(static_cast<int>(differing[0]));
  uint64_t mask = bits_left == 64 ? 0 : ~uint64_t{0} << bits_left;
  uint64_t prefix = any_key & mask;
  auto needed = static_cast<uint32_t>(params.num_selected);
  bool has_list = false;
  while (bits_left > 0) {
    const int bits = bits_left < kDigitBits ? bits_left : kDigitBits;
    const int shift = bits_left - bits;
    const auto digit_mask = (1u << bits) - 1;
    for (int i = thread; i < kDigits; i += kSelectThreads) counts[i] = 0;
    __syncthreads();
    const auto count = [&](int, uint64_t key) {
      if ((key & mask) == prefix) {
        atomicAdd(&counts[static_cast<uint32_t>(key >> shift) & digit_mask], 1u);
      }
    };
    if (!has_list) {
      each_key(count);
    } else if (thread < static_cast<int>(num_listed)) {
      count(thread, listed[thread]);
    }
    __syncthreads();
    // Two digits a thread, from the top.
    const int upper = kDigits - 1 - 2 * thread;
    const uint32_t upper_count = counts[upper], lower_count = counts[upper - 1];
    uint32_t warp_sum = 0;
    uint32_t above = SumBefore(upper_count + lower_count, lane, &warp_sum);
    if (lane == 0) sums[0][warp] = warp_sum;
    __syncthreads();
    above += __shfl_sync(kFullWarp, SumBefore(sums[0][lane], lane), warp);
    if (above < needed && above + upper_count >= needed) {
      chosen_digit = static_cast<uint32_t>(upper);
      chosen_above = above;
    }
    above += upper_count;
    if (above < needed && above + lower_count >= needed) {
      chosen_digit = static_cast<uint32_t>(upper - 1);
      chosen_above = above;
    }
    __syncthreads();
    needed -= chosen_above;
    prefix |= uint64_t{chosen_digit} << shift;
    mask |= uint64_t{digit_mask} << shift;
    bits_left = shift;
    const uint32_t sharing = counts[chosen_digit];
    if (sharing == needed) break;
    if (!has_list && sharing <= kSelectThreads) {
      each_key([&](int, uint64_t key) {
        if ((key & mask) == prefix) listed[atomicAdd(&num_listed, 1u)] = key;
      });
      has_list = true;
    }
    __syncthreads();
  }

  // Which keys of each 32 are above, which share the prefix, and how many of the stretch.
  unsigned own_above[kOwn], own_sharing[kOwn];
  uint32_t num_above = 0, num_sharing = 0;
  const auto vote = [&](int token, uint64_t key, unsigned* above, unsigned* sharing) {
    *above = __ballot_sync(kFullWarp, token < num_tokens && (key & mask) > prefix);
    *sharing = __ballot_sync(kFullWarp, token < num_tokens && (key & mask) == prefix);
    num_above += static_cast<uint32_t>(__popc(*above));
    num_sharing += static_cast<uint32_t>(__popc(*sharing));
  };
  const auto later_key = [&](int token) { return token < num_tokens ? keys[token] : 0; };
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    own_above[i] = own_sharing[i] = 0;
    if (i < steps) vote(first + i * 32, own[i], &own_above[i], &own_sharing[i]);
  }
  unsigned above, sharing;
  for (int i = kOwn; i < steps; ++i) {
    vote(first + i * 32, later_key(first + i * 32), &above, &sharing);
  }
  if (lane == 0) {
    sums[0][warp] = num_above;
    sums[1][warp] = num_sharing;
  }
  __syncthreads();
  num_above = __shfl_sync(kFullWarp, SumBefore(sums[0][lane], lane), warp);
  num_sharing = __shfl_sync(kFullWarp, SumBefore(sums[1][lane], lane), warp);
  const unsigned before = (1u << lane) - 1;
  const auto write = [&](int token, unsigned is_above, unsigned shares) {
    const uint32_t shared_before = num_sharing + static_cast<uint32_t>(__popc(shares & before));
    if ((is_above >> lane & 1) != 0 || ((shares >> lane & 1) != 0 && shared_before < needed)) {
      const int64_t at = int64_t{num_above} + __popc(is_above & before) +
                         (shared_before < needed ? shared_before : needed);
      params.imp[at * params.imp_stride] = static_cast<int32_t>(token);
    }
    num_above += static_cast<uint32_t>(__popc(is_above));
    num_sharing += static_cast<uint32_t>(__popc(shares));
  };
#pragma unroll
  for (int i = 0; i < kOwn; ++i) write(first + i * 32, own_above[i], own_sharing[i]);
  for (int i = kOwn; i < steps; ++i) {
    const uint32_t above_before = num_above, sharing_before = num_sharing;
    vote(first + i * 32, later_key(first + i * 32), &above, &sharing);
    num_above = above_before, num_sharing = sharing_before;
    write(first + i * 32, above, sharing);
  }
}

// --- Fusing ---

// A warp per row; K and V by blockIdx.y.
__global__ void __launch_bounds__(kWarps * 32)
    FuseKernel(const __grid_constant__ FuseParams params, uint32_t* flags) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= params.num_rows) return;
  const int64_t token = params.imp[row * params.imp_stride];
  if (token < 0 || token >= params.num_tokens) {
    if (lane == 0) Flag(flags, kBadIndex);
    return;
  }
  const ConstRows from = params.from[blockIdx.y];
  const Rows to = params.to[blockIdx.y];
  const int bytes = BytesOf(to.element);
  const int row_bytes = params.dim[blockIdx.y] * bytes;
  const auto* source = static_cast<const unsigned char*>(from.data) + row * from.row_stride * bytes;
  auto* target = static_cast<unsigned char*>(to.data) + token * to.row_stride * bytes;
  const int pieces_per_head = (row_bytes + 15) / 16;
  const int pieces = pieces_per_head * params.heads;
#pragma unroll 4
  for (int p = lane; p < pieces; p += 32) {
    const int head = p / pieces_per_head, at = (p - head * pieces_per_head) * 16;
    const auto* a = source + head * from.head_stride * bytes + at;
    auto* b = target + head * to.head_stride * bytes + at;
    if (at + 16 <= row_bytes) {
      *reinterpret_cast<uint4*>(b) = *reinterpret_cast<const uint4*>(a);
    } else {
      for (int i = 0; at + i < row_bytes; ++i) b[i] = a[i];
    }
  }
}

// --- Rotation ---

KVB_DEVICE int64_t PositionOf(const void* positions, int64_t stride, bool wide, int64_t token) {
  return wide ? static_cast<const int64_t*>(positions)[token * stride]
              : static_cast<const int32_t*>(positions)[token * stride];
}

// A warp per token: angles once, in float64, for all heads.
__global__ void __launch_bounds__(kWarps * 32)
    RotateKernel(const __grid_constant__ RotateParams params) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= params.num_tokens) return;
  int64_t by = PositionOf(params.positions, params.positions_stride, params.positions_are_wide, token);
  if (params.from_positions != nullptr) {
    by -= PositionOf(params.from_positions, params.from_positions_stride,
                     params.from_positions_are_wide, token);
  }
  const Element from_type = params.from.element, to_type = params.to.element;
  const auto* from = static_cast<const unsigned char*>(params.from.data) +
                     token * params.from.row_stride * BytesOf(from_type);
  auto* to = static_cast<unsigned char*>(params.to.data) +
             token * params.to.row_stride * BytesOf(to_type);
  // What is not turned is copied, bits if types agree.
  const int first_copied = by == 0 ? 0 : params.rotary_dim;
  const bool in_place = static_cast<const void*>(from) == static_cast<const void*>(to);
  if (!(in_place && from_type == to_type)) {
    const int copied = params.dim - first_copied;
    for (int i = lane; i < copied * params.heads; i += 32) {
      const int head = i / copied, d = first_copied + i - head * copied;
      const int64_t a = head * params.from.head_stride + d, b = head * params.to.head_stride + d;
      if (from_type != to_type) {
        StoreFloat(to_type, LoadAsFloat(from_type, from, a), to, b);
      } else if (BytesOf(to_type) == 2) {
        reinterpret_cast<uint16_t*>(to)[b] = reinterpret_cast<const uint16_t*>(from)[a];
      } else {
        reinterpret_cast<uint32_t*>(to)[b] = reinterpret_cast<const uint32_t*>(from)[a];
      }
    }
  }
  if (by == 0) return;
  const int pairs = params.rotary_dim / 2;
  for (int i = lane; i < pairs; i += 32) {
    const double angle =
        static_cast<double>(by) *
        pow(params.theta, -2.0 * static_cast<double>(i) / static_cast<double>(params.rotary_dim));
    const double cosine = cos(angle), sine = sin(angle);
    const int first = params.interleaved ? 2 * i : i;
    const int second = params.interleaved ? 2 * i + 1 : i + pairs;
    for (int head = 0; head < params.heads; ++head) {
      const int64_t a = head * params.from.head_stride, b = head * params.to.head_stride;
      const double x = LoadAsFloat(from_type, from, a + first);
      const double y = LoadAsFloat(from_type, from, a + second);
      StoreFloat(to_type, static_cast<float>(x * cosine - y * sine), to, b + first);
      StoreFloat(to_type, static_cast<float>(x * sine + y * cosine), to, b + second);
    }
  }
}

}  // namespace

int64_t SelectWorkspaceBytes(int64_t num_tokens) {
  return num_tokens * static_cast<int64_t>(sizeof(uint64_t));
}

Error LaunchSelect(const LaunchContext& context, const SelectParams& params) {
  auto* keys = reinterpret_cast<uint64_t*>(context.workspace);
  LaunchConfig config;
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  if (params.num_tokens > 0) {
    config.grid = dim3(Blocks(params.num_tokens, kWarps));
    config.block = dim3(kWarps * 32);
    const FastDivisor units_per_head(params.dim < kUnit ? 1 : params.dim / kUnit);
    const bool wide =
        params.v_new.element == Element::kF32 || params.v_old.element == Element::kF32;
    const Error error = Launch(config, wide ? DifferenceKernel<true> : DifferenceKernel<false>,
                               params, units_per_head, keys, context.error_flags);
    if (error != 0) return error;
  }
  config.grid = dim3(1);
  config.block = dim3(kSelectThreads);
  return Launch(config, SelectKernel<8>, params, static_cast<const uint64_t*>(keys));
}

Error LaunchFuse(const LaunchContext& context, const FuseParams& params) {
  if (params.num_rows == 0) return 0;
  LaunchConfig config;
  config.grid = dim3(Blocks(params.num_rows, kWarps), 2);
  config.block = dim3(kWarps * 32);
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return Launch(config, FuseKernel, params, context.error_flags);
}

Error LaunchRotate(const LaunchContext& context, const RotateParams& params) {
  if (params.num_tokens == 0) return 0;
  LaunchConfig config;
  config.grid = dim3(Blocks(params.num_tokens, kWarps));
  config.block = dim3(kWarps * 32);
  config.stream = context.stream;
  config.overlap_previous = context.can_overlap();
  return Launch(config, RotateKernel, params);
}

}  // namespace kvblocks::attention::cuda
