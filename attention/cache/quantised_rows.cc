#include "kvblocks/attention/cache/quantised_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kvblocks/attention/cache/element_rows.h"
#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

constexpr uint32_t kZeroPointBits = 0xF;
constexpr double kLargestE2M1 = 6;

float TokenHeadScale(double width) {
  return static_cast<float>(std::clamp(width, static_cast<double>(kLeastTokenHeadScale),
                                       static_cast<double>(std::numeric_limits<float>::max())));
}

struct Int4Scale {
  float scale;
  int zero;

  static Int4Scale Of(uint32_t bits) {
    return {std::bit_cast<float>(bits & ~kZeroPointBits), static_cast<int>(bits & kZeroPointBits)};
  }
  uint32_t bits() const { return std::bit_cast<uint32_t>(scale) | static_cast<uint32_t>(zero); }
};

// 0 is in the range always, so that a zero point of 0 to 15 reaches every value.
Int4Scale Int4ScaleOf(const double* values, int64_t count) {
  double low = 0, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) continue;
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
  }
  // Codes are made by the scale that readers see.
  Int4Scale scale =
      Int4Scale::Of(std::bit_cast<uint32_t>(TokenHeadScale(high / 15 - low / 15)));
  scale.zero = static_cast<int>(std::clamp(std::nearbyint(-low / scale.scale), 0.0, 15.0));
  return scale;
}

uint8_t Int4Code(double value, const Int4Scale& scale) {
  if (std::isnan(value)) return static_cast<uint8_t>(scale.zero);
  return static_cast<uint8_t>(
      std::clamp(std::nearbyint(value / scale.scale + scale.zero), 0.0, 15.0));
}

std::byte Packed(uint8_t low, uint8_t high) { return static_cast<std::byte>(low | high << 4); }

// The two values of each byte of e2m1 codes.
using PairTable = std::array<std::array<float, 2>, 256>;
const PairTable& E2M1Pairs() {
  static const PairTable table = [] {
    PairTable made;
    for (int byte = 0; byte < 256; ++byte) {
      made[byte] = {static_cast<float>(E2M1ToDouble(static_cast<uint8_t>(byte & 0xF))),
                    static_cast<float>(E2M1ToDouble(static_cast<uint8_t>(byte >> 4)))};
    }
    return made;
  }();
  return table;
}

template <typename T>
void DecodePacked(KvRowFormat format, const std::byte* codes, const std::byte* scales,
                  int64_t count, T* out) {
  if (format == KvRowFormat::kInt4PerTokenHead) {
    uint32_t bits;
    std::memcpy(&bits, scales, sizeof(bits));
    const Int4Scale scale = Int4Scale::Of(bits);
    std::array<T, 16> values;
    for (int code = 0; code < 16; ++code) {
      values[code] = static_cast<T>(code - scale.zero) * static_cast<T>(scale.scale);
    }
    for (int64_t i = 0; i < count / 2; ++i) {
      const int byte = std::to_integer<int>(codes[i]);
      out[2 * i] = values[byte & 0xF];
      out[2 * i + 1] = values[byte >> 4];
    }
    return;
  }
  const PairTable& pairs = E2M1Pairs();
  for (int64_t group = 0; group < count / kNvfp4GroupValues; ++group) {
    double group_scale;
    LoadElements(DType::kF8E4M3, scales + group, 1, 1, &group_scale);
    const T scale = static_cast<T>(group_scale);
    for (int i = 0; i < kNvfp4GroupValues / 2; ++i, ++codes, out += 2) {
      const auto& pair = pairs[std::to_integer<int>(*codes)];
      out[0] = pair[0] * scale;
      out[1] = pair[1] * scale;
    }
  }
}

}  // namespace

void EncodeQuantisedRow(KvRowFormat format, DType code, double* values, int64_t count,
                        double outer_scale, std::byte* codes, std::byte* scales) {
  if (format == KvRowFormat::kPerTokenHead) {
    const double largest = code == DType::kI8 ? 127 : Info(code).max_finite;
    const float scale = TokenHeadScale(FiniteAmax(values, count) / largest);
    for (int64_t i = 0; i < count; ++i) values[i] /= scale;
    StoreElements(code, values, count, codes);
    std::memcpy(scales, &scale, sizeof(scale));
    return;
  }
  if (format == KvRowFormat::kInt4PerTokenHead) {
    const Int4Scale scale = Int4ScaleOf(values, count);
    for (int64_t i = 0; i < count / 2; ++i) {
      codes[i] = Packed(Int4Code(values[2 * i], scale), Int4Code(values[2 * i + 1], scale));
    }
    const uint32_t bits = scale.bits();
    std::memcpy(scales, &bits, sizeof(bits));
    return;
  }
  for (int64_t group = 0; group < count / kNvfp4GroupValues; ++group) {
    const double* from = values + group * kNvfp4GroupValues;
    const uint8_t code_of_scale =
        DoubleToE4M3(FiniteAmax(from, kNvfp4GroupValues) / kLargestE2M1 / outer_scale);
    const double scale = E4M3ToDouble(code_of_scale) * outer_scale;
    const auto code_of = [&](double value) {
      return scale == 0 ? uint8_t{0} : DoubleToE2M1(value / scale);
    };
    scales[group] = static_cast<std::byte>(code_of_scale);
    std::byte* to = codes + group * kNvfp4GroupValues / 2;
    for (int i = 0; i < kNvfp4GroupValues / 2; ++i) {
      to[i] = Packed(code_of(from[2 * i]), code_of(from[2 * i + 1]));
    }
  }
}

void DecodeQuantisedRow(KvRowFormat format, DType code, const std::byte* codes,
                        const std::byte* scales, int64_t count, double* out) {
  if (format != KvRowFormat::kPerTokenHead) {
    return DecodePacked(format, codes, scales, count, out);
  }
  float scale;
  std::memcpy(&scale, scales, sizeof(scale));
  LoadElements(code, codes, 1, count, out);
  for (int64_t i = 0; i < count; ++i) out[i] *= scale;
}

void DecodePackedRow(KvRowFormat format, const std::byte* codes, const std::byte* scales,
                     int64_t count, float* out) {
  DecodePacked(format, codes, scales, count, out);
}

}  // namespace kvblocks::attention
