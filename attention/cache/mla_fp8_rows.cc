#include "kvblocks/attention/cache/mla_fp8_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kvblocks/attention/cache/element_rows.h"
#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

void EncodeTile(const double* values, int64_t count, double scale, std::byte* codes) {
  double scaled[kMla656TileValues];
  for (int64_t i = 0; i < count; ++i) scaled[i] = values[i] / scale;
  StoreElements(DType::kF8E4M3, scaled, count, codes);
}

void DecodeTile(const std::byte* codes, int64_t count, double scale, double* values) {
  LoadElements(DType::kF8E4M3, codes, 1, count, values);
  for (int64_t i = 0; i < count; ++i) values[i] *= scale;
}

void DecodeRotary(const std::byte* words, double* values) {
  LoadElements(DType::kBF16, words, 1, kMlaRotaryValues, values);
}

std::byte* ScalesOf584(std::byte* block, int64_t block_size, int64_t offset) {
  return block + block_size * kMla584RecordBytes + offset * kMla584ScaleBytes;
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
  for (int64_t tile = 0; tile < kMla656Values / kMla656TileValues; ++tile) {
    const double* tile_values = values + tile * kMla656TileValues;
    const float scale = MlaTileScale(FiniteAmax(tile_values, kMla656TileValues));
    EncodeTile(tile_values, kMla656TileValues, scale, record + tile * kMla656TileValues);
    std::memcpy(record + kMla656ScalesAt + tile * sizeof(float), &scale, sizeof(float));
  }
  std::memcpy(record + kMla656RotaryAt, rotary, kMlaRotaryValues * sizeof(uint16_t));
}

void DecodeMla656(const std::byte* record, double* row) {
  for (int64_t tile = 0; tile < kMla656Values / kMla656TileValues; ++tile) {
    float scale;
    std::memcpy(&scale, record + kMla656ScalesAt + tile * sizeof(float), sizeof(float));
    DecodeTile(record + tile * kMla656TileValues, kMla656TileValues, scale,
               row + tile * kMla656TileValues);
  }
  DecodeRotary(record + kMla656RotaryAt, row + kMla656Values);
}

void EncodeMla584(const double* values, const uint16_t* rotary, std::byte* block,
                  int64_t block_size, int64_t offset) {
  std::byte* record = block + offset * kMla584RecordBytes;
  std::byte* scales = ScalesOf584(block, block_size, offset);
  for (int64_t tile = 0; tile < kMla584Values / kMla584TileValues; ++tile) {
    const double* tile_values = values + tile * kMla584TileValues;
    const uint8_t scale = MlaTileScaleE8M0(FiniteAmax(tile_values, kMla584TileValues));
    EncodeTile(tile_values, kMla584TileValues, E8M0ToDouble(scale),
               record + tile * kMla584TileValues);
    scales[tile] = std::byte{scale};
  }
  scales[kMla584Values / kMla584TileValues] = std::byte{0};
  std::memcpy(record + kMla584RotaryAt, rotary, kMlaRotaryValues * sizeof(uint16_t));
}

void DecodeMla584(const std::byte* block, int64_t block_size, int64_t offset, double* row) {
  const std::byte* record = block + offset * kMla584RecordBytes;
  const std::byte* scales = ScalesOf584(const_cast<std::byte*>(block), block_size, offset);
  for (int64_t tile = 0; tile < kMla584Values / kMla584TileValues; ++tile) {
    DecodeTile(record + tile * kMla584TileValues, kMla584TileValues,
               E8M0ToDouble(std::to_integer<uint8_t>(scales[tile])),
               row + tile * kMla584TileValues);
  }
  DecodeRotary(record + kMla584RotaryAt, row + kMla584Values);
}

}  // namespace kvblocks::attention
