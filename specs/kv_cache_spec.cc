#include "kvblocks/specs/kv_cache_spec.h"

#include <array>
#include <concepts>
#include <type_traits>

namespace kvblocks {
namespace {

constexpr std::array<std::string_view, 9> kKindNames = {
    "full_attention", "mla_attention",      "sink_full_attention",
    "sliding_window", "sliding_window_mla", "chunked_local_attention",
    "mamba",          "cross_attention",    "encoder_only_attention"};

template <typename Spec>
constexpr bool kIsMamba = std::is_same_v<std::remove_cvref_t<Spec>, MambaSpec>;

// Appends ", name=value" for the fields that differ from their default.
class FieldWriter {
 public:
  explicit FieldWriter(std::string* out) : out_(out) {}

  void Write(std::string_view name, int64_t value, int64_t unless) {
    if (value != unless) Append(name, std::to_string(value));
  }
  void Write(std::string_view name, const std::optional<int64_t>& value) {
    if (value.has_value()) Append(name, std::to_string(*value));
  }
  // Constrained, because an int64_t would rather become a bool than an optional.
  void Write(std::string_view name, std::same_as<bool> auto value) {
    if (value) Append(name, "true");
  }
  void Append(std::string_view name, std::string_view value) {
    out_->append(separator_).append(name).append("=").append(value);
    separator_ = ", ";
  }

 private:
  std::string* out_;
  std::string_view separator_ = "(";
};

}  // namespace

std::string_view KindName(KvCacheSpecKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::string SupportedKinds() {
  std::string text;
  for (const std::string_view name : kKindNames) {
    text.append(text.empty() ? "one of " : ", ").append(name);
  }
  return text;
}

int64_t KvCacheSpec::block_size() const {
  return Visit([](const auto& s) { return s.options().block_size; });
}

int64_t KvCacheSpec::num_kv_heads() const {
  return Visit([](const auto& s) -> int64_t {
    if constexpr (requires { s.options().num_kv_heads; }) {
      return s.options().num_kv_heads;
    } else {
      return kIsMamba<decltype(s)> ? 0 : 1;
    }
  });
}

int64_t KvCacheSpec::head_size() const {
  return Visit([](const auto& s) -> int64_t {
    if constexpr (kIsMamba<decltype(s)>) {
      return 0;
    } else {
      return s.options().head_size;
    }
  });
}

int64_t KvCacheSpec::head_size_v() const {
  return Visit([](const auto& s) -> int64_t {
    if constexpr (requires { s.options().head_size_v; }) {
      return *s.options().head_size_v;
    } else if constexpr (kIsMamba<decltype(s)>) {
      return 0;
    } else {
      return s.options().head_size;
    }
  });
}

DataType KvCacheSpec::dtype() const {
  return Visit([](const auto& s) {
    if constexpr (kIsMamba<decltype(s)>) {
      return s.options().states.front().dtype;
    } else {
      return s.options().dtype;
    }
  });
}

QuantMode KvCacheSpec::quant_mode() const {
  return Visit([](const auto& s) {
    if constexpr (kIsMamba<decltype(s)>) {
      return QuantMode::kNone;
    } else {
      return s.options().quant_mode;
    }
  });
}

int64_t KvCacheSpec::page_bytes() const {
  return Visit([](const auto& s) { return s.page_bytes(); });
}

std::optional<int64_t> KvCacheSpec::sliding_window() const {
  if (const auto* s = get_if<SlidingWindowSpec>()) return s->options().sliding_window;
  if (const auto* s = get_if<SlidingWindowMlaSpec>()) return s->options().sliding_window;
  return std::nullopt;
}

std::optional<int64_t> KvCacheSpec::attention_chunk_size() const {
  if (const auto* s = get_if<ChunkedLocalAttentionSpec>()) return s->options().attention_chunk_size;
  return std::nullopt;
}

int64_t KvCacheSpec::sink_length() const {
  const auto* s = get_if<SinkFullAttentionSpec>();
  return s == nullptr ? 0 : s->options().sink_length;
}

int64_t KvCacheSpec::compress_ratio() const {
  return Visit([](const auto& s) -> int64_t {
    if constexpr (requires { s.options().compress_ratio; }) {
      return s.options().compress_ratio;
    } else {
      return 1;
    }
  });
}

int64_t KvCacheSpec::storage_block_size() const {
  return kind() == KvCacheSpecKind::kMamba ? 1 : block_size() / compress_ratio();
}

absl::StatusOr<KvCacheSpec> KvCacheSpec::WithBlockSize(int64_t block_size) const {
  return Visit([block_size](const auto& s) -> absl::StatusOr<KvCacheSpec> {
    using Spec = std::remove_cvref_t<decltype(s)>;
    typename Spec::Options options = s.options();
    options.block_size = block_size;
    absl::StatusOr<Spec> changed = Spec::Create(options);
    if (!changed.ok()) return changed.status();
    return KvCacheSpec(*std::move(changed));
  });
}

absl::StatusOr<KvCacheSpec> KvCacheSpec::WithPageSizePadded(
    std::optional<int64_t> page_size_padded) const {
  return Visit([page_size_padded](const auto& s) -> absl::StatusOr<KvCacheSpec> {
    using Spec = std::remove_cvref_t<decltype(s)>;
    typename Spec::Options options = s.options();
    options.page_size_padded = page_size_padded;
    absl::StatusOr<Spec> changed = Spec::Create(options);
    if (!changed.ok()) return changed.status();
    return KvCacheSpec(*std::move(changed));
  });
}

std::string KvCacheSpec::ToString() const {
  std::string text(KindName(kind()));
  FieldWriter out(&text);
  Visit([&out](const auto& s) {
    const auto& o = s.options();
    out.Append("block_size", std::to_string(o.block_size));
    if constexpr (requires { o.num_kv_heads; }) out.Write("num_kv_heads", o.num_kv_heads, 0);
    if constexpr (requires { o.head_size; }) out.Append("head_size", std::to_string(o.head_size));
    if constexpr (requires { o.head_size_v; })
      out.Write("head_size_v", *o.head_size_v, o.head_size);
    if constexpr (kIsMamba<decltype(s)>) {
      out.Append("states", kvblocks::ToString(o.states));
      out.Append("cache_mode", MambaCacheModeName(o.cache_mode));
      out.Write("num_speculative_blocks", o.num_speculative_blocks, 0);
    } else {
      out.Append("dtype", DataTypeName(o.dtype));
      if (o.quant_mode != QuantMode::kNone) out.Append("quant_mode", QuantModeName(o.quant_mode));
    }
    if constexpr (requires { o.sliding_window; }) out.Write("sliding_window", o.sliding_window);
    if constexpr (requires { o.attention_chunk_size; }) {
      out.Write("attention_chunk_size", o.attention_chunk_size);
    }
    if constexpr (requires { o.sink_length; }) out.Write("sink_length", o.sink_length, 0);
    if constexpr (requires { o.compress_ratio; }) out.Write("compress_ratio", o.compress_ratio, 1);
    if constexpr (requires { o.model_version; }) {
      if (o.model_version != ModelVersion::kNone) {
        out.Append("model_version", ModelVersionName(o.model_version));
      }
    }
    if constexpr (requires { o.alignment; }) out.Write("alignment", o.alignment);
    out.Write("page_size_padded", o.page_size_padded);
    if constexpr (requires { o.indexes_kv_by_block_stride; }) {
      out.Write("indexes_kv_by_block_stride", o.indexes_kv_by_block_stride);
    }
    if constexpr (requires { o.non_causal; }) out.Write("non_causal", o.non_causal);
    if constexpr (requires { o.is_draft; }) out.Write("is_draft", o.is_draft);
    if constexpr (requires { o.page_bytes_formula; }) {
      out.Write("upstream_compatible",
                o.page_bytes_formula == PageBytesFormula::kUpstreamCompatible);
    }
  });
  out.Append("page_bytes", std::to_string(page_bytes()));
  return text + ")";
}

}  // namespace kvblocks
