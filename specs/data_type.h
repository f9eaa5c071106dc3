// What one stored element of a KV cache is, and how the stored values were quantised.
//
// A cache is described by the pair (storage type, quantisation mode). Engines name the pair by one
// option string, the "cache dtype"; ParseCacheDtype turns it into the pair. e4m3 and e5m2 have the
// same layout and differ for kernels only.

#ifndef KVBLOCKS_SPECS_DATA_TYPE_H_
#define KVBLOCKS_SPECS_DATA_TYPE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvblocks {

enum class DataType { kBFloat16, kFloat16, kFloat32, kUint8, kInt8, kFp8E4m3, kFp8E5m2 };

enum class QuantMode {
  kNone,              // values as the storage type says
  kFp8PerTensor,      // one scale per tensor, kept with the layer
  kInt8PerTokenHead,  // one fp32 scale per (token, head) for K and one for V, inside the page
  kFp8PerTokenHead,   // the same scales
  kInt4PerTokenHead,  // the same scales; two values per byte
  kNvfp4,             // two values per byte and one scale byte per 16 values, inside the row
  kFp8DsMla,          // DeepSeek's own row format, MLA only
  kNvfp4DsMla,        // the same in 4 bits: two values per byte, scale bytes inside the row
};

// Bytes of one stored element.
int64_t ElementBytes(DataType type);

// Whether rows are DeepSeek's own, which MLA kinds alone have.
constexpr bool IsDsMla(QuantMode mode) {
  return mode == QuantMode::kFp8DsMla || mode == QuantMode::kNvfp4DsMla;
}

// Whether fp32 scales per (token, head) are kept inside the page.
bool HasPerTokenHeadScales(QuantMode mode);

// "bf16", "fp16", "fp32", "uint8", "int8", "fp8_e4m3", "fp8_e5m2".
std::string_view DataTypeName(DataType type);
// "none", "fp8_per_tensor", and for the other modes the option string that selects them.
std::string_view QuantModeName(QuantMode mode);

// The reverse of the names; also the long forms "bfloat16", "float16" and "half", "float32" and
// "float".
absl::StatusOr<DataType> ParseDataType(std::string_view name);
absl::StatusOr<QuantMode> ParseQuantMode(std::string_view name);

// The mode that a cache-dtype option string selects. Exact names are matched before the prefix
// "fp8"; every other string selects kNone.
QuantMode QuantModeOfOption(std::string_view option);

struct CacheDtype {
  DataType storage;
  QuantMode mode;

  friend bool operator==(const CacheDtype&, const CacheDtype&) = default;
};

// Storage type and mode for an option string; "auto" stores what the model computes in. A string
// that names neither a mode nor a data type is refused: a typing error must not silently double the
// cache.
absl::StatusOr<CacheDtype> ParseCacheDtype(std::string_view option, DataType model_dtype);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_DATA_TYPE_H_
