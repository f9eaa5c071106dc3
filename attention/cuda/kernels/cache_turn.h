// Values of kPagedX, which lie dim-major: how a tile of them is turned on its way into the cache.
// Device code: included by .cu files only.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_TURN_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_TURN_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/cache_copies.h"
#include "kvblocks/attention/cuda/kernels/cache_slots.h"
#include "kvblocks/attention/cuda/kernels/cache_write.h"
#include "kvblocks/attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {

inline constexpr int kTurnThreads = 256;
inline constexpr int kTurnLoads = 4;  // of a thread that are under way at once
inline constexpr int kTurnTokens = 64, kTurnDims = 128;
inline constexpr int kTurnPitch = kTurnDims * 2;  // bytes
inline constexpr size_t kTurnBytes = kTurnTokens * kTurnPitch;

// Chunks of 16 bytes lie so that neither rows nor the columns that ldmatrix takes share banks.
KVB_DEVICE uint32_t TurnedAt(int token, int chunk) {
  const int swizzle = (token & 1) | (token >> 1 & 6);
  return static_cast<uint32_t>(token * kTurnPitch + ((chunk ^ swizzle) << 4));
}

// A tile of tokens and dims of one head is turned by way of shared memory: loaded along dims,
// stored along tokens, eight bytes at a time where slots follow one another. Elements of one or two
// bytes, dims a multiple of eight.
template <typename Copy>
KVB_DEVICE void StoreTurned(const CacheWriteParams& params, const SlotDivision& division,
                            int64_t token_block, int tile, uint32_t* flags) {
  __shared__ int64_t rows[kTurnTokens];
  const RowStore& store = params.stores[1];
  const int bytes = BytesOf(store.element), from_bytes = BytesOf(store.from.element);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  const int tiles_per_head = (store.dim + kTurnDims - 1) / kTurnDims;
  const int head = tile / tiles_per_head, first_dim = (tile - head * tiles_per_head) * kTurnDims;
  const int dims = store.dim - first_dim < kTurnDims ? store.dim - first_dim : kTurnDims;
  const int64_t first_token = token_block * kTurnTokens;
  const int64_t left = params.mapping.num_tokens - first_token;
  const int num_tokens = left < kTurnTokens ? static_cast<int>(left) : kTurnTokens;
  int64_t slot = -1;
  if (thread < num_tokens) {
    slot = SlotOf(params.mapping, first_token + thread, flags);
  }
  const float scale = Copy::kScaled ? ScaleOf(store.scale, head) : 1.0f;

  const int per_unit = ElementsOf(store);
  const int units = dims / per_unit;
  const auto* from =
      static_cast<const unsigned char*>(store.from.data) +
      (first_token * store.from.row_stride + head * store.from.head_stride + first_dim) *
          from_bytes;
  const Copy copy(store, scale);
  unsigned char* shared = DynamicSharedMemory();
  const int unit_bytes = per_unit * bytes;
  // As many threads per token as a full tile has units: no division.
  const int threads_per_token = kTurnDims / per_unit;
  const int unit = thread % threads_per_token, tokens_per_pass = kTurnThreads / threads_per_token;
  for (int begin = thread / threads_per_token; begin < num_tokens;
       begin += tokens_per_pass * kTurnLoads) {
    uint4 loaded[kTurnLoads];
#pragma unroll
    for (int i = 0; i < kTurnLoads; ++i) {
      const int token = begin + i * tokens_per_pass;
      if (token < num_tokens && unit < units) {
        loaded[i] =
            LoadOnce16(from + (token * store.from.row_stride + unit * per_unit) * from_bytes);
      }
    }
    const int byte = unit * unit_bytes;
    const auto place_of = [&](int i) {
      return shared + TurnedAt(begin + i * tokens_per_pass, byte / 16) + byte % 16;
    };
    if (!copy.is_slow()) {
      StoreFast<Copy>(store, [&](auto from_type) {
#pragma unroll
        for (int i = 0; i < kTurnLoads; ++i) {
          if (begin + i * tokens_per_pass < num_tokens && unit < units) {
            copy.template Store<decltype(from_type)::value>(store, loaded[i], place_of(i), 0);
          }
        }
      });
      continue;
    }
    uint32_t slow = 0;
#pragma unroll
    for (int i = 0; i < kTurnLoads; ++i) {
      if (begin + i * tokens_per_pass < num_tokens && unit < units) slow |= 1u << i;
    }
    StoreSlowly(copy, store, loaded, slow, place_of);
  }
  if (thread < kTurnTokens) {
    const BlockAndOffset place = division.Of(slot < 0 ? 0 : slot);
    rows[thread] = slot < 0 ? -1
                            : place.block * store.block_stride + head * store.head_stride +
                                  int64_t{first_dim} * params.mapping.block_size + place.offset;
    if (Copy::kScaled && slot >= 0) CheckScale(store.scale, scale, flags);
  }
  __syncthreads();

  // A warp takes 16 tokens and, at a time, 32 bytes of each: four 8 x 8 matrices of 16 bits, of
  // which lane l gets tokens 4 (l % 4) to + 3, and of dims what column l / 4 has.
  const int first = warp % (kTurnTokens / 16) * 16;
  const int quarter = lane % 4;
  const int row_token = first + lane % 8 / 2 * 4 + lane % 2 + (lane / 8 % 2) * 2;
  const uint32_t tile_address = SharedAddress(shared);
  constexpr int kSteps = kTurnThreads / 32 / (kTurnTokens / 16);  // warps with the same tokens
  auto* to = static_cast<unsigned char*>(store.to);
  // The tokens that a lane stores: four of 16-bit elements; of codes eight, of every second dim.
  const int own_tokens = 8 / bytes;
  const int own = first + (bytes == 2 ? quarter * 4 : quarter / 2 * 8);
  const int64_t start = rows[own];
  bool run = start >= 0 && (start & (own_tokens - 1)) == 0;
  for (int i = 1; i < own_tokens; ++i) run = run && rows[own + i] == start + i;
  const int row_bytes = dims * bytes;
  for (int byte = warp / (kTurnTokens / 16) * 32; byte < row_bytes; byte += kSteps * 32) {
    uint32_t words[4];
    LoadMatricesTransposed(words, tile_address + TurnedAt(row_token, byte / 16 + lane / 16));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t low = words[2 * half], high = words[2 * half + 1];
      int dim = byte / bytes + (half * 8 + lane / 4) * (2 / bytes);
      if (bytes == 1) {
        // Two dims of four tokens become one dim of eight.
        const uint32_t even = PermuteBytes(low, high, 0x6420),
                       odd = PermuteBytes(low, high, 0x7531);
        const bool takes_odd = quarter % 2 == 1;
        const uint32_t other = __shfl_xor_sync(kFullWarp, takes_odd ? even : odd, 1);
        low = takes_odd ? other : even;
        high = takes_odd ? odd : other;
        dim += takes_odd ? 1 : 0;
      }
      if (dim >= dims) continue;
      if (run) {
        *reinterpret_cast<uint2*>(to + (start + int64_t{dim} * params.mapping.block_size) * bytes) =
            make_uint2(low, high);
        continue;
      }
      for (int i = 0; i < own_tokens; ++i) {
        const int64_t row = rows[own + i];
        if (row < 0) continue;
        const uint32_t word = (bytes == 2 ? i / 2 : i / 4) == 0 ? low : high;
        unsigned char* at = to + (row + int64_t{dim} * params.mapping.block_size) * bytes;
        if (bytes == 2) {
          *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(word >> i % 2 * 16);
        } else {
          *at = static_cast<unsigned char>(word >> i % 4 * 8);
        }
      }
    }
  }
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_TURN_H_
