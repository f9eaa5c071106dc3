#include "specs/page_bytes.h"

#include <string>

#include "specs/field_error.h"

namespace kvblocks {

CheckedInt64 VectorBytes(int64_t head_size, DataType dtype, QuantMode mode) {
  switch (mode) {
    case QuantMode::kInt4PerTokenHead:
      return CheckedInt64(head_size / 2) * ElementBytes(dtype);
    case QuantMode::kNvfp4:
      return CheckedInt64(head_size / 2) + head_size / 16;
    default:
      return CheckedInt64(head_size) * ElementBytes(dtype);
  }
}

CheckedInt64 KeyValueBytes(int64_t rows, int64_t num_kv_heads, int64_t head_size,
                           int64_t head_size_v, DataType dtype, QuantMode mode) {
  return CheckedInt64(rows) * num_kv_heads *
         (VectorBytes(head_size, dtype, mode) + VectorBytes(head_size_v, dtype, mode));
}

CheckedInt64 ScaleBytes(int64_t block_size, int64_t num_kv_heads, QuantMode mode) {
  if (!HasPerTokenHeadScales(mode)) return 0;
  return CheckedInt64(2) * block_size * num_kv_heads * 4;
}

absl::StatusOr<int64_t> PageBytes(CheckedInt64 unpadded, std::optional<int64_t> page_size_padded,
                                  std::optional<int64_t> alignment) {
  const auto too_large = [] {
    return FieldError("block_size", "a page of more than 9223372036854775807 bytes",
                      "a page that fits 63 bits", "lower block_size, num_kv_heads or head_size");
  };
  if (unpadded.overflowed()) return too_large();
  if (page_size_padded.has_value()) {
    if (*page_size_padded < *unpadded.value()) {
      return FieldError(
          "page_size_padded", std::to_string(*page_size_padded),
          "at least the unpadded page of " + std::to_string(*unpadded.value()) + " bytes");
    }
    return *page_size_padded;
  }
  const auto page = RoundUp(unpadded, alignment.value_or(1)).value();
  return page.has_value() ? absl::StatusOr<int64_t>(*page) : too_large();
}

absl::Status CheckPackable(const char* field, int64_t head_size, QuantMode mode) {
  if (mode == QuantMode::kInt4PerTokenHead && head_size % 2 != 0) {
    return FieldError(field, std::to_string(head_size), "an even number",
                      "int4_per_token_head stores two values per byte");
  }
  if (mode == QuantMode::kNvfp4 && head_size % 16 != 0) {
    return FieldError(field, std::to_string(head_size), "a multiple of 16",
                      "nvfp4 keeps one scale per 16 values");
  }
  return absl::OkStatus();
}

}  // namespace kvblocks
