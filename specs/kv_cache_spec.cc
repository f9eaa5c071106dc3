#include "kvblocks/kv_cache_spec.h"

#include <array>
#include <span>
#include <string>
#include <type_traits>

#include "checks/checked_int64.h"
#include "checks/field_error.h"
#include "specs/row_codec.h"
#include "specs/spec_fields.h"

namespace kvblocks {
namespace {

using Kind = KvCacheSpecKind;

// In the order of their enums.
constexpr std::array<std::string_view, kNumSpecKinds> kKindNames = {"full_attention",
                                                                    "mla_attention",
                                                                    "sink_full_attention",
                                                                    "sliding_window",
                                                                    "sliding_window_mla",
                                                                    "chunked_local_attention",
                                                                    "mamba",
                                                                    "cross_attention",
                                                                    "encoder_only_attention",
                                                                    "hidden_state",
                                                                    "ring"};
constexpr std::array<std::string_view, 4> kVersionNames = {"none", "deepseek_v3_2", "deepseek_v4",
                                                             "deepseek_v4_1"};
constexpr std::array<std::string_view, 3> kModeNames = {"none", "align", "all"};

std::string OneOf(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    text.append(text.empty() ? "one of " : ", ").append(name);
  }
  return text;
}

template <typename Enum>
absl::StatusOr<Enum> ParseName(std::string_view field, std::string_view text,
                               std::span<const std::string_view> names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return FieldError(field, '"' + std::string(text) + '"', OneOf(names));
}

bool IsLatent(Kind kind) { return kind == Kind::kMlaAttention || kind == Kind::kSlidingWindowMla; }

// Kinds that store plain vectors, one per row.
bool IsPlainVector(Kind kind) { return kind == Kind::kHiddenState || kind == Kind::kRing; }

bool HasOneVector(Kind kind) { return IsLatent(kind) || IsPlainVector(kind); }

absl::Status RefuseFieldsOfOtherKinds(Kind kind, const KvCacheSpecOptions& o) {
  const KvCacheSpecOptions unset;
  absl::Status status;
  ForEachSpecField([&](const SpecField& field, auto member) {
    if (field.In(kind) || o.*member == unset.*member) return;
    status.Update(FieldError(field.name, FieldText(o.*member), "nothing",
                             std::string(KindName(kind)) + " has no such field"));
  });
  return status;
}

// Quantised values take one byte, so a mode other than kNone needs a one-byte storage type.
absl::Status CheckStorage(Kind kind, const KvCacheSpecOptions& o) {
  if (IsDsMla(o.quant_mode) && !IsLatent(kind)) {
    return FieldError("quant_mode", FieldText(o.quant_mode), "a mode that stores K and V",
                      "only MLA kinds have this row format");
  }
  if (o.quant_mode != QuantMode::kNone && ElementBytes(o.dtype) != 1) {
    return FieldError("dtype", FieldText(o.dtype), "uint8, int8, fp8_e4m3 or fp8_e5m2",
                      "quant_mode " + FieldText(o.quant_mode) + " stores bytes");
  }
  return absl::OkStatus();
}

// Refuses head sizes that the mode cannot pack.
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

absl::Status CheckMultipleOfBlock(const char* field, int64_t value, int64_t block_size,
                                  const char* hint = "") {
  if (value >= 1 && value % block_size == 0) return absl::OkStatus();
  return FieldError(field, std::to_string(value),
                    "a positive multiple of block_size " + std::to_string(block_size), hint);
}

absl::Status CheckLatent(Kind kind, const KvCacheSpecOptions& o) {
  absl::Status status = CheckPositive("compress_ratio", o.compress_ratio);
  if (status.ok() && o.block_size % o.compress_ratio != 0) {
    return FieldError("compress_ratio", std::to_string(o.compress_ratio),
                      "a divisor of block_size " + std::to_string(o.block_size));
  }
  if (!status.ok()) return status;
  const bool v41 = o.model_version == ModelVersion::kDeepseekV41;
  const bool v4 = o.model_version == ModelVersion::kDeepseekV4 || v41;
  if (kind == Kind::kSlidingWindowMla && !v4 && o.model_version != ModelVersion::kNone) {
    return FieldError("model_version", FieldText(o.model_version),
                      "none, deepseek_v4 or deepseek_v4_1");
  }
  if (o.quant_mode == QuantMode::kNvfp4DsMla && !v41 &&
      (v4 || kind == Kind::kSlidingWindowMla)) {
    return FieldError("quant_mode", "nvfp4_ds_mla", "fp8_ds_mla",
                      "of windows and compressed rows only deepseek_v4_1 has these");
  }
  if (kind == Kind::kMlaAttention && IsDsMla(o.quant_mode) && !v4 && o.compress_ratio != 1) {
    return FieldError("compress_ratio", std::to_string(o.compress_ratio), "1",
                      "only model_version deepseek_v4 and deepseek_v4_1 compress " +
                          FieldText(o.quant_mode) + " rows");
  }
  return absl::OkStatus();
}

absl::Status CheckWindows(Kind kind, const KvCacheSpecOptions& o) {
  if (kind == Kind::kChunkedLocalAttention) {
    return CheckMultipleOfBlock("attention_chunk_size", o.attention_chunk_size.value_or(0),
                                o.block_size, "otherwise a chunk starts inside a block");
  }
  if (kind == Kind::kSlidingWindow || kind == Kind::kSlidingWindowMla) {
    if (o.extra_retained_tokens < 0) {
      return FieldError("extra_retained_tokens", std::to_string(o.extra_retained_tokens),
                        "at least 0");
    }
    return CheckPositive("sliding_window", o.sliding_window.value_or(0));
  }
  absl::Status status = CheckPositive("sliding_window", o.sliding_window);
  status.Update(CheckPositive("attention_chunk_size", o.attention_chunk_size));
  status.Update(CheckPositive("output_window", o.output_window));
  if (status.ok() && o.sliding_window.has_value() && o.attention_chunk_size.has_value()) {
    return FieldError("attention_chunk_size", std::to_string(*o.attention_chunk_size),
                      "unset next to sliding_window " + std::to_string(*o.sliding_window),
                      "a layer is local in one way only");
  }
  return status;
}

absl::Status CheckAttention(Kind kind, const KvCacheSpecOptions& o) {
  absl::Status status;
  if (!HasOneVector(kind)) status.Update(CheckPositive("num_kv_heads", o.num_kv_heads));
  status.Update(CheckPositive("head_size", o.head_size));
  status.Update(CheckPositive("page_size_padded", o.page_size_padded));
  status.Update(CheckStorage(kind, o));
  status.Update(CheckPositive("head_size_v", o.head_size_v));
  if (IsLatent(kind)) status.Update(CheckLatent(kind, o));
  status.Update(CheckPositive("alignment", o.alignment));
  if (!status.ok()) return status;
  status.Update(CheckPackable("head_size", o.head_size, o.quant_mode));
  if (o.head_size_v) status.Update(CheckPackable("head_size_v", *o.head_size_v, o.quant_mode));
  status.Update(CheckWindows(kind, o));
  if (kind == Kind::kSinkFullAttention) {
    status.Update(CheckMultipleOfBlock("sink_length", o.sink_length, o.block_size));
  }
  return status;
}

RowFormat FormatOfRows(Kind kind, const KvCacheSpecOptions& o) {
  // Upstream's formula sees an int4 value as one byte.
  const bool unpacked = o.page_bytes_formula == PageBytesFormula::kUpstreamCompatible &&
                        o.quant_mode == QuantMode::kInt4PerTokenHead;
  const RowFormat format = FormatOf(unpacked ? QuantMode::kInt8PerTokenHead : o.quant_mode);
  if (IsDsMla(o.quant_mode) && o.model_version == ModelVersion::kDeepseekV41) {
    // Windows have 8 bits in either mode.
    return format == RowFormat::kNvfp4DsMla && kind == Kind::kMlaAttention
               ? RowFormat::kNvfp4DsMlaV41
               : RowFormat::kFp8DsMlaV41;
  }
  if (format != RowFormat::kFp8DsMla) return format;
  if (o.model_version == ModelVersion::kDeepseekV4) return RowFormat::kFp8DsMlaV4;
  return kind == Kind::kSlidingWindowMla ? RowFormat::kPlain : format;
}

CheckedInt64 AttentionPageBytes(Kind kind, const KvCacheSpecOptions& o) {
  PageRows rows = {.num_tokens = o.block_size,
                   .num_rows = o.block_size / o.compress_ratio,
                   .key_values = o.head_size,
                   .dtype = o.dtype};
  if (!HasOneVector(kind)) {
    rows.num_heads = o.num_kv_heads;
    rows.value_values = o.head_size_v.value_or(o.head_size);
  }
  return UnpaddedPageBytes(CodecOf(FormatOfRows(kind, o)), rows);
}

// A tensor is one plain vector of as many values as its shape has.
absl::Status AddState(const MambaState& state, CheckedInt64& bytes) {
  CheckedInt64 values(1);
  for (size_t i = 0; i < state.shape.size(); ++i) {
    absl::Status status = CheckPositive("shape[" + std::to_string(i) + "]", state.shape[i]);
    if (!status.ok()) return status;
    values = values * state.shape[i];
  }
  if (values.overflowed()) {
    return FieldError("shape", "more than 9223372036854775807 values", "a state that fits 63 bits");
  }
  bytes = bytes + CodecOf(RowFormat::kPlain).VectorBytes(*values.value(), state.dtype);
  return absl::OkStatus();
}

absl::StatusOr<CheckedInt64> CheckMamba(const KvCacheSpecOptions& o) {
  absl::Status status = CheckPositive("page_size_padded", o.page_size_padded);
  if (!status.ok()) return status;
  if (o.num_speculative_blocks < 0) {
    return FieldError("num_speculative_blocks", std::to_string(o.num_speculative_blocks),
                      "at least 0");
  }
  if (o.num_checkpoint_blocks < 0) {
    return FieldError("num_checkpoint_blocks", std::to_string(o.num_checkpoint_blocks),
                      "at least 0");
  }
  if (o.num_checkpoint_blocks > 0 && o.cache_mode != MambaCacheMode::kAlign) {
    return FieldError("num_checkpoint_blocks", std::to_string(o.num_checkpoint_blocks),
                      "0 in cache_mode " + FieldText(o.cache_mode),
                      "only mode align keeps states for reuse at places that it chooses");
  }
  if (o.states.empty()) return FieldError("states", "none", "at least one");
  CheckedInt64 bytes(0);
  for (size_t i = 0; i < o.states.size(); ++i) {
    status = AddState(o.states[i], bytes);
    if (!status.ok()) return WithFieldPrefix(status, "states[" + std::to_string(i) + "]");
  }
  if (bytes.overflowed()) {
    return FieldError("states", "a state of more than 9223372036854775807 bytes",
                      "a state that fits 63 bits");
  }
  return bytes;
}

absl::StatusOr<CheckedInt64> CheckAndCount(Kind kind, const KvCacheSpecOptions& o) {
  absl::Status status = CheckPositive("block_size", o.block_size);
  status.Update(RefuseFieldsOfOtherKinds(kind, o));
  if (!status.ok()) return status;
  if (kind == Kind::kMamba) return CheckMamba(o);
  status = CheckAttention(kind, o);
  if (!status.ok()) return status;
  return AttentionPageBytes(kind, o);
}

absl::StatusOr<int64_t> PaddedPageBytes(int64_t unpadded, const KvCacheSpecOptions& o) {
  if (!o.page_size_padded.has_value()) {
    const auto page = RoundUp(CheckedInt64(unpadded), o.alignment.value_or(1)).value();
    return page.has_value() ? absl::StatusOr<int64_t>(*page) : absl::OutOfRangeError("");
  }
  if (*o.page_size_padded < unpadded) {
    return FieldError("page_size_padded", std::to_string(*o.page_size_padded),
                      "at least the unpadded page of " + std::to_string(unpadded) + " bytes");
  }
  return *o.page_size_padded;
}

absl::Status PageTooLarge() {
  return FieldError("block_size", "a page of more than 9223372036854775807 bytes",
                    "a page that fits 63 bits", "lower block_size, num_kv_heads or head_size");
}

}  // namespace

std::string_view KindName(KvCacheSpecKind kind) { return kKindNames[static_cast<size_t>(kind)]; }
std::string SupportedKinds() { return OneOf(kKindNames); }

std::string_view ModelVersionName(ModelVersion version) {
  return kVersionNames[static_cast<size_t>(version)];
}
absl::StatusOr<ModelVersion> ParseModelVersion(std::string_view name) {
  return ParseName<ModelVersion>("model_version", name, kVersionNames);
}

std::string_view MambaCacheModeName(MambaCacheMode mode) {
  return kModeNames[static_cast<size_t>(mode)];
}
absl::StatusOr<MambaCacheMode> ParseMambaCacheMode(std::string_view name) {
  return ParseName<MambaCacheMode>("cache_mode", name, kModeNames);
}

std::string FieldText(int64_t value) { return std::to_string(value); }
std::string FieldText(bool value) { return value ? "true" : "false"; }
std::string FieldText(DataType value) { return std::string(DataTypeName(value)); }
std::string FieldText(QuantMode value) { return std::string(QuantModeName(value)); }
std::string FieldText(ModelVersion value) { return std::string(ModelVersionName(value)); }
std::string FieldText(MambaCacheMode value) { return std::string(MambaCacheModeName(value)); }
std::string FieldText(PageBytesFormula value) {
  return FieldText(value == PageBytesFormula::kUpstreamCompatible);
}
std::string FieldText(const std::vector<MambaState>& value) {
  std::string text;
  for (const MambaState& state : value) {
    if (!text.empty()) text.append("+");
    for (const int64_t dimension : state.shape) {
      text.append(std::to_string(dimension)).append("x");
    }
    text.append(DataTypeName(state.dtype));
  }
  return text;
}

absl::StatusOr<KvCacheSpec> KvCacheSpec::Create(KvCacheSpecKind kind,
                                                const KvCacheSpecOptions& options) {
  return Create(kind, nullptr, options);
}

absl::StatusOr<KvCacheSpec> KvCacheSpec::Create(const KvCacheKind& kind,
                                                const KvCacheSpecOptions& options) {
  return Create(kind.managed_like, &kind, options);
}

absl::StatusOr<KvCacheSpec> KvCacheSpec::Create(KvCacheSpecKind kind,
                                                const KvCacheKind* registered_kind,
                                                const KvCacheSpecOptions& options) {
  KvCacheSpecOptions o = options;
  if (KindHasField(kind, "head_size_v") && !o.head_size_v) o.head_size_v = o.head_size;
  const absl::StatusOr<CheckedInt64> counted = CheckAndCount(kind, o);
  if (!counted.ok()) return counted.status();
  std::optional<int64_t> unpadded = counted->value();
  if (registered_kind != nullptr && registered_kind->page_bytes != nullptr) {
    const absl::StatusOr<int64_t> own = registered_kind->page_bytes(o);
    if (!own.ok()) return own.status();
    const absl::Status status = CheckPositive("page_bytes of " + registered_kind->name, *own);
    if (!status.ok()) return status;
    unpadded = *own;
  }
  if (!unpadded.has_value()) return PageTooLarge();
  const absl::StatusOr<int64_t> page = PaddedPageBytes(*unpadded, o);
  if (absl::IsOutOfRange(page.status())) return PageTooLarge();
  if (!page.ok()) return page.status();
  return KvCacheSpec(kind, registered_kind, std::move(o), *unpadded, *page);
}

std::string_view KvCacheSpec::kind_name() const {
  return registered_kind_ != nullptr ? std::string_view(registered_kind_->name) : KindName(kind_);
}

int64_t KvCacheSpec::num_kv_heads() const {
  return HasOneVector(kind_) ? 1 : options_.num_kv_heads;
}

bool KvCacheSpec::has_one_vector_per_row() const { return HasOneVector(kind_); }

DataType KvCacheSpec::dtype() const {
  return kind_ == Kind::kMamba ? options_.states.front().dtype : options_.dtype;
}

std::optional<int64_t> KvCacheSpec::sliding_window() const {
  const bool is_window = kind_ == Kind::kSlidingWindow || kind_ == Kind::kSlidingWindowMla;
  return is_window ? options_.sliding_window : std::nullopt;
}

std::optional<int64_t> KvCacheSpec::attention_chunk_size() const {
  const bool is_chunked = kind_ == Kind::kChunkedLocalAttention;
  return is_chunked ? options_.attention_chunk_size : std::nullopt;
}

int64_t KvCacheSpec::storage_block_size() const {
  return kind_ == Kind::kMamba ? 1 : block_size() / compress_ratio();
}

absl::StatusOr<KvCacheSpec> KvCacheSpec::WithOptions(const KvCacheSpecOptions& options) const {
  return Create(kind_, registered_kind_, options);
}

absl::StatusOr<KvCacheSpec> KvCacheSpec::WithBlockSize(int64_t block_size) const {
  KvCacheSpecOptions options = options_;
  options.block_size = block_size;
  return WithOptions(options);
}

absl::StatusOr<KvCacheSpec> KvCacheSpec::WithPageSizePadded(
    std::optional<int64_t> page_size_padded) const {
  KvCacheSpecOptions options = options_;
  options.page_size_padded = page_size_padded;
  return WithOptions(options);
}

std::string KvCacheSpec::ToString() const {
  KvCacheSpecOptions unset;
  unset.head_size_v = options_.head_size;  // its value if it is not set
  std::string text(kind_name());
  std::string_view separator = "(";
  const auto append = [&](std::string_view name, const std::string& value) {
    text.append(separator).append(name).append("=").append(value);
    separator = ", ";
  };
  ForEachSpecField([&](const SpecField& field, auto member) {
    if (!field.In(kind_)) return;
    const bool always = field.RequiredIn(kind_) || field.name == "cache_mode";
    if (always || options_.*member != unset.*member)
      append(field.name, FieldText(options_.*member));
  });
  append("page_bytes", FieldText(page_bytes_));
  return text + ")";
}

}  // namespace kvblocks
