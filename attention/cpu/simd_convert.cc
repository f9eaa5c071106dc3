// For the same targets as simd_kernels.cc.
#if defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#define HWY_BASELINE_TARGETS HWY_SSE4
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/simd_convert.cc"
// clang-format off: before whatever is compiled for each target.
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format on
#include <cstring>
#include <type_traits>

#include "attention/cpu/simd_kernels.h"
#include "attention/cpu/simd_load-inl.h"
#include "attention/tensor/small_floats.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvblocks::attention::simd {
namespace HWY_NAMESPACE {

template <typename T>
HWY_INLINE void ConvertVectors(const std::byte* source, int64_t n, float* out) {
  int64_t d = 0;
  const T* from = reinterpret_cast<const T*>(source);
  for (; d + kLanes <= n; d += kLanes) hn::StoreU(LoadRow(from + d), kF, out + d);
  if (d < n) {
    alignas(64) T rest[kLanes] = {};
    std::memcpy(rest, from + d, static_cast<size_t>(n - d) * sizeof(T));
    hn::StoreU(LoadRow(rest), kF, out + d);
    d += kLanes;
  }
  for (const int64_t end = Padded(n); d < end; d += kLanes) hn::StoreU(hn::Zero(kF), kF, out + d);
}

void ConvertRowImpl(DType from, const std::byte* source, int64_t n, float* out) {
  if (IsRowType(from)) {
    return CallWithRowType(from, [&](auto* null) HWY_ATTR {
      ConvertVectors<std::remove_const_t<std::remove_pointer_t<decltype(null)>>>(source, n, out);
    });
  }
  for (int64_t d = 0; d < Padded(n); ++d) {
    out[d] = d < n ? static_cast<float>(LoadElement(from, source + d * ElementBytes(from))) : 0;
  }
}

template <typename T>
HWY_INLINE void ConvertSixteenColumnsOf(const std::byte* source, int64_t stride, int64_t n,
                                        float* out, int64_t row_floats) {
  // Square pieces of 16 by 16, transposed by squares of 4 by 4.
  alignas(64) float piece[16 * 16];
  const hn::CappedTag<float, 4> d4;
  const hn::CappedTag<double, 2> d2;
  const auto pairs = [&](auto v) HWY_ATTR { return hn::BitCast(d2, v); };
  for (int64_t first = 0; first < n; first += 16) {
    for (int64_t d = 0; d < 16; ++d) {
      for (int64_t row = 0; row < 16; row += kLanes) {
        const T* from = reinterpret_cast<const T*>(source + (first + d) * stride) + row;
        hn::Store(first + d < n ? LoadRow(from) : hn::Zero(kF), kF, piece + 16 * d + row);
      }
    }
    for (int64_t d = 0; d < 16; d += 4) {
      for (int64_t row = 0; row < 16; row += 4) {
        const float* from = piece + 16 * d + row;
        const auto a = hn::Load(d4, from), b = hn::Load(d4, from + 16);
        const auto c = hn::Load(d4, from + 32), e = hn::Load(d4, from + 48);
        const auto ab01 = pairs(hn::InterleaveLower(d4, a, b));
        const auto ab23 = pairs(hn::InterleaveUpper(d4, a, b));
        const auto ce01 = pairs(hn::InterleaveLower(d4, c, e));
        const auto ce23 = pairs(hn::InterleaveUpper(d4, c, e));
        float* to = out + row * row_floats + first + d;
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab01, ce01)), d4, to);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab01, ce01)), d4, to + row_floats);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, ab23, ce23)), d4, to + 2 * row_floats);
        hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, ab23, ce23)), d4, to + 3 * row_floats);
      }
    }
  }
}

void ConvertSixteenColumnsImpl(DType from, const std::byte* source, int64_t stride, int64_t n,
                               float* out, int64_t row_floats) {
  CallWithRowType(from, [&](auto* null) HWY_ATTR {
    using Element = std::remove_const_t<std::remove_pointer_t<decltype(null)>>;
    ConvertSixteenColumnsOf<Element>(source, stride, n, out, row_floats);
  });
}

HWY_INLINE void RoundToBF16(const float* source, int64_t n, std::byte* out) {
  for (int64_t d = 0; d < n; ++d) {
    uint32_t bits;
    std::memcpy(&bits, source + d, sizeof(bits));
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint16_t half = static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : rounded);
    std::memcpy(out + 2 * d, &half, sizeof(half));
  }
}

HWY_INLINE void RoundToF16(const float* source, int64_t n, std::byte* out) {
  int64_t d = 0;
#if HWY_TARGET != HWY_SSE4  // which has no instruction for it
  const hn::Rebind<hwy::float16_t, DF> narrow;
  for (; d + kLanes <= n; d += kLanes) {
    hn::StoreU(hn::DemoteTo(narrow, hn::LoadU(kF, source + d)), narrow,
               reinterpret_cast<hwy::float16_t*>(out) + d);
  }
#endif
  for (; d < n; ++d) StoreElement(DType::kF16, source[d], out + 2 * d);
}

void RoundRowImpl(DType to, const float* source, int64_t n, std::byte* out) {
  if (to == DType::kF32) {
    std::memcpy(out, source, static_cast<size_t>(n) * sizeof(float));
  } else if (to == DType::kBF16) {
    RoundToBF16(source, n, out);
  } else if (to == DType::kF16) {
    RoundToF16(source, n, out);
  } else {
    for (int64_t d = 0; d < n; ++d) StoreElement(to, source[d], out + d * ElementBytes(to));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvblocks::attention::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace kvblocks::attention::simd {

HWY_EXPORT(ConvertRowImpl);
HWY_EXPORT(ConvertSixteenColumnsImpl);
HWY_EXPORT(RoundRowImpl);

void ConvertRow(DType from, const std::byte* source, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(ConvertRowImpl)(from, source, n, out);
}
void ConvertSixteenColumns(DType from, const std::byte* source, int64_t stride, int64_t n,
                           float* out, int64_t row_floats) {
  HWY_DYNAMIC_DISPATCH(ConvertSixteenColumnsImpl)(from, source, stride, n, out, row_floats);
}
void RoundRow(DType to, const float* source, int64_t n, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(RoundRowImpl)(to, source, n, out);
}

}  // namespace kvblocks::attention::simd

#endif  // HWY_ONCE
