#include "kvblocks/specs/config/kv_cache_config_proto.h"

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvblocks/specs/field_error.h"

namespace kvblocks {
namespace {

constexpr char kAtLeastOne[] = "at least 1";
constexpr int64_t kMaxLayersOfGroup = 10'000;
constexpr char kStorageType[] = "the storage type, \"bf16\" for one";

// What a required field that is absent is reported as having.
absl::Status Missing(std::string_view field, std::string_view expected) {
  return FieldError(field, "nothing", expected);
}

absl::Status Require(std::string_view field, bool present, std::string_view expected) {
  return present ? absl::OkStatus() : Missing(field, expected);
}

// One reader for all kinds: message and options name their fields alike. Ranges are checked by the
// spec's Create.
template <typename Message, typename Options>
absl::Status ReadOptions(const Message& m, Options& o) {
  absl::Status status = Require("block_size", m.has_block_size(), kAtLeastOne);
  o.block_size = m.block_size();
  if constexpr (requires { m.num_kv_heads(); }) {
    status.Update(Require("num_kv_heads", m.has_num_kv_heads(), kAtLeastOne));
    o.num_kv_heads = m.num_kv_heads();
  }
  status.Update(Require("head_size", m.has_head_size(), kAtLeastOne));
  o.head_size = m.head_size();
  if constexpr (requires { m.head_size_v(); }) {
    if (m.has_head_size_v()) o.head_size_v = m.head_size_v();
  }
  if constexpr (requires { m.sink_length(); }) {
    status.Update(Require("sink_length", m.has_sink_length(), "a positive multiple of block_size"));
    o.sink_length = m.sink_length();
  }
  if constexpr (requires { m.sliding_window(); }) {
    if constexpr (std::is_same_v<decltype(o.sliding_window), int64_t>) {
      status.Update(Require("sliding_window", m.has_sliding_window(), kAtLeastOne));
    }
    if (m.has_sliding_window()) o.sliding_window = m.sliding_window();
  }
  if constexpr (requires { m.attention_chunk_size(); }) {
    if constexpr (std::is_same_v<decltype(o.attention_chunk_size), int64_t>) {
      status.Update(Require("attention_chunk_size", m.has_attention_chunk_size(),
                            "a positive multiple of block_size"));
    }
    if (m.has_attention_chunk_size()) o.attention_chunk_size = m.attention_chunk_size();
  }
  if (m.has_page_size_padded()) o.page_size_padded = m.page_size_padded();
  o.indexes_kv_by_block_stride = m.indexes_kv_by_block_stride();
  if constexpr (requires { m.alignment(); }) {
    if (m.has_alignment()) o.alignment = m.alignment();
    if (m.has_compress_ratio()) o.compress_ratio = m.compress_ratio();
    if (m.has_model_version()) {
      const absl::StatusOr<ModelVersion> version = ParseModelVersion(m.model_version());
      status.Update(version.status());
      if (version.ok()) o.model_version = *version;
    }
  }
  if constexpr (requires { m.non_causal(); }) o.non_causal = m.non_causal();
  if constexpr (requires { m.is_draft(); }) o.is_draft = m.is_draft();
  if constexpr (requires { m.upstream_compatible_page_bytes(); }) {
    if (m.upstream_compatible_page_bytes()) {
      o.page_bytes_formula = PageBytesFormula::kUpstreamCompatible;
    }
  }
  status.Update(Require("dtype", m.has_dtype(), kStorageType));
  if (m.has_dtype()) {
    const absl::StatusOr<DataType> dtype = ParseDataType(m.dtype());
    status.Update(dtype.status());
    if (dtype.ok()) o.dtype = *dtype;
  }
  if (m.has_quant_mode()) {
    const absl::StatusOr<QuantMode> mode = ParseQuantMode(m.quant_mode());
    status.Update(mode.status());
    if (mode.ok()) o.quant_mode = *mode;
  }
  return status;
}

absl::StatusOr<MambaState> ReadState(const config::v1::MambaState& m) {
  if (!m.has_dtype()) return Missing("dtype", kStorageType);
  const absl::StatusOr<DataType> dtype = ParseDataType(m.dtype());
  if (!dtype.ok()) return dtype.status();
  return MambaState{{m.shape().begin(), m.shape().end()}, *dtype};
}

absl::Status ReadOptions(const config::v1::MambaSpec& m, MambaSpec::Options& o) {
  absl::Status status = Require("block_size", m.has_block_size(), kAtLeastOne);
  o.block_size = m.block_size();
  for (int i = 0; i < m.states_size(); ++i) {
    absl::StatusOr<MambaState> state = ReadState(m.states(i));
    status.Update(WithFieldPrefix(state.status(), "states[" + std::to_string(i) + "]"));
    if (state.ok()) o.states.push_back(*std::move(state));
  }
  if (m.has_page_size_padded()) o.page_size_padded = m.page_size_padded();
  if (m.has_cache_mode()) {
    const absl::StatusOr<MambaCacheMode> mode = ParseMambaCacheMode(m.cache_mode());
    status.Update(mode.status());
    if (mode.ok()) o.cache_mode = *mode;
  }
  o.num_speculative_blocks = m.num_speculative_blocks();
  return status;
}

template <typename Spec, typename Message>
absl::StatusOr<KvCacheSpec> ReadKind(const Message& message, KvCacheSpecKind kind) {
  typename Spec::Options options;
  const absl::Status status = ReadOptions(message, options);
  if (!status.ok()) return WithFieldPrefix(status, KindName(kind));
  absl::StatusOr<Spec> spec = Spec::Create(options);
  if (!spec.ok()) return WithFieldPrefix(spec.status(), KindName(kind));
  return KvCacheSpec(*std::move(spec));
}

absl::StatusOr<KvCacheSpec> ReadSpec(const config::v1::KvCacheSpec& message) {
  using Message = config::v1::KvCacheSpec;
  using Kind = KvCacheSpecKind;
  switch (message.kind_case()) {
    case Message::kFullAttention:
      return ReadKind<FullAttentionSpec>(message.full_attention(), Kind::kFullAttention);
    case Message::kMlaAttention:
      return ReadKind<MlaAttentionSpec>(message.mla_attention(), Kind::kMlaAttention);
    case Message::kSinkFullAttention:
      return ReadKind<SinkFullAttentionSpec>(message.sink_full_attention(),
                                             Kind::kSinkFullAttention);
    case Message::kSlidingWindow:
      return ReadKind<SlidingWindowSpec>(message.sliding_window(), Kind::kSlidingWindow);
    case Message::kSlidingWindowMla:
      return ReadKind<SlidingWindowMlaSpec>(message.sliding_window_mla(), Kind::kSlidingWindowMla);
    case Message::kChunkedLocalAttention:
      return ReadKind<ChunkedLocalAttentionSpec>(message.chunked_local_attention(),
                                                 Kind::kChunkedLocalAttention);
    case Message::kMamba:
      return ReadKind<MambaSpec>(message.mamba(), Kind::kMamba);
    case Message::kCrossAttention:
      return ReadKind<CrossAttentionSpec>(message.cross_attention(), Kind::kCrossAttention);
    case Message::kEncoderOnlyAttention:
      return ReadKind<EncoderOnlyAttentionSpec>(message.encoder_only_attention(),
                                                Kind::kEncoderOnlyAttention);
    case Message::KIND_NOT_SET:
      break;
  }
  return Missing("kind", SupportedKinds());
}

absl::StatusOr<std::vector<std::string>> ReadLayerNames(const config::v1::KvCacheGroup& message,
                                                        const std::string& path) {
  if (!message.has_num_layers()) {
    if (message.layer_names().empty()) return Missing("layer_names", "at least one name");
    return std::vector<std::string>(message.layer_names().begin(), message.layer_names().end());
  }
  const std::string got = std::to_string(message.num_layers());
  if (message.num_layers() < 1 || message.num_layers() > kMaxLayersOfGroup) {
    return FieldError("num_layers", got, "a number from 1 to " + std::to_string(kMaxLayersOfGroup));
  }
  if (!message.layer_names().empty()) {
    return FieldError("num_layers", got, "either layer_names or num_layers", "remove one of them");
  }
  std::vector<std::string> names;
  for (int64_t i = 0; i < message.num_layers(); ++i) {
    names.push_back(path + ".layers[" + std::to_string(i) + "]");
  }
  return names;
}

absl::StatusOr<KvCacheGroup> ReadGroup(const config::v1::KvCacheGroup& message,
                                       const std::string& path) {
  if (!message.has_spec()) return Missing("spec", "a spec of " + SupportedKinds());
  absl::StatusOr<KvCacheSpec> spec = ReadSpec(message.spec());
  if (!spec.ok()) return WithFieldPrefix(spec.status(), "spec");
  auto names = ReadLayerNames(message, path);
  if (!names.ok()) return names.status();
  return KvCacheGroup{*std::move(spec), *std::move(names), message.is_draft()};
}

template <typename Options, typename Message>
void WriteOptions(const Options& o, Message& m) {
  m.set_block_size(o.block_size);
  if constexpr (requires { o.num_kv_heads; }) m.set_num_kv_heads(o.num_kv_heads);
  m.set_head_size(o.head_size);
  if constexpr (requires { o.head_size_v; }) m.set_head_size_v(*o.head_size_v);
  if constexpr (requires { o.sink_length; }) m.set_sink_length(o.sink_length);
  if constexpr (requires { o.sliding_window; }) {
    const std::optional<int64_t> window = o.sliding_window;
    if (window.has_value()) m.set_sliding_window(*window);
  }
  if constexpr (requires { o.attention_chunk_size; }) {
    const std::optional<int64_t> chunk = o.attention_chunk_size;
    if (chunk.has_value()) m.set_attention_chunk_size(*chunk);
  }
  m.set_dtype(std::string(DataTypeName(o.dtype)));
  m.set_quant_mode(std::string(QuantModeName(o.quant_mode)));
  if (o.page_size_padded.has_value()) m.set_page_size_padded(*o.page_size_padded);
  m.set_indexes_kv_by_block_stride(o.indexes_kv_by_block_stride);
  if constexpr (requires { o.alignment; }) {
    if (o.alignment.has_value()) m.set_alignment(*o.alignment);
    m.set_compress_ratio(o.compress_ratio);
    m.set_model_version(std::string(ModelVersionName(o.model_version)));
  }
  if constexpr (requires { o.non_causal; }) m.set_non_causal(o.non_causal);
  if constexpr (requires { o.is_draft; }) m.set_is_draft(o.is_draft);
  if constexpr (requires { o.page_bytes_formula; }) {
    m.set_upstream_compatible_page_bytes(o.page_bytes_formula ==
                                         PageBytesFormula::kUpstreamCompatible);
  }
}

void WriteOptions(const MambaSpec::Options& o, config::v1::MambaSpec& m) {
  m.set_block_size(o.block_size);
  for (const MambaState& state : o.states) {
    config::v1::MambaState& out = *m.add_states();
    for (const int64_t dimension : state.shape) out.add_shape(dimension);
    out.set_dtype(std::string(DataTypeName(state.dtype)));
  }
  if (o.page_size_padded.has_value()) m.set_page_size_padded(*o.page_size_padded);
  m.set_cache_mode(std::string(MambaCacheModeName(o.cache_mode)));
  m.set_num_speculative_blocks(o.num_speculative_blocks);
}

void WriteSpec(const KvCacheSpec& spec, config::v1::KvCacheSpec& message) {
  spec.Visit([&message](const auto& s) {
    using Spec = std::remove_cvref_t<decltype(s)>;
    if constexpr (std::is_same_v<Spec, FullAttentionSpec>) {
      WriteOptions(s.options(), *message.mutable_full_attention());
    } else if constexpr (std::is_same_v<Spec, MlaAttentionSpec>) {
      WriteOptions(s.options(), *message.mutable_mla_attention());
    } else if constexpr (std::is_same_v<Spec, SinkFullAttentionSpec>) {
      WriteOptions(s.options(), *message.mutable_sink_full_attention());
    } else if constexpr (std::is_same_v<Spec, SlidingWindowSpec>) {
      WriteOptions(s.options(), *message.mutable_sliding_window());
    } else if constexpr (std::is_same_v<Spec, SlidingWindowMlaSpec>) {
      WriteOptions(s.options(), *message.mutable_sliding_window_mla());
    } else if constexpr (std::is_same_v<Spec, ChunkedLocalAttentionSpec>) {
      WriteOptions(s.options(), *message.mutable_chunked_local_attention());
    } else if constexpr (std::is_same_v<Spec, MambaSpec>) {
      WriteOptions(s.options(), *message.mutable_mamba());
    } else if constexpr (std::is_same_v<Spec, CrossAttentionSpec>) {
      WriteOptions(s.options(), *message.mutable_cross_attention());
    } else {
      WriteOptions(s.options(), *message.mutable_encoder_only_attention());
    }
  });
}

}  // namespace

absl::StatusOr<KvCacheConfig> FromProto(const config::v1::KvCacheConfig& message) {
  if (!message.has_num_blocks()) {
    return Missing("num_blocks", "a number from 1 to " + std::to_string(kMaxNumBlocks));
  }
  KvCacheConfig config;
  config.num_blocks = message.num_blocks();
  for (int g = 0; g < message.groups_size(); ++g) {
    const std::string path = "groups[" + std::to_string(g) + "]";
    absl::StatusOr<KvCacheGroup> group = ReadGroup(message.groups(g), path);
    if (!group.ok()) return WithFieldPrefix(group.status(), path);
    config.groups.push_back(*std::move(group));
  }
  if (message.has_scheduler_block_size()) {
    config.scheduler_block_size = message.scheduler_block_size();
  }
  if (message.has_hash_block_size()) config.hash_block_size = message.hash_block_size();
  if (message.has_native()) {
    const config::v1::NativeLayout& native = message.native();
    config.native = {native.num_chunks(),
                     {native.pages_per_chunk().begin(), native.pages_per_chunk().end()},
                     {native.class_of_group().begin(), native.class_of_group().end()}};
  }
  if (absl::Status status = Validate(config); !status.ok()) return status;
  return config;
}

config::v1::KvCacheConfig ToProto(const KvCacheConfig& config) {
  config::v1::KvCacheConfig message;
  message.set_num_blocks(config.num_blocks);
  for (const KvCacheGroup& group : config.groups) {
    config::v1::KvCacheGroup& out = *message.add_groups();
    WriteSpec(group.spec, *out.mutable_spec());
    for (const std::string& name : group.layer_names) out.add_layer_names(name);
    out.set_is_draft(group.is_draft);
  }
  if (config.scheduler_block_size.has_value()) {
    message.set_scheduler_block_size(*config.scheduler_block_size);
  }
  if (config.hash_block_size.has_value()) message.set_hash_block_size(*config.hash_block_size);
  if (config.native.has_value()) {
    config::v1::NativeLayout& native = *message.mutable_native();
    native.set_num_chunks(config.native->num_chunks);
    for (const int64_t pages : config.native->pages_per_chunk) native.add_pages_per_chunk(pages);
    for (const int32_t page_class : config.native->class_of_group) {
      native.add_class_of_group(page_class);
    }
  }
  return message;
}

}  // namespace kvblocks
