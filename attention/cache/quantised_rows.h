// Single vectors of caches that keep scales of their own (KvRowFormat): encoding and decoding.
//
//   kPerTokenHead      D codes, int8 or e4m3. The scale is the largest finite magnitude over 127 or 448.
//                      value = code * scale.
//   kInt4PerTokenHead  D / 2 bytes, value 2i in the lower half of byte i. The scale is the width of the
//                      finite values, 0 always among them, over 15; the last four bits of its float32
//                      are the code that stands for 0 (the zero point z) instead of its own.
//                      value = (code - z) * the scale with those bits cleared.
//   kNvfp4             D / 2 bytes of e2m1 codes in the same order and D / 16 e4m3 scales, each the
//                      largest finite magnitude of 16 values over 6 and the outer scale.
//                      value = code * scale * outer scale.
//
// Float32 scales are at least 1e-6. Codes are round-to-nearest-even of value / scale (int4: + z),
// saturating, infinities too; a NaN stays one in e4m3 and becomes 0 elsewhere. A group whose e4m3 scale rounds to 0
// has codes of 0. Engines turn K, V and queries by a random Hadamard matrix before they quantise to
// int4; that is the caller's to do.
//
// Cost: O(D), no allocation; no alignment needed.

#ifndef KVBLOCKS_ATTENTION_CACHE_QUANTISED_ROWS_H_
#define KVBLOCKS_ATTENTION_CACHE_QUANTISED_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kvblocks/attention/tensor/dtype.h"
#include "kvblocks/attention/tensor/kv_layout.h"

namespace kvblocks::attention {

inline constexpr float kLeastTokenHeadScale = 1e-6f;

// Bytes of the codes and of the scales of a vector of `count` values.
constexpr int64_t CodeBytes(KvRowFormat format, int64_t count) {
  return count / ValuesPerElement(format);
}
constexpr int64_t ScaleBytes(KvRowFormat format, int64_t count) {
  return format == KvRowFormat::kNvfp4 ? count / kNvfp4GroupValues : 4;
}

// REQUIRES of all: a format other than kElements; `code` int8 or e4m3 for kPerTokenHead, ignored
// elsewhere; a count that the format packs (even, or a multiple of 16). `values` are overwritten.
void EncodeQuantisedRow(KvRowFormat format, DType code, double* values, int64_t count,
                        double outer_scale, std::byte* codes, std::byte* scales);
// Without the outer scale.
void DecodeQuantisedRow(KvRowFormat format, DType code, const std::byte* codes,
                        const std::byte* scales, int64_t count, double* out);
// The same in float32, of the packed formats; int4 is rounded once.
void DecodePackedRow(KvRowFormat format, const std::byte* codes, const std::byte* scales,
                     int64_t count, float* out);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CACHE_QUANTISED_ROWS_H_
