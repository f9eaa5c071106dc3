// Single vectors of caches that keep scales of their own (KvRowFormat): encoding and decoding.
//
//   kPerTokenHead      D codes, int8 or e4m3. The scale is the largest finite magnitude over 127 or
//                      448. value = code * scale.
//   kInt4PerTokenHead  D / 2 bytes, value 2i in the lower half of byte i. The scale is the width of
//                      the finite values, 0 always among them, over 15; the last four bits of its
//                      float32 are the code that stands for 0 (the zero point z) instead of its
//                      own. value = (code - z) * the scale with those bits cleared.
//   kNvfp4             D / 2 bytes of e2m1 codes in the same order and D / 16 e4m3 scales, each the
//                      largest finite magnitude of 16 values over 6 and the outer scale.
//                      value = code * scale * outer scale.
//
// Float32 scales are at least 1e-6. Codes are round-to-nearest-even of value / scale (int4: + z),
// saturating, infinities too; a NaN stays one in e4m3 and becomes 0 elsewhere. A group whose e4m3
// scale rounds to 0 has codes of 0. Engines turn K, V and queries by a random Hadamard matrix
// before they quantise to int4; that is the caller's to do.
//
// Cost: O(D), no allocation; no alignment needed.

#ifndef KVBLOCKS_ATTENTION_CACHE_QUANTISED_ROWS_H_
#define KVBLOCKS_ATTENTION_CACHE_QUANTISED_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kvblocks/device_types.h"

namespace kvblocks::attention {

inline constexpr float kLeastTokenHeadScale = 1e-6f;

// Bytes of the codes and of the scales of a vector of `count` values.
constexpr int64_t CodeBytes(KvRowFormat format, int64_t count) {
  return count / ValuesPerElement(format);
}
constexpr int64_t ScaleBytes(KvRowFormat format, int64_t count) {
  return format == KvRowFormat::kNvfp4 ? count / kNvfp4GroupValues : 4;
}

// REQUIRES of all: one of these formats; `code` int8 or e4m3 for kPerTokenHead, ignored
// elsewhere; a count that the format packs (even, or a multiple of 16). `values` are overwritten.
void EncodeQuantisedRow(KvRowFormat format, DType code, double* values, int64_t count,
                        double outer_scale, std::byte* codes, std::byte* scales);
// Without the outer scale.
void DecodeQuantisedRow(KvRowFormat format, DType code, const std::byte* codes,
                        const std::byte* scales, int64_t count, double* out);
// Of the packed formats; in float32 int4 is rounded once.
void DecodePackedRow(KvRowFormat format, const std::byte* codes, const std::byte* scales,
                     int64_t count, float* out);
void DecodePackedRow(KvRowFormat format, const std::byte* codes, const std::byte* scales,
                     int64_t count, double* out);

// 16 values as e2m1 codes of value / scale in 8 bytes; zeros if the scale is 0.
void EncodeNvfp4Group(const double* values, double scale, std::byte* codes);

// --- Single rows of the two FP8 latent caches: byte-exact encoding and exact decoding.
//
//   656  512 e4m3, then 4 float32 scales (one per 128 values), then 64 bf16 rotary values
//   584  block-planar: record `offset` of 576 bytes (448 e4m3, then 64 bf16) at offset * 576 of the
//        block, its 8 scale bytes (7 E8M0, one per 64 values, and a zero) behind all the records
//
// A tile's scale comes from the largest finite magnitude in it. Codes are round-to-nearest-even of
// x / scale, saturating; a NaN stays one. Rotary values are bf16 bits and copied. Nothing but the
// row's own bytes is touched; no alignment is needed. Cost: O(row), no allocation.

inline constexpr int64_t kMlaRotaryValues = 64;

inline constexpr int64_t kMla656Bytes = 656;
inline constexpr int64_t kMla656Values = 512;
inline constexpr int64_t kMla656TileValues = 128;
inline constexpr int64_t kMla656ScalesAt = 512;
inline constexpr int64_t kMla656RotaryAt = 528;

inline constexpr int64_t kMla584RecordBytes = 576;
inline constexpr int64_t kMla584ScaleBytes = 8;
inline constexpr int64_t kMla584Values = 448;
inline constexpr int64_t kMla584TileValues = 64;
inline constexpr int64_t kMla584RotaryAt = 448;

// max(amax / 448, smallest normal float).
float MlaTileScale(double amax);
// The byte of 2^ceil(log2(max(amax, 1e-4) / 448)): exponent + 127, within 0 to 254.
uint8_t MlaTileScaleE8M0(double amax);

// `values` 512, `rotary` 64 bf16 words, `record` 656 bytes.
void EncodeMla656(const double* values, const uint16_t* rotary, std::byte* record);
// `row` takes 576 values: 512 of code * scale, then the rotary ones.
void DecodeMla656(const std::byte* record, double* row);

// `values` 448, `rotary` 64 bf16 words; `block` is the first byte of a block of `block_size`
// tokens, 0 <= offset < block_size.
void EncodeMla584(const double* values, const uint16_t* rotary, std::byte* block,
                  int64_t block_size, int64_t offset);
// `row` takes 512 values: 448 of code * scale, then the rotary ones.
void DecodeMla584(const std::byte* block, int64_t block_size, int64_t offset, double* row);

// --- Latent records of kMlaLatent caches (KvRowFormat) in byte-exact encoding and exact decoding:
// those of DeepSeek V4.1 and the NVFP4 one of V3.2's geometry, as vLLM 0.33 and its FlashMLA have
// them.
//
//   kMlaV41     528 bytes: 512 e4m3, the last 64 of them rotary, then 16 E8M0 scales (one per 32
//               values)
//   kMlaV41Fp4  288 bytes: 512 e2m1 in 256 bytes, the last 64 of them rotary, then 32 e4m3 scales
//               (one per 16 values)
//   kMlaNvfp4   352 bytes: 512 e2m1 in 256 bytes, then 64 rotary e4m3 without a scale, then 32 e4m3
//               scales of the 512; that of values 16 s to 16 s + 15 is byte 8 (s mod 4) + s / 4
//
// Of two e2m1 codes in a byte the first is in the lower half. E8M0 scales are those of
// MlaTileScaleE8M0, e4m3 ones the largest finite magnitude / 6 within 2^-9 to 448. Codes round to
// nearest even and saturate; a NaN stays one in e4m3 and becomes 0 in e2m1. A record lies in one
// piece: its scales follow its own values. Cost: O(record), no allocation; no alignment needed.

// `values` are all MlaRecordShape::key_dim ones, compressed, then rotary.
void EncodeMlaRecord(KvRowFormat format, const double* values, std::byte* record);
void DecodeMlaRecord(KvRowFormat format, const std::byte* record, double* out);
// In float32, of codes that came as float32: rounded once per value.
void DecodeMlaRecord(KvRowFormat format, const std::byte* record, float* out);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_QUANTISED_ROWS_H_
