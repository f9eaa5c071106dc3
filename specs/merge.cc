#include "kvblocks/specs/merge.h"

#include <concepts>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/cord.h"
#include "kvblocks/specs/checked_int64.h"

namespace kvblocks {
namespace {

constexpr char kFailureUrl[] = "kvblocks.specs.merge_failure";
constexpr std::string_view kWrongKindText = "wrong kind";
constexpr std::string_view kConflictingFieldsText = "conflicting fields";
constexpr std::string_view kConflictingWindowsText = "conflicting windows";

absl::Status Failure(std::string_view failure, size_t member, std::string_view field,
                     std::string_view got, std::string_view expected) {
  std::string message = "specs do not merge, ";
  message.append(failure).append(": ").append(field).append(" of member ");
  message.append(std::to_string(member)).append(": got ").append(got);
  message.append(", expected ").append(expected).append(" as before it");
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kFailureUrl, absl::Cord(std::string(failure)));
  return status;
}

std::string Text(int64_t value) { return std::to_string(value); }
std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(DataType value) { return std::string(DataTypeName(value)); }
std::string Text(QuantMode value) { return std::string(QuantModeName(value)); }
std::string Text(ModelVersion value) { return std::string(ModelVersionName(value)); }
std::string Text(MambaCacheMode value) { return std::string(MambaCacheModeName(value)); }
std::string Text(const std::vector<MambaState>& value) { return ToString(value); }
std::string Text(PageBytesFormula value) {
  return value == PageBytesFormula::kExact ? "exact" : "upstream-compatible";
}
template <typename T>
std::string Text(const std::optional<T>& value) {
  return value.has_value() ? Text(*value) : "unset";
}

// Compares a member's fields with those of the spec merged so far; keeps the first difference.
class FieldComparison {
 public:
  FieldComparison(size_t member, std::string_view failure) : member_(member), failure_(failure) {}

  template <typename T>
  void Same(std::string_view field, const T& got, const T& expected) {
    if (got != expected) {
      status_.Update(Failure(failure_, member_, field, Text(got), Text(expected)));
    }
  }
  // For labels: an unset one agrees with everything, and the value that is set is kept in `merged`.
  void SameIfSet(std::string_view field, const std::optional<int64_t>& got,
                 std::optional<int64_t>& merged) {
    if (got.has_value() && merged.has_value()) Same(field, got, merged);
    if (!merged.has_value()) merged = got;
  }
  const absl::Status& status() const { return status_; }

 private:
  size_t member_;
  std::string_view failure_;
  absl::Status status_;
};

template <typename Options>
absl::Status CompareFields(const Options& o, const Options& merged, size_t member) {
  FieldComparison compare(member, kConflictingFieldsText);
  compare.Same("block_size", o.block_size, merged.block_size);
  if constexpr (requires { o.num_kv_heads; }) {
    compare.Same("num_kv_heads", o.num_kv_heads, merged.num_kv_heads);
  }
  if constexpr (requires { o.head_size; }) {
    compare.Same("head_size", o.head_size, merged.head_size);
  }
  if constexpr (requires { o.head_size_v; }) {
    compare.Same("head_size_v", o.head_size_v, merged.head_size_v);
  }
  if constexpr (requires { o.states; }) {
    compare.Same("states", o.states, merged.states);
    compare.Same("cache_mode", o.cache_mode, merged.cache_mode);
    compare.Same("num_speculative_blocks", o.num_speculative_blocks, merged.num_speculative_blocks);
  } else {
    compare.Same("dtype", o.dtype, merged.dtype);
    compare.Same("quant_mode", o.quant_mode, merged.quant_mode);
    compare.Same("indexes_kv_by_block_stride", o.indexes_kv_by_block_stride,
                 merged.indexes_kv_by_block_stride);
  }
  compare.Same("page_size_padded", o.page_size_padded, merged.page_size_padded);
  if constexpr (requires { o.compress_ratio; }) {
    compare.Same("compress_ratio", o.compress_ratio, merged.compress_ratio);
    compare.Same("model_version", o.model_version, merged.model_version);
  }
  if constexpr (requires { o.sink_length; }) {
    compare.Same("sink_length", o.sink_length, merged.sink_length);
  }
  if constexpr (requires { o.page_bytes_formula; }) {
    compare.Same("page_bytes_formula", o.page_bytes_formula, merged.page_bytes_formula);
  }
  return compare.status();
}

// Also completes the labels of `merged`.
template <typename Options>
absl::Status CompareWindows(const Options& o, Options& merged, size_t member) {
  FieldComparison compare(member, kConflictingWindowsText);
  constexpr bool kIsWindow = requires {
    { o.sliding_window } -> std::same_as<const int64_t&>;
  };
  constexpr bool kIsChunk = requires {
    { o.attention_chunk_size } -> std::same_as<const int64_t&>;
  };
  if constexpr (kIsWindow) {
    compare.Same("sliding_window", o.sliding_window, merged.sliding_window);
  } else if constexpr (kIsChunk) {
    compare.Same("attention_chunk_size", o.attention_chunk_size, merged.attention_chunk_size);
  } else if constexpr (requires { o.sliding_window; }) {
    compare.SameIfSet("sliding_window", o.sliding_window, merged.sliding_window);
    compare.SameIfSet("attention_chunk_size", o.attention_chunk_size, merged.attention_chunk_size);
    if (compare.status().ok() && merged.sliding_window && merged.attention_chunk_size) {
      return Failure(kConflictingWindowsText, member, "local attention",
                     "both sliding_window " + Text(*merged.sliding_window) +
                         " and attention_chunk_size " + Text(*merged.attention_chunk_size),
                     "only one of them");
    }
  }
  return compare.status();
}

// Two alignments that give one page are met by their least common multiple, which gives that page,
// too. Keeping the alignment lets a later change of the block size recompute the padding.
template <typename Options>
absl::Status MergeAlignment(const Options& o, int64_t page_bytes, int64_t first_page_bytes,
                            Options& merged, size_t member) {
  FieldComparison compare(member, kConflictingFieldsText);
  compare.Same("page_bytes", page_bytes, first_page_bytes);
  if (!compare.status().ok() || o.alignment == merged.alignment) return compare.status();
  const int64_t a = o.alignment.value_or(1);
  const int64_t b = merged.alignment.value_or(1);
  const auto lcm = (CheckedInt64(a / std::gcd(a, b)) * b).value();
  if (!lcm.has_value()) compare.Same("alignment", o.alignment, merged.alignment);
  merged.alignment = lcm;
  return compare.status();
}

template <typename Spec>
absl::StatusOr<KvCacheSpec> MergeOneKind(std::span<const KvCacheSpec> specs) {
  const Spec& first = *specs.front().get_if<Spec>();
  typename Spec::Options merged = first.options();
  for (size_t i = 1; i < specs.size(); ++i) {
    const Spec& spec = *specs[i].get_if<Spec>();
    const typename Spec::Options& o = spec.options();
    absl::Status status = CompareFields(o, merged, i);
    if constexpr (requires { o.alignment; }) {
      status.Update(MergeAlignment(o, spec.page_bytes(), first.page_bytes(), merged, i));
    }
    if (!status.ok()) return status;
    if constexpr (requires { o.non_causal; }) merged.non_causal |= o.non_causal;
    if constexpr (requires { o.is_draft; }) merged.is_draft |= o.is_draft;
  }
  // In a pass of its own, so that the reported failure does not depend on the order of the members.
  for (size_t i = 1; i < specs.size(); ++i) {
    absl::Status status = CompareWindows(specs[i].get_if<Spec>()->options(), merged, i);
    if (!status.ok()) return status;
  }
  absl::StatusOr<Spec> spec = Spec::Create(merged);
  if (!spec.ok()) return spec.status();
  return KvCacheSpec(*std::move(spec));
}

// Kinds that one block manager serves alike.
KvCacheSpecKind UniformBase(KvCacheSpecKind kind) {
  return kind == KvCacheSpecKind::kMlaAttention || kind == KvCacheSpecKind::kSinkFullAttention
             ? KvCacheSpecKind::kFullAttention
             : kind;
}

// Whether requests hold equally many states of both; true for kinds without states.
bool HoldsAsManyStates(const KvCacheSpec& a, const KvCacheSpec& b) {
  const auto* first = a.get_if<MambaSpec>();
  const auto* second = b.get_if<MambaSpec>();
  return first == nullptr || second == nullptr ||
         (first->options().cache_mode == second->options().cache_mode &&
          first->options().num_speculative_blocks == second->options().num_speculative_blocks);
}

}  // namespace

absl::StatusOr<KvCacheSpec> Merge(std::span<const KvCacheSpec> specs) {
  if (specs.empty()) return absl::InvalidArgumentError("specs: got none, expected at least one");
  for (size_t i = 1; i < specs.size(); ++i) {
    if (specs[i].kind() != specs[0].kind()) {
      return Failure(kWrongKindText, i, "kind", KindName(specs[i].kind()),
                     KindName(specs[0].kind()));
    }
  }
  return specs.front().Visit([specs](const auto& first) {
    return MergeOneKind<std::remove_cvref_t<decltype(first)>>(specs);
  });
}

std::optional<MergeFailure> MergeFailureOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kFailureUrl);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  if (text == kWrongKindText) return MergeFailure::kWrongKind;
  if (text == kConflictingFieldsText) return MergeFailure::kConflictingFields;
  return MergeFailure::kConflictingWindows;
}

bool IsMergeable(std::span<const KvCacheSpec> specs) { return specs.empty() || Merge(specs).ok(); }

bool IsUniformType(std::span<const KvCacheSpec> specs) {
  for (const KvCacheSpec& spec : specs) {
    const KvCacheSpec& first = specs.front();
    if (spec.block_size() != first.block_size() ||
        UniformBase(spec.kind()) != UniformBase(first.kind()) ||
        spec.sliding_window() != first.sliding_window() ||
        spec.attention_chunk_size() != first.attention_chunk_size() ||
        !HoldsAsManyStates(spec, first)) {
      return false;
    }
  }
  return true;
}

}  // namespace kvblocks
