// How rows get into a cache: copied as they are or converted, by units of 16 bytes of the source,
// which is what a thread loads at a time. Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COPIES_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COPIES_H_

#include <type_traits>

#include "kvblocks/attention/cuda/device/gpu.h"
#include "kvblocks/attention/cuda/device/numbers.h"
#include "kvblocks/attention/cuda/device/ptx.h"
#include "kvblocks/attention/cuda/kernels/cache_write.h"
#include "kvblocks/attention/cuda/kernels/elements.h"
#include "kvblocks/attention/cuda/kernels/launch.h"
#include "kvblocks/attention/cuda/kernels/row_units.h"
#include "kvblocks/attention/cuda/kernels/short_quotients.h"

namespace kvblocks::attention::cuda {

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

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COPIES_H_
