#include "kvblocks/specs/planning/page_equalising.h"

#include <algorithm>
#include <map>
#include <string>

#include "kvblocks/checks/checked_int64.h"

namespace kvblocks {
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
// function of the page, not of the block, so it is computed anew.
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

}  // namespace kvblocks
