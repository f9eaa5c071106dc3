// Vectors of the SIMD kernels and how rows of narrower types are loaded into them. Included once
// per target by the files that are compiled for each of them.

#if defined(KVBLOCKS_ATTENTION_CPU_SIMD_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVBLOCKS_ATTENTION_CPU_SIMD_LOAD_INL_H_
#undef KVBLOCKS_ATTENTION_CPU_SIMD_LOAD_INL_H_
#else
#define KVBLOCKS_ATTENTION_CPU_SIMD_LOAD_INL_H_
#endif

#include <cstdint>

#include "attention/cpu/simd_kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvblocks::attention::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DD = hn::RepartitionToWide<DF>;
using VF = hn::Vec<DF>;
using VD = hn::Vec<DD>;
constexpr DF kF;
constexpr DD kD;
constexpr int kLanes = HWY_MAX_BYTES / sizeof(float);
static_assert(kRowPad % kLanes == 0 && kLanes >= 4);

HWY_INLINE VF LoadRow(const float* from) { return hn::LoadU(kF, from); }
HWY_INLINE VF LoadRow(const hwy::bfloat16_t* from) {
  return hn::PromoteTo(kF, hn::LoadU(hn::Rebind<hwy::bfloat16_t, DF>(), from));
}
HWY_INLINE VF LoadRow(const hwy::float16_t* from) {
#if HWY_TARGET == HWY_SSE4
  // Without an instruction for it, PromoteTo takes infinities and NaN for numbers. As FromFp8
  // below.
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto wide = hn::PromoteTo(
      du, hn::LoadU(hn::Rebind<uint16_t, DF>(), reinterpret_cast<const uint16_t*>(from)));
  const auto magnitude = hn::And(wide, hn::Set(du, 0x7fff));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const VF number = hn::Mul(hn::BitCast(kF, shifted), hn::Set(kF, 0x1p112f));
  const VF special = hn::BitCast(kF, hn::Or(shifted, hn::Set(du, 0x7f800000)));
  const auto is_special =
      hn::RebindMask(kF, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7bff)));
  const VF sign = hn::BitCast(kF, hn::ShiftLeft<16>(hn::And(wide, hn::Set(du, 0x8000))));
  return hn::Or(hn::IfThenElse(is_special, special, number), sign);
#else
  return hn::PromoteTo(kF, hn::LoadU(hn::Rebind<hwy::float16_t, DF>(), from));
#endif
}

// Codes as float32: the sign and the other bits moved to where float32 has them, which is the value
// but for the difference of the exponent biases (denormals included).
template <int kMantissaBits>
HWY_INLINE VF FromFp8(hn::Vec<hn::Rebind<uint8_t, DF>> codes) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<int8_t, DF> d8;
  constexpr int kShift = 23 - kMantissaBits;
  const auto magnitude_bits = hn::Set(di, 0x7f << kShift);
  const auto sign_extended = hn::PromoteTo(di, hn::BitCast(d8, codes));
  const auto moved =
      hn::And(hn::ShiftLeft<kShift>(sign_extended), hn::Or(magnitude_bits, hn::Set(di, INT32_MIN)));
  const VF value =
      hn::Mul(hn::BitCast(kF, moved), hn::Set(kF, kMantissaBits == 3 ? 0x1p120f : 0x1p112f));
  const auto magnitude = hn::And(moved, magnitude_bits);
  // e4m3 has one NaN and no infinity, e5m2 what IEEE types have.
  const auto is_special = kMantissaBits == 3 ? hn::Eq(magnitude, magnitude_bits)
                                             : hn::Gt(magnitude, hn::Set(di, 0x7b << kShift));
  const VF special =
      hn::BitCast(kF, hn::Or(moved, hn::Set(di, kMantissaBits == 3 ? 0x7fc00000 : 0x7f800000)));
  return hn::IfThenElse(hn::RebindMask(kF, is_special), special, value);
}

// 8-bit codes in a row.
struct E4M3 {
  uint8_t bits;
};
struct E5M2 {
  uint8_t bits;
};

HWY_INLINE VF LoadRow(const E4M3* from) {
  return FromFp8<3>(hn::LoadU(hn::Rebind<uint8_t, DF>(), &from->bits));
}
HWY_INLINE VF LoadRow(const E5M2* from) {
  return FromFp8<2>(hn::LoadU(hn::Rebind<uint8_t, DF>(), &from->bits));
}
HWY_INLINE VF LoadRow(const int8_t* from) {
  const hn::RebindToSigned<DF> di;
  return hn::ConvertTo(kF, hn::PromoteTo(di, hn::LoadU(hn::Rebind<int8_t, DF>(), from)));
}

// Calls f with a null pointer to const elements of the type.
template <typename F>
HWY_INLINE auto CallWithRowType(DType type, F f) {
  switch (type) {
    case DType::kF32:
      return f(static_cast<const float*>(nullptr));
    case DType::kBF16:
      return f(static_cast<const hwy::bfloat16_t*>(nullptr));
    case DType::kF16:
      return f(static_cast<const hwy::float16_t*>(nullptr));
    case DType::kF8E4M3:
      return f(static_cast<const E4M3*>(nullptr));
    case DType::kF8E5M2:
      return f(static_cast<const E5M2*>(nullptr));
    default:
      return f(static_cast<const int8_t*>(nullptr));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvblocks::attention::simd
HWY_AFTER_NAMESPACE();

#endif  // KVBLOCKS_ATTENTION_CPU_SIMD_LOAD_INL_H_
