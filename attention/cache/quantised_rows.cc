#include "attention/cache/quantised_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/cache/element_rows.h"
#include "attention/tensor/small_floats.h"

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
  Int4Scale scale = Int4Scale::Of(std::bit_cast<uint32_t>(TokenHeadScale(high / 15 - low / 15)));
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
    scales[group] = static_cast<std::byte>(code_of_scale);
    EncodeNvfp4Group(from, E4M3ToDouble(code_of_scale) * outer_scale,
                     codes + group * kNvfp4GroupValues / 2);
  }
}

void EncodeNvfp4Group(const double* values, double scale, std::byte* codes) {
  const auto code_of = [&](double value) {
    return scale == 0 ? uint8_t{0} : DoubleToE2M1(value / scale);
  };
  for (int i = 0; i < kNvfp4GroupValues / 2; ++i) {
    codes[i] = Packed(code_of(values[2 * i]), code_of(values[2 * i + 1]));
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
void DecodePackedRow(KvRowFormat format, const std::byte* codes, const std::byte* scales,
                     int64_t count, double* out) {
  DecodePacked(format, codes, scales, count, out);
}

namespace {

// Values of e4m3 codes in tiles, each with a scale behind which nothing else of the row lies.
struct TiledValues {
  int64_t num_values, tile_values;
  bool float_scales;  // else E8M0

  int64_t scale_bytes() const { return float_scales ? sizeof(float) : 1; }
};
constexpr TiledValues kTiles656 = {kMla656Values, kMla656TileValues, true};
constexpr TiledValues kTiles584 = {kMla584Values, kMla584TileValues, false};
constexpr TiledValues kTilesV41 = {512, 32, false};

void EncodeTiles(const TiledValues& tiles, const double* values, std::byte* codes,
                 std::byte* scales) {
  double scaled[kMla656TileValues];
  for (int64_t at = 0; at < tiles.num_values; at += tiles.tile_values) {
    const double amax = FiniteAmax(values + at, tiles.tile_values);
    const float float_scale = MlaTileScale(amax);
    const uint8_t e8m0 = MlaTileScaleE8M0(amax);
    const double scale = tiles.float_scales ? float_scale : E8M0ToDouble(e8m0);
    for (int64_t i = 0; i < tiles.tile_values; ++i) scaled[i] = values[at + i] / scale;
    StoreElements(DType::kF8E4M3, scaled, tiles.tile_values, codes + at);
    if (tiles.float_scales) std::memcpy(scales, &float_scale, sizeof(float_scale));
    if (!tiles.float_scales) *scales = std::byte{e8m0};
    scales += tiles.scale_bytes();
  }
}

template <typename T>
void DecodeTiles(const TiledValues& tiles, const std::byte* codes, const std::byte* scales,
                 T* values) {
  double row[kMla656Values];
  LoadElements(DType::kF8E4M3, codes, 1, tiles.num_values, row);
  for (int64_t at = 0; at < tiles.num_values; at += tiles.tile_values) {
    double scale;
    LoadElements(tiles.float_scales ? DType::kF32 : DType::kF8E8M0, scales, 1, 1, &scale);
    scales += tiles.scale_bytes();
    for (int64_t i = at; i < at + tiles.tile_values; ++i) {
      values[i] = static_cast<T>(row[i] * scale);
    }
  }
}

void DecodeRotary(const std::byte* words, double* values) {
  LoadElements(DType::kBF16, words, 1, kMlaRotaryValues, values);
}

int64_t ScalesAt584(int64_t block_size, int64_t offset) {
  return block_size * kMla584RecordBytes + offset * kMla584ScaleBytes;
}

}  // namespace

float MlaTileScale(double amax) {
  return static_cast<float>(std::clamp(amax / 448,
                                       static_cast<double>(std::numeric_limits<float>::min()),
                                       static_cast<double>(std::numeric_limits<float>::max())));
}

uint8_t MlaTileScaleE8M0(double amax) {
  // amax = f * 2^e with 0.5 <= f < 1, and 448 = 0.875 * 2^9: comparing mantissas keeps the rounding
  // of a logarithm from deciding which power of two is the next one up.
  int exponent;
  const double fraction = std::frexp(std::max(amax, 1e-4), &exponent);
  exponent -= fraction <= 0.875 ? 9 : 8;
  return static_cast<uint8_t>(std::clamp(exponent + 127, 0, 254));
}

void EncodeMla656(const double* values, const uint16_t* rotary, std::byte* record) {
  EncodeTiles(kTiles656, values, record, record + kMla656ScalesAt);
  std::memcpy(record + kMla656RotaryAt, rotary, kMlaRotaryValues * sizeof(uint16_t));
}

void DecodeMla656(const std::byte* record, double* row) {
  DecodeTiles(kTiles656, record, record + kMla656ScalesAt, row);
  DecodeRotary(record + kMla656RotaryAt, row + kMla656Values);
}

void EncodeMla584(const double* values, const uint16_t* rotary, std::byte* block,
                  int64_t block_size, int64_t offset) {
  std::byte* const record = block + offset * kMla584RecordBytes;
  std::byte* const scales = block + ScalesAt584(block_size, offset);
  EncodeTiles(kTiles584, values, record, scales);
  scales[kMla584Values / kMla584TileValues] = std::byte{0};
  std::memcpy(record + kMla584RotaryAt, rotary, kMlaRotaryValues * sizeof(uint16_t));
}

void DecodeMla584(const std::byte* block, int64_t block_size, int64_t offset, double* row) {
  const std::byte* const record = block + offset * kMla584RecordBytes;
  DecodeTiles(kTiles584, record, block + ScalesAt584(block_size, offset), row);
  DecodeRotary(record + kMla584RotaryAt, row + kMla584Values);
}

namespace {

constexpr int kValues = 512;  // with a scale
constexpr int kScalesAtV41 = 512;
constexpr int kScalesAtV41Fp4 = 256;
constexpr int kRotaryAtNvfp4 = 256, kScalesAtNvfp4 = 320;
constexpr int kGroups = kValues / kNvfp4GroupValues;

// Where the e4m3 scale of a group lies in a record of e2m1 codes.
int ScaleAt(KvRowFormat format, int group) {
  return format == KvRowFormat::kMlaV41Fp4 ? kScalesAtV41Fp4 + group
                                           : kScalesAtNvfp4 + 8 * (group % 4) + group / 4;
}

template <typename T>
void Decode(KvRowFormat format, const std::byte* record, T* out) {
  if (format == KvRowFormat::kMlaV41) {
    return DecodeTiles(kTilesV41, record, record + kScalesAtV41, out);
  }
  std::byte scales[kGroups];
  for (int group = 0; group < kGroups; ++group) scales[group] = record[ScaleAt(format, group)];
  DecodePackedRow(KvRowFormat::kNvfp4, record, scales, kValues, out);
  if (format == KvRowFormat::kMlaV41Fp4) return;
  double rotary[kMlaRotaryValues];
  LoadElements(DType::kF8E4M3, record + kRotaryAtNvfp4, 1, kMlaRotaryValues, rotary);
  std::copy_n(rotary, kMlaRotaryValues, out + kValues);
}

}  // namespace

void EncodeMlaRecord(KvRowFormat format, const double* values, std::byte* record) {
  if (format == KvRowFormat::kMlaV41) {
    EncodeTiles(kTilesV41, values, record, record + kScalesAtV41);
    return;
  }
  for (int group = 0; group < kGroups; ++group) {
    const double* of = values + group * kNvfp4GroupValues;
    const uint8_t scale =
        DoubleToE4M3(std::clamp(FiniteAmax(of, kNvfp4GroupValues) / 6, 0x1p-9, 448.0));
    record[ScaleAt(format, group)] = static_cast<std::byte>(scale);
    EncodeNvfp4Group(of, E4M3ToDouble(scale), record + group * kNvfp4GroupValues / 2);
  }
  if (format == KvRowFormat::kMlaNvfp4) {
    StoreElements(DType::kF8E4M3, values + kValues, kMlaRotaryValues, record + kRotaryAtNvfp4);
  }
}

void DecodeMlaRecord(KvRowFormat format, const std::byte* record, double* out) {
  Decode(format, record, out);
}
void DecodeMlaRecord(KvRowFormat format, const std::byte* record, float* out) {
  Decode(format, record, out);
}

}  // namespace kvblocks::attention
