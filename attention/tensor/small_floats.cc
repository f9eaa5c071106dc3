#include "attention/tensor/small_floats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvblocks::attention {
namespace {

// A binary format with a sign bit, kExponentBits and kMantissaBits.
template <int kExponentBits, int kMantissaBits>
struct Format {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kExponentMask = (1 << kExponentBits) - 1;
  static constexpr int kMantissaMask = (1 << kMantissaBits) - 1;
  static constexpr int kSignShift = kExponentBits + kMantissaBits;

  // Ignores that the largest exponent may mean infinity and NaN.
  static double ToDouble(unsigned bits) {
    const int exponent = (bits >> kMantissaBits) & kExponentMask;
    const int mantissa = bits & kMantissaMask;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - kBias - kMantissaBits)
                                           : std::ldexp(mantissa + (1 << kMantissaBits),
                                                        exponent - kBias - kMantissaBits);
    return (bits >> kSignShift) & 1 ? -magnitude : magnitude;
  }

  // The bits of a finite magnitude, rounded to nearest even; may run over into the codes above the
  // largest finite number, which the caller has to look at.
  static unsigned RoundMagnitude(double magnitude) {
    if (magnitude == 0) return 0;
    const int exponent = std::max(std::ilogb(magnitude), 1 - kBias);
    // In units of the last place; a double holds it exactly.
    const double units = std::nearbyint(std::ldexp(magnitude, kMantissaBits - exponent));
    // A mantissa that rounds up to the next power of two carries into the exponent by itself.
    return static_cast<unsigned>(units) +
           (static_cast<unsigned>(exponent + kBias - 1) << kMantissaBits);
  }
};

using F16 = Format<5, 10>;
using BF16 = Format<8, 7>;
using E4M3 = Format<4, 3>;
using E5M2 = Format<5, 2>;
using E2M1 = Format<2, 1>;

unsigned SignOf(double value) { return std::signbit(value) ? 1 : 0; }

template <typename F>
double IeeeToDouble(unsigned bits) {
  if (((bits / (F::kMantissaMask + 1)) & F::kExponentMask) == F::kExponentMask) {
    if (bits & F::kMantissaMask) return std::numeric_limits<double>::quiet_NaN();
    const double infinity = std::numeric_limits<double>::infinity();
    return (bits >> F::kSignShift) & 1 ? -infinity : infinity;
  }
  return F::ToDouble(bits);
}

template <typename F>
unsigned DoubleToIeee(double value) {
  const unsigned infinity = F::kExponentMask * (F::kMantissaMask + 1);
  const unsigned sign = SignOf(value) << F::kSignShift;
  if (std::isnan(value)) return sign | infinity | (F::kMantissaMask / 2 + 1);
  if (std::isinf(value) || std::abs(value) > std::ldexp(1.0, F::kBias + 1)) return sign | infinity;
  return sign | std::min(F::RoundMagnitude(std::abs(value)), infinity);
}

template <typename T>
T Read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void Write(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(T));
}

template <typename T>
void WriteInteger(double value, std::byte* to) {
  T result = 0;
  if (!std::isnan(value)) {
    const double rounded = std::nearbyint(value);
    if (rounded >= static_cast<double>(std::numeric_limits<T>::max())) {
      result = std::numeric_limits<T>::max();
    } else if (rounded <= static_cast<double>(std::numeric_limits<T>::min())) {
      result = std::numeric_limits<T>::min();
    } else {
      result = static_cast<T>(rounded);
    }
  }
  Write(result, to);
}

}  // namespace

double F16ToDouble(uint16_t bits) { return IeeeToDouble<F16>(bits); }
double BF16ToDouble(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
double E4M3ToDouble(uint8_t bits) {
  return (bits & 0x7F) == 0x7F ? std::numeric_limits<double>::quiet_NaN() : E4M3::ToDouble(bits);
}
double E5M2ToDouble(uint8_t bits) { return IeeeToDouble<E5M2>(bits); }
double E8M0ToDouble(uint8_t bits) {
  return bits == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, bits - 127);
}

double E2M1ToDouble(uint8_t bits) { return E2M1::ToDouble(bits & 0xF); }

uint16_t DoubleToF16(double value) { return DoubleToIeee<F16>(value); }
uint16_t DoubleToBF16(double value) { return DoubleToIeee<BF16>(value); }

uint8_t DoubleToE4M3(double value) {
  const unsigned sign = SignOf(value) << 7;
  if (std::isnan(value)) return sign | 0x7F;
  if (std::abs(value) >= 448) return sign | 0x7E;
  return sign | std::min(E4M3::RoundMagnitude(std::abs(value)), 0x7Eu);
}

uint8_t DoubleToE5M2(double value) {
  const unsigned sign = SignOf(value) << 7;
  if (std::isnan(value)) return sign | 0x7E;
  if (std::abs(value) >= 57344) return sign | 0x7B;
  return sign | std::min(E5M2::RoundMagnitude(std::abs(value)), 0x7Bu);
}

uint8_t DoubleToE2M1(double value) {
  if (std::isnan(value)) return 0;
  const unsigned sign = SignOf(value) << 3;
  if (std::abs(value) >= 6) return sign | 7;
  return sign | std::min(E2M1::RoundMagnitude(std::abs(value)), 7u);
}

int8_t DoubleToInt8Code(double value) {
  if (std::isnan(value)) return 0;
  return static_cast<int8_t>(std::clamp(std::nearbyint(value), -127.0, 127.0));
}

double LoadElement(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::kF64:
      return Read<double>(from);
    case DType::kF32:
      return Read<float>(from);
    case DType::kF16:
      return F16ToDouble(Read<uint16_t>(from));
    case DType::kBF16:
      return BF16ToDouble(Read<uint16_t>(from));
    case DType::kF8E4M3:
      return E4M3ToDouble(Read<uint8_t>(from));
    case DType::kF8E5M2:
      return E5M2ToDouble(Read<uint8_t>(from));
    case DType::kF8E8M0:
      return E8M0ToDouble(Read<uint8_t>(from));
    case DType::kI8:
      return Read<int8_t>(from);
    case DType::kU8:
      return Read<uint8_t>(from);
    case DType::kBool:
      return Read<uint8_t>(from) != 0;
    case DType::kI32:
      return Read<int32_t>(from);
    case DType::kI64:
      return static_cast<double>(Read<int64_t>(from));
  }
  return 0;
}

void StoreElement(DType dtype, double value, std::byte* to) {
  switch (dtype) {
    case DType::kF64:
      return Write(value, to);
    case DType::kF32:
      return Write(static_cast<float>(value), to);
    case DType::kF16:
      return Write(DoubleToF16(value), to);
    case DType::kBF16:
      return Write(DoubleToBF16(value), to);
    case DType::kF8E4M3:
      return Write(DoubleToE4M3(value), to);
    case DType::kF8E5M2:
      return Write(DoubleToE5M2(value), to);
    case DType::kF8E8M0: {
      // Powers of two only: the nearest in exponent, as writers of scales have already rounded.
      if (!(value > 0)) return Write(uint8_t{255}, to);
      // The exponent of infinity is the largest int.
      return Write(static_cast<uint8_t>(std::clamp(std::ilogb(value), -127, 127) + 127), to);
    }
    case DType::kI8:
      return WriteInteger<int8_t>(value, to);
    case DType::kU8:
      return WriteInteger<uint8_t>(value, to);
    case DType::kBool:
      return Write(static_cast<uint8_t>(value != 0), to);
    case DType::kI32:
      return WriteInteger<int32_t>(value, to);
    case DType::kI64:
      return WriteInteger<int64_t>(value, to);
  }
}

}  // namespace kvblocks::attention
