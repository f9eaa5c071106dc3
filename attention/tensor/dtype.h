// Element types of attention tensors and what is known about each: on the host, and in device code,
// for which this header knows no Abseil and sizes are constexpr.

#ifndef KVBLOCKS_ATTENTION_TENSOR_DTYPE_H_
#define KVBLOCKS_ATTENTION_TENSOR_DTYPE_H_

#include <cstdint>

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

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TENSOR_DTYPE_H_
