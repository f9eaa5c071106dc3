#include "kvblocks/specs/spec_checks.h"

#include <string>

namespace kvblocks {

absl::Status CheckStorage(DataType dtype, QuantMode mode, bool mla) {
  if (mode == QuantMode::kFp8DsMla && !mla) {
    return FieldError("quant_mode", "fp8_ds_mla", "a mode that stores K and V",
                      "only MLA kinds have this row format");
  }
  if (mode != QuantMode::kNone && ElementBytes(dtype) != 1) {
    return FieldError("dtype", std::string(DataTypeName(dtype)),
                      "uint8, int8, fp8_e4m3 or fp8_e5m2",
                      "quant_mode " + std::string(QuantModeName(mode)) + " stores bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckCompression(int64_t block_size, int64_t compress_ratio) {
  absl::Status status = CheckPositive("block_size", block_size);
  status.Update(CheckPositive("compress_ratio", compress_ratio));
  if (status.ok() && block_size % compress_ratio != 0) {
    return FieldError("compress_ratio", std::to_string(compress_ratio),
                      "a divisor of block_size " + std::to_string(block_size));
  }
  return status;
}

}  // namespace kvblocks
