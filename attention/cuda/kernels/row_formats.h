// Vectors with scales of their own, and latent records (KvRowFormat), inside kernels: single
// values, and products with queries. cache/quantised_rows.h says what the bytes are.
//
// Rows may lie at any byte, float32 scales at multiples of 4; packed codes at multiples of 8 are
// read 16 at a time. What one scale serves all of a row is left out of values here and is
// RowFactor. Device code.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_FORMATS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_FORMATS_H_

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/numbers.h"
#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/row_elements.h"

namespace kvblocks::attention::cuda {

inline constexpr int kRecordValues = 512;  // with a scale
inline constexpr int kMxGroup = 32;        // of them per scale, of kMlaV41
inline constexpr int kRotaryAtNvfp4Record = 256;
inline constexpr uint32_t kZeroPointBits = 0xF;

// Where the scales of a record begin.
KVB_DEVICE constexpr int ScalesAt(KvRowFormat format) {
  return format == KvRowFormat::kMlaV41      ? 512
         : format == KvRowFormat::kMlaV41Fp4 ? 256
                                             : 320;
}
// Which of a record's e4m3 scales a group of 16 values has.
KVB_DEVICE int ScaleOfGroup(KvRowFormat format, int group) {
  return format == KvRowFormat::kMlaNvfp4 ? 8 * (group % 4) + group / 4 : group;
}

// Rows that are no array of one element type: packed codes, and records.
constexpr bool IsPackedRow(KvRowFormat format) { return format > KvRowFormat::kPerTokenHead; }

// What all of a row is multiplied by: its float32 scale, without the zero point's bits.
KVB_DEVICE float RowFactor(KvRowFormat format, const unsigned char* scales) {
  if (format == KvRowFormat::kPerTokenHead) return LoadAs<F32>(scales);
  if (format != KvRowFormat::kInt4PerTokenHead) return 1;
  return __uint_as_float(__float_as_uint(LoadAs<F32>(scales)) & ~kZeroPointBits);
}
KVB_DEVICE int ZeroPointOf(const unsigned char* scales) {
  return static_cast<int>(scales[0] & kZeroPointBits);
}

// Value d of a row without its factor. `zero`: of int4.
KVB_DEVICE float FormatValue(KvRowFormat format, Element element, const unsigned char* row,
                             const unsigned char* scales, int zero, int d) {
  if (format == KvRowFormat::kPerTokenHead) return LoadAsFloat(element, row, d);
  if (format == KvRowFormat::kMlaV41) {
    return E4m3::ToFloat(row[d]) * E8m0ToFloat(scales[d / kMxGroup]);
  }
  if (format == KvRowFormat::kMlaNvfp4 && d >= kRecordValues) {
    return E4m3::ToFloat(row[kRotaryAtNvfp4Record + d - kRecordValues]);
  }
  const uint32_t code = uint32_t{row[d / 2]} >> d % 2 * 4;
  if (format == KvRowFormat::kInt4PerTokenHead) {
    return static_cast<float>(static_cast<int>(code & 15u) - zero);
  }
  return E2m1ToFloat(code) *
         E4m3::ToFloat(scales[ScaleOfGroup(format, d / kNvfp4GroupValues)]);
}

struct E2m1Codes {
  KVB_DEVICE float operator()(uint32_t code) const { return E2m1ToFloat(code); }
};
struct Int4Codes {
  int zero;
  KVB_DEVICE float operator()(uint32_t code) const {
    return static_cast<float>(static_cast<int>(code & 15u) - zero);
  }
};

// As AddDots, of `count` 4-bit codes, an even number; q 16-byte aligned, q_stride a multiple of 4.
template <int kQueries, typename Codes>
KVB_DEVICE void AddPackedDots(const Codes& value_of, const float* q, int q_stride,
                              const unsigned char* row, int count, float scale,
                              float (&products)[kQueries]) {
  float4 sums[kQueries];
#pragma unroll
  for (int n = 0; n < kQueries; ++n) sums[n] = make_float4(0, 0, 0, 0);
  int d = 0;
  if (reinterpret_cast<uintptr_t>(row) % 8 == 0) {
#pragma unroll 1
    for (; d + 16 <= count; d += 16, row += 8) {
      const uint2 both = *reinterpret_cast<const uint2*>(row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t codes = (i < 2 ? both.x : both.y) >> i % 2 * 16;
        const float4 k = make_float4(value_of(codes), value_of(codes >> 4), value_of(codes >> 8),
                                     value_of(codes >> 12));
#pragma unroll
        for (int n = 0; n < kQueries; ++n) {
          const float4 a = reinterpret_cast<const float4*>(q + n * q_stride + d)[i];
          sums[n].x += a.x * k.x;
          sums[n].y += a.y * k.y;
          sums[n].z += a.z * k.z;
          sums[n].w += a.w * k.w;
        }
      }
    }
  }
#pragma unroll 1
  for (; d < count; d += 2, ++row) {
    const float low = value_of(*row), high = value_of(uint32_t{*row} >> 4);
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      sums[n].x += q[n * q_stride + d] * low;
      sums[n].y += q[n * q_stride + d + 1] * high;
    }
  }
#pragma unroll
  for (int n = 0; n < kQueries; ++n) {
    products[n] += scale * ((sums[n].x + sums[n].y) + (sums[n].z + sums[n].w));
  }
}

// The products of queries with a row of packed codes or a record, without its factor.
// REQUIRES: IsPackedRow.
template <int kQueries>
KVB_DEVICE void FormatProducts(KvRowFormat format, int count, const float* q, int q_stride,
                               const unsigned char* row, const unsigned char* scales,
                               float (&products)[kQueries]) {
#pragma unroll
  for (int n = 0; n < kQueries; ++n) products[n] = 0;
  if (format == KvRowFormat::kInt4PerTokenHead) {
    return AddPackedDots<kQueries>(Int4Codes{ZeroPointOf(scales)}, q, q_stride, row, count, 1.0f,
                                   products);
  }
  if (format == KvRowFormat::kMlaV41) {
#pragma unroll 1
    for (int d = 0; d < count; d += kMxGroup) {
      AddDots<E4m3, kQueries>(q + d, q_stride, row + d, kMxGroup, 16,
                              E8m0ToFloat(scales[d / kMxGroup]), products);
    }
    return;
  }
  const int coded = format == KvRowFormat::kMlaNvfp4 ? kRecordValues : count;
#pragma unroll 1
  for (int d = 0; d < coded; d += kNvfp4GroupValues) {
    AddPackedDots<kQueries>(
        E2m1Codes(), q + d, q_stride, row + d / 2, kNvfp4GroupValues,
        E4m3::ToFloat(scales[ScaleOfGroup(format, d / kNvfp4GroupValues)]), products);
  }
  if (coded == count) return;
  AddDots<E4m3, kQueries>(q + coded, q_stride, row + kRotaryAtNvfp4Record, count - coded, 16, 1.0f,
                          products);
}

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_ROW_FORMATS_H_
