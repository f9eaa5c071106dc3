#include "attention/cuda/kernels/cache_write.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/device_flags.h"
#include "attention/cuda/kernels/elements.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kWarps = 8;

// --- Storing 16-byte pieces of rows ---

// 16 bytes for the cache, made of as many elements of the source.
struct RawCopy {};
template <typename To>
struct Piece {
  static constexpr bool kScaled = sizeof(typename To::Bits) == 1;
  static constexpr int kElements = 16 / static_cast<int>(sizeof(typename To::Bits));
  static KVB_DEVICE uint4 Load(const RowStore& store, const unsigned char* from,
                               const Divider& divide) {
    float values[kElements];
    LoadFloats<kElements>(store.from.element, from, values);
    uint4 piece;
    if constexpr (kScaled) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = EncodePair<To>(divide(values[4 * i]), divide(values[4 * i + 1])) |
                   EncodePair<To>(divide(values[4 * i + 2]), divide(values[4 * i + 3])) << 16;
      }
      piece = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
      auto* bits = reinterpret_cast<typename To::Bits*>(&piece);
#pragma unroll
      for (int i = 0; i < kElements; ++i) bits[i] = To::FromFloat(values[i]);
    }
    return piece;
  }
};
template <>
struct Piece<RawCopy> {
  static constexpr bool kScaled = false;
  static KVB_DEVICE uint4 Load(const RowStore&, const unsigned char* from, const Divider&) {
    return LoadStreaming16(from);
  }
};

KVB_DEVICE float ScaleOf(const Scales& scales, int head, uint32_t* flags) {
  if (scales.data == nullptr) return 1;
  const float scale = scales.data[head * scales.head_stride];
  if (!(scale > 0 && scale <= 3.4028235e38f)) Flag(flags, kBadScale);
  return scale;
}

// The slot of a token, or -1 if it is to be skipped.
KVB_DEVICE int64_t SlotOf(const int64_t* slots, int64_t stride, int64_t token, int64_t num_slots,
                          uint32_t* flags) {
  const int64_t slot = slots[token * stride];
  if (slot < num_slots) return slot;
  Flag(flags, kBadSlot);
  return -1;
}

// Single elements of [begin, end) of a row: what is left of rows that are no whole number of pieces.
KVB_DEVICE void StoreElements(const RowStore& store, const unsigned char* from, int64_t to,
                              int begin, int end, const Divider& divide) {
  const int bytes = BytesOf(store.element);
  for (int d = begin; d < end; ++d) {
    if (store.from.element == store.element) {
      for (int b = 0; b < bytes; ++b) {
        static_cast<unsigned char*>(store.to)[(to + d) * bytes + b] = from[d * bytes + b];
      }
    } else {
      const float value = LoadAsFloat(store.from.element, from, d);
      StoreFloat(store.element, bytes == 1 ? divide(value) : value, store.to,
                 to + d);
    }
  }
}

// The rows of one token, or of several adjacent ones side by side.
template <typename To>
KVB_DEVICE void StoreToken(const RowStore& store, int64_t token, int64_t block, int64_t offset,
                           int32_t block_size, int lane, int token_bits, uint32_t* flags) {
  const int to_bytes = BytesOf(store.element), from_bytes = BytesOf(store.from.element);
  const int per_piece = 16 / to_bytes;
  const int pieces_per_head = store.dim / per_piece;
  const int pieces = pieces_per_head * store.heads;
  const auto* from = static_cast<const unsigned char*>(store.from.data) +
                     token * store.from.row_stride * from_bytes;
  auto* to = static_cast<unsigned char*>(store.to);
  const int64_t base = block * store.block_stride +
                       (store.order == RowStore::Order::kRows ? offset * store.token_stride
                                                              : offset * per_piece);
  const int64_t piece_stride =
      store.order == RowStore::Order::kRows ? per_piece : int64_t{block_size} * per_piece;
  const int first = lane >> token_bits, step = 32 >> token_bits;
  // One scale for all heads is divided by once.
  const bool scale_per_head = Piece<To>::kScaled && store.scale.head_stride != 0;
  Divider divide(Piece<To>::kScaled ? ScaleOf(store.scale, 0, flags) : 1.0f);
  constexpr int kUnroll = Piece<To>::kScaled ? 2 : 4;
  for (int p = first; p < pieces; p += kUnroll * step) {
    uint4 piece[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = p + u * step;
      if (at >= pieces) break;
      const int head = at / pieces_per_head, d = (at - head * pieces_per_head) * per_piece;
      if (scale_per_head) divide = Divider(ScaleOf(store.scale, head, flags));
      piece[u] = Piece<To>::Load(
          store, from + (head * store.from.head_stride + d) * from_bytes, divide);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = p + u * step;
      if (at >= pieces) break;
      const int head = at / pieces_per_head, in_head = at - head * pieces_per_head;
      *reinterpret_cast<uint4*>(
          to + (base + head * store.head_stride + in_head * piece_stride) * to_bytes) = piece[u];
    }
  }
  const int whole = pieces_per_head * per_piece;
  if (whole < store.dim && store.order == RowStore::Order::kRows) {
    for (int head = first; head < store.heads; head += step) {
      if (scale_per_head) divide = Divider(ScaleOf(store.scale, head, flags));
      StoreElements(store, from + head * store.from.head_stride * from_bytes,
                    base + head * store.head_stride, whole, store.dim, divide);
    }
  }
}

// A warp takes 2^token_bits adjacent tokens: one where a row is stored as it is; four where adjacent
// tokens' pieces are adjacent in the cache, so that stores fill whole sectors, as loads do.
template <typename To>
__global__ void __launch_bounds__(kWarps * 32)
    StoreRowsKernel(const __grid_constant__ CacheWriteParams params, int token_bits,
                    uint32_t* flags) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t token = (warp << token_bits) + (lane & ((1 << token_bits) - 1));
  if (token >= params.num_tokens) return;
  const int64_t slot = SlotOf(params.slots, params.slot_stride, token, params.num_slots, flags);
  if (slot < 0) return;
  const int64_t block = slot / params.block_size;
  const int64_t offset = slot - block * params.block_size;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (params.stores[i].dim == 0 || params.stores[i].order == RowStore::Order::kDimMajor) continue;
    StoreToken<To>(params.stores[i], token, block, offset, params.block_size, lane, token_bits, flags);
  }
}

// --- Dim-major values ---

constexpr int kTileTokens = 32, kTileDims = 64;

// A tile of tokens and dims of one head goes through shared memory: loaded along dims, stored along
// tokens, which are adjacent in the cache if their slots are.
template <typename Bits>
__global__ void __launch_bounds__(kWarps * 32)
    StoreDimMajorKernel(CacheWriteParams params, int which, uint32_t* flags) {
  // The odd number of words keeps lanes that read a column in banks of their own.
  constexpr int kPitch = kTileDims + 4 / static_cast<int>(sizeof(Bits));
  __shared__ Bits tile[kTileTokens * kPitch];
  __shared__ int64_t base[kTileTokens];
  const RowStore store = params.stores[which];
  const int head = static_cast<int>(blockIdx.y);
  const int first_dim = static_cast<int>(blockIdx.z) * kTileDims;
  const int dims = store.dim - first_dim < kTileDims ? store.dim - first_dim : kTileDims;
  const int64_t first_token = int64_t{blockIdx.x} * kTileTokens;
  if (threadIdx.x < kTileTokens) {
    const int64_t token = first_token + threadIdx.x;
    int64_t at = -1;
    if (token < params.num_tokens) {
      const int64_t slot = SlotOf(params.slots, params.slot_stride, token, params.num_slots, flags);
      if (slot >= 0) {
        const int64_t block = slot / params.block_size;
        at = block * store.block_stride + head * store.head_stride +
             (slot - block * params.block_size);
      }
    }
    base[threadIdx.x] = at;
  }
  const Divider divide(IsCode(store.element) ? ScaleOf(store.scale, head, flags) : 1.0f);
  const bool raw = store.from.element == store.element;
  const int from_bytes = BytesOf(store.from.element);
  // Eight elements a thread.
  constexpr int kPieces = kTileDims / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileTokens * kPieces; i += kWarps * 32) {
    const int t = i / kPieces, d = i % kPieces * 8;
    const int64_t token = first_token + t;
    if (token >= params.num_tokens || d >= dims) continue;
    const auto* from = static_cast<const unsigned char*>(store.from.data) +
                       (token * store.from.row_stride + head * store.from.head_stride + first_dim +
                        d) * from_bytes;
    Bits* to = tile + t * kPitch + d;
    const int count = dims - d < 8 ? dims - d : 8;
    if (raw) {
      bool whole = false;
      if constexpr (sizeof(Bits) == 2) {
        whole = count == 8;
        if (whole) {
          const uint4 piece = *reinterpret_cast<const uint4*>(from);
          uint32_t pairs[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
          for (int k = 0; k < 8; ++k) to[k] = static_cast<Bits>(pairs[k / 2] >> (k % 2 * 16));
        }
      }
      if (!whole) {
        for (int k = 0; k < count; ++k) to[k] = reinterpret_cast<const Bits*>(from)[k];
      }
    } else if (count == 8) {
      float values[8];
      LoadFloats<8>(store.from.element, from, values);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        StoreFloat(store.element, sizeof(Bits) == 1 ? divide(values[k]) : values[k],
                   to, k);
      }
    } else {
      for (int k = 0; k < count; ++k) {
        const float value = LoadAsFloat(store.from.element, from, k);
        StoreFloat(store.element, sizeof(Bits) == 1 ? divide(value) : value, to, k);
      }
    }
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x % 32);
  if (base[t] < 0) return;
  Bits* to = static_cast<Bits*>(store.to) + base[t];
  for (int d = static_cast<int>(threadIdx.x / 32); d < dims; d += kWarps) {
    to[int64_t{first_dim + d} * params.block_size] = tile[t * kPitch + d];
  }
}

unsigned Blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

template <typename To>
Error StoreRows(const LaunchContext& context, const CacheWriteParams& params, int token_bits) {
  LaunchConfig config;
  config.grid = dim3(Blocks(params.num_tokens, kWarps << token_bits));
  config.block = dim3(kWarps * 32);
  config.stream = context.stream;
  return Launch(config, StoreRowsKernel<To>, params, token_bits, context.error_flags);
}

Error StoreDimMajor(const LaunchContext& context, const CacheWriteParams& params, int which) {
  const RowStore& store = params.stores[which];
  LaunchConfig config;
  config.grid = dim3(Blocks(params.num_tokens, kTileTokens), static_cast<unsigned>(store.heads),
                     Blocks(store.dim, kTileDims));
  config.block = dim3(kWarps * 32);
  config.stream = context.stream;
  switch (BytesOf(store.element)) {
    case 1:
      return Launch(config, StoreDimMajorKernel<uint8_t>, params, which, context.error_flags);
    case 2:
      return Launch(config, StoreDimMajorKernel<uint16_t>, params, which, context.error_flags);
    default:
      return Launch(config, StoreDimMajorKernel<uint32_t>, params, which, context.error_flags);
  }
}

}  // namespace

Error LaunchCacheWrite(const LaunchContext& context, const CacheWriteParams& params) {
  if (params.num_tokens == 0 || params.num_slots == 0) return 0;
  // K and V go in one launch if they are stored alike.
  CacheWriteParams rest = params;
  for (int i = 0; i < 2; ++i) {
    const RowStore& store = rest.stores[i];
    if (store.dim == 0) continue;
    if (store.order == RowStore::Order::kDimMajor) {
      if (const Error error = StoreDimMajor(context, params, i); error != 0) return error;
      continue;
    }
    CacheWriteParams now = rest;
    const RowStore& other = rest.stores[1 - i];
    const bool together = other.element == store.element && other.order == store.order &&
                          (other.from.element == other.element) ==
                              (store.from.element == store.element);
    if (!together) now.stores[1 - i].dim = 0;
    const int token_bits = store.order == RowStore::Order::kPieces ? 2 : 0;
    Error error = 1;
    if (store.from.element == store.element) {
      error = StoreRows<RawCopy>(context, now, token_bits);
    } else {
      switch (store.element) {
        case Element::kF32:
          error = StoreRows<F32>(context, now, token_bits);
          break;
        case Element::kF16:
          error = StoreRows<F16>(context, now, token_bits);
          break;
        case Element::kBF16:
          error = StoreRows<Bf16>(context, now, token_bits);
          break;
        case Element::kE4M3:
          error = StoreRows<E4m3>(context, now, token_bits);
          break;
        case Element::kE5M2:
          error = StoreRows<E5m2>(context, now, token_bits);
          break;
        case Element::kI8:
          error = StoreRows<Int8>(context, now, token_bits);
          break;
      }
    }
    if (error != 0) return error;
    if (together) break;
  }
  return 0;
}

// --- MLA records in fp8 ---

namespace {

// A warp per token, 16 values a lane; a tile of scales is 8 lanes (656) or 4 (584).
__global__ void __launch_bounds__(kWarps * 32)
    MlaFp8WriteKernel(MlaFp8WriteParams params, uint32_t* flags) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (token >= params.num_tokens) return;
  const int64_t slot = SlotOf(params.slots, params.slot_stride, token, params.num_slots, flags);
  if (slot < 0) return;
  const int64_t block = slot / params.block_size;
  const int64_t offset = slot - block * params.block_size;
  uint8_t* at = params.to + block * params.block_stride;
  uint8_t* record = at + (params.planar ? offset * 576 : offset * params.token_stride);

  const int num_values = params.planar ? 448 : 512;
  const bool has_values = lane * 16 < num_values;
  float values[16] = {};
  if (has_values) {
    const auto* from = static_cast<const unsigned char*>(params.kv_c.data) +
                       (token * params.kv_c.row_stride + lane * 16) * BytesOf(params.kv_c.element);
    LoadFloats<16>(params.kv_c.element, from, values);
  }
  // Of the finite values: one infinity must not turn the rest of its tile into zeros.
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float magnitude = fabsf(values[i]);
    if (magnitude <= 3.4028235e38f && magnitude > amax) amax = magnitude;
  }
  const int lanes_per_tile = params.planar ? 4 : 8;
  for (int lanes = 1; lanes < lanes_per_tile; lanes *= 2) {
    const float other = __shfl_xor_sync(kFullWarp, amax, lanes);
    amax = other > amax ? other : amax;
  }
  float scale;
  uint8_t exponent = 0;
  if (params.planar) {
    // 2^ceil(log2(max(amax, 1e-4) / 448)): 448 = 1.75 * 2^8, so mantissas up to 1.75 stay below.
    const uint32_t bits = __float_as_uint(amax < 1e-4f ? 1e-4f : amax);
    const int power = static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7fffffu) > 0x600000u);
    exponent = static_cast<uint8_t>(power + 127);
    scale = E8m0ToFloat(exponent);
  } else {
    scale = __fdiv_rn(amax, 448.0f);
    if (!(scale > 1.1754944e-38f)) scale = 1.1754944e-38f;
  }
  if (has_values) {
    const Divider divide(scale);
    uint4 codes;
    auto* bytes = reinterpret_cast<uint8_t*>(&codes);
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      const uint32_t pair = EncodePair<E4m3>(divide(values[i]), divide(values[i + 1]));
      bytes[i] = static_cast<uint8_t>(pair);
      bytes[i + 1] = static_cast<uint8_t>(pair >> 8);
    }
    *reinterpret_cast<uint4*>(record + lane * 16) = codes;
    if (lane % lanes_per_tile == 0) {
      const int tile = lane / lanes_per_tile;
      if (params.planar) {
        at[params.block_size * int64_t{576} + offset * 8 + tile] = exponent;
      } else {
        reinterpret_cast<float*>(record + 512)[tile] = scale;
      }
    }
  } else if (lane == 28) {
    at[params.block_size * int64_t{576} + offset * 8 + 7] = 0;
  }
  // Two rotary values a lane.
  auto* rotary = reinterpret_cast<uint16_t*>(record + (params.planar ? 448 : 528));
  for (int i = 2 * lane; i < 2 * lane + 2; ++i) {
    const int64_t from = token * params.k_pe.row_stride + i;
    rotary[i] = params.k_pe.element == Element::kBF16
                    ? static_cast<const uint16_t*>(params.k_pe.data)[from]
                    : Bf16::FromFloat(LoadAsFloat(params.k_pe.element, params.k_pe.data, from));
  }
}

}  // namespace

Error LaunchMlaFp8Write(const LaunchContext& context, const MlaFp8WriteParams& params) {
  if (params.num_tokens == 0 || params.num_slots == 0) return 0;
  LaunchConfig config;
  config.grid = dim3(Blocks(params.num_tokens, kWarps));
  config.block = dim3(kWarps * 32);
  config.stream = context.stream;
  return Launch(config, MlaFp8WriteKernel, params, context.error_flags);
}

// --- Scales ---

namespace {

// The most blocks that leave maxima for the second kernel.
constexpr int kMostScaleBlocks = 528;

KVB_DEVICE float LargestOf(float a, float b) { return a > b ? a : b; }

// A warp per token and round; maxima of the block go to partial[block][scale].
__global__ void __launch_bounds__(kWarps * 32)
    ScaleMaximaKernel(KvScalesParams params, float* partial, int64_t task_stride, uint32_t* flags) {
  const ScaleTask task = params.tasks[blockIdx.y];
  if (task.from.data == nullptr) return;
  auto* maxima = reinterpret_cast<uint32_t*>(DynamicSharedMemory());  // of magnitudes: ordered as bits
  for (int i = static_cast<int>(threadIdx.x); i < task.num_scales; i += kWarps * 32) maxima[i] = 0;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int bytes = BytesOf(task.from.element);
  const int pieces_per_head = (task.dim + 7) / 8;
  const int pieces = pieces_per_head * task.heads;
  float amax = 0;
  bool finite = true;
  const int64_t step = int64_t{gridDim.x} * kWarps;
  for (int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; token < task.tokens;
       token += step) {
    const auto* row = static_cast<const unsigned char*>(task.from.data) +
                      token * task.from.row_stride * bytes;
    // Several pieces are loaded before the first is looked at.
    constexpr int kUnroll = 4;
    for (int p = lane; p < pieces; p += 32 * kUnroll) {
      float values[kUnroll][8];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int at = p + 32 * u;
        const int head = at / pieces_per_head, d = (at - head * pieces_per_head) * 8;
        const auto* from = row + (head * task.from.head_stride + d) * bytes;
        if (at < pieces && d + 8 <= task.dim) {
          LoadFloats<8>(task.from.element, from, values[u]);
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            values[u][i] =
                at < pieces && d + i < task.dim ? LoadAsFloat(task.from.element, from, i) : 0;
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int at = p + 32 * u;
        float most = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float magnitude = fabsf(values[u][i]);
          const bool counts = magnitude <= 3.4028235e38f;
          finite = finite && counts;
          most = counts ? LargestOf(most, magnitude) : most;
        }
        if (task.num_scales > 1) {
          if (at < pieces) atomicMax(&maxima[at / pieces_per_head], __float_as_uint(most));
        } else {
          amax = LargestOf(amax, most);
        }
      }
    }
  }
  if (!finite) Flag(flags, kNonFiniteInput);
  if (task.num_scales == 1) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      amax = LargestOf(amax, __shfl_xor_sync(kFullWarp, amax, lanes));
    }
    if (lane == 0) atomicMax(&maxima[0], __float_as_uint(amax));
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < task.num_scales; i += kWarps * 32) {
    partial[blockIdx.y * task_stride + int64_t{blockIdx.x} * task.num_scales + i] =
        __uint_as_float(maxima[i]);
  }
}

__global__ void __launch_bounds__(kWarps * 32)
    FinishScalesKernel(KvScalesParams params, const float* partial, int64_t task_stride,
                       int num_blocks) {
  __shared__ float maxima[kWarps];
  WaitForPreviousKernel();
  const ScaleTask task = params.tasks[blockIdx.y];
  const int scale = static_cast<int>(blockIdx.x);
  if (task.from.data == nullptr || scale >= task.num_scales) return;
  float amax = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_blocks; i += kWarps * 32) {
    amax = LargestOf(amax, partial[blockIdx.y * task_stride + int64_t{i} * task.num_scales + scale]);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    amax = LargestOf(amax, __shfl_xor_sync(kFullWarp, amax, lanes));
  }
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = amax;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) amax = LargestOf(amax, maxima[w]);
  float result = 1;
  if (amax != 0) {
    // A scale has to be finite and positive, whatever the inputs are.
    const double quotient = static_cast<double>(amax) / static_cast<double>(task.divisor);
    result = quotient < 1.1754943508222875e-38   ? 1.1754943508222875e-38f
             : quotient > 3.4028234663852886e+38 ? 3.4028234663852886e+38f
                                                 : static_cast<float>(quotient);
  }
  task.to[scale * task.to_stride] = result;
}

}  // namespace

int64_t KvScalesWorkspaceBytes(int64_t most_scales) {
  return 3 * kMostScaleBlocks * most_scales * static_cast<int64_t>(sizeof(float));
}

Error LaunchKvScales(const LaunchContext& context, const KvScalesParams& params) {
  int64_t tokens = 0;
  int32_t most_scales = 1;
  for (const ScaleTask& task : params.tasks) {
    if (task.from.data == nullptr) continue;
    tokens = task.tokens > tokens ? task.tokens : tokens;
    most_scales = task.num_scales > most_scales ? task.num_scales : most_scales;
  }
  if (tokens == 0) return 0;
  int64_t blocks = (tokens + kWarps - 1) / kWarps;
  const int64_t wave = int64_t{context.num_multiprocessors} * 4;
  if (blocks > wave) blocks = wave;
  if (blocks > kMostScaleBlocks) blocks = kMostScaleBlocks;
  auto* partial = reinterpret_cast<float*>(context.workspace);
  const int64_t task_stride = kMostScaleBlocks * int64_t{most_scales};
  LaunchConfig config;
  config.grid = dim3(static_cast<unsigned>(blocks), 3);
  config.block = dim3(kWarps * 32);
  config.shared_bytes = most_scales * sizeof(float);
  config.stream = context.stream;
  const Error error = Launch(config, ScaleMaximaKernel, params, partial, task_stride,
                             context.error_flags);
  if (error != 0) return error;
  config.grid = dim3(static_cast<unsigned>(most_scales), 3);
  config.shared_bytes = 0;
  config.overlap_previous = true;
  return Launch(config, FinishScalesKernel, params, static_cast<const float*>(partial), task_stride,
                static_cast<int>(blocks));
}

}  // namespace kvblocks::attention::cuda
