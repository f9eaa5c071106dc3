#include "kvblocks/specs/planning/full_storage.h"

#include <algorithm>
#include <set>
#include <string>

#include "kvblocks/specs/merge.h"

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

}  // namespace kvblocks
