// Single rows of the two FP8 latent caches: byte-exact encoding and exact decoding.
//
//   656  512 e4m3, then 4 float32 scales (one per 128 values), then 64 bf16 rotary values
//   584  block-planar: record `offset` of 576 bytes (448 e4m3, then 64 bf16) at offset * 576 of the
//        block, its 8 scale bytes (7 E8M0, one per 64 values, and a zero) behind all the records
//
// A tile's scale comes from the largest finite magnitude in it. Codes are round-to-nearest-even of
// x / scale, saturating; a NaN stays one. Rotary values are bf16 bits and copied. Nothing but the
// row's own bytes is touched; no alignment is needed. Cost: O(row), no allocation.

#ifndef KVBLOCKS_ATTENTION_CACHE_MLA_FP8_ROWS_H_
#define KVBLOCKS_ATTENTION_CACHE_MLA_FP8_ROWS_H_

#include <cstddef>
#include <cstdint>

namespace kvblocks::attention {

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

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_MLA_FP8_ROWS_H_
