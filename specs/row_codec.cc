#include "kvblocks/specs/row_codec.h"

#include <array>
#include <numeric>

namespace kvblocks {
namespace {

// In the order of RowFormat. Scales per (token, head) are fp32, one for K and one for V, and are
// budgeted for latent rows alike, as engines do. V4's writer steps 576 bytes per row and puts the 8
// scale bytes of each row behind all rows; their sum, 584, is the size that engines declare.
constexpr std::array<RowCodec, 13> kCodecs = {{
    {.format = RowFormat::kPlain, .name = "plain"},
    {.format = RowFormat::kFp8PerTensor, .name = "fp8_per_tensor"},
    {.format = RowFormat::kInt8PerTokenHead,
     .name = "int8_per_token_head",
     .footer_bytes_per_token_head = 8},
    {.format = RowFormat::kFp8PerTokenHead,
     .name = "fp8_per_token_head",
     .footer_bytes_per_token_head = 8},
    {.format = RowFormat::kInt4PerTokenHead,
     .name = "int4_per_token_head",
     .values_per_element = 2,
     .footer_bytes_per_token_head = 8},
    {.format = RowFormat::kNvfp4,
     .name = "nvfp4",
     .element_bytes = 1,
     .values_per_element = 2,
     .values_per_scale = 16,
     .scale_bytes = 1},
    {.format = RowFormat::kFp8DsMla, .name = "fp8_ds_mla", .fixed_row_bytes = 656},
    {.format = RowFormat::kFp8DsMlaV4,
     .name = "fp8_ds_mla_v4",
     .fixed_row_bytes = 576,
     .footer_bytes_per_row = 8,
     .usual_alignment = 576},
    {.format = RowFormat::kFp8DsMlaV41,
     .name = "fp8_ds_mla_v4_1",
     .fixed_row_bytes = 528,
     .usual_alignment = 512},
    {.format = RowFormat::kNvfp4DsMla, .name = "nvfp4_ds_mla", .fixed_row_bytes = 352},
    {.format = RowFormat::kNvfp4DsMlaV41,
     .name = "nvfp4_ds_mla_v4_1",
     .fixed_row_bytes = 288,
     .usual_alignment = 512},
    {.format = RowFormat::kIndexer,
     .name = "indexer",
     .element_bytes = 1,
     .values_per_scale = 128,
     .scale_bytes = 4},
    {.format = RowFormat::kCompressorState,
     .name = "compressor_state",
     .element_bytes = 4,
     .usual_alignment = 576},
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

RowFormat FormatOf(QuantMode mode) {
  switch (mode) {
    case QuantMode::kNone:
      return RowFormat::kPlain;
    case QuantMode::kFp8PerTensor:
      return RowFormat::kFp8PerTensor;
    case QuantMode::kInt8PerTokenHead:
      return RowFormat::kInt8PerTokenHead;
    case QuantMode::kFp8PerTokenHead:
      return RowFormat::kFp8PerTokenHead;
    case QuantMode::kInt4PerTokenHead:
      return RowFormat::kInt4PerTokenHead;
    case QuantMode::kNvfp4:
      return RowFormat::kNvfp4;
    case QuantMode::kFp8DsMla:
      return RowFormat::kFp8DsMla;
    case QuantMode::kNvfp4DsMla:
      return RowFormat::kNvfp4DsMla;
  }
  return RowFormat::kPlain;
}

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
