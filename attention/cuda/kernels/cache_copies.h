// How rows get into a cache: copied as they are or converted, by units of 16 bytes of the source,
// which is what a thread loads at a time. Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COPIES_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_CACHE_COPIES_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/cache_write.h"
#include "attention/cuda/kernels/device_flags.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/row_units.h"

namespace kvblocks::attention::cuda {

// Of a unit.
KVB_HOST_DEVICE int ElementsOf(const RowStore& store) { return 16 / BytesOf(store.from.element); }

// As they are.
struct RawCopy {
  static constexpr bool kScaled = false;
  // Of rows: loads of a thread that are under way at once, and threads of a block.
  static constexpr int kTokens = 8, kThreads = 128;
  explicit KVB_DEVICE RawCopy(float) {}
  KVB_DEVICE uint32_t TryStore(const RowStore&, const uint4& unit, unsigned char* to,
                               int64_t) const {
    *reinterpret_cast<uint4*>(to) = unit;
    return 0;
  }
  KVB_DEVICE uint32_t Settle(float) const { return 0; }
};

// As another type. If that takes more than 16 bytes, the rest is stored `piece_step` bytes further.
template <typename To>
struct Converted {
  static constexpr int kBytes = static_cast<int>(sizeof(typename To::Bits));
  static constexpr bool kScaled = kBytes == 1;
  static constexpr int kTokens = 4, kThreads = 128;
  explicit KVB_DEVICE Converted(float scale) : codes(scale) {}

  // Bit n of what is returned: code n is to be settled.
  KVB_DEVICE uint32_t TryStore(const RowStore& store, const uint4& unit, unsigned char* to,
                               int64_t piece_step) const {
    const bool wide = store.from.element == Element::kF32;
    float values[kUnit];
    UnpackPiece(store.from.element, unit, values);
    uint32_t open = 0;
    if constexpr (kBytes == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
      *reinterpret_cast<float4*>(to + piece_step) =
          make_float4(values[4], values[5], values[6], values[7]);
    } else if constexpr (kBytes == 2) {
      const uint4 pairs =
          make_uint4(To::Pack(values[0], values[1]), To::Pack(values[2], values[3]),
                     To::Pack(values[4], values[5]), To::Pack(values[6], values[7]));
      StorePart(wide, pairs, to);
    } else {
      uint2 both;
      open = codes.Try(values[0], values[1], values[2], values[3], &both.x);
      const uint32_t upper = codes.Try(values[4], values[5], values[6], values[7], &both.y);
      if (!wide) open |= upper << 4;
      StorePart(wide, both, to);
    }
    return open;
  }

  KVB_DEVICE uint32_t Settle(float value) const { return codes.Settle(value); }

 private:
  // Of a float32 source there is the first half only.
  static KVB_DEVICE void StorePart(bool half, const uint4& all, unsigned char* to) {
    if (half) {
      *reinterpret_cast<uint2*>(to) = make_uint2(all.x, all.y);
    } else {
      *reinterpret_cast<uint4*>(to) = all;
    }
  }
  static KVB_DEVICE void StorePart(bool half, const uint2& all, unsigned char* to) {
    if (half) {
      *reinterpret_cast<uint32_t*>(to) = all.x;
    } else {
      *reinterpret_cast<uint2*>(to) = all;
    }
  }

  CodeMaker<To> codes;
};

// Settles what TryStore left open of several units, bit 8 i + n for code n of unit i, which is at
// place_of(i): each lane a value of its own at a time.
template <typename Copy, int kUnits, typename PlaceOf>
KVB_DEVICE void SettleOpen(const Copy& copy, const RowStore& store, const uint4 (&units)[kUnits],
                           uint32_t open, const PlaceOf& place_of) {
  if constexpr (Copy::kScaled) {
    static_assert(8 * kUnits <= 32);
#pragma unroll 1
    while (open != 0) {
      const int bit = 31 - __clz(static_cast<int>(open));
      open ^= 1u << bit;
      const int unit = bit / 8, n = bit % 8;
      uint4 piece = units[0];
#pragma unroll
      for (int i = 1; i < kUnits; ++i) {
        if (unit == i) piece = units[i];
      }
      place_of(unit)[n] =
          static_cast<unsigned char>(copy.Settle(ValueOf(store.from.element, piece, n)));
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
