// Elements of any type in device memory as float: single ones, products with a query, and sums.
//
// Rows are addressed in bytes. Dot takes 16 bytes at a time where row and query are aligned, single
// elements, byte by byte, elsewhere.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_ELEMENTS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_ELEMENTS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/kernels/elements.h"
#include "attention/cuda/kernels/params.h"

namespace kvblocks::attention::cuda {

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

namespace internal {

// Word i of 16 bytes of elements as four floats (of 4-byte elements: all), from element 4 i on.
template <typename E>
KVB_DEVICE float4 FourOf(const uint32_t (&words)[4], int i) {
  if constexpr (sizeof(typename E::Bits) == 4) {
    return make_float4(E::ToFloat(words[0]), E::ToFloat(words[1]), E::ToFloat(words[2]),
                       E::ToFloat(words[3]));
  } else if constexpr (sizeof(typename E::Bits) == 2) {
    const float2 a = E::Unpack(words[2 * i]), b = E::Unpack(words[2 * i + 1]);
    return make_float4(a.x, a.y, b.x, b.y);
  } else {
    const auto value = [&](int n) { return E::ToFloat(static_cast<uint8_t>(words[i] >> (8 * n))); };
    return make_float4(value(0), value(1), value(2), value(3));
  }
}

// Adds the products of 16 bytes of elements with as many floats of each query (stride q_stride) at
// q (16-byte aligned).
template <typename E, int kQueries>
KVB_DEVICE void AddProducts(const float* q, int q_stride, const uint4& chunk,
                            float4 (&sums)[kQueries]) {
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4 / static_cast<int>(sizeof(typename E::Bits)); ++i) {
    const float4 k = FourOf<E>(words, i);
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const float4 a = reinterpret_cast<const float4*>(q + n * q_stride)[i];
      sums[n].x += a.x * k.x;
      sums[n].y += a.y * k.y;
      sums[n].z += a.z * k.z;
      sums[n].w += a.w * k.w;
    }
  }
}

}  // namespace internal

// products[n] += scale * sum of q[n * q_stride + d] * element d of the row, d < count. The row
// comes in pieces of 16 bytes, with a stride of piece_stride bytes.
template <typename E, int kQueries>
KVB_DEVICE void AddDots(const float* q, int q_stride, const unsigned char* row, int count,
                        int64_t piece_stride, float scale, float (&products)[kQueries]) {
  constexpr int kPiece = 16 / sizeof(typename E::Bits);
  float4 sums[kQueries];
#pragma unroll
  for (int n = 0; n < kQueries; ++n) sums[n] = make_float4(0, 0, 0, 0);
  int d = 0;
  const auto bits = reinterpret_cast<uintptr_t>(row) | reinterpret_cast<uintptr_t>(q) |
                    static_cast<uintptr_t>(piece_stride);
  if (bits % 16 == 0) {
#pragma unroll(kQueries == 1 ? 2 : 1)
    for (; d + kPiece <= count; d += kPiece, row += piece_stride) {
      internal::AddProducts<E, kQueries>(q + d, q_stride, *reinterpret_cast<const uint4*>(row),
                                         sums);
    }
  }
#pragma unroll 1
  for (int at = 0; d < count; ++d) {
    const float value = LoadAnywhere<E>(row + at * static_cast<int>(sizeof(typename E::Bits)));
#pragma unroll
    for (int n = 0; n < kQueries; ++n) sums[n].x += q[n * q_stride + d] * value;
    if (++at == kPiece) at = 0, row += piece_stride;
  }
#pragma unroll
  for (int n = 0; n < kQueries; ++n) {
    products[n] += scale * ((sums[n].x + sums[n].y) + (sums[n].z + sums[n].w));
  }
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_ELEMENTS_H_
