// How rows get into a cache: copied as they are or converted, by units of 16 bytes of the source,
// which is what a thread loads at a time. Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COPIES_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_slots.h"
#include "attention/cuda/kernels/cache_write.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/launch.h"
#include "attention/cuda/kernels/row_units.h"

namespace kvblocks::attention::cuda {

// Quotients of 16-bit values by a scale, good for being rounded to codes: two multiplications each,
// and never a doubt. Device code.
//
// What rounding to a code depends on is the side of the middles between codes that a quotient x / s
// is on. Middles are M 2^k with M odd and below 256, values X 2^k with X below 2^11. If x / s is
// within 2^-22 of a middle, s is that near to X / M, and to no other such ratio (but for powers of
// two): their distance is 2^-19. So of all quotients that are so near to a middle, either all are
// middles, or all are above, or all are below; which of the three, is found out once per scale. In
// the first case, and if there are none, quotients are rounded once, from 40 bits and more, which
// gives middles exactly; in the others, all quotients are moved by 2^-21, to the side on which
// those are.

class ShortQuotients {
 public:
  // REQUIRES: all lanes of the warp are here; their scales may differ. Middles of the codes are odd
  // multiples, by factors below 64 kRounds, of powers of two.
  template <int kRounds>
  static KVB_DEVICE ShortQuotients Of(float scale) {
    int side = 0;
    for (unsigned left = kFullWarp; left != 0;) {
      const float one = __shfl_sync(kFullWarp, scale, __ffs(static_cast<int>(left)) - 1);
      const int side_of_one = SideOf<kRounds>(one);
      const bool same = __float_as_uint(one) == __float_as_uint(scale);
      if (same) side = side_of_one;
      left &= ~__ballot_sync(kFullWarp, same);
    }
    ShortQuotients quotients;
    // The inverse rounded down and what that leaves, which is never 0: infinities stay what they
    // are.
    float inverse = __fdiv_rn(1.0f, scale);
    if (fmaf(-inverse, scale, 1.0f) < 0) {
      inverse = __uint_as_float(__float_as_uint(inverse) - 1);
    }
    const float rest = fmaf(-inverse, scale, 1.0f);
    quotients.low_ = fmaf(rest, inverse, inverse * 0x1p-40f);
    quotients.high_ = inverse * (1 + 0x1p-21f * static_cast<float>(side));
    return quotients;
  }

  // Of a value of a 16-bit type. REQUIRES: IsOrdinary(scale).
  KVB_DEVICE float OfShort(float value) const { return fmaf(value, high_, value * low_); }

  // Of a float32 value, in more steps: rounded to odd, which no middle is, unless it is exact; very
  // large ones are cut. REQUIRES: as above, `scale` is that of Of.
  KVB_DEVICE float OfWide(float value, float scale) const {
    const float most = scale * 1e6f;
    const float kept = fabsf(value) > most ? copysignf(most, value) : value;
    const float guess = kept * high_;
    const float quotient = fmaf(fmaf(-guess, scale, kept), high_, guess);
    const uint32_t bits = __float_as_uint(quotient), value_bits = __float_as_uint(kept);
    const float rest = fmaf(-quotient, scale, kept);
    // Of the other sign than the value: the quotient was rounded away from zero.
    const uint32_t away = (__float_as_uint(rest) ^ value_bits) >> 31;
    const uint32_t odd = rest == 0 ? bits : (bits - away) | 1u;
    return __uint_as_float((odd & 0x7fffffffu) | (value_bits & 0x80000000u));
  }

  // Nothing under- or overflows that would not do so as a code.
  static KVB_DEVICE bool IsOrdinary(float scale) { return scale > 1e-20f && scale < 1e20f; }

 private:
  // Of middles, where quotients by `scale` are that are near to some: above (1), below (-1), or on
  // them, or nowhere (0).
  template <int kRounds>
  static KVB_DEVICE int SideOf(float scale) {
    unsigned above = 0, below = 0;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const auto middle =
          static_cast<float>(64 * round + 2 * static_cast<int>(threadIdx.x % 32) + 1);
      // The number of 11 bits that is nearest to the middle times the scale, if it is near.
      const uint32_t product = __float_as_uint(middle * scale);
      const bool is_near = ((product + 2) & 0x1fffu) <= 4;
      const float value = __uint_as_float((product + 0x1000u) & ~0x1fffu);
      const float rest = fmaf(-middle, scale, value);
      above |= __ballot_sync(kFullWarp, is_near && rest > 0);
      below |= __ballot_sync(kFullWarp, is_near && rest < 0);
    }
    return above != 0 ? 1 : below != 0 ? -1 : 0;
  }

  float high_, low_;
};

// Of a unit.
KVB_HOST_DEVICE int ElementsOf(const RowStore& store) { return 16 / BytesOf(store.from.element); }

// As they are.
struct RawCopy {
  static constexpr bool kScaled = false;
  // Of rows: loads of a thread that are under way at once, threads of a block, and blocks of a
  // multiprocessor, for which registers are given out.
  static constexpr int kTokens = 8, kThreads = 128, kBlocks = 8;
  KVB_DEVICE RawCopy(const RowStore&, float) {}
  KVB_DEVICE bool is_slow() const { return false; }
  template <Element kFrom>
  KVB_DEVICE void Store(const RowStore&, const uint4& unit, unsigned char* to, int64_t) const {
    *reinterpret_cast<uint4*>(to) = unit;
  }
};

// As another type. If that takes more than 16 bytes, the rest is stored `piece_step` bytes further.
// Codes of scales that are very large or small are made slowly.
template <typename To>
class Converted {
 public:
  static constexpr int kBytes = static_cast<int>(sizeof(typename To::Bits));
  static constexpr bool kScaled = kBytes == 1;
  static constexpr int kTokens = 8, kThreads = 128, kBlocks = 7;
  // REQUIRES: all lanes of the warp are here.
  KVB_DEVICE Converted(const RowStore&, float scale) : scale_(scale) {
    if constexpr (kScaled) {
      constexpr int kRounds = std::is_same_v<To, Int8> ? 4 : 1;
      quotient_ = ShortQuotients::Of<kRounds>(scale);
    }
  }
  KVB_DEVICE bool is_slow() const { return kScaled && !ShortQuotients::IsOrdinary(scale_); }

  // REQUIRES: not is_slow(); codes are made of elements of type kFrom.
  template <Element kFrom>
  KVB_DEVICE void Store(const RowStore& store, const uint4& unit, unsigned char* to,
                        int64_t piece_step) const {
    float values[kUnit];
    if constexpr (kScaled) {
      UnpackPiece(kFrom, unit, values);
      if constexpr (kFrom == Element::kF32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = quotient_.OfWide(values[i], scale_);
        *reinterpret_cast<uint32_t*>(to) = Codes(values);
      } else {
#pragma unroll
        for (float& value : values) value = quotient_.OfShort(value);
        *reinterpret_cast<uint2*>(to) = make_uint2(Codes(values), Codes(values + 4));
      }
      return;
    }
    UnpackPiece(store.from.element, unit, values);
    if constexpr (kBytes == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
      *reinterpret_cast<float4*>(to + piece_step) =
          make_float4(values[4], values[5], values[6], values[7]);
    } else if constexpr (kBytes == 2) {
      const uint2 lower =
          make_uint2(To::Pack(values[0], values[1]), To::Pack(values[2], values[3]));
      if (store.from.element == Element::kF32) {
        *reinterpret_cast<uint2*>(to) = lower;
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(lower.x, lower.y, To::Pack(values[4], values[5]),
                                                   To::Pack(values[6], values[7]));
      }
    }
  }

  // Codes of any scale.
  KVB_DEVICE void StoreSlowly(const RowStore& store, const uint4& unit, unsigned char* to) const {
    const Divider divide(scale_);
#pragma unroll 1
    for (int n = 0; n < ElementsOf(store); ++n) {
      const float quotient = divide(ValueOf(store.from.element, unit, n));
      to[n] = static_cast<unsigned char>(EncodePair<To>(quotient, 0.0f));
    }
  }

 private:
  static KVB_DEVICE uint32_t Codes(const float* values) {
    return EncodePair<To>(values[0], values[1]) | EncodePair<To>(values[2], values[3]) << 16;
  }

  float scale_;
  ShortQuotients quotient_;
};

// Calls store_all(the type that codes are made of), given as a type. `store_all` is there three
// times, so that none has steps of the others.
template <typename Copy, typename StoreAll>
KVB_DEVICE void StoreFast(const RowStore& store, const StoreAll& store_all) {
  if (!Copy::kScaled || store.from.element == Element::kBF16) {
    store_all(std::integral_constant<Element, Element::kBF16>());
  } else if (store.from.element == Element::kF16) {
    store_all(std::integral_constant<Element, Element::kF16>());
  } else {
    store_all(std::integral_constant<Element, Element::kF32>());
  }
}

// Stores slowly what `copy` has to: of the units those whose bit is in `which`, each to
// place_of(its number). In one loop, so that it does not stand between what is stored fast.
template <typename Copy, int kUnits, typename PlaceOf>
KVB_DEVICE void StoreSlowly(const Copy& copy, const RowStore& store, const uint4 (&units)[kUnits],
                            uint32_t which, const PlaceOf& place_of) {
  if constexpr (Copy::kScaled) {
#pragma unroll 1
    while (which != 0) {
      const int unit = 31 - __clz(static_cast<int>(which));
      which ^= 1u << unit;
      uint4 piece = units[0];
#pragma unroll
      for (int i = 1; i < kUnits; ++i) {
        if (unit == i) piece = units[i];
      }
      copy.StoreSlowly(store, piece, place_of(unit));
    }
  }
}

KVB_DEVICE float ScaleOf(const Scales& scales, int head) {
  return scales.data == nullptr ? 1.0f : scales.data[head * scales.head_stride];
}
KVB_DEVICE void CheckScale(const Scales& scales, float scale, uint32_t* flags) {
  if (scales.data != nullptr && !(scale > 0 && scale <= 3.4028235e38f)) Flag(flags, kBadScale);
}

// Elements one by one: what is left of a row that is no whole number of units.
KVB_DEVICE void StoreRest(const RowStore& store, const unsigned char* from, unsigned char* to,
                          int count, float scale) {
  const int bytes = BytesOf(store.element);
  const Divider divide(scale);
  for (int d = 0; d < count; ++d) {
    if (store.from.element == store.element) {
      for (int b = 0; b < bytes; ++b) to[d * bytes + b] = from[d * bytes + b];
    } else {
      const float value = LoadAsFloat(store.from.element, from, d);
      StoreFloat(store.element, bytes == 1 ? divide(value) : value, to, d);
    }
  }
}

// Values of kPagedX, which lie dim-major: how a tile of them is turned on its way into the cache.
// Device code: included by .cu files only.

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

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COPIES_H_
