#include "kvblocks/specs/page_bytes.h"

#include <string>

#include "kvblocks/specs/field_error.h"
#include "kvblocks/specs/row_codec.h"

namespace kvblocks {

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
  const RowCodec& codec = CodecOf(FormatOf(mode));
  if (head_size % codec.vector_multiple() == 0) return absl::OkStatus();
  const std::string name(codec.name);
  if (codec.values_per_scale == 0) {
    return FieldError(field, std::to_string(head_size), "an even number",
                      name + " stores two values per byte");
  }
  return FieldError(
      field, std::to_string(head_size), "a multiple of " + std::to_string(codec.vector_multiple()),
      name + " keeps one scale per " + std::to_string(codec.values_per_scale) + " values");
}

}  // namespace kvblocks
