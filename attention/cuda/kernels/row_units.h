// Rows as units of eight elements: loaded raw, so that many are under way before the first is
// looked at, then unpacked, then stored as any type. Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_UNITS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_UNITS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/params.h"

namespace kvblocks::attention::cuda {

inline constexpr int kUnit = 8;

// Eight values of a 16-bit type.
KVB_DEVICE void UnpackShort(bool is_bf16, const uint4& piece, float (&values)[kUnit]) {
  const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = is_bf16 ? Bf16::Unpack(words[i]) : F16::Unpack(words[i]);
    values[2 * i] = two.x, values[2 * i + 1] = two.y;
  }
}

// 16 bytes of a 16-bit type: eight values; of float32: four, and zeros.
KVB_DEVICE void UnpackPiece(Element element, const uint4& piece, float (&values)[kUnit]) {
  if (element == Element::kF32) {
    const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = __uint_as_float(words[i]), values[i + 4] = 0;
    return;
  }
  UnpackShort(element == Element::kBF16, piece, values);
}

// Eight elements: 16 bytes of a 16-bit type or, if kWide, 32 of float32.
template <bool kWide>
struct RawUnit {
  uint4 parts[kWide ? 2 : 1];
};

// `wide`: of float32; others of a kWide unit have no second part.
template <bool kWide>
KVB_DEVICE RawUnit<kWide> LoadUnit(bool wide, const unsigned char* from) {
  RawUnit<kWide> unit;
  unit.parts[0] = LoadOnce16(from);
  if constexpr (kWide) unit.parts[1] = wide ? LoadOnce16(from + 16) : unit.parts[0];
  return unit;
}

template <bool kWide>
KVB_DEVICE void UnpackUnit(Element element, const RawUnit<kWide>& unit, float (&values)[kUnit]) {
  UnpackPiece(element, unit.parts[0], values);
  if constexpr (kWide) {
    if (element == Element::kF32) {
      const uint4& upper = unit.parts[1];
      values[4] = __uint_as_float(upper.x), values[5] = __uint_as_float(upper.y);
      values[6] = __uint_as_float(upper.z), values[7] = __uint_as_float(upper.w);
    }
  }
}

// Value n of a piece, which need not be a constant.
KVB_DEVICE float ValueOf(Element element, const uint4& piece, int n) {
  const bool wide = element == Element::kF32;
  const int at = wide ? n : n / 2;
  const uint32_t word = at == 0 ? piece.x : at == 1 ? piece.y : at == 2 ? piece.z : piece.w;
  if (wide) return __uint_as_float(word);
  const auto bits = static_cast<uint16_t>(n % 2 == 0 ? word : word >> 16);
  return element == Element::kF16 ? F16::ToFloat(bits) : Bf16::ToFloat(bits);
}

// Codes of quotients by a scale, rounded as the exact quotients would be.
//
// Quotients lie between two products that a few instructions make; where both have the same code,
// it is the quotient's. Where not, the value is left open, and is to be settled by itself: the
// middle between the two codes, times the scale, is compared with it. Of scales that are a 200th of
// a largest magnitude, one value in 128 is left open. Products by the inverse of a power of two
// need no second one: they are exact, or too small to matter. Scales outside of [1e-30, 1e30] leave
// all values open, each of which then takes a division.
template <typename To>
class CodeMaker {
 public:
  explicit KVB_DEVICE CodeMaker(float scale) : scale_(scale) {
    const float inverse = __fdiv_rn(1.0f, scale);
    const bool exact = (__float_as_uint(scale) & 0x7fffffu) == 0;
    // The inverse and a product are each off by 2^-24 at most.
    low_ = exact ? inverse : inverse * (1 - 0x1p-21f);
    high_ = exact ? inverse : inverse * (1 + 0x1p-21f);
  }

  // Four codes; bit n of what is returned: code n is open.
  KVB_DEVICE uint32_t Try(float a, float b, float c, float d, uint32_t* codes) const {
    *codes = Encode(a, b, c, d, low_);
    if (!is_ordinary()) return 15;
    if (low_ == high_) return 0;
    const uint32_t differing = *codes ^ Encode(a, b, c, d, high_);
    if (differing == 0) return 0;
    // The top bit of each byte that is not 0, then all of them side by side.
    const uint32_t tops = (((differing & 0x7f7f7f7fu) + 0x7f7f7f7fu) | differing) & 0x80808080u;
    return (tops >> 7) * 0x10204080u >> 28;
  }

  // The code of a value that was left open.
  KVB_DEVICE uint32_t Settle(float value) const {
    if (!is_ordinary()) return EncodePair<To>(Divider(scale_)(value), 0.0f) & 0xffu;
    const uint32_t below = EncodePair<To>(value * low_, 0.0f) & 0xffu;
    const uint32_t above = EncodePair<To>(value * high_, 0.0f) & 0xffu;
    // Their magnitudes are neighbours.
    const float middle = 0.5f * (fabsf(To::ToFloat(static_cast<uint8_t>(below))) +
                                 fabsf(To::ToFloat(static_cast<uint8_t>(above))));
    const float rest = fmaf(-middle, scale_, fabsf(value));
    return rest > 0 || (rest == 0 && above % 2 == 0) ? above : below;
  }

 private:
  KVB_DEVICE bool is_ordinary() const { return scale_ > 1e-30f && scale_ < 1e30f; }
  static KVB_DEVICE uint32_t Encode(float a, float b, float c, float d, float factor) {
    return EncodePair<To>(a * factor, b * factor) | EncodePair<To>(c * factor, d * factor) << 16;
  }

  float scale_, low_, high_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_UNITS_H_
