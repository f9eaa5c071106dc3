// The selection of blend_select.cu by a cluster of blocks (compute capability 9.0). Device code: included by
// that source only.
//
// Each block keeps the keys of a stretch of the tokens. The search is that of one block: an interval of keys
// is counted by equal parts, the part in which the last selected key lies becomes the interval, and so on.
// Of the counts each block adds up an eighth over all blocks; all then look up sums of others, by barriers of
// the cluster and each other's shared memory. The result is the same to the bit.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_SELECT_CLUSTER_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_SELECT_CLUSTER_H_

#include "kvblocks/attention/cuda/device/cluster.h"
#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/blend.h"
#include "kvblocks/attention/cuda/kernels/select_search.h"
#include "kvblocks/attention/cuda/kernels/warp_reduce.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kSelectBlocks = 8;
constexpr int64_t kMostInCluster = 8192 * kSelectBlocks;  // tokens
constexpr int kSliceParts = kParts / kSelectBlocks;

// What others of the cluster read, at the same place in each block's dynamic shared memory (blocks of a
// cluster share other memory in the emulation). Keys follow.
struct ClusterSelect {
  uint4 counts[kParts / 4];       // of own keys, of the highest part first
  uint4 sums[kSliceParts / 4];    // of all blocks' counts of the slice of parts that is this block's
  uint64_t listed[kMostListed];   // own keys of a part
  uint32_t half_sums[2];          // of the halves of the slice
  uint32_t least_and_largest[2];  // of own keys' upper words
  uint32_t num_listed[2];         // and nothing
  uint32_t taken[2];              // own keys above the interval, and in it
  // And what only the block itself reads.
  uint32_t warp_sums[kSelectWarps], least[kSelectWarps], largest[kSelectWarps];
  uint64_t gathered[kMostListed];
  uint64_t chosen_key;
  uint32_t chosen_above, unused;
};
static_assert(kSliceParts == 256 && sizeof(ClusterSelect) % 16 == 0);

size_t ClusterSelectBytes(int per_block) {
  return sizeof(ClusterSelect) + static_cast<size_t>(per_block) * 2 * sizeof(uint32_t);
}

// Two words at `own` of block `rank`.
KVB_DEVICE uint2 PairOfBlock(const void* own, int rank) {
  const float2 two = LoadFromCluster8(SharedAddress(own), rank);
  uint2 pair;
  pair.x = __float_as_uint(two.x), pair.y = __float_as_uint(two.y);
  return pair;
}
KVB_DEVICE uint4 FourOfBlock(const void* own, int rank) {
  const float4 four = LoadFromCluster16(SharedAddress(own), rank);
  return make_uint4(__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z),
                    __float_as_uint(four.w));
}

// REQUIRES: a grid of one cluster; per_block a multiple of kSelectThreads, up to 16 times that.
__global__ void __launch_bounds__(kSelectThreads)
    SelectInClusterKernel(const __grid_constant__ SelectParams params,
                          KeyWords<const uint32_t> keys, int per_block) {
  AllowNextKernel();
  auto& shared = *reinterpret_cast<ClusterSelect*>(DynamicSharedMemory());
  auto* const upper = reinterpret_cast<uint32_t*>(&shared + 1);
  uint32_t* const lower = upper + per_block;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32, rank = static_cast<int>(blockIdx.x);
  const auto num_tokens = static_cast<int>(params.num_tokens);
  const int first_token = rank * per_block, left = num_tokens - first_token;
  const int num_own = left < 0 ? 0 : left < per_block ? left : per_block;
  shared.counts[thread] = make_uint4(0, 0, 0, 0);
  if (thread == 0) shared.num_listed[0] = shared.num_listed[1] = 0;
  WaitForPreviousKernel();
  if (rank == 0) {
    for (int64_t i = thread; i < params.suffix_len; i += kSelectThreads) {
      params.imp[(params.num_selected + i) * params.imp_stride] =
          static_cast<int32_t>(num_tokens + i);
    }
  }
  if (params.num_selected == 0) return;
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    const uint32_t* from = (word == 0 ? keys.upper : keys.lower) + first_token;
    const uint32_t to = SharedAddress(word == 0 ? upper : lower);
#pragma unroll 1
    for (int i = 4 * thread; i < num_own; i += 4 * kSelectThreads) {
      CopyAsync16(to + static_cast<uint32_t>(i) * 4, from + i);
    }
    CommitCopies();
  }
  const auto key_of = [&](int token) { return uint64_t{upper[token]} << 32 | lower[token]; };

  WaitCopies<1>();
  __syncthreads();
  uint32_t own_least = 0xffffffffu, own_largest = 0;
#pragma unroll 2
  for (int token = thread; token < num_own; token += kSelectThreads) {
    const uint32_t word = upper[token];
    own_least = word < own_least ? word : own_least;
    own_largest = word > own_largest ? word : own_largest;
  }
  own_least = WarpLeast(own_least), own_largest = WarpLargest(own_largest);
  if (lane == 0) shared.least[warp] = own_least, shared.largest[warp] = own_largest;
  WaitCopies<0>();
  __syncthreads();
  own_least = WarpLeast(shared.least[lane % kSelectWarps]);
  own_largest = WarpLargest(shared.largest[lane % kSelectWarps]);
  if (thread == 0) {
    shared.least_and_largest[0] = own_least, shared.least_and_largest[1] = own_largest;
  }
  ClusterSync();
  const uint2 range = PairOfBlock(shared.least_and_largest, lane % kSelectBlocks);
  const uint32_t all_least = WarpLeast(range.x), all_largest = WarpLargest(range.y);
  // As in one block.
  uint64_t top = uint64_t{all_largest} << 32 | 0xffffffffu;
  const int upper_bits = 32 - __clz(static_cast<int>(all_largest - all_least));
  int bits = 32 + (upper_bits > kPartBits ? upper_bits - kPartBits : 0);
  auto needed = static_cast<uint32_t>(params.num_selected);
  auto* const count_of = reinterpret_cast<uint32_t*>(shared.counts);
#pragma unroll 2
  for (int token = thread; token < num_own; token += kSelectThreads) {
    atomicAdd(&count_of[(all_largest - upper[token]) >> (bits - 32)], 1u);
  }
  for (;;) {
    ClusterSync();
    if (warp < 2) {
      uint4 sum = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int block = 0; block < kSelectBlocks; ++block) {
        const uint4 own = FourOfBlock(&shared.counts[rank * (kSliceParts / 4) + thread], block);
        sum.x += own.x, sum.y += own.y, sum.z += own.z, sum.w += own.w;
      }
      shared.sums[thread] = sum;
      const uint32_t half = WarpTotal(SumOf(sum));
      if (lane == 0) shared.half_sums[warp] = half;
    }
    ClusterSync();
    const uint2 halves = PairOfBlock(shared.half_sums, lane / 2 % kSelectBlocks);
    Found found = FindLane(lane >= 2 * kSelectBlocks ? 0 : lane % 2 == 0 ? halves.x : halves.y, 0,
                           needed, lane);
    uint32_t part = found.at * (kSliceParts / 2);
    const uint4 four = FourOfBlock(&shared.sums[part % kSliceParts / 4 + lane],
                                   static_cast<int>(part / kSliceParts));
    found = FindLane(SumOf(four), found.before, needed, lane);
    part += found.at * 4;
    const auto from = static_cast<int>(found.at);
    const uint32_t x = __shfl_sync(kFullWarp, four.x, from);
    const uint32_t y = __shfl_sync(kFullWarp, four.y, from);
    const uint32_t z = __shfl_sync(kFullWarp, four.z, from);
    const uint32_t w = __shfl_sync(kFullWarp, four.w, from);
    const uint32_t count = lane == 0 ? x : lane == 1 ? y : lane == 2 ? z : lane == 3 ? w : 0;
    found = FindLane(count, found.before, needed, lane);
    part += found.at;
    const uint32_t sharing = __shfl_sync(kFullWarp, count, static_cast<int>(found.at));
    needed -= found.before;
    top -= uint64_t{part} << bits;
    if (sharing == needed || bits == 0) break;
    if (sharing <= kMostListed) {
#pragma unroll 2
      for (int token = thread; token < num_own; token += kSelectThreads) {
        const uint64_t key = key_of(token);
        if (key <= top && (top - key) >> bits == 0) {
          shared.listed[atomicAdd(&shared.num_listed[0], 1u)] = key;
        }
      }
      ClusterSync();
      // The lists one after another, a key to a thread.
      const uint32_t num_of_block = PairOfBlock(shared.num_listed, lane % kSelectBlocks).x;
      auto index = static_cast<uint32_t>(thread);
      int block = 0;
#pragma unroll
      for (int i = 0; i < kSelectBlocks - 1; ++i) {
        const uint32_t num = __shfl_sync(kFullWarp, num_of_block, i);
        if (block == i && index >= num) index -= num, ++block;
      }
      const bool has_key = thread < static_cast<int>(sharing);
      uint64_t key = 0;
      if (has_key) {
        const uint2 words = PairOfBlock(&shared.listed[index], block);
        key = uint64_t{words.y} << 32 | words.x;
        shared.gathered[thread] = key;
      }
      __syncthreads();
      if (has_key) {
        uint32_t larger = 0, equal = 0, equal_before = 0;
#pragma unroll 1
        for (int i = 0; i < static_cast<int>(sharing); ++i) {
          const uint64_t other = shared.gathered[i];
          larger += other > key ? 1 : 0;
          equal += other == key ? 1 : 0;
          equal_before += other == key && i < thread ? 1 : 0;
        }
        if (larger < needed && larger + equal >= needed && equal_before == 0) {
          shared.chosen_key = key;
          shared.chosen_above = larger;
        }
      }
      __syncthreads();
      top = shared.chosen_key;
      bits = 0;
      needed -= shared.chosen_above;
      break;
    }
    // All have read these counts: sums were made of them before the last barrier.
    shared.counts[thread] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    const int shift = bits > kPartBits ? bits - kPartBits : 0;
#pragma unroll 1
    for (int token = thread; token < num_own; token += kSelectThreads) {
      const uint64_t below = top - key_of(token);
      if (below >> bits == 0) atomicAdd(&count_of[below >> shift], 1u);
    }
    bits = shift;
  }

  // What is selected of the stretch, in order. A warp has 32 times up to 16 tokens, lane n what has been
  // found of the n-th 32 of them.
  const uint64_t width = (uint64_t{1} << bits) - 1, base = top > width ? top - width : 0;
  const int steps = per_block / kSelectThreads, first = warp * steps * 32;
  uint32_t above = 0, in_interval = 0;
#pragma unroll 2
  for (int step = 0; step < steps; ++step) {
    const int token = first + step * 32 + lane;
    const bool exists = token < num_own;
    const uint64_t key = exists ? key_of(token) : 0;
    const uint32_t are_above = __ballot_sync(kFullWarp, exists && key > top);
    const uint32_t are_in = __ballot_sync(kFullWarp, exists && key <= top && key >= base);
    if (lane == step) above = are_above, in_interval = are_in;
  }
  const auto own = static_cast<uint32_t>(__popc(above)) |
                   static_cast<uint32_t>(__popc(in_interval)) << 16;
  const uint32_t up_to = SumUpTo(own, lane);
  if (lane == 31) shared.warp_sums[warp] = up_to;
  __syncthreads();
  const uint32_t warps_up_to = SumUpTo(lane < kSelectWarps ? shared.warp_sums[lane] : 0, lane);
  const uint32_t all = __shfl_sync(kFullWarp, warps_up_to, kSelectWarps - 1);
  uint32_t before = up_to - own;
  const uint32_t warps_before = __shfl_sync(kFullWarp, warps_up_to, warp > 0 ? warp - 1 : 0);
  if (warp > 0) before += warps_before;
  if (thread == 0) shared.taken[0] = all & 0xffffu, shared.taken[1] = all >> 16;
  ClusterSync();
  const uint2 of_block = PairOfBlock(shared.taken, lane % kSelectBlocks);
  const uint32_t num_above = WarpTotal(lane < rank ? of_block.x : 0) + (before & 0xffffu);
  const uint32_t num_in = WarpTotal(lane < rank ? of_block.y : 0) + (before >> 16);
  const uint32_t taken = num_in < needed ? num_in : needed;
  StoreSelected(params, above, in_interval, num_above, taken, needed,
                first_token + first + lane * 32);
  ClusterSync();  // others may still read
}

}  // namespace
}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_SELECT_CLUSTER_H_
