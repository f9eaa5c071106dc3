// Element types of attention tensors and what is known about each.

#ifndef KVBLOCKS_ATTENTION_TENSOR_DTYPE_H_
#define KVBLOCKS_ATTENTION_TENSOR_DTYPE_H_

#include <cstdint>

namespace kvblocks::attention {

enum class DType : uint8_t {
  kF64,  // references only
  kF32,
  kF16,
  kBF16,
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
  int8_t bytes;
  bool is_float;
  double max_finite;
};

// O(1), from a table.
const DTypeInfo& Info(DType dtype);

inline int64_t ElementBytes(DType dtype) { return Info(dtype).bytes; }
inline const char* Name(DType dtype) { return Info(dtype).name; }
// f16 or bf16, f32, f64: what queries and outputs may be computed in.
bool IsComputeType(DType dtype);
// e4m3, e5m2 or int8: cache codes that need a scale.
bool IsQuantizedCode(DType dtype);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TENSOR_DTYPE_H_
