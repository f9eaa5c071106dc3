#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_write.h"
#include "attention/cuda/kernels/fast_division.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 8;  // loads of a thread that are under way at once
constexpr int kTasks = 3;

// The most blocks that leave maxima for the second kernel.
constexpr int kMostScaleBlocks = 528;

// How the threads of a block divide tokens and units of 16 bytes, those of the tasks in turn.
struct ScalesPlan {
  FastDivisor units_per_head[kTasks];
  int32_t first_unit[kTasks + 1] = {};
  int32_t columns = 0;  // units that a block has of each token
  FastDivisor across;   // `columns`
  int32_t tokens_per_pass = 1;
  int32_t most_scales = 1;
};

KVB_DEVICE uint32_t InfinityOf(Element element) {
  return element == Element::kF32 ? 0x7f800000u : element == Element::kF16 ? 0x7c00u : 0x7f80u;
}

// Magnitudes as integers, which are in the same order: one of 32 bits or two of 16.
KVB_DEVICE uint32_t Larger(bool wide, uint32_t most, uint32_t word) {
  if (wide) {
    word &= 0x7fffffffu;
    return word > most ? word : most;
  }
  return MaxOfPairs(most, word & 0x7fff7fffu);
}
KVB_DEVICE uint32_t LargestHalf(bool wide, uint32_t word) {
  return wide || word >> 16 < (word & 0xffffu) ? (wide ? word : word & 0xffffu) : word >> 16;
}
// A word with what is not finite replaced by 0.
KVB_DEVICE uint32_t FinitePart(bool wide, uint32_t infinity, uint32_t word, bool* finite) {
  uint32_t kept = word;
  if (wide) {
    if ((word & 0x7fffffffu) >= infinity) kept = 0;
  } else {
    if ((word & 0x7fffu) >= infinity) kept &= 0xffff0000u;
    if ((word >> 16 & 0x7fffu) >= infinity) kept &= 0xffffu;
  }
  *finite = *finite && kept == word;
  return kept;
}

KVB_DEVICE float ScaleFrom(float amax, float divisor) {
  if (amax == 0) return 1;
  // A scale has to be finite and positive, whatever the inputs are.
  const float quotient = __fdiv_rn(amax, divisor);
  return quotient < 1.17549435e-38f ? 1.17549435e-38f
         : quotient > 3.4028234e38f ? 3.4028234e38f
                                    : quotient;
}

// Maxima of the block go to partial[task][scale][block].
__global__ void __launch_bounds__(kThreads)
    ScaleMaximaKernel(const __grid_constant__ KvScalesParams params,
                      const __grid_constant__ ScalesPlan plan, float* partial, uint32_t* flags) {
  AllowNextKernel();
  auto* maxima = reinterpret_cast<uint32_t*>(DynamicSharedMemory());
  const int num_maxima = kTasks * plan.most_scales;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < num_maxima; i += kThreads) maxima[i] = 0;

  const auto first = static_cast<int>(plan.across.Quotient(threadIdx.x));
  const int column = thread - first * plan.columns;
  int unit = static_cast<int>(blockIdx.y) * plan.columns + column;
  const bool exists = first < plan.tokens_per_pass && unit < plan.first_unit[kTasks];
  int which = 0;
  for (int i = 1; i < kTasks; ++i) which = unit >= plan.first_unit[i] ? i : which;
  unit -= plan.first_unit[which];
  const ScaleTask& task = params.tasks[which];
  const Element element = task.from.element;
  const bool wide = element == Element::kF32;
  const int bytes = BytesOf(element), elements = 16 / bytes;
  const auto head = static_cast<int>(plan.units_per_head[which].Quotient(exists ? unit : 0));
  const int d = (unit - head * static_cast<int>(plan.units_per_head[which].divisor())) * elements;
  const bool whole = d + elements <= task.dim;
  const int64_t step = int64_t{gridDim.x} * kTokens * plan.tokens_per_pass;
  int64_t token = int64_t{blockIdx.x} * kTokens * plan.tokens_per_pass + first;
  const auto* from = static_cast<const unsigned char*>(task.from.data) +
                     (head * task.from.head_stride + d) * bytes;
  const int64_t token_bytes = task.from.row_stride * bytes;
  const uint32_t infinity = InfinityOf(element);
  uint32_t amax = 0;
  bool finite = true;
  __syncthreads();
  WaitForPreviousKernel();
  for (; exists && token < task.tokens; token += step) {
    uint4 pieces[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const int64_t at = token + i * plan.tokens_per_pass;
      pieces[i] = make_uint4(0, 0, 0, 0);
      if (at >= task.tokens) continue;
      if (whole) {
        pieces[i] = LoadOnce16(from + at * token_bytes);
      } else {
        const auto* source = reinterpret_cast<const uint16_t*>(from + at * token_bytes);
        const int count = (task.dim - d) * bytes / 2;
        const auto part = [&](int n) { return n < count ? uint32_t{source[n]} : 0u; };
        pieces[i] = make_uint4(part(0) | part(1) << 16, part(2) | part(3) << 16,
                               part(4) | part(5) << 16, part(6) | part(7) << 16);
      }
    }
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      most = Larger(wide, most, pieces[i].x);
      most = Larger(wide, most, pieces[i].y);
      most = Larger(wide, most, pieces[i].z);
      most = Larger(wide, most, pieces[i].w);
    }
    if (LargestHalf(wide, most) >= infinity) {
      most = 0;
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        most = Larger(wide, most, FinitePart(wide, infinity, pieces[i].x, &finite));
        most = Larger(wide, most, FinitePart(wide, infinity, pieces[i].y, &finite));
        most = Larger(wide, most, FinitePart(wide, infinity, pieces[i].z, &finite));
        most = Larger(wide, most, FinitePart(wide, infinity, pieces[i].w, &finite));
      }
    }
    amax = Larger(wide, amax, most);
  }
  if (!finite) Flag(flags, kNonFiniteInput);
  const uint32_t largest = LargestHalf(wide, amax);
  uint32_t bits = wide ? largest
                  : element == Element::kF16
                      ? __float_as_uint(F16::ToFloat(static_cast<uint16_t>(largest)))
                      : largest << 16;
  // The lanes of a warp most often have one scale.
  int scale = which * plan.most_scales + (task.num_scales > 1 ? head : 0);
  if (!exists) scale = 0, bits = 0;
  const int of_first = __shfl_sync(kFullWarp, scale, 0);
  if (__all_sync(kFullWarp, scale == of_first)) {
    bits = WarpLargest(bits);
    if (thread % 32 == 0) atomicMax(&maxima[scale], bits);
  } else {
    atomicMax(&maxima[scale], bits);
  }
  __syncthreads();
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  for (int i = thread; i < num_maxima; i += kThreads) {
    partial[int64_t{i} * kMostScaleBlocks + block] = __uint_as_float(maxima[i]);
  }
}

// A warp per scale and task.
__global__ void __launch_bounds__(32)
    FinishScalesKernel(const __grid_constant__ KvScalesParams params, const float* partial,
                       int most_scales, int num_blocks) {
  OverlapNeighbours();
  const int lane = static_cast<int>(threadIdx.x);
  const ScaleTask& task = params.tasks[blockIdx.y];
  const int scale = static_cast<int>(blockIdx.x);
  if (task.from.data == nullptr || scale >= task.num_scales) return;
  const float* from = partial + (int64_t{blockIdx.y} * most_scales + scale) * kMostScaleBlocks;
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kMostScaleBlocks / 128 + 1; ++i) {
    const int block = i * 128 + lane * 4;
    if (block >= num_blocks) continue;
    const float4 four = *reinterpret_cast<const float4*>(from + block);
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (block + n < num_blocks && values[n] > amax) amax = values[n];
    }
  }
  amax = WarpMax(amax);
  if (lane != 0) return;
  task.to[scale * task.to_stride] = ScaleFrom(amax, task.divisor);
}

int64_t CeilOf(int64_t count, int64_t per) { return (count + per - 1) / per; }

}  // namespace

int64_t KvScalesWorkspaceBytes(int64_t most_scales) {
  return kTasks * kMostScaleBlocks * most_scales * static_cast<int64_t>(sizeof(float));
}

Error LaunchKvScales(const LaunchContext& context, const KvScalesParams& params) {
  ScalesPlan plan;
  int64_t tokens = 0;
  for (int i = 0; i < kTasks; ++i) {
    const ScaleTask& task = params.tasks[i];
    plan.first_unit[i + 1] = plan.first_unit[i];
    if (task.from.data == nullptr) continue;
    const int elements = 16 / BytesOf(task.from.element);
    const int per_head = static_cast<int>(CeilOf(task.dim, elements));
    plan.units_per_head[i] = FastDivisor(per_head);
    plan.first_unit[i + 1] += per_head * task.heads;
    tokens = task.tokens > tokens ? task.tokens : tokens;
    if (task.num_scales > plan.most_scales) plan.most_scales = task.num_scales;
  }
  const int32_t units = plan.first_unit[kTasks];
  if (tokens == 0 || units == 0) return 0;
  const int64_t column_blocks = CeilOf(units, kThreads);
  plan.columns = static_cast<int32_t>(CeilOf(units, column_blocks));
  plan.across = FastDivisor(plan.columns);
  plan.tokens_per_pass = kThreads / plan.columns;
  // One wave, if it is large enough.
  int64_t wave = int64_t{context.num_multiprocessors} * 4;
  if (wave > kMostScaleBlocks) wave = kMostScaleBlocks;
  int64_t token_blocks = wave / column_blocks;
  const int64_t needed = CeilOf(tokens, int64_t{kTokens} * plan.tokens_per_pass);
  if (token_blocks > needed) token_blocks = needed;
  if (token_blocks == 0) return cudaErrorInvalidConfiguration;
  auto* partial = reinterpret_cast<float*>(context.workspace);
  LaunchConfig config = ConfigOf(
      context, dim3(static_cast<unsigned>(token_blocks), static_cast<unsigned>(column_blocks)),
      kThreads, static_cast<size_t>(kTasks * plan.most_scales) * sizeof(uint32_t));
  const Error error = Launch(config, ScaleMaximaKernel, params, plan, partial, context.error_flags);
  if (error != 0) return error;
  config.grid = dim3(static_cast<unsigned>(plan.most_scales), kTasks);
  config.block = dim3(32);
  config.shared_bytes = 0;
  return Launch(config, FinishScalesKernel, params, static_cast<const float*>(partial),
                static_cast<int>(plan.most_scales), static_cast<int>(token_blocks * column_blocks));
}

}  // namespace kvblocks::attention::cuda
