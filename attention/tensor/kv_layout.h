// KvLayout: how a KV cache lies in memory; cache/kv_cache_view.h says what each one means.
//
// As dtype.h without Abseil, so that device code includes it, too: hosts and kernels count layouts
// and element types by the same enums.

#ifndef KVBLOCKS_ATTENTION_TENSOR_KV_LAYOUT_H_
#define KVBLOCKS_ATTENTION_TENSOR_KV_LAYOUT_H_

#include <cstdint>

namespace kvblocks::attention {

enum class KvLayout : uint8_t {
  kPagedX,
  kNhd,
  kHnd,
  kMlaLatent,
  kMlaSplit,
  kMlaFp8_656,
  kMlaFp8_584,
};
const char* Name(KvLayout layout);  // "paged_x", "nhd", "hnd", "mla_latent", ...

// What the vectors of a cache are: of kNhd and kHnd, the K or V of one token and head, in
// cache/quantised_rows.h, of kMlaLatent, records of bytes, also there.
enum class KvRowFormat : uint8_t {
  kElements,          // values of the cache's type, or codes whose scales are outside (KvScales)
  kPerTokenHead,      // int8 or e4m3 codes, one float32 scale per vector in the cache
  kInt4PerTokenHead,  // two 4-bit codes per byte, the same scale with a zero point in its last bits
  kNvfp4,             // two e2m1 codes per byte, one e4m3 scale per 16 in the cache, one outside
  // Latent records:
  kMlaV41,     // DeepSeek V4.1: 528 bytes, e4m3
  kMlaV41Fp4,  // its compressed tokens: 288 bytes, e2m1
  kMlaNvfp4,   // of DeepSeek V3.2's geometry: 352 bytes, e2m1 and rotary e4m3
};
inline constexpr int kNumKvRowFormats = 7;
constexpr bool IsMlaRecord(KvRowFormat format) { return format >= KvRowFormat::kMlaV41; }

// What a latent record measures; V is its first value_dim values.
struct MlaRecordShape {
  int64_t bytes, key_dim, value_dim;
  int64_t compressed;  // values before the 64 rotary ones
};
// REQUIRES: IsMlaRecord.
constexpr MlaRecordShape ShapeOf(KvRowFormat format) {
  switch (format) {
    case KvRowFormat::kMlaV41:
      return {528, 512, 512, 448};
    case KvRowFormat::kMlaV41Fp4:
      return {288, 512, 512, 448};
    default:
      return {352, 576, 512, 512};
  }
}
const char* Name(KvRowFormat format);  // "elements", "per_token_head", ...

inline constexpr int kNvfp4GroupValues = 16;
constexpr int ValuesPerElement(KvRowFormat format) {
  return format == KvRowFormat::kInt4PerTokenHead || format == KvRowFormat::kNvfp4 ? 2 : 1;
}

constexpr bool IsMla(KvLayout layout) { return layout >= KvLayout::kMlaLatent; }
// Whether strides say all: a row's elements follow each other, blocks, tokens and heads lie anywhere.
constexpr bool IsStrided(KvLayout layout) {
  return layout == KvLayout::kNhd || layout == KvLayout::kHnd;
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TENSOR_KV_LAYOUT_H_
