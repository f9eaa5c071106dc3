#include "attention/cuda/kernels/blend.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/kernels/device_flags.h"
#include "attention/cuda/kernels/elements.h"

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

// A warp per token. Sums of squares are not negative, so their bits are ordered as they are.
__global__ void __launch_bounds__(kWarps * 32)
    DifferenceKernel(SelectParams params, uint64_t* keys, uint32_t* flags) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= params.num_tokens) return;
  const int new_bytes = BytesOf(params.v_new.element), old_bytes = BytesOf(params.v_old.element);
  const auto* now = static_cast<const unsigned char*>(params.v_new.data) +
                    token * params.v_new.row_stride * new_bytes;
  const auto* then = static_cast<const unsigned char*>(params.v_old.data) +
                     token * params.v_old.row_stride * old_bytes;
  const int pieces_per_head = (params.dim + 7) / 8;
  const int pieces = pieces_per_head * params.heads;
  double sum = 0;
#pragma unroll 4
  for (int p = lane; p < pieces; p += 32) {
    const int head = p / pieces_per_head, d = (p - head * pieces_per_head) * 8;
    const auto* a = now + (head * params.v_new.head_stride + d) * new_bytes;
    const auto* b = then + (head * params.v_old.head_stride + d) * old_bytes;
    float x[8], y[8];
    if (d + 8 <= params.dim) {
      LoadFloats<8>(params.v_new.element, a, x);
      LoadFloats<8>(params.v_old.element, b, y);
    } else {
      for (int i = 0; i < 8; ++i) {
        const bool inside = d + i < params.dim;
        x[i] = inside ? LoadAsFloat(params.v_new.element, a, i) : 0;
        y[i] = inside ? LoadAsFloat(params.v_old.element, b, i) : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const double difference = static_cast<double>(x[i]) - static_cast<double>(y[i]);
      sum = fma(difference, difference, sum);
    }
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

constexpr int kSelectThreads = 1024;
constexpr int kMostKeysInShared = 24 * 1024;

// One block. Digit by digit from the top, the keys that share the digits so far are counted by the
// next; the digit in which the last selected key lies is fixed. Ends early when all that share the
// digits are selected. Then every thread writes what is selected of a stretch of tokens.
__global__ void __launch_bounds__(kSelectThreads)
    SelectKernel(SelectParams params, const uint64_t* global_keys, bool in_shared) {
  __shared__ uint32_t counts[256];
  __shared__ uint32_t warp_sums[kSelectThreads / 32];
  __shared__ uint32_t chosen_digit, chosen_above;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const uint64_t* keys = global_keys;
  if (in_shared) {
    auto* copy = reinterpret_cast<uint64_t*>(DynamicSharedMemory());
    for (int64_t i = thread; i < params.num_tokens; i += kSelectThreads) copy[i] = global_keys[i];
    keys = copy;
    __syncthreads();
  }
  // Selected: keys above `prefix` in the digits that `mask` covers, and the first `needed` of those
  // that share them.
  uint64_t prefix = 0, mask = 0;
  auto needed = static_cast<uint32_t>(params.num_selected);
  for (int shift = 56; shift >= 0 && needed > 0; shift -= 8) {
    for (int i = thread; i < 256; i += kSelectThreads) counts[i] = 0;
    __syncthreads();
    for (int64_t i = thread; i < params.num_tokens; i += kSelectThreads) {
      const uint64_t key = keys[i];
      if ((key & mask) == prefix) atomicAdd(&counts[key >> shift & 0xff], 1u);
    }
    __syncthreads();
    // The first warp sums the counts from the top, eight digits a lane.
    if (warp == 0) {
      uint32_t own = 0;
      for (int i = 0; i < 8; ++i) own += counts[255 - (lane * 8 + i)];
      uint32_t above = own;
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const uint32_t before = __shfl_up_sync(kFullWarp, above, lanes);
        if (lane >= lanes) above += before;
      }
      above -= own;
      for (int i = 0; i < 8; ++i) {
        const uint32_t digit = 255u - static_cast<uint32_t>(lane * 8 + i);
        if (above < needed && above + counts[digit] >= needed) {
          chosen_digit = digit;
          chosen_above = above;
        }
        above += counts[digit];
      }
    }
    __syncthreads();
    needed -= chosen_above;
    prefix |= uint64_t{chosen_digit} << shift;
    mask |= uint64_t{0xff} << shift;
    const bool done = counts[chosen_digit] == needed;
    __syncthreads();
    if (done) break;
  }
  // Each thread's stretch: how many above, how many that share the prefix.
  const int64_t stretch = (params.num_tokens + kSelectThreads - 1) / kSelectThreads;
  const int64_t begin = thread * stretch;
  const int64_t end = begin + stretch < params.num_tokens ? begin + stretch : params.num_tokens;
  uint32_t sharing = 0, above = 0;
  if (params.num_selected > 0) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t key = keys[i] & mask;
      above += key > prefix ? 1 : 0;
      sharing += key == prefix ? 1 : 0;
    }
  }
  // Of those that share, the first `needed` of all threads.
  const auto exclusive_sum = [&](uint32_t value) {
    uint32_t sum = value;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const uint32_t before = __shfl_up_sync(kFullWarp, sum, lanes);
      if (lane >= lanes) sum += before;
    }
    __syncthreads();
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    uint32_t before_warp = 0;
    for (int w = 0; w < warp; ++w) before_warp += warp_sums[w];
    return before_warp + sum - value;
  };
  const uint32_t shared_before = exclusive_sum(sharing);
  const uint32_t left = needed > shared_before ? needed - shared_before : 0;
  uint32_t taken = sharing < left ? sharing : left;
  int64_t at = exclusive_sum(above + taken);
  if (params.num_selected > 0) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t key = keys[i] & mask;
      if (key < prefix) continue;
      if (key == prefix) {
        if (taken == 0) continue;
        --taken;
      }
      params.imp[at++ * params.imp_stride] = static_cast<int32_t>(i);
    }
  }
  for (int64_t i = thread; i < params.suffix_len; i += kSelectThreads) {
    params.imp[(params.num_selected + i) * params.imp_stride] =
        static_cast<int32_t>(params.num_tokens + i);
  }
}

// --- Fusing ---

// A warp per row; K and V by blockIdx.y.
__global__ void __launch_bounds__(kWarps * 32) FuseKernel(FuseParams params, uint32_t* flags) {
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
__global__ void __launch_bounds__(kWarps * 32) RotateKernel(RotateParams params) {
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
  if (params.num_tokens > 0) {
    config.grid = dim3(Blocks(params.num_tokens, kWarps));
    config.block = dim3(kWarps * 32);
    const Error error = Launch(config, DifferenceKernel, params, keys, context.error_flags);
    if (error != 0) return error;
  }
  const bool in_shared = params.num_tokens <= kMostKeysInShared;
  config.grid = dim3(1);
  config.block = dim3(kSelectThreads);
  config.shared_bytes = in_shared ? static_cast<size_t>(params.num_tokens) * sizeof(uint64_t) : 0;
  return Launch(config, SelectKernel, params, static_cast<const uint64_t*>(keys), in_shared);
}

Error LaunchFuse(const LaunchContext& context, const FuseParams& params) {
  if (params.num_rows == 0) return 0;
  LaunchConfig config;
  config.grid = dim3(Blocks(params.num_rows, kWarps), 2);
  config.block = dim3(kWarps * 32);
  config.stream = context.stream;
  return Launch(config, FuseKernel, params, context.error_flags);
}

Error LaunchRotate(const LaunchContext& context, const RotateParams& params) {
  if (params.num_tokens == 0) return 0;
  LaunchConfig config;
  config.grid = dim3(Blocks(params.num_tokens, kWarps));
  config.block = dim3(kWarps * 32);
  config.stream = context.stream;
  return Launch(config, RotateKernel, params);
}

}  // namespace kvblocks::attention::cuda
