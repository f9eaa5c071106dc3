#include "specs/planning/layer_groups.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "checks/checked_int64.h"
#include "kvblocks/request_footprint.h"

namespace kvblocks {

bool HasLocalLabel(const KvCacheSpec& spec) {
  const bool is_full = spec.get_if<FullAttentionSpec>() != nullptr ||
                       spec.get_if<SinkFullAttentionSpec>() != nullptr;
  return is_full && (spec.options().sliding_window || spec.options().attention_chunk_size);
}

namespace {

KvCacheSpec WithoutLabels(const KvCacheSpec& spec) {
  if (!HasLocalLabel(spec)) return spec;
  KvCacheSpecOptions options = spec.options();
  options.sliding_window = std::nullopt;
  options.attention_chunk_size = std::nullopt;
  absl::StatusOr<KvCacheSpec> plain = spec.WithOptions(options);
  return plain.ok() ? *std::move(plain) : spec;
}

}  // namespace

absl::StatusOr<KvCacheSpec> MergeByRule(std::span<const KvCacheSpec> specs, LabelRule labels) {
  absl::StatusOr<KvCacheSpec> merged = Merge(specs);
  if (merged.ok() || labels != LabelRule::kIgnore) return merged;
  std::vector<KvCacheSpec> plain;
  plain.reserve(specs.size());
  for (const KvCacheSpec& spec : specs) plain.push_back(WithoutLabels(spec));
  return Merge(plain);
}

std::vector<LayerBucket> BucketBySpec(std::span<const KvCacheSpec> specs, LabelRule labels) {
  std::vector<LayerBucket> equal;
  absl::flat_hash_map<KvCacheSpec, size_t> bucket_of_spec;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto [entry, is_new] = bucket_of_spec.emplace(specs[i], equal.size());
    if (is_new) equal.push_back({.spec = specs[i]});
    equal[entry->second].layers.push_back(static_cast<int>(i));
  }
  std::vector<LayerBucket> merged;
  for (LayerBucket& bucket : equal) {
    bool placed = false;
    for (LayerBucket& earlier : merged) {
      if (labels == LabelRule::kApart &&
          HasLocalLabel(earlier.spec) != HasLocalLabel(bucket.spec)) {
        continue;
      }
      const KvCacheSpec pair[] = {earlier.spec, bucket.spec};
      absl::StatusOr<KvCacheSpec> spec = MergeByRule(pair, labels);
      if (!spec.ok()) continue;
      earlier.spec = *std::move(spec);
      earlier.layers.insert(earlier.layers.end(), bucket.layers.begin(), bucket.layers.end());
      std::ranges::sort(earlier.layers);
      placed = true;
      break;
    }
    if (!placed) merged.push_back(std::move(bucket));
  }
  return merged;
}

std::vector<LayerBucket> BucketByUniformType(std::span<const KvCacheSpec> specs,
                                             bool keep_labels_apart) {
  std::vector<LayerBucket> buckets;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto fits = [&](const LayerBucket& bucket) {
      const KvCacheSpec pair[] = {bucket.spec, specs[i]};
      return IsUniformType(pair) &&
             !(keep_labels_apart && HasLocalLabel(bucket.spec) != HasLocalLabel(specs[i]));
    };
    auto bucket = std::ranges::find_if(buckets, fits);
    if (bucket == buckets.end()) bucket = buckets.insert(buckets.end(), {.spec = specs[i]});
    bucket->layers.push_back(static_cast<int>(i));
  }
  return buckets;
}

int64_t UpstreamGroupSize(std::span<const int64_t> counts) {
  const auto [smallest, largest] = std::ranges::minmax(counts);
  // largest < 1.5 * smallest, in whole numbers.
  return largest - smallest < CeilDiv(smallest, 2) ? largest : smallest;
}

int64_t PaddingLayers(int64_t count, int64_t group_size) {
  return CeilDiv(count, group_size) * group_size - count;
}

int64_t CheapestGroupSize(std::span<const BucketCost> buckets, int64_t page_bytes,
                          int64_t table_cost_bytes) {
  int64_t most_layers = 1;
  for (const BucketCost& bucket : buckets) most_layers = std::max(most_layers, bucket.layers);
  int64_t best_size = most_layers;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int64_t size = most_layers; size >= 1; --size) {
    int64_t largest_group = 0;
    CheckedInt64 blocks(0);
    CheckedInt64 groups(0);
    for (const BucketCost& bucket : buckets) {
      const int64_t of_bucket = CeilDiv(bucket.layers, size);
      largest_group = std::max(largest_group, CeilDiv(bucket.layers, of_bucket));
      blocks = blocks + CheckedInt64(of_bucket) * bucket.blocks;
      groups = groups + of_bucket;
    }
    const CheckedInt64 cost =
        CheckedInt64(largest_group) * blocks * page_bytes + groups * table_cost_bytes;
    if (!cost.overflowed() && *cost.value() < best_cost) {
      best_cost = *cost.value();
      best_size = size;
    }
  }
  return best_size;
}

std::vector<std::vector<int>> Distribute(std::span<const int> layers, int64_t num_groups) {
  std::vector<std::vector<int>> groups(num_groups);
  for (size_t i = 0; i < layers.size(); ++i) groups[i % num_groups].push_back(layers[i]);
  return groups;
}

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

std::vector<std::vector<int>> DistributeTuples(std::span<const std::vector<int>> columns,
                                               int64_t num_groups) {
  std::vector<std::vector<int>> groups(num_groups);
  for (const std::vector<int>& column : columns) {
    const std::vector<std::vector<int>> distributed = Distribute(column, num_groups);
    for (int64_t g = 0; g < num_groups; ++g) {
      groups[g].insert(groups[g].end(), distributed[g].begin(), distributed[g].end());
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
    for (std::vector<int>& group : DistributeTuples(columns, num_groups)) {
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
  return Saturated(sum * most_tuples);
}

namespace {

struct Bucket {
  KvCacheSpec spec;                            // of its first layer
  std::vector<std::vector<int>> columns = {};  // layers per page size
  std::vector<int64_t> page_bytes = {};        // per column
  int64_t num_groups = 1;

  bool is_balanced() const {
    return std::ranges::all_of(columns, [this](const std::vector<int>& column) {
      return column.size() == columns.front().size();
    });
  }
  bool is_mixed() const { return columns.size() > 1; }

  // The layers of its most frequent page size, and so the most groups that leave none empty.
  int64_t num_tuples() const {
    size_t most = 0;
    for (const std::vector<int>& column : columns) most = std::max(most, column.size());
    return static_cast<int64_t>(most);
  }

  // Bytes of the largest of `groups` groups. The sum of all pages is known to fit.
  int64_t Width(int64_t groups) const {
    int64_t width = 0;
    for (size_t c = 0; c < columns.size(); ++c) {
      width += CeilDiv(static_cast<int64_t>(columns[c].size()), groups) * page_bytes[c];
    }
    return width;
  }
};

std::vector<Bucket> MakeBuckets(std::span<const LayerCache> caches) {
  std::vector<KvCacheSpec> specs;
  for (const LayerCache& cache : caches) specs.push_back(cache.spec);
  std::vector<Bucket> buckets;
  for (const LayerBucket& uniform : BucketByUniformType(specs, /*keep_labels_apart=*/false)) {
    Bucket bucket = {.spec = uniform.spec, .columns = ColumnsByPage(caches, uniform.layers)};
    for (const std::vector<int>& column : bucket.columns) {
      bucket.page_bytes.push_back(caches[column.front()].spec.page_bytes());
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

// Whether a balanced bucket mixes page sizes; then all balanced ones are cut alike.
bool CutByTuples(std::vector<Bucket>* buckets) {
  std::vector<int64_t> counts;
  int64_t most_mixed = 0;
  for (const Bucket& bucket : *buckets) {
    if (!bucket.is_balanced()) continue;
    counts.push_back(bucket.num_tuples());
    if (bucket.is_mixed()) most_mixed = std::max(most_mixed, bucket.num_tuples());
  }
  if (most_mixed == 0) return false;
  const int64_t per_group = ChooseTuplesPerGroup(counts, most_mixed);
  for (Bucket& bucket : *buckets) {
    if (bucket.is_balanced()) bucket.num_groups = CeilDiv(bucket.num_tuples(), per_group);
  }
  return true;
}

// A request's blocks do not grow with its length.
bool IsState(const KvCacheSpec& spec, bool windows_too) {
  return spec.kind() == KvCacheSpecKind::kMamba || spec.kind() == KvCacheSpecKind::kRing ||
         (windows_too && spec.sliding_window().has_value());
}

void CutStates(bool windows_too, std::vector<Bucket>* buckets) {
  int64_t width_of_others = 0;
  int64_t least_width_of_states = 0;
  for (const Bucket& bucket : *buckets) {
    if (IsState(bucket.spec, windows_too)) {
      least_width_of_states = std::max(least_width_of_states, bucket.Width(bucket.num_tuples()));
    } else {
      width_of_others = std::max(width_of_others, bucket.Width(bucket.num_groups));
    }
  }
  if (width_of_others == 0) return;
  // A state that no cut makes smaller sets the width, too.
  const int64_t width = std::max(width_of_others, least_width_of_states);
  for (Bucket& bucket : *buckets) {
    if (!IsState(bucket.spec, windows_too)) continue;
    while (bucket.Width(bucket.num_groups) > width) ++bucket.num_groups;
  }
}

}  // namespace

std::vector<std::vector<int>> PackGroups(std::span<const LayerCache> caches) {
  std::vector<Bucket> buckets = MakeBuckets(caches);
  const bool any_mixed = CutByTuples(&buckets);
  CutStates(/*windows_too=*/!any_mixed, &buckets);
  std::vector<std::vector<int>> groups;
  for (const Bucket& bucket : buckets) {
    for (std::vector<int>& group : DistributeTuples(bucket.columns, bucket.num_groups)) {
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

namespace {

// Distributes the layers of each page size over the groups, the largest first, so that groups
// differ by little.
std::vector<std::vector<size_t>> DistributeByPage(const SlabBucket& bucket, int64_t num_groups) {
  std::map<int64_t, std::vector<size_t>, std::greater<>> by_page;
  for (size_t i = 0; i < bucket.layers.size(); ++i) by_page[bucket.page_bytes[i]].push_back(i);
  std::vector<std::vector<size_t>> groups(num_groups);
  int64_t next = 0;
  for (const auto& [page, members] : by_page) {
    for (const size_t member : members) {
      groups[next].push_back(member);
      next = (next + 1) % num_groups;
    }
  }
  for (std::vector<size_t>& group : groups) std::ranges::sort(group);
  return groups;
}

// The bytes of the largest group when pages, the largest first, are distributed into `num_groups`.
// As DistributeByPage does: it starts each page size where the one before stopped.
int64_t LargestGroupBytes(std::span<const int64_t> pages, int64_t num_groups) {
  std::vector<int64_t> bytes(num_groups, 0);
  for (size_t i = 0; i < pages.size(); ++i) bytes[i % num_groups] += pages[i];
  return std::ranges::max(bytes);
}

// The fewest groups of which none is larger than `stride`, where bytes_of[k - 1] is the largest of
// k.
int64_t FewestGroups(std::span<const int64_t> bytes_of, int64_t stride) {
  for (size_t k = 1; k <= bytes_of.size(); ++k) {
    if (bytes_of[k - 1] <= stride) return static_cast<int64_t>(k);
  }
  return 0;
}

}  // namespace

std::vector<std::vector<std::vector<int>>> CheapestSlabGroups(std::span<const SlabBucket> buckets,
                                                              int64_t table_cost_bytes) {
  std::vector<std::vector<int64_t>> bytes_of_cut(buckets.size());
  std::set<int64_t, std::greater<>> strides;  // large first: fewer groups win ties
  for (size_t t = 0; t < buckets.size(); ++t) {
    std::vector<int64_t> pages = buckets[t].page_bytes;
    std::ranges::sort(pages, std::greater<>());
    for (size_t k = 1; k <= pages.size(); ++k) {
      bytes_of_cut[t].push_back(LargestGroupBytes(pages, static_cast<int64_t>(k)));
    }
    strides.insert(bytes_of_cut[t].begin(), bytes_of_cut[t].end());
  }
  std::vector<int64_t> best(buckets.size(), 1);
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (const int64_t limit : strides) {
    std::vector<int64_t> cut;
    int64_t stride = 0;
    CheckedInt64 blocks(0);
    CheckedInt64 groups(0);
    for (size_t t = 0; t < buckets.size(); ++t) {
      const int64_t k = FewestGroups(bytes_of_cut[t], limit);
      if (k == 0) break;
      cut.push_back(k);
      stride = std::max(stride, bytes_of_cut[t][k - 1]);
      blocks = blocks + CheckedInt64(k) * buckets[t].blocks;
      groups = groups + k;
    }
    if (cut.size() != buckets.size()) break;  // nor would it below this stride
    const CheckedInt64 cost = CheckedInt64(stride) * blocks + groups * table_cost_bytes;
    if (!cost.overflowed() && *cost.value() < best_cost) {
      best_cost = *cost.value();
      best = cut;
    }
  }
  std::vector<std::vector<std::vector<int>>> result;
  for (size_t t = 0; t < buckets.size(); ++t) {
    std::vector<std::vector<int>>& groups = result.emplace_back();
    for (const std::vector<size_t>& members : DistributeByPage(buckets[t], best[t])) {
      std::vector<int>& group = groups.emplace_back();
      for (const size_t member : members) group.push_back(buckets[t].layers[member]);
    }
  }
  return result;
}

}  // namespace kvblocks
