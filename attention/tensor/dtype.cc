#include "kvblocks/attention/tensor/dtype.h"

#include <array>

namespace kvblocks::attention {
namespace {

constexpr std::array<DTypeInfo, kNumDTypes> kInfo = {{
    {"f64", 8, true, 1.7976931348623157e308},
    {"f32", 4, true, 3.4028234663852886e38},
    {"f16", 2, true, 65504},
    {"bf16", 2, true, 3.3895313892515355e38},
    {"f8e4m3", 1, true, 448},
    {"f8e5m2", 1, true, 57344},
    {"f8e8m0", 1, true, 1.7014118346046923e38},
    {"i8", 1, false, 127},
    {"u8", 1, false, 255},
    {"bool", 1, false, 1},
    {"i32", 4, false, 2147483647},
    {"i64", 8, false, 9223372036854775807.0},
}};

}  // namespace

const DTypeInfo& Info(DType dtype) { return kInfo[static_cast<uint8_t>(dtype)]; }

bool IsComputeType(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

bool IsQuantizedCode(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2 || dtype == DType::kI8;
}

}  // namespace kvblocks::attention
