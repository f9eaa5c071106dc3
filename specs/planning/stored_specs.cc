#include "specs/planning/stored_specs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "checks/checked_int64.h"
#include "kvblocks/request_footprint.h"

namespace kvblocks {
namespace {

bool IsFullType(const KvCacheSpec& spec) {
  return spec.kind() == KvCacheSpecKind::kFullAttention ||
         spec.kind() == KvCacheSpecKind::kMlaAttention ||
         spec.kind() == KvCacheSpecKind::kSinkFullAttention;
}

bool IsLocal(const KvCacheSpec& spec) {
  return spec.sliding_window().has_value() || spec.attention_chunk_size().has_value();
}

// The unbounded kind that stores the same rows as a local one.
KvCacheSpecKind FullKindOf(const KvCacheSpec& spec) {
  return spec.kind() == KvCacheSpecKind::kSlidingWindowMla ? KvCacheSpecKind::kMlaAttention
                                                           : KvCacheSpecKind::kFullAttention;
}

absl::StatusOr<KvCacheSpec> InFull(const KvCacheSpec& spec, int64_t block_size) {
  if (!IsLocal(spec)) return spec;
  if (spec.registered_kind() != nullptr) {
    return absl::InvalidArgumentError(std::string(spec.kind_name()) +
                                      " is a registered kind, which knows no other storage");
  }
  const KvCacheSpecKind kind = FullKindOf(spec);
  KvCacheSpecOptions full = spec.options();
  full.block_size = block_size;
  full.page_bytes_formula = PageBytesFormula::kExact;
  full.page_size_padded = std::nullopt;
  full.bounded_replay = false;  // every token is there
  if (kind == KvCacheSpecKind::kMlaAttention) full.sliding_window = std::nullopt;  // no label
  absl::StatusOr<KvCacheSpec> stored = KvCacheSpec::Create(kind, full);
  // Padding grows to the page that there would be without it.
  const std::optional<int64_t> padded = spec.options().page_size_padded;
  if (!stored.ok() || !padded.has_value()) return stored;
  return stored->WithPageSizePadded(std::max(*padded, stored->page_bytes()));
}

}  // namespace

std::optional<std::vector<KvCacheSpec>> StoreInFull(std::span<const LayerCache> caches,
                                                    std::vector<PlanError>* errors) {
  std::vector<KvCacheSpec> specs;
  std::set<int64_t> full_block_sizes;
  bool any_local = false;
  for (const LayerCache& cache : caches) {
    specs.push_back(cache.spec);
    if (IsFullType(cache.spec)) full_block_sizes.insert(cache.spec.block_size());
    any_local |= IsLocal(cache.spec);
  }
  if (full_block_sizes.empty() || !any_local) return specs;
  bool ok = true;
  for (size_t i = 0; i < caches.size(); ++i) {
    const int64_t block_size =
        full_block_sizes.size() == 1 ? *full_block_sizes.begin() : specs[i].block_size();
    absl::StatusOr<KvCacheSpec> full = InFull(specs[i], block_size);
    if (full.ok()) {
      specs[i] = *std::move(full);
      continue;
    }
    ok = false;
    errors->push_back(
        {.code = PlanErrorCode::kNotOneType,
         .message = "layer \"" + caches[i].name + "\" cannot be stored in full with block size " +
                    std::to_string(block_size) + ": " + std::string(full.status().message()),
         .layers = {caches[i].name}});
  }
  if (!ok) return std::nullopt;
  return specs;
}

bool CheckOneType(std::span<const LayerCache> caches, std::span<const KvCacheSpec> specs,
                  std::vector<PlanError>* errors) {
  if (IsUniformType(specs) || IsMergeable(specs)) return true;
  std::string kinds;
  PlanError error = {.code = PlanErrorCode::kNotOneType};
  std::set<std::string> seen;
  for (size_t i = 0; i < specs.size(); ++i) {
    std::string kind(specs[i].kind_name());
    kind += " with block size " + std::to_string(specs[i].block_size());
    if (const auto window = specs[i].sliding_window()) {
      kind += " and window " + std::to_string(*window);
    } else if (const auto chunk = specs[i].attention_chunk_size()) {
      kind += " and chunk " + std::to_string(*chunk);
    }
    if (!seen.insert(kind).second) continue;
    kinds += (kinds.empty() ? "" : ", ") + kind;
    error.layers.push_back(caches[i].name);
  }
  error.message = "layers stored in full are still not of one type; kinds left: " + kinds +
                  "; keep hybrid management on";
  errors->push_back(error);
  const bool one_kind = std::ranges::all_of(
      specs, [&](const KvCacheSpec& spec) { return spec.kind() == specs.front().kind(); });
  if (one_kind) {
    errors->push_back({.code = PlanErrorCode::kMerge,
                       .message = "the only group, layers \"" + caches.front().name + "\" to \"" +
                                  caches.back().name +
                                  "\": " + std::string(Merge(specs).status().message()),
                       .layers = error.layers});
  }
  return false;
}

namespace {

// The largest divisor of `number` that is at most `limit`. REQUIRES: both are at least 1.
int64_t LargestDivisor(int64_t number, int64_t limit) {
  int64_t largest = 1;
  for (int64_t low = 1; low <= number / low; ++low) {
    if (number % low != 0) continue;
    for (const int64_t divisor : {low, number / low}) {
      if (divisor <= limit) largest = std::max(largest, divisor);
    }
  }
  return largest;
}

}  // namespace

std::optional<KvCacheSpec> FitHiddenState(const LayerCache& cache, int64_t block_unit,
                                          int64_t page_bytes, std::vector<PlanError>* errors) {
  const int64_t row_bytes = cache.spec.unpadded_page_bytes() / cache.spec.block_size();
  std::string reason = "one token has " + std::to_string(row_bytes) + " bytes";
  if (row_bytes <= page_bytes) {
    KvCacheSpecOptions options = cache.spec.options();
    options.block_size = LargestDivisor(block_unit, page_bytes / row_bytes);
    options.page_size_padded = page_bytes;
    absl::StatusOr<KvCacheSpec> fitted = cache.spec.WithOptions(options);
    if (fitted.ok()) return *std::move(fitted);
    reason = std::string(fitted.status().message());
  }
  errors->push_back({.code = PlanErrorCode::kPagesDoNotEqualise,
                     .message = "hidden-state layer \"" + cache.name +
                                "\" does not fit the common page of " + std::to_string(page_bytes) +
                                " bytes: " + reason + "; use larger blocks, or the native layout",
                     .layers = {cache.name},
                     .needed = row_bytes,
                     .available = page_bytes});
  return std::nullopt;
}

namespace {

bool IsMla(const KvCacheSpec& spec) {
  return spec.kind() == KvCacheSpecKind::kMlaAttention ||
         spec.kind() == KvCacheSpecKind::kSlidingWindowMla;
}

// Their pages do not grow with the block.
bool IsState(const KvCacheSpec& spec) {
  return spec.kind() == KvCacheSpecKind::kMamba || spec.kind() == KvCacheSpecKind::kRing;
}

// The spec with a block `ratio` times as large and a page of exactly `page_bytes`. Padding is a
// function of the page, not of the block, so it is computed again.
absl::StatusOr<KvCacheSpec> WithLargerBlock(const KvCacheSpec& spec, int64_t ratio,
                                            int64_t page_bytes) {
  const auto block_size = (CheckedInt64(spec.block_size()) * ratio).value();
  if (!block_size.has_value()) return absl::InvalidArgumentError("the block size exceeds 63 bits");
  absl::StatusOr<KvCacheSpec> larger = spec.WithPageSizePadded(std::nullopt);
  if (larger.ok()) larger = larger->WithBlockSize(*block_size);
  if (larger.ok() && larger->page_bytes() != page_bytes) {
    larger = larger->WithPageSizePadded(page_bytes);
  }
  return larger;
}

absl::StatusOr<KvCacheSpec> WithPage(const KvCacheSpec& spec, int64_t page_bytes,
                                     EngineVersion version) {
  if (spec.page_bytes() == page_bytes) return spec;
  if (IsState(spec)) return spec.WithPageSizePadded(page_bytes);
  const bool may_be_padded = spec.options().indexes_kv_by_block_stride ||
                             (version == EngineVersion::kVllm033 && !IsMla(spec));
  if (page_bytes % spec.page_bytes() == 0) {
    absl::StatusOr<KvCacheSpec> larger =
        WithLargerBlock(spec, page_bytes / spec.page_bytes(), page_bytes);
    if (larger.ok() || !may_be_padded) return larger;
  }
  if (may_be_padded) return spec.WithPageSizePadded(page_bytes);
  return absl::InvalidArgumentError("not a divisor and backend cannot read padded pages");
}

}  // namespace

std::optional<std::vector<KvCacheSpec>> EqualisePages(std::span<const LayerCache> caches,
                                                      EngineVersion version,
                                                      std::vector<PlanError>* errors) {
  int64_t target = 0;
  for (const LayerCache& cache : caches) target = std::max(target, cache.spec.page_bytes());
  std::vector<KvCacheSpec> specs;
  std::map<int64_t, size_t> error_of_page;
  for (const LayerCache& cache : caches) {
    absl::StatusOr<KvCacheSpec> spec = WithPage(cache.spec, target, version);
    if (spec.ok()) {
      specs.push_back(*std::move(spec));
      continue;
    }
    const int64_t page = cache.spec.page_bytes();
    const auto [entry, is_new] = error_of_page.emplace(page, errors->size());
    if (is_new) {
      errors->push_back(
          {.code = PlanErrorCode::kPagesDoNotEqualise,
           .message = "layer \"" + cache.name + "\" has pages of " + std::to_string(page) +
                      " bytes, the largest page has " + std::to_string(target) + ": " +
                      std::string(spec.status().message()) +
                      "; use the native layout, whose page classes need no common size",
           .needed = target,
           .available = page});
    }
    (*errors)[entry->second].layers.push_back(cache.name);
  }
  if (!error_of_page.empty()) return std::nullopt;
  return specs;
}

namespace {

absl::Status TooLarge() { return absl::InvalidArgumentError("the block would exceed 63 bits"); }

// The least common multiple. An overflow stays one.
CheckedInt64 Lcm(CheckedInt64 a, int64_t b) {
  return a.overflowed() ? a : a * (b / std::gcd(*a.value(), b));
}

// Rings have as many rows as they have, and hidden states take what block the others have.
bool GrowsByToken(const KvCacheSpec& spec) {
  return spec.kind() != KvCacheSpecKind::kRing && spec.kind() != KvCacheSpecKind::kHiddenState;
}

struct AttentionAndStates {
  CheckedInt64 bytes_per_token = 1;  // least common multiple over the formats
  int64_t block_size = 0;            // the largest configured
  int64_t state_bytes = 0;           // the largest, without padding
  bool state_at_every_block = false;
  bool any_attention = false;
};

AttentionAndStates Survey(std::span<const LayerCache> caches) {
  AttentionAndStates found;
  for (const LayerCache& cache : caches) {
    const absl::StatusOr<KvCacheSpec> plain = cache.spec.WithPageSizePadded(std::nullopt);
    const KvCacheSpec& spec = plain.ok() ? *plain : cache.spec;
    if (const auto* mamba = spec.get_if<MambaSpec>()) {
      found.state_bytes = std::max(found.state_bytes, spec.page_bytes());
      found.state_at_every_block |= mamba->options().cache_mode == MambaCacheMode::kAll;
      continue;
    }
    if (!GrowsByToken(spec)) continue;
    found.any_attention = true;
    found.block_size = std::max(found.block_size, spec.block_size());
    found.bytes_per_token =
        Lcm(found.bytes_per_token, CeilDiv(spec.page_bytes(), spec.block_size()));
  }
  return found;
}

absl::StatusOr<KvCacheSpec> Aligned(const KvCacheSpec& spec, int64_t block_size,
                                    int64_t page_bytes) {
  if (!GrowsByToken(spec)) return spec;
  const auto* mamba = spec.get_if<MambaSpec>();
  if (mamba == nullptr) {
    absl::StatusOr<KvCacheSpec> plain = spec.WithPageSizePadded(std::nullopt);
    return plain.ok() ? plain->WithBlockSize(block_size) : plain;
  }
  absl::StatusOr<KvCacheSpec> padded = spec.WithPageSizePadded(page_bytes);
  if (!padded.ok() || mamba->options().cache_mode != MambaCacheMode::kAlign) return padded;
  return padded->WithBlockSize(block_size);
}

}  // namespace

int64_t StateBlockSize(int64_t state_bytes, int64_t attention_bytes_per_token, int64_t unit) {
  const auto unit_bytes = (CheckedInt64(unit) * attention_bytes_per_token).value();
  return unit * CeilDiv(state_bytes, unit_bytes.value_or(state_bytes));
}

std::optional<std::vector<KvCacheSpec>> AlignStates(std::span<const LayerCache> caches,
                                                    int64_t smallest_kernel_block,
                                                    int64_t state_chunk_tokens,
                                                    std::vector<PlanError>* errors) {
  std::vector<KvCacheSpec> specs;
  for (const LayerCache& cache : caches) specs.push_back(cache.spec);
  const AttentionAndStates found = Survey(caches);
  if (found.state_bytes == 0 || !found.any_attention) return specs;
  CheckedInt64 unit = std::max(found.block_size, smallest_kernel_block);
  if (found.state_at_every_block) unit = Lcm(unit, state_chunk_tokens);
  std::optional<int64_t> block_size;
  std::optional<int64_t> page_bytes;
  if (!unit.overflowed() && !found.bytes_per_token.overflowed()) {
    block_size = StateBlockSize(found.state_bytes, *found.bytes_per_token.value(), *unit.value());
    page_bytes = (CheckedInt64(*block_size) * found.bytes_per_token).value();
  }
  bool ok = true;
  for (size_t i = 0; i < specs.size(); ++i) {
    absl::StatusOr<KvCacheSpec> aligned = page_bytes.has_value()
                                              ? Aligned(specs[i], *block_size, *page_bytes)
                                              : absl::StatusOr<KvCacheSpec>(TooLarge());
    if (aligned.ok()) {
      specs[i] = *std::move(aligned);
      continue;
    }
    ok = false;
    errors->push_back(
        {.code = PlanErrorCode::kPagesDoNotEqualise,
         .message = "layer \"" + caches[i].name + "\" with pages of " +
                    std::to_string(specs[i].page_bytes()) +
                    " bytes cannot take the block that the largest state of " +
                    std::to_string(found.state_bytes) +
                    " bytes asks for: " + std::string(aligned.status().message()) +
                    "; use the native layout, in which states do not dictate the block",
         .layers = {caches[i].name},
         .needed = found.state_bytes,
         .available = specs[i].page_bytes()});
    if (!page_bytes.has_value()) break;
  }
  if (!ok) return std::nullopt;
  return specs;
}

}  // namespace kvblocks
