#include "specs/row_codec.h"

#include <array>
#include <numeric>

namespace kvblocks {
namespace {

// In the order of RowFormat. Scales per (token, head) are fp32, one for K and one for V, and are
// budgeted for latent rows alike, as engines do. V4's writer steps 576 bytes per row and puts the 8
// scale bytes of each row behind all rows; their sum, 584, is the size that engines declare.
constexpr std::array<RowCodec, 11> kCodecs = {{
    {.name = "plain"},
    {.name = "fp8_per_tensor"},
    {.name = "int8_per_token_head", .footer_bytes_per_token_head = 8},
    {.name = "fp8_per_token_head", .footer_bytes_per_token_head = 8},
    {.name = "int4_per_token_head", .values_per_element = 2, .footer_bytes_per_token_head = 8},
    {.name = "nvfp4",
     .element_bytes = 1,
     .values_per_element = 2,
     .values_per_scale = 16,
     .scale_bytes = 1},
    {.name = "fp8_ds_mla", .fixed_row_bytes = 656},
    {.name = "nvfp4_ds_mla", .fixed_row_bytes = 352},
    {.name = "fp8_ds_mla_v4",
     .fixed_row_bytes = 576,
     .footer_bytes_per_row = 8,
     .usual_alignment = 576},
    {.name = "fp8_ds_mla_v4_1", .fixed_row_bytes = 528, .usual_alignment = 512},
    {.name = "nvfp4_ds_mla_v4_1", .fixed_row_bytes = 288, .usual_alignment = 512},
}};

}  // namespace

int64_t RowCodec::vector_multiple() const {
  return std::lcm(values_per_element, values_per_scale == 0 ? int64_t{1} : values_per_scale);
}

CheckedInt64 RowCodec::VectorBytes(int64_t num_values, DataType dtype) const {
  if (fixed_row_bytes > 0) return fixed_row_bytes;
  CheckedInt64 bytes = CheckedInt64(num_values / values_per_element) *
                       (element_bytes > 0 ? element_bytes : ElementBytes(dtype));
  if (values_per_scale > 0)
    bytes = bytes + CheckedInt64(num_values / values_per_scale) * scale_bytes;
  return bytes;
}

const RowCodec& CodecOf(RowFormat format) { return kCodecs[static_cast<size_t>(format)]; }

CheckedInt64 UnpaddedPageBytes(const RowCodec& codec, const PageRows& rows) {
  CheckedInt64 vectors = codec.VectorBytes(rows.key_values, rows.dtype);
  if (rows.value_values.has_value()) {
    vectors = vectors + codec.VectorBytes(*rows.value_values, rows.dtype);
  }
  return CheckedInt64(rows.num_rows) * rows.num_heads * vectors +
         CheckedInt64(rows.num_rows) * codec.footer_bytes_per_row +
         CheckedInt64(rows.num_tokens) * rows.num_heads * codec.footer_bytes_per_token_head;
}

}  // namespace kvblocks
