#include "specs/local_attention_spec.h"

#include <string>

#include "specs/field_error.h"
#include "specs/spec_checks.h"

namespace kvblocks {
namespace {

// The mode by which data bytes are counted: upstream's formula sees an int4 value as one byte.
QuantMode CountedMode(QuantMode mode, PageBytesFormula formula) {
  return formula == PageBytesFormula::kUpstreamCompatible && mode == QuantMode::kInt4PerTokenHead
             ? QuantMode::kInt8PerTokenHead
             : mode;
}

}  // namespace

absl::StatusOr<SlidingWindowSpec> SlidingWindowSpec::Create(const Options& options) {
  Options o = options;
  if (!o.head_size_v.has_value()) o.head_size_v = o.head_size;
  absl::Status status = CheckKeyValueOptions(o);
  status.Update(CheckPositive("head_size_v", o.head_size_v));
  status.Update(CheckPackable("head_size", o.head_size, o.quant_mode));
  status.Update(CheckPackable("head_size_v", *o.head_size_v, o.quant_mode));
  status.Update(CheckPositive("sliding_window", o.sliding_window));
  if (!status.ok()) return status;
  const absl::StatusOr<int64_t> page =
      PageBytes(KeyValueBytes(o.block_size, o.num_kv_heads, o.head_size, *o.head_size_v, o.dtype,
                              CountedMode(o.quant_mode, o.page_bytes_formula)) +
                    ScaleBytes(o.block_size, o.num_kv_heads, o.quant_mode),
                o.page_size_padded, /*alignment=*/std::nullopt);
  if (!page.ok()) return page.status();
  return SlidingWindowSpec(o, *page);
}

absl::StatusOr<SlidingWindowMlaSpec> SlidingWindowMlaSpec::Create(const Options& options) {
  const Options& o = options;
  absl::Status status = CheckLatentOptions(o);
  status.Update(CheckPositive("sliding_window", o.sliding_window));
  status.Update(CheckPackable("head_size", o.head_size, o.quant_mode));
  if (!status.ok()) return status;
  if (o.model_version != ModelVersion::kNone && o.model_version != ModelVersion::kDeepseekV4) {
    return FieldError("model_version", std::string(ModelVersionName(o.model_version)),
                      "none or deepseek_v4");
  }
  const int64_t rows = o.block_size / o.compress_ratio;
  const bool v4_rows =
      o.quant_mode == QuantMode::kFp8DsMla && o.model_version == ModelVersion::kDeepseekV4;
  const CheckedInt64 row_bytes =
      v4_rows ? CheckedInt64(kFp8DsMlaV4RowBytes)
              : VectorBytes(o.head_size, o.dtype, CountedMode(o.quant_mode, o.page_bytes_formula));
  const absl::StatusOr<int64_t> page = PageBytes(
      CheckedInt64(rows) * row_bytes + ScaleBytes(o.block_size, /*num_kv_heads=*/1, o.quant_mode),
      o.page_size_padded, o.alignment);
  if (!page.ok()) return page.status();
  return SlidingWindowMlaSpec(o, *page);
}

absl::StatusOr<ChunkedLocalAttentionSpec> ChunkedLocalAttentionSpec::Create(
    const Options& options) {
  const Options& o = options;
  absl::Status status = CheckKeyValueOptions(o);
  status.Update(CheckPackable("head_size", o.head_size, o.quant_mode));
  if (!status.ok()) return status;
  if (o.attention_chunk_size < 1 || o.attention_chunk_size % o.block_size != 0) {
    return FieldError("attention_chunk_size", std::to_string(o.attention_chunk_size),
                      "a positive multiple of block_size " + std::to_string(o.block_size),
                      "otherwise a chunk starts inside a block");
  }
  const absl::StatusOr<int64_t> page = PageBytes(
      KeyValueBytes(o.block_size, o.num_kv_heads, o.head_size, o.head_size, o.dtype, o.quant_mode) +
          ScaleBytes(o.block_size, o.num_kv_heads, o.quant_mode),
      o.page_size_padded, /*alignment=*/std::nullopt);
  if (!page.ok()) return page.status();
  return ChunkedLocalAttentionSpec(o, *page);
}

}  // namespace kvblocks
