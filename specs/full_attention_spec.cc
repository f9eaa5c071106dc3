#include "kvblocks/specs/full_attention_spec.h"

#include <string>

#include "kvblocks/specs/field_error.h"
#include "kvblocks/specs/row_codec.h"
#include "kvblocks/specs/spec_checks.h"

namespace kvblocks {
namespace {

// Fills in head_size_v, checks what full and sink attention share, and gives the page size.
template <typename Options>
absl::StatusOr<int64_t> CheckFullOptions(Options& o) {
  if (!o.head_size_v.has_value()) o.head_size_v = o.head_size;
  absl::Status status = CheckKeyValueOptions(o);
  status.Update(CheckPositive("head_size_v", o.head_size_v));
  status.Update(CheckPackable("head_size", o.head_size, o.quant_mode));
  status.Update(CheckPackable("head_size_v", *o.head_size_v, o.quant_mode));
  status.Update(CheckPositive("sliding_window", o.sliding_window));
  status.Update(CheckPositive("attention_chunk_size", o.attention_chunk_size));
  if (!status.ok()) return status;
  if (o.sliding_window.has_value() && o.attention_chunk_size.has_value()) {
    return FieldError("attention_chunk_size", std::to_string(*o.attention_chunk_size),
                      "unset next to sliding_window " + std::to_string(*o.sliding_window),
                      "a layer is local in one way only");
  }
  return KeyValuePageBytes(o, *o.head_size_v, o.quant_mode);
}

}  // namespace

absl::StatusOr<FullAttentionSpec> FullAttentionSpec::Create(const Options& options) {
  Options normalised = options;
  const absl::StatusOr<int64_t> page = CheckFullOptions(normalised);
  if (!page.ok()) return page.status();
  return FullAttentionSpec(normalised, *page);
}

absl::StatusOr<SinkFullAttentionSpec> SinkFullAttentionSpec::Create(const Options& options) {
  Options normalised = options;
  const absl::StatusOr<int64_t> page = CheckFullOptions(normalised);
  if (!page.ok()) return page.status();
  if (options.sink_length < 1 || options.sink_length % options.block_size != 0) {
    return FieldError("sink_length", std::to_string(options.sink_length),
                      "a positive multiple of block_size " + std::to_string(options.block_size));
  }
  return SinkFullAttentionSpec(normalised, *page);
}

std::string_view ModelVersionName(ModelVersion version) {
  switch (version) {
    case ModelVersion::kNone:
      return "none";
    case ModelVersion::kDeepseekV32:
      return "deepseek_v3_2";
    case ModelVersion::kDeepseekV4:
      return "deepseek_v4";
  }
  return "unknown";
}

absl::StatusOr<ModelVersion> ParseModelVersion(std::string_view name) {
  for (const ModelVersion version :
       {ModelVersion::kNone, ModelVersion::kDeepseekV32, ModelVersion::kDeepseekV4}) {
    if (ModelVersionName(version) == name) return version;
  }
  return FieldError("model_version", '"' + std::string(name) + '"',
                    "one of none, deepseek_v3_2, deepseek_v4");
}

absl::StatusOr<MlaAttentionSpec> MlaAttentionSpec::Create(const Options& options) {
  absl::Status status = CheckLatentOptions(options);
  if (!status.ok()) return status;
  RowFormat format = FormatOf(options.quant_mode);
  if (format == RowFormat::kFp8DsMla) {
    const bool v4 = options.model_version == ModelVersion::kDeepseekV4;
    if (!v4 && options.compress_ratio != 1) {
      return FieldError("compress_ratio", std::to_string(options.compress_ratio), "1",
                        "only model_version deepseek_v4 compresses fp8_ds_mla rows");
    }
    if (v4) format = RowFormat::kFp8DsMlaV4;
  } else {
    status = CheckPackable("head_size", options.head_size, options.quant_mode);
    if (!status.ok()) return status;
  }
  const absl::StatusOr<int64_t> page = LatentPageBytes(options, CodecOf(format));
  if (!page.ok()) return page.status();
  return MlaAttentionSpec(options, *page);
}

}  // namespace kvblocks
