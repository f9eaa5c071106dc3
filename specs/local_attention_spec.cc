#include "kvblocks/specs/local_attention_spec.h"

#include <string>

#include "kvblocks/specs/field_error.h"
#include "kvblocks/specs/row_codec.h"
#include "kvblocks/specs/spec_checks.h"

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
      KeyValuePageBytes(o, *o.head_size_v, CountedMode(o.quant_mode, o.page_bytes_formula));
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
  RowFormat format = FormatOf(CountedMode(o.quant_mode, o.page_bytes_formula));
  if (format == RowFormat::kFp8DsMla) {
    const bool v4 = o.model_version == ModelVersion::kDeepseekV4;
    format = v4 ? RowFormat::kFp8DsMlaV4 : RowFormat::kPlain;
  }
  const absl::StatusOr<int64_t> page = LatentPageBytes(o, CodecOf(format));
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
  const absl::StatusOr<int64_t> page = KeyValuePageBytes(o, o.head_size, o.quant_mode);
  if (!page.ok()) return page.status();
  return ChunkedLocalAttentionSpec(o, *page);
}

}  // namespace kvblocks
