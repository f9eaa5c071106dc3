#include "kvblocks/request_footprint.h"

#include <numeric>
#include <string>
#include <type_traits>

#include "absl/strings/cord.h"
#include "checks/checked_int64.h"
#include "checks/field_error.h"
#include "specs/spec_fields.h"

namespace kvblocks {
namespace {

constexpr char kFailureUrl[] = "kvblocks.specs.merge_failure";
constexpr std::string_view kWrongKindText = "wrong kind";
constexpr std::string_view kConflictingFieldsText = "conflicting fields";
constexpr std::string_view kConflictingWindowsText = "conflicting windows";

absl::Status Failure(std::string_view failure, size_t member, std::string_view field,
                     std::string_view got, std::string_view expected) {
  const absl::Status difference =
      FieldError(std::string(field) + " of member " + std::to_string(member), got,
                 std::string(expected) + " as before it");
  std::string message = "specs do not merge, ";
  message.append(failure).append(": ").append(std::string(difference.message()));
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kFailureUrl, absl::Cord(std::string(failure)));
  return status;
}

// Two alignments that give one page are met by their least common multiple, which gives that page,
// too. Keeping the alignment lets a later change of the block size recompute the padding.
absl::Status MergeAlignment(const KvCacheSpec& spec, const KvCacheSpec& first, size_t member,
                            std::optional<int64_t>& merged) {
  if (spec.page_bytes() != first.page_bytes()) {
    return Failure(kConflictingFieldsText, member, "page_bytes", FieldText(spec.page_bytes()),
                   FieldText(first.page_bytes()));
  }
  const std::optional<int64_t> own = spec.options().alignment;
  if (own == merged) return absl::OkStatus();
  const int64_t a = own.value_or(1);
  const int64_t b = merged.value_or(1);
  const auto lcm = (CheckedInt64(a / std::gcd(a, b)) * b).value();
  if (!lcm.has_value()) {
    return Failure(kConflictingFieldsText, member, "alignment", FieldText(own), FieldText(merged));
  }
  merged = lcm;
  return absl::OkStatus();
}

// Merges the fields of `spec`, the given member, into `merged`; windows in a pass of their own, so
// that the reported failure does not depend on the order of the members.
absl::Status MergeFields(const KvCacheSpec& spec, const KvCacheSpec& first, size_t member,
                         bool windows, KvCacheSpecOptions& merged) {
  absl::Status status;
  ForEachSpecField([&](const SpecField& field, auto pointer) {
    if (!field.In(spec.kind()) || (field.merge == MergeRule::kWindow) != windows) return;
    const auto& own = spec.options().*pointer;
    auto& so_far = merged.*pointer;
    using T = std::remove_cvref_t<decltype(own)>;
    if constexpr (std::is_same_v<T, bool>) {
      if (field.merge == MergeRule::kAny) {
        so_far = so_far || own;
        return;
      }
    }
    if constexpr (std::is_same_v<T, std::optional<int64_t>>) {
      if (field.merge == MergeRule::kAlignment) {
        return status.Update(MergeAlignment(spec, first, member, so_far));
      }
      if (windows && !so_far.has_value()) so_far = own;
      if (windows && !own.has_value()) return;
    }
    if (own != so_far) {
      status.Update(Failure(windows ? kConflictingWindowsText : kConflictingFieldsText, member,
                            field.name, FieldText(own), FieldText(so_far)));
    }
  });
  if (status.ok() && windows && merged.sliding_window && merged.attention_chunk_size) {
    return Failure(kConflictingWindowsText, member, "local attention",
                   "both sliding_window " + FieldText(*merged.sliding_window) +
                       " and attention_chunk_size " + FieldText(*merged.attention_chunk_size),
                   "only one of them");
  }
  return status;
}

// Registered kinds may have managers of their own.
bool ManagedAlike(const KvCacheSpec& a, const KvCacheSpec& b) {
  return a.registered_kind() == b.registered_kind();
}

// Kinds that one block manager serves alike.
KvCacheSpecKind UniformBase(KvCacheSpecKind kind) {
  return kind == KvCacheSpecKind::kMlaAttention || kind == KvCacheSpecKind::kSinkFullAttention ||
                 kind == KvCacheSpecKind::kHiddenState
             ? KvCacheSpecKind::kFullAttention
             : kind;
}

}  // namespace

absl::StatusOr<KvCacheSpec> Merge(std::span<const KvCacheSpec> specs) {
  if (specs.empty()) return absl::InvalidArgumentError("specs: got none, expected at least one");
  const KvCacheSpec& first = specs.front();
  for (size_t i = 1; i < specs.size(); ++i) {
    if (specs[i].kind() != first.kind() || specs[i].registered_kind() != first.registered_kind()) {
      return Failure(kWrongKindText, i, "kind", specs[i].kind_name(), first.kind_name());
    }
  }
  KvCacheSpecOptions merged = first.options();
  for (const bool windows : {false, true}) {
    for (size_t i = 1; i < specs.size(); ++i) {
      absl::Status status = MergeFields(specs[i], first, i, windows, merged);
      if (!status.ok()) return status;
    }
  }
  return first.WithOptions(merged);
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
        spec.options().cache_mode != first.options().cache_mode ||
        spec.options().num_speculative_blocks != first.options().num_speculative_blocks ||
        spec.options().num_checkpoint_blocks != first.options().num_checkpoint_blocks ||
        spec.options().bounded_replay != first.options().bounded_replay ||
        spec.extra_retained_tokens() != first.extra_retained_tokens() ||
        spec.output_window() != first.output_window() ||
        !ManagedAlike(spec, first)) {
      return false;
    }
  }
  return true;
}

}  // namespace kvblocks
