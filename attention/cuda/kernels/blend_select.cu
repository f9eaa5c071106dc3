#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/blend.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/row_units.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

// Keys by words, so that the upper ones, which most often are enough, are read by themselves. There
// are keys, of no token, up to a multiple of kWarps.
template <typename Word>
struct KeyWords {
  Word *upper, *lower;
};

// --- Differences ---

constexpr int kWarps = 8;

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
                     KeyWords<uint32_t> keys, uint32_t* flags) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= params.num_tokens) {
    if (lane == 0) keys.upper[token] = keys.lower[token] = 0;
    return;
  }
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
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kFullWarp, sum, lanes);
  if (lane != 0) return;
  if (!(sum == sum)) {
    Flag(flags, kNonFiniteInput);
    sum = __int_as_float(0x7f800000);
  }
  const uint64_t key = BitsOf(sum);
  keys.upper[token] = static_cast<uint32_t>(key >> 32);
  keys.lower[token] = static_cast<uint32_t>(key);
  if (params.diffs != nullptr) params.diffs[token * params.diffs_stride] = static_cast<float>(sum);
}

// --- Selection ---

constexpr int kSelectThreads = 512, kSelectWarps = kSelectThreads / 32;
constexpr int kMostKept = 8192;  // keys in shared memory
constexpr size_t kSelectSharedBytes = kMostKept * 2 * sizeof(uint32_t);
constexpr int kPartBits = 11, kParts = 1 << kPartBits;
constexpr uint32_t kMostListed = 256;
static_assert(kParts == 4 * kSelectThreads && kMostKept % (4 * kSelectThreads) == 0 &&
              kWarps % 4 == 0);

// Of the lanes up to this one.
KVB_DEVICE uint32_t SumUpTo(uint32_t value, int lane) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint32_t before = __shfl_up_sync(kFullWarp, value, lanes);
    if (lane >= lanes) value += before;
  }
  return value;
}
KVB_DEVICE uint32_t SumOf(const uint4& four) { return four.x + four.y + four.z + four.w; }

// What a search among counts has found, the same in all lanes: where the sum of all counts up to
// there reaches what is needed, and the sum before.
struct Found {
  uint32_t at, before;
};
// REQUIRES: before < needed; the lanes' counts reach it.
KVB_DEVICE Found FindLane(uint32_t count, uint32_t before, uint32_t needed, int lane) {
  const uint32_t up_to = before + SumUpTo(count, lane);
  const int at = __ffs(static_cast<int>(__ballot_sync(kFullWarp, up_to >= needed))) - 1;
  return {static_cast<uint32_t>(at), __shfl_sync(kFullWarp, up_to - count, at)};
}

// One block. Selected are the keys above an interval, and of those in it as many as are then
// needed, first tokens first. It begins with all keys, which are counted by equal parts of it; the
// part in which the last selected key lies becomes the interval; and so on, until all keys of the
// interval are selected, or are equal, or are so few that each is compared with all. Upper words
// mostly suffice. Loops are short rather than unrolled: instructions would have to be waited for.
// kKept: all keys are kept in shared memory; if not, they are read again and again.
template <bool kKept>
__global__ void __launch_bounds__(kSelectThreads)
    SelectKernel(const __grid_constant__ SelectParams params, KeyWords<const uint32_t> keys) {
  __shared__ uint4 counts[kParts / 4];  // of the highest part first
  __shared__ uint32_t sums[2][kSelectWarps];
  __shared__ uint32_t least[kSelectWarps], largest[kSelectWarps];
  __shared__ uint64_t listed[kMostListed];
  __shared__ uint64_t chosen_key;
  __shared__ uint32_t num_listed, chosen_above;
  AllowNextKernel();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const auto num_tokens = static_cast<int>(params.num_tokens);
  auto* const kept_upper = reinterpret_cast<uint32_t*>(DynamicSharedMemory());
  uint32_t* const kept_lower = kKept ? kept_upper + kMostKept : nullptr;
  counts[thread] = make_uint4(0, 0, 0, 0);
  if (thread == 0) num_listed = 0;
  WaitForPreviousKernel();
  if (kKept && params.num_selected > 0) {
    const uint32_t address = SharedAddress(kept_upper) + static_cast<uint32_t>(thread) * 16;
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      const uint32_t* from = (word == 0 ? keys.upper : keys.lower) + 4 * thread;
#pragma unroll
      for (int i = 0; i < kMostKept; i += 4 * kSelectThreads) {
        if (i + 4 * thread < num_tokens) {
          CopyAsync16(address + static_cast<uint32_t>(word * kMostKept + i) * 4, from + i);
        }
      }
      CommitCopies();
    }
  }
  for (int64_t i = thread; i < params.suffix_len; i += kSelectThreads) {
    params.imp[(params.num_selected + i) * params.imp_stride] =
        static_cast<int32_t>(num_tokens + i);
  }
  if (params.num_selected == 0) return;
  const auto upper_of = [&](int token) { return kKept ? kept_upper[token] : keys.upper[token]; };
  const auto key_of = [&](int token) {
    return uint64_t{upper_of(token)} << 32 | (kKept ? kept_lower[token] : keys.lower[token]);
  };

  WaitCopies<1>();
  __syncthreads();
  uint32_t own_least = 0xffffffffu, own_largest = 0;
#pragma unroll 4
  for (int token = thread; token < num_tokens; token += kSelectThreads) {
    const uint32_t word = upper_of(token);
    own_least = word < own_least ? word : own_least;
    own_largest = word > own_largest ? word : own_largest;
  }
  own_least = WarpLeast(own_least), own_largest = WarpLargest(own_largest);
  if (lane == 0) least[warp] = own_least, largest[warp] = own_largest;
  WaitCopies<0>();
  __syncthreads();
  own_least = WarpLeast(least[lane % kSelectWarps]);
  own_largest = WarpLargest(largest[lane % kSelectWarps]);
  // The interval: keys that are `top` or less by less than 2^bits. Before it, parts are counted.
  uint64_t top = uint64_t{own_largest} << 32 | 0xffffffffu;
  const int upper_bits = 32 - __clz(static_cast<int>(own_largest - own_least));
  int bits = 32 + (upper_bits > kPartBits ? upper_bits - kPartBits : 0);
  auto needed = static_cast<uint32_t>(params.num_selected);
  auto* const count_of = reinterpret_cast<uint32_t*>(counts);
#pragma unroll 4
  for (int token = thread; token < num_tokens; token += kSelectThreads) {
    atomicAdd(&count_of[(own_largest - upper_of(token)) >> (bits - 32)], 1u);
  }
  for (;;) {
    __syncthreads();
    const uint32_t warp_sum = WarpTotal(SumOf(counts[thread]));
    if (lane == 0) sums[0][warp] = warp_sum;
    __syncthreads();
    Found found = FindLane(lane < kSelectWarps ? sums[0][lane] : 0, 0, needed, lane);
    uint32_t part = found.at * 128;
    found = FindLane(SumOf(counts[part / 4 + lane]), found.before, needed, lane);
    part += found.at * 4;
    found = FindLane(lane < 4 ? count_of[part + lane] : 0, found.before, needed, lane);
    part += found.at;
    const uint32_t sharing = count_of[part];
    needed -= found.before;
    top -= uint64_t{part} << bits;
    if (sharing == needed || bits == 0) break;
    if (sharing <= kMostListed) {
      const auto top_word = static_cast<uint32_t>(top >> 32);
      const uint32_t words = bits > 32 ? 1u << (bits - 32) : 1;
#pragma unroll 4
      for (int token = thread; token < num_tokens; token += kSelectThreads) {
        if (top_word - upper_of(token) >= words) continue;
        const uint64_t key = key_of(token);
        if ((top - key) >> bits == 0) listed[atomicAdd(&num_listed, 1u)] = key;
      }
      __syncthreads();
      if (thread < static_cast<int>(sharing)) {
        const uint64_t key = listed[thread];
        uint32_t larger = 0, equal = 0, equal_before = 0;
#pragma unroll 1
        for (int i = 0; i < static_cast<int>(sharing); ++i) {
          const uint64_t other = listed[i];
          larger += other > key ? 1 : 0;
          equal += other == key ? 1 : 0;
          equal_before += other == key && i < thread ? 1 : 0;
        }
        if (larger < needed && larger + equal >= needed && equal_before == 0) {
          chosen_key = key;
          chosen_above = larger;
        }
      }
      __syncthreads();
      top = chosen_key;
      bits = 0;
      needed -= chosen_above;
      break;
    }
    __syncthreads();
    counts[thread] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    const int shift = bits > kPartBits ? bits - kPartBits : 0;
#pragma unroll 1
    for (int token = thread; token < num_tokens; token += kSelectThreads) {
      const uint64_t below = top - key_of(token);
      if (below >> bits == 0) atomicAdd(&count_of[below >> shift], 1u);
    }
    bits = shift;
  }

  // What is selected, in order. A warp has a stretch of up to 32 times 32 tokens, lane n what has
  // been found of the n-th 32 of it.
  constexpr int kMostSteps = 32;
  static_assert(kSelectWarps * kMostSteps * 32 < 1 << 16);  // two sums fit one word
  // The last part of all may reach below 0.
  const uint64_t width = (uint64_t{1} << bits) - 1, base = top > width ? top - width : 0;
  const auto top_word = static_cast<uint32_t>(top >> 32),
             base_word = static_cast<uint32_t>(base >> 32);
  uint32_t above_before = 0, sharing_before = 0;
  int turn = 1;
#pragma unroll 1
  for (int begin = 0; begin < num_tokens; begin += kSelectWarps * kMostSteps * 32) {
    const int needed_steps = (num_tokens - begin + kSelectThreads - 1) / kSelectThreads;
    const int steps = needed_steps < kMostSteps ? needed_steps : kMostSteps;
    const int first = begin + warp * steps * 32;
    uint32_t above = 0, sharing = 0;
#pragma unroll 4
    for (int step = 0; step < steps; ++step) {
      const int token = first + step * 32 + lane;
      const uint32_t word = token < num_tokens ? upper_of(token) : 0;
      uint32_t are_above = __ballot_sync(kFullWarp, word > top_word);
      uint32_t are_sharing = 0;
      if (__any_sync(kFullWarp, word - base_word <= top_word - base_word)) {
        const uint64_t key = token < num_tokens ? key_of(token) : 0;
        are_above = __ballot_sync(kFullWarp, key > top);
        are_sharing = __ballot_sync(kFullWarp, token < num_tokens && key <= top && key >= base);
      }
      if (lane == step) above = are_above, sharing = are_sharing;
    }
    const auto own = static_cast<uint32_t>(__popc(above)) | static_cast<uint32_t>(__popc(sharing))
                                                                << 16;
    const uint32_t up_to = SumUpTo(own, lane);
    // Two buffers alternate, because a warp may already work on the next stretch.
    if (lane == 31) sums[turn][warp] = up_to;
    __syncthreads();
    const uint32_t warps_up_to = SumUpTo(lane < kSelectWarps ? sums[turn][lane] : 0, lane);
    const uint32_t all = __shfl_sync(kFullWarp, warps_up_to, kSelectWarps - 1);
    uint32_t before = up_to - own;
    if (warp > 0) before += __shfl_sync(kFullWarp, warps_up_to, warp - 1);
    const uint32_t num_above = above_before + (before & 0xffffu);
    const uint32_t num_sharing = sharing_before + (before >> 16);
    const uint32_t taken = num_sharing < needed ? num_sharing : needed;
    uint32_t selected = above;
    for (uint32_t still = needed - taken; still > 0 && sharing != 0; --still) {
      selected |= sharing & (~sharing + 1);
      sharing &= sharing - 1;
    }
    int32_t* to = params.imp + (int64_t{num_above} + taken) * params.imp_stride;
#pragma unroll 1
    for (; selected != 0; selected &= selected - 1) {
      *to = first + lane * 32 + __ffs(static_cast<int>(selected)) - 1;
      to += params.imp_stride;
    }
    above_before += all & 0xffffu;
    sharing_before += all >> 16;
    turn = 1 - turn;
  }
}

}  // namespace

int64_t SelectWorkspaceBytes(int64_t num_tokens) {
  return int64_t{Blocks(num_tokens, kWarps)} * kWarps * 2 * static_cast<int64_t>(sizeof(uint32_t));
}

Error LaunchSelect(const LaunchContext& context, const SelectParams& params) {
  auto* upper = reinterpret_cast<uint32_t*>(context.workspace);
  uint32_t* lower = upper + int64_t{Blocks(params.num_tokens, kWarps)} * kWarps;
  if (params.num_tokens > 0) {
    const FastDivisor units_per_head(params.dim < kUnit ? 1 : params.dim / kUnit);
    const bool wide =
        params.v_new.element == Element::kF32 || params.v_old.element == Element::kF32;
    const Error error =
        Launch(ConfigOf(context, Blocks(params.num_tokens, kWarps), kWarps * 32),
               wide ? DifferenceKernel<true> : DifferenceKernel<false>, params, units_per_head,
               KeyWords<uint32_t>{upper, lower}, context.error_flags);
    if (error != 0) return error;
  }
  const bool kept = params.num_tokens <= kMostKept;
  return Launch(ConfigOf(context, 1, kSelectThreads, kept ? kSelectSharedBytes : 0),
                kept ? SelectKernel<true> : SelectKernel<false>, params,
                KeyWords<const uint32_t>{upper, lower});
}

}  // namespace kvblocks::attention::cuda
