#include "kvblocks/specs/uniform_type_specs.h"

#include <algorithm>
#include <set>

#include "kvblocks/specs/checked_int64.h"
#include "kvblocks/specs/field_error.h"
#include "kvblocks/specs/merge.h"

namespace kvblocks {

absl::StatusOr<UniformTypeSpecs> UniformTypeSpecs::Create(std::vector<Member> members) {
  if (members.empty()) return FieldError("members", "none", "at least one");
  std::set<std::string> names;
  CheckedInt64 page_bytes(0);
  for (const auto& [name, spec] : members) {
    if (!names.insert(name).second) {
      return FieldError("members", "\"" + name + "\" twice", "distinct names");
    }
    const KvCacheSpec pair[] = {members.front().second, spec};
    if (!IsUniformType(pair)) {
      return FieldError("members", "\"" + name + "\" with " + spec.ToString(),
                        "block size and type of \"" + members.front().first + "\" with " +
                            members.front().second.ToString());
    }
    page_bytes = page_bytes + spec.page_bytes();
  }
  if (page_bytes.overflowed()) {
    return FieldError("members", "pages whose sum exceeds 9223372036854775807 bytes",
                      "a sum that fits 63 bits");
  }
  return UniformTypeSpecs(std::move(members), *page_bytes.value());
}

std::optional<KvCacheSpecKind> UniformTypeSpecs::kind() const {
  for (const auto& [name, spec] : members_) {
    if (spec.kind() != representative().kind()) return std::nullopt;
  }
  return representative().kind();
}

absl::StatusOr<int64_t> UniformTypeSpecs::MaxBlocksPerRequest(const RequestLimits& limits,
                                                              BlockCountFormula formula) const {
  int64_t most = 0;
  for (const auto& [name, spec] : members_) {
    const absl::StatusOr<int64_t> blocks = kvblocks::MaxBlocksPerRequest(spec, limits, formula);
    if (!blocks.ok()) return blocks.status();
    most = std::max(most, *blocks);
  }
  return most;
}

absl::StatusOr<int64_t> UniformTypeSpecs::MaxBytesPerRequest(const RequestLimits& limits,
                                                             BlockCountFormula formula) const {
  const absl::StatusOr<int64_t> blocks = MaxBlocksPerRequest(limits, formula);
  if (!blocks.ok()) return blocks.status();
  const auto bytes = (CheckedInt64(*blocks) * page_bytes_).value();
  if (!bytes.has_value()) {
    return FieldError(
        "max_model_len", std::to_string(limits.max_model_len), "a length whose cache fits 63 bits",
        std::to_string(*blocks) + " blocks of " + std::to_string(page_bytes_) + " bytes");
  }
  return *bytes;
}

absl::StatusOr<int64_t> SharedBlockTableWidth(const std::vector<KvCacheSpec>& specs,
                                              const RequestLimits& limits) {
  if (specs.empty()) return FieldError("specs", "none", "at least one");
  std::string widths;
  std::set<int64_t> distinct;
  for (const KvCacheSpec& spec : specs) {
    const absl::StatusOr<int64_t> width = BlockTableWidth(spec, limits);
    if (!width.ok()) return width.status();
    distinct.insert(*width);
    widths.append(widths.empty() ? "" : ", ").append(std::to_string(*width));
  }
  if (distinct.size() > 1) {
    return FieldError("specs", "block-table widths " + widths, "one width for all",
                      "layers of one table need the same block size");
  }
  return *distinct.begin();
}

}  // namespace kvblocks
