// What kernels and the host share: data types, layouts, error bits. No Abseil in here.

#ifndef KVBLOCKS_DEVICE_TYPES_H_
#define KVBLOCKS_DEVICE_TYPES_H_

#include <cstdint>

// Element types of attention tensors and what is known about each: on the host, and in device code,
// for which this header knows no Abseil and sizes are constexpr.

namespace kvblocks::attention {

enum class DType : uint8_t {
  // What can be computed in.
  kF64,  // references only
  kF32,
  kF16,
  kBF16,
  // Codes and indices.
  kF8E4M3,  // OCP "fn": largest 448, one NaN pattern per sign, no infinity
  kF8E5M2,  // largest finite 57344, has infinities
  kF8E8M0,  // a scale byte b: 2^(b - 127); 255 is NaN
  kI8,
  kU8,  // opaque bytes
  kBool,
  kI32,
  kI64,
};
inline constexpr int kNumDTypes = 12;

struct DTypeInfo {
  const char* name;  // "f32", "bf16", "f8e4m3", ...
  bool is_float;
  double max_finite;
};

// O(1), from a table.
const DTypeInfo& Info(DType dtype);

inline const char* Name(DType dtype) { return Info(dtype).name; }

constexpr int64_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    default:
      return 1;
  }
}
// f16 or bf16, f32, f64: what queries and outputs may be computed in.
constexpr bool IsComputeType(DType dtype) { return dtype <= DType::kBF16; }
// e4m3, e5m2 or int8: cache codes that need a scale.
constexpr bool IsQuantizedCode(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kI8;
}

// KvLayout: how a KV cache lies in memory; cache/kv_cache_view.h says what each one means.
//
// Without Abseil, so that device code includes it, too: hosts and kernels count layouts
// and element types by the same enums.

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
// Whether strides say all: a row's elements follow each other, blocks, tokens and heads lie
// anywhere.
constexpr bool IsStrided(KvLayout layout) {
  return layout == KvLayout::kNhd || layout == KvLayout::kHnd;
}

// What kernels report about indices that only the device sees. Plain C++, for kernels, too.

// What a launch found wrong with indices that only the device sees. Bits are OR-ed, never cleared
// by operations.
enum DeviceErrorBit : uint32_t {
  kBadSlot = 1u << 0,          // a slot outside the cache: the store was skipped
  kBadBlock = 1u << 1,         // a block id outside the cache: its keys were invisible
  kBadIndex = 1u << 2,         // a sparse index outside the capacity: ignored
  kBadScale = 1u << 3,         // a scale that is not finite and positive
  kMergeOfInfinity = 1u << 4,  // a state with an LSE of +infinity: taken as empty
  kNonFiniteInput = 1u << 5,   // left out of a maximum, or a NaN ranked in a selection
  kLengthClamped = 1u << 6,    // a length beyond what the block table covers
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_DEVICE_TYPES_H_
