// Element types inside kernels: bits in, float out, and back.
//
// A tag type per element type: Bits (what memory holds), ToFloat (exact), FromFloat (round to
// nearest even; the 16-bit types overflow to infinity, codes saturate and keep NaN). Pairs of
// 16-bit values travel in a uint32_t, the lower one in the lower half. The codes' conversions are
// plain bit arithmetic, the same on every architecture and on the host.

#ifndef KVBLOCKS_ATTENTION_CUDA_DEVICE_NUMBERS_H_
#define KVBLOCKS_ATTENTION_CUDA_DEVICE_NUMBERS_H_

#include "attention/cuda/device/gpu.h"

#ifndef KVBLOCKS_CUDA_EMULATION
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace kvblocks::attention::cuda {

struct F32 {
  using Bits = uint32_t;
  static KVB_DEVICE float ToFloat(Bits bits) { return __uint_as_float(bits); }
  static KVB_DEVICE Bits FromFloat(float value) { return __float_as_uint(value); }
};

struct Bf16 {
  using Bits = uint16_t;
  static constexpr bool kIsBf16 = true;
  static KVB_DEVICE float ToFloat(Bits bits) { return __uint_as_float(uint32_t{bits} << 16); }
  static KVB_DEVICE Bits FromFloat(float value) {
#ifdef KVBLOCKS_CUDA_EMULATION
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<Bits>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
#else
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#endif
  }
  // Two values at once.
  static KVB_DEVICE uint32_t Pack(float lower, float upper) {
#ifdef KVBLOCKS_CUDA_EMULATION
    return FromFloat(lower) | uint32_t{FromFloat(upper)} << 16;
#else
    const __nv_bfloat162 pair = __floats2bfloat162_rn(lower, upper);
    return *reinterpret_cast<const uint32_t*>(&pair);
#endif
  }
  static KVB_DEVICE float2 Unpack(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
};

struct F16 {
  using Bits = uint16_t;
  static constexpr bool kIsBf16 = false;
  static KVB_DEVICE float ToFloat(Bits bits) {
#ifdef KVBLOCKS_CUDA_EMULATION
    const uint32_t shifted = uint32_t{bits & 0x7fffu} << 13;
    const float magnitude = shifted >= 0x0f800000u ? __uint_as_float(shifted | 0x7f800000u)
                                                   : __uint_as_float(shifted) * 0x1p112f;
    return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
#else
    return __half2float(__ushort_as_half(bits));
#endif
  }
  static KVB_DEVICE Bits FromFloat(float value) {
#ifdef KVBLOCKS_CUDA_EMULATION
    const uint32_t sign = __float_as_uint(value) >> 16 & 0x8000u;
    const uint32_t magnitude = __float_as_uint(value) & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7fff;
    } else if (magnitude >= 0x477ff000u) {  // 65,520: half way to what would come behind 65,504
      half = 0x7c00;
    } else if (magnitude < 0x38800000u) {  // 2^-14: below it the spacing is that of floats at 0.5
      half = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      half = ((magnitude + 0xfffu + (magnitude >> 13 & 1)) >> 13) - (112u << 10);
    }
    return static_cast<Bits>(sign | half);
#else
    return __half_as_ushort(__float2half_rn(value));
#endif
  }
  static KVB_DEVICE uint32_t Pack(float lower, float upper) {
#ifdef KVBLOCKS_CUDA_EMULATION
    return FromFloat(lower) | uint32_t{FromFloat(upper)} << 16;
#else
    const __half2 pair = __floats2half2_rn(lower, upper);
    return *reinterpret_cast<const uint32_t*>(&pair);
#endif
  }
  static KVB_DEVICE float2 Unpack(uint32_t pair) {
#ifdef KVBLOCKS_CUDA_EMULATION
    return make_float2(ToFloat(static_cast<Bits>(pair)), ToFloat(static_cast<Bits>(pair >> 16)));
#else
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
#endif
  }
};

namespace internal {

// A code of 4 or 5 exponent and 3 or 2 mantissa bits, from a float: the value on the code's grid
// nearest to it, ties to even, at most `largest`. Exact by integer arithmetic on the float's bits.
template <int kMantissa, int kBias, uint32_t kLargestCode, uint32_t kNanCode>
KVB_DEVICE uint8_t EncodeFloat8(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | kNanCode);
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;  // 24 bits
  // Codes below 2^(1 - bias) have the spacing of the smallest normal ones.
  const int lowest = 1 - kBias;
  const int at = exponent < lowest ? lowest : exponent;
  const int shift = 23 - kMantissa + (at - exponent);
  if (shift > 25) return static_cast<uint8_t>(sign);
  const uint32_t kept = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rounded = kept + ((rest > half || (rest == half && (kept & 1) != 0)) ? 1 : 0);
  // A normal number's leading one adds 1 to the exponent field; so does a carry.
  uint32_t code = (static_cast<uint32_t>(at - lowest) << kMantissa) + rounded;
  if (code > kLargestCode) code = kLargestCode;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace internal

struct E4m3 {
  using Bits = uint8_t;
  static KVB_DEVICE float ToFloat(Bits bits) {
    const uint32_t magnitude = bits & 0x7fu;
    // Exponent and mantissa put where a float has them; the factor mends the bias, also of
    // subnormals.
    const float value = __uint_as_float(magnitude << 20) * 0x1p120f;
    const uint32_t sign = uint32_t{bits & 0x80u} << 24;
    return __uint_as_float((magnitude == 0x7fu ? 0x7fc00000u : __float_as_uint(value)) | sign);
  }
  static KVB_DEVICE Bits FromFloat(float value) {
    return internal::EncodeFloat8<3, 7, 0x7e, 0x7f>(value);
  }
};

struct E5m2 {
  using Bits = uint8_t;
  static KVB_DEVICE float ToFloat(Bits bits) {
    return F16::ToFloat(static_cast<uint16_t>(uint16_t{bits} << 8));
  }
  static KVB_DEVICE Bits FromFloat(float value) {
    return internal::EncodeFloat8<2, 15, 0x7b, 0x7f>(value);
  }
};

struct Int8 {
  using Bits = uint8_t;
  static KVB_DEVICE float ToFloat(Bits bits) {
    return static_cast<float>(static_cast<int8_t>(bits));
  }
  static KVB_DEVICE Bits FromFloat(float value) {
    if (!(value == value)) return 0;
    const float clamped = value < -127.0f ? -127.0f : value > 127.0f ? 127.0f : value;
    // Added to 1.5 * 2^23, a number is rounded to an integer, which is in the lowest bits.
    return static_cast<Bits>(__float_as_uint(clamped + 12582912.0f));
  }
};

// Two codes, the lower one in the lower byte; in hardware where there is such an instruction.
template <typename T>
KVB_DEVICE uint32_t EncodePair(float lower, float upper) {
  return T::FromFloat(lower) | uint32_t{T::FromFloat(upper)} << 8;
}
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
template <>
KVB_DEVICE uint32_t EncodePair<E4m3>(float lower, float upper) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(upper), "f"(lower));
  return pair;
}
template <>
KVB_DEVICE uint32_t EncodePair<E5m2>(float lower, float upper) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(upper), "f"(lower));
  return pair;
}
#endif
#if !defined(KVBLOCKS_CUDA_EMULATION) && defined(__CUDA_ARCH__)
template <>
KVB_DEVICE uint32_t EncodePair<Int8>(float lower, float upper) {
  // NaN passes the maximum and becomes 0; what is above 127 is cut by the conversion.
  uint32_t first, second;
  asm("{\n"
      ".reg .f32 low, high;\n"
      "max.NaN.f32 low, %2, 0fC2FE0000;\n"
      "max.NaN.f32 high, %3, 0fC2FE0000;\n"
      "cvt.rni.sat.s8.f32 %0, low;\n"
      "cvt.rni.sat.s8.f32 %1, high;\n"
      "}"
      : "=r"(first), "=r"(second)
      : "f"(lower), "f"(upper));
  return (first & 0xffu) | (second & 0xffu) << 8;
}
#endif

// The value of a 4-bit code: 2 exponent bits and 1 of mantissa.
KVB_DEVICE float E2m1ToFloat(uint32_t code) {
  // As E4m3: the factor mends the bias.
  const float magnitude = __uint_as_float((code & 7u) << 22) * 0x1p126f;
  return __uint_as_float(__float_as_uint(magnitude) | (code & 8u) << 28);
}
// The code nearest to value / scale, ties to even, at most 6; of NaN and of a scale of 0 code 0.
// `Real` is a type in which five times the scale is exact: then so are the middles between codes.
template <typename Real>
KVB_DEVICE uint32_t E2m1FromQuotient(float value, Real scale) {
  if (!(value == value) || scale == 0) return 0;
  const Real magnitude = static_cast<Real>(value < 0 ? -value : value);
  const Real quarter = scale / 4;
  uint32_t code = 0;
  code += magnitude > quarter;
  code += magnitude >= 3 * quarter;
  code += magnitude > 5 * quarter;
  code += magnitude >= 7 * quarter;
  code += magnitude > 10 * quarter;
  code += magnitude >= 14 * quarter;
  code += magnitude > 20 * quarter;
  return code | (__float_as_uint(value) >> 31) << 3;
}

// 2^(bits - 127).
KVB_DEVICE float E8m0ToFloat(uint8_t bits) {
  if (bits == 0) return 0x1p-127f;
  return __uint_as_float(bits == 0xff ? 0x7fc00000u : uint32_t{bits} << 23);
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_DEVICE_NUMBERS_H_
