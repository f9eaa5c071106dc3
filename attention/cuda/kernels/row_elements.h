// Elements of any type in device memory as float: single ones, products with a query, and sums.
//
// Rows are addressed in bytes. Dot takes 16 bytes at a time where row and query are aligned, single
// elements, byte by byte, elsewhere.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_ELEMENTS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_ELEMENTS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/kernels/params.h"

namespace kvblocks::attention::cuda {

KVB_HOST_DEVICE int ElementBytesOf(Element element) {
  return element == Element::kF32                                ? 4
         : element == Element::kF16 || element == Element::kBF16 ? 2
                                                                 : 1;
}

// Of memory aligned to the element.
template <typename E>
KVB_DEVICE float LoadAs(const unsigned char* at) {
  return E::ToFloat(*reinterpret_cast<const typename E::Bits*>(at));
}
// Of any memory.
template <typename E>
KVB_DEVICE float LoadAnywhere(const unsigned char* at) {
  if constexpr (sizeof(typename E::Bits) == 1) {
    return E::ToFloat(*at);
  } else if constexpr (sizeof(typename E::Bits) == 2) {
    return E::ToFloat(static_cast<uint16_t>(at[0] | at[1] << 8));
  } else {
    return E::ToFloat(uint32_t{at[0]} | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 |
                      uint32_t{at[3]} << 24);
  }
}

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
    case Element::kE4M3:
      return function(E4m3());
    case Element::kE5M2:
      return function(E5m2());
    case Element::kI8:
      return function(Int8());
  }
}

// The element `index` of an array aligned to it.
KVB_DEVICE float LoadElementAt(Element element, const void* data, int64_t index) {
  float value = 0;
  WithElement(element, [&](auto tag) {
    using E = decltype(tag);
    value = E::ToFloat(static_cast<const typename E::Bits*>(data)[index]);
  });
  return value;
}
KVB_DEVICE void StoreElementAt(Element element, void* data, int64_t index, float value) {
  WithElement(element, [&](auto tag) {
    using E = decltype(tag);
    static_cast<typename E::Bits*>(data)[index] = E::FromFloat(value);
  });
}

namespace internal {

// Adds the products of 16 bytes of elements with as many floats at q (16-byte aligned).
template <typename E>
KVB_DEVICE void AddProducts(const float4* q, const uint4& chunk, float4& sum) {
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
  if constexpr (sizeof(typename E::Bits) == 4) {
    const float4 a = q[0];
    sum.x += a.x * E::ToFloat(words[0]);
    sum.y += a.y * E::ToFloat(words[1]);
    sum.z += a.z * E::ToFloat(words[2]);
    sum.w += a.w * E::ToFloat(words[3]);
  } else if constexpr (sizeof(typename E::Bits) == 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 a = q[i];
      const auto value = [&](int n) {
        return E::ToFloat(static_cast<uint16_t>(words[2 * i + n / 2] >> (16 * (n % 2))));
      };
      sum.x += a.x * value(0);
      sum.y += a.y * value(1);
      sum.z += a.z * value(2);
      sum.w += a.w * value(3);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 a = q[i];
      const auto value = [&](int n) {
        return E::ToFloat(static_cast<uint8_t>(words[i] >> (8 * n)));
      };
      sum.x += a.x * value(0);
      sum.y += a.y * value(1);
      sum.z += a.z * value(2);
      sum.w += a.w * value(3);
    }
  }
}

}  // namespace internal

// Sum of q[d] * element d of the row, d < count. The row comes in pieces of 16 bytes, piece_stride
// bytes apart.
template <typename E>
KVB_DEVICE float DotAs(const float* q, const unsigned char* row, int count, int64_t piece_stride) {
  constexpr int kPiece = 16 / sizeof(typename E::Bits);
  float4 sum = make_float4(0, 0, 0, 0);
  int d = 0;
  const auto bits = reinterpret_cast<uintptr_t>(row) | reinterpret_cast<uintptr_t>(q) |
                    static_cast<uintptr_t>(piece_stride);
  if (bits % 16 == 0) {
#pragma unroll 2
    for (; d + kPiece <= count; d += kPiece, row += piece_stride) {
      internal::AddProducts<E>(reinterpret_cast<const float4*>(q + d),
                               *reinterpret_cast<const uint4*>(row), sum);
    }
  }
#pragma unroll 1
  for (int n = 0; d < count; ++d) {
    sum.x += q[d] * LoadAnywhere<E>(row + n * static_cast<int>(sizeof(typename E::Bits)));
    if (++n == kPiece) n = 0, row += piece_stride;
  }
  return (sum.x + sum.y) + (sum.z + sum.w);
}
KVB_DEVICE float Dot(Element element, const float* q, const unsigned char* row, int count,
                     int64_t piece_stride) {
  float sum = 0;
  WithElement(element, [&](auto tag) { sum = DotAs<decltype(tag)>(q, row, count, piece_stride); });
  return sum;
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_ELEMENTS_H_
