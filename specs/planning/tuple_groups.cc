#include "kvblocks/specs/planning/tuple_groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "kvblocks/checks/checked_int64.h"
#include "kvblocks/specs/planning/layer_buckets.h"

namespace kvblocks {
namespace {

bool IsMla(const LayerCache& cache) { return cache.spec.kind() == KvCacheSpecKind::kMlaAttention; }
bool IsSlidingMla(const LayerCache& cache) {
  return cache.spec.kind() == KvCacheSpecKind::kSlidingWindowMla;
}

bool CheckMlaBlockSizes(std::span<const LayerCache> caches, std::span<const int> layers,
                        std::vector<PlanError>* errors) {
  std::map<int64_t, int> first_of_size;
  for (const int layer : layers) first_of_size.emplace(caches[layer].spec.block_size(), layer);
  if (first_of_size.size() <= 1) return true;
  PlanError error = {.code = PlanErrorCode::kTableWidths};
  std::string sizes;
  for (const auto& [size, layer] : first_of_size) {
    sizes +=
        (sizes.empty() ? "" : ", ") + std::to_string(size) + " (\"" + caches[layer].name + "\")";
    error.layers.push_back(caches[layer].name);
  }
  error.message =
      "MLA caches share one block table, but their tables differ in width: one entry per "
      "block of " +
      sizes + " tokens; give them one block size";
  errors->push_back(std::move(error));
  return false;
}

bool CheckWholeTuples(std::span<const LayerCache> caches, std::span<const std::vector<int>> columns,
                      std::vector<PlanError>* errors) {
  for (const std::vector<int>& column : columns) {
    if (column.size() == columns.front().size()) continue;
    const LayerCache& some = caches[columns.front().front()];
    const LayerCache& other = caches[column.front()];
    errors->push_back(
        {.code = PlanErrorCode::kPagesDoNotEqualise,
         .message = "sliding MLA caches of block size " + std::to_string(some.spec.block_size()) +
                    " and window " + std::to_string(*some.spec.sliding_window()) + ": pages of " +
                    std::to_string(some.spec.page_bytes()) + " bytes (\"" + some.name +
                    "\") occur " + std::to_string(columns.front().size()) + " times, pages of " +
                    std::to_string(other.spec.page_bytes()) + " bytes (\"" + other.name + "\") " +
                    std::to_string(column.size()) +
                    " times, expected equally often; use the exact policy, which needs no tuples",
         .layers = {some.name, other.name}});
    return false;
  }
  return true;
}

}  // namespace

std::vector<std::vector<int>> ColumnsByPage(std::span<const LayerCache> caches,
                                            std::span<const int> layers) {
  std::vector<std::vector<int>> columns;
  std::map<int64_t, size_t> column_of_page;
  for (const int layer : layers) {
    const auto [entry, is_new] =
        column_of_page.emplace(caches[layer].spec.page_bytes(), columns.size());
    if (is_new) columns.emplace_back();
    columns[entry->second].push_back(layer);
  }
  return columns;
}

std::vector<std::vector<int>> DealTuples(std::span<const std::vector<int>> columns,
                                         int64_t num_groups) {
  std::vector<std::vector<int>> groups(num_groups);
  for (const std::vector<int>& column : columns) {
    const std::vector<std::vector<int>> dealt = Deal(column, num_groups);
    for (int64_t g = 0; g < num_groups; ++g) {
      groups[g].insert(groups[g].end(), dealt[g].begin(), dealt[g].end());
    }
  }
  for (std::vector<int>& group : groups) std::ranges::sort(group);
  return groups;
}

int64_t TuplePadding(std::span<const int64_t> counts, int64_t tuples_per_group) {
  int64_t padding = 0;
  for (const int64_t count : counts) padding += PaddingLayers(count, tuples_per_group);
  return padding;
}

int64_t ChooseTuplesPerGroup(std::span<const int64_t> counts, int64_t lowest) {
  int64_t best = lowest;
  for (int64_t n = lowest + 1; n <= std::ranges::max(counts); ++n) {
    if (TuplePadding(counts, n) <= TuplePadding(counts, best)) best = n;
  }
  return best;
}

int64_t TupleCount(std::span<const LayerCache> caches, std::span<const int> layers) {
  size_t count = 0;
  for (const std::vector<int>& column : ColumnsByPage(caches, layers)) {
    count = std::max(count, column.size());
  }
  return static_cast<int64_t>(count);
}

bool HasCompressedRows(std::span<const LayerCache> caches) {
  const auto other_page = [&](const LayerCache& cache) {
    return cache.spec.page_bytes() != caches.front().spec.page_bytes();
  };
  const auto belongs = [](const LayerCache& cache) {
    return IsMla(cache) || IsSlidingMla(cache) || cache.spec.kind() == KvCacheSpecKind::kRing;
  };
  return std::ranges::any_of(caches, IsSlidingMla) && std::ranges::any_of(caches, other_page) &&
         std::ranges::all_of(caches, belongs);
}

bool CallsForTuples(std::span<const LayerCache> caches) {
  return HasCompressedRows(caches) && std::ranges::none_of(caches, [](const LayerCache& cache) {
           return cache.spec.kind() == KvCacheSpecKind::kRing;
         });
}

std::optional<TupleGroups> GroupByTuples(std::span<const LayerCache> caches,
                                         std::vector<PlanError>* errors) {
  std::vector<int> mla;
  std::vector<std::vector<int>> buckets;
  std::map<std::pair<int64_t, int64_t>, size_t> bucket_of;
  for (size_t i = 0; i < caches.size(); ++i) {
    if (IsMla(caches[i])) {
      mla.push_back(static_cast<int>(i));
      continue;
    }
    const KvCacheSpec& spec = caches[i].spec;
    const auto [entry, is_new] =
        bucket_of.emplace(std::pair(spec.block_size(), *spec.sliding_window()), buckets.size());
    if (is_new) buckets.emplace_back();
    buckets[entry->second].push_back(static_cast<int>(i));
  }

  TupleGroups result;
  bool ok = CheckMlaBlockSizes(caches, mla, errors);
  if (!mla.empty()) {
    result.tuple_counts.push_back(TupleCount(caches, mla));
    result.groups.push_back(mla);
  }
  std::vector<std::vector<std::vector<int>>> columns_of_bucket;
  for (const std::vector<int>& bucket : buckets) {
    columns_of_bucket.push_back(ColumnsByPage(caches, bucket));
    ok &= CheckWholeTuples(caches, columns_of_bucket.back(), errors);
    result.tuple_counts.push_back(static_cast<int64_t>(columns_of_bucket.back().front().size()));
  }
  if (!ok) return std::nullopt;

  result.tuples_per_group =
      ChooseTuplesPerGroup(result.tuple_counts, mla.empty() ? 1 : result.tuple_counts.front());
  for (const auto& columns : columns_of_bucket) {
    const int64_t num_groups =
        CeilDiv(static_cast<int64_t>(columns.front().size()), result.tuples_per_group);
    for (std::vector<int>& group : DealTuples(columns, num_groups)) {
      result.groups.push_back(std::move(group));
    }
  }
  return result;
}

int64_t TupleProductBytes(std::span<const LayerCache> caches,
                          std::span<const std::vector<int>> groups) {
  std::set<int64_t> mla_pages;
  for (const std::vector<int>& group : groups) {
    for (const int layer : group) {
      if (IsMla(caches[layer])) mla_pages.insert(caches[layer].spec.page_bytes());
    }
  }
  std::set<int64_t> pages = mla_pages;
  int64_t most_tuples = 0;
  for (const std::vector<int>& group : groups) {
    for (const int layer : group) {
      const int64_t page = caches[layer].spec.page_bytes();
      const auto next = mla_pages.lower_bound(page);
      pages.insert(next == mla_pages.end() ? page : *next);
    }
    most_tuples = std::max(most_tuples, TupleCount(caches, group));
  }
  CheckedInt64 sum(0);
  for (const int64_t page : pages) sum = sum + page;
  return (sum * most_tuples).value().value_or(std::numeric_limits<int64_t>::max());
}

}  // namespace kvblocks
