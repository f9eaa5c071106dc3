#include "attention/cuda/kernels/block_ops.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnitsPerThread = 4;

template <typename Unit>
KVB_DEVICE Unit Repeat(uint8_t byte) {
  Unit unit;
  memset(&unit, byte, sizeof(unit));
  return unit;
}

// Units of one pair, distributed over the thread blocks of the pair.
template <typename Unit>
KVB_DEVICE void MoveUnits(const BlockBytes& bytes, int64_t from_block, int64_t to_block,
                          uint8_t fill, int64_t num_units) {
  // No arithmetic on the null pointer of a fill.
  const unsigned char* from =
      bytes.from == nullptr ? nullptr : bytes.from + from_block * bytes.from_block_stride;
  unsigned char* to = bytes.to + to_block * bytes.to_block_stride;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; first < num_units; first += step * kUnitsPerThread) {
    // All loads before the first store, which the compiler must take for one of the same memory.
    Unit units[kUnitsPerThread];
    int64_t to_at[kUnitsPerThread];
#pragma unroll
    for (int i = 0; i < kUnitsPerThread; ++i) {
      const int64_t u = first + i * step;
      if (u >= num_units) break;
      int64_t rest = bytes.rank == 0 ? 0 : u / bytes.run_units;
      int64_t from_at = (u - rest * bytes.run_units) * static_cast<int64_t>(sizeof(Unit));
      to_at[i] = from_at;
      for (int dim = bytes.rank - 1; dim >= 0; --dim) {
        const int64_t outer = rest / bytes.extent[dim], at = rest - outer * bytes.extent[dim];
        from_at += at * bytes.from_stride[dim];
        to_at[i] += at * bytes.to_stride[dim];
        rest = outer;
      }
      units[i] = from == nullptr ? Repeat<Unit>(fill)
                                 : *reinterpret_cast<const Unit*>(from + from_at);
    }
#pragma unroll
    for (int i = 0; i < kUnitsPerThread; ++i) {
      if (first + i * step < num_units) *reinterpret_cast<Unit*>(to + to_at[i]) = units[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    BlockKernel(const __grid_constant__ BlockParams params) {
  OverlapNeighbours();
  const BlockBytes& bytes = params.tensors[blockIdx.z];
  const int64_t from = params.pairs.from[blockIdx.y], to = params.pairs.to[blockIdx.y];
  int64_t units = bytes.run_units;
  for (int dim = 0; dim < bytes.rank; ++dim) units *= bytes.extent[dim];
  switch (bytes.unit) {
    case 16:
      return MoveUnits<uint4>(bytes, from, to, params.fill, units);
    case 8:
      return MoveUnits<uint2>(bytes, from, to, params.fill, units);
    case 4:
      return MoveUnits<uint32_t>(bytes, from, to, params.fill, units);
    case 2:
      return MoveUnits<uint16_t>(bytes, from, to, params.fill, units);
    default:
      return MoveUnits<uint8_t>(bytes, from, to, params.fill, units);
  }
}

}  // namespace

Error LaunchBlocks(const LaunchContext& context, const BlockParams& params) {
  int64_t most = 0;
  for (int i = 0; i < params.num_tensors; ++i) {
    const BlockBytes& bytes = params.tensors[i];
    int64_t units = bytes.run_units;
    for (int dim = 0; dim < bytes.rank; ++dim) units *= bytes.extent[dim];
    most = units > most ? units : most;
  }
  if (most == 0 || params.num_pairs == 0) return 0;
  constexpr int64_t kPerBlock = int64_t{kThreads} * kUnitsPerThread;
  const int64_t blocks = (most + kPerBlock - 1) / kPerBlock;
  return Launch(ConfigOf(context,
                         dim3(static_cast<unsigned>(blocks < 1024 ? blocks : 1024),
                              static_cast<unsigned>(params.num_pairs),
                              static_cast<unsigned>(params.num_tensors)),
                         kThreads),
                BlockKernel, params);
}

}  // namespace kvblocks::attention::cuda
