// Pieces of rows inside kernels: loaded as floats from any element type, stored as any. Device
// code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_ELEMENTS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_ELEMENTS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/kernels/params.h"

namespace kvblocks::attention::cuda {

// Calls function(tag) with the element's type.
template <typename Function>
KVB_DEVICE void WithElement(Element element, const Function& function) {
  switch (element) {
    case Element::kF32:
      return function(F32());
    case Element::kF16:
      return function(F16());
    case Element::kBF16:
      return function(Bf16());
    case Element::kF8E4M3:
      return function(E4m3());
    case Element::kF8E5M2:
      return function(E5m2());
    case Element::kI8:
      return function(Int8());
    default:
      return;  // nothing that kernels are given
  }
}

// Element i of an array of any type.
KVB_DEVICE float LoadAsFloat(Element element, const void* from, int64_t i) {
  float value = 0;
  WithElement(element, [&](auto tag) {
    using E = decltype(tag);
    value = E::ToFloat(static_cast<const typename E::Bits*>(from)[i]);
  });
  return value;
}
KVB_DEVICE void StoreFloat(Element element, float value, void* to, int64_t i) {
  WithElement(element, [&](auto tag) {
    using E = decltype(tag);
    static_cast<typename E::Bits*>(to)[i] = E::FromFloat(value);
  });
}

// kCount consecutive elements (4, 8 or 16) from a 16-bit or 32-bit type; `from` aligned to the
// smaller of 16 bytes and their size.
template <int kCount>
KVB_DEVICE void LoadFloats(Element element, const void* from, float (&values)[kCount]) {
  if (element == Element::kF32) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = static_cast<const float4*>(from)[i / 4];
      values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
    }
    return;
  }
  uint32_t pairs[kCount / 2];
  if constexpr (kCount == 4) {
    const uint2 two = *static_cast<const uint2*>(from);
    pairs[0] = two.x, pairs[1] = two.y;
  } else {
#pragma unroll
    for (int i = 0; i < kCount / 2; i += 4) {
      const uint4 four = static_cast<const uint4*>(from)[i / 4];
      pairs[i] = four.x, pairs[i + 1] = four.y, pairs[i + 2] = four.z, pairs[i + 3] = four.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float2 both = element == Element::kF16 ? F16::Unpack(pairs[i]) : Bf16::Unpack(pairs[i]);
    values[2 * i] = both.x, values[2 * i + 1] = both.y;
  }
}

// Quotients by a positive scale, rounded to odd: rounding the result to fewer bits gives what
// rounding the quotient itself would.
class Divider {
 public:
  explicit KVB_DEVICE Divider(float scale) {
    scale_ = scale;
    inverse_ = __fdiv_rn(1.0f, scale);
    ordinary_ = scale > 1e-30f && scale < 1e30f;
  }

  KVB_DEVICE float operator()(float x) const {
    if (scale_ == 1.0f) return x;
    const float magnitude = fabsf(x);
    // Where nothing under- or overflows, two steps give what a division would, in a few
    // instructions.
    float quotient;
    if (ordinary_ && magnitude > 1e-24f && magnitude < 1e8f * fmaxf(scale_, 1.0f)) {
      const float guess = x * inverse_;
      quotient = fmaf(fmaf(-guess, scale_, x), inverse_, guess);
    } else {
      quotient = __fdiv_rn(x, scale_);
    }
    const uint32_t bits = __float_as_uint(quotient);
    if ((bits & 0x7f800000u) == 0x7f800000u || (bits & 0x7fffffffu) == 0) return quotient;
    const float rest = fmaf(-quotient, scale_, x);  // exact
    // x = quotient * scale + rest; scales are positive, so a rest of the other sign than x means
    // that the quotient was rounded away from zero.
    const bool away = (rest < 0) != (x < 0);
    return rest == 0 ? quotient : __uint_as_float((away ? bits - 1 : bits) | 1u);
  }

 private:
  float scale_, inverse_;
  bool ordinary_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_ELEMENTS_H_
