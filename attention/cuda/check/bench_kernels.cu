#include "attention/cuda/check/bench_kernels.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kReadThreads = 512;
constexpr int kCopyThreads = 256, kCopyUnroll = 4;
constexpr int kMatrixThreads = 256;

__global__ void ReadAllKernel(const uint4* from, int64_t pieces, uint32_t* sink) {
  constexpr int kUnroll = 8;
  uint32_t sum = 0;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < pieces; i += kUnroll * stride) {
    uint4 piece[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) piece[u] = LoadStreaming16(from + i + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += piece[u].x ^ piece[u].y ^ piece[u].z ^ piece[u].w;
  }
  for (; i < pieces; i += stride) {
    const uint4 piece = LoadStreaming16(from + i);
    sum += piece.x ^ piece.y ^ piece.z ^ piece.w;
  }
  // Almost never, but the compiler cannot know.
  if (sum == 0x12345678u) *sink = sum;
}

__global__ void __launch_bounds__(kCopyThreads)
    CopyAllKernel(uint4* to, const uint4* from, int64_t pieces) {
  OverlapNeighbours();
  const int64_t first = int64_t{blockIdx.x} * kCopyThreads * kCopyUnroll + threadIdx.x;
  uint4 piece[kCopyUnroll];
#pragma unroll
  for (int u = 0; u < kCopyUnroll; ++u) {
    if (first + u * kCopyThreads < pieces) piece[u] = LoadOnce16(from + first + u * kCopyThreads);
  }
#pragma unroll
  for (int u = 0; u < kCopyUnroll; ++u) {
    if (first + u * kCopyThreads < pieces) to[first + u * kCopyThreads] = piece[u];
  }
}

__global__ void EmptyKernel(int) { OverlapNeighbours(); }

KVB_DEVICE uint32_t Hash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

template <typename T>
__global__ void FillNormalKernel(typename T::Bits* to, int64_t count, uint32_t seed, float factor) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint32_t low = Hash(static_cast<uint32_t>(i) ^ seed);
    const uint32_t bits = Hash(low + static_cast<uint32_t>(i >> 32) * 0x9e3779b9u);
    // The sum of four bytes is nearly normal: mean 510, variance 4 (256^2 - 1) / 12.
    const float sum = static_cast<float>((bits & 0xff) + (bits >> 8 & 0xff) + (bits >> 16 & 0xff) +
                                         (bits >> 24));
    to[i] = T::FromFloat((sum - 510.0f) * (factor / 147.8f));
  }
}

template <typename T>
Error Fill(const LaunchContext& context, void* to, int64_t count, uint32_t seed, float factor) {
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(context.num_multiprocessors * 8));
  config.block = dim3(256);
  config.stream = context.stream;
  return Launch(config, FillNormalKernel<T>, static_cast<typename T::Bits*>(to), count, seed,
                factor);
}

__global__ void MatrixLoopKernel(int rounds, float* sink) {
  constexpr int kChains = 8;
  float c[kChains][4] = {};
  uint32_t a[4], b[2 * kChains];
  for (int i = 0; i < 4; ++i) {
    a[i] = Bf16::Pack(static_cast<float>(Hash(threadIdx.x * 4 + i) % 256) * 0.01f - 1.28f,
                      static_cast<float>(Hash(threadIdx.x * 4 + i + 999) % 256) * 0.01f - 1.28f);
  }
  for (int i = 0; i < 2 * kChains; ++i) {
    b[i] = Bf16::Pack(static_cast<float>(Hash(threadIdx.x + 77 * i) % 256) * 0.01f - 1.28f,
                      static_cast<float>(Hash(threadIdx.x + 78 * i) % 256) * 0.01f - 1.28f);
  }
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) {
      MultiplyM16N8K16<Bf16>(c[chain], a, b[2 * chain], b[2 * chain + 1]);
    }
  }
  float sum = 0;
  for (int chain = 0; chain < kChains; ++chain)
    sum += c[chain][0] + c[chain][1] + c[chain][2] + c[chain][3];
  if (sum == 0.123f) *sink = sum;
}

}  // namespace

Error LaunchReadAll(const LaunchContext& context, const void* from, int64_t bytes, uint32_t* sink) {
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(context.num_multiprocessors * 4));
  config.block = dim3(kReadThreads);
  config.stream = context.stream;
  return Launch(config, ReadAllKernel, static_cast<const uint4*>(from), bytes / 16, sink);
}

Error LaunchCopyAll(const LaunchContext& context, void* to, const void* from, int64_t bytes) {
  constexpr int64_t kPerBlock = int64_t{kCopyThreads} * kCopyUnroll * 16;
  return Launch(ConfigOf(context, Blocks(bytes, kPerBlock), kCopyThreads), CopyAllKernel,
                static_cast<uint4*>(to), static_cast<const uint4*>(from), bytes / 16);
}

Error LaunchEmpty(const LaunchContext& context) {
  return Launch(ConfigOf(context, static_cast<unsigned>(context.num_multiprocessors), kCopyThreads),
                EmptyKernel, 0);
}

Error LaunchFillNormal(const LaunchContext& context, void* to, int64_t count, Element element,
                       uint32_t seed, float factor) {
  switch (element) {
    case Element::kF32:
      return Fill<F32>(context, to, count, seed, factor);
    case Element::kF16:
      return Fill<F16>(context, to, count, seed, factor);
    case Element::kBF16:
      return Fill<Bf16>(context, to, count, seed, factor);
    case Element::kF8E4M3:
      return Fill<E4m3>(context, to, count, seed, factor);
    case Element::kF8E5M2:
      return Fill<E5m2>(context, to, count, seed, factor);
    case Element::kI8:
      return Fill<Int8>(context, to, count, seed, factor);
    default:
      return 1;
  }
}

double MatrixLoopFlops(const LaunchContext& context, int rounds) {
  const double warps = 4.0 * context.num_multiprocessors * (kMatrixThreads / 32);
  return warps * rounds * 8 * (2.0 * 16 * 8 * 16);
}

Error LaunchMatrixLoop(const LaunchContext& context, int rounds, float* sink) {
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(context.num_multiprocessors * 4));
  config.block = dim3(kMatrixThreads);
  config.stream = context.stream;
  return Launch(config, MatrixLoopKernel, rounds, sink);
}

}  // namespace kvblocks::attention::cuda
