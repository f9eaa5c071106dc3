#include "kvblocks/specs/planning/packed_groups.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kvblocks/checks/checked_int64.h"
#include "kvblocks/specs/planning/layer_buckets.h"
#include "kvblocks/specs/planning/tuple_groups.h"

namespace kvblocks {
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
    for (std::vector<int>& group : DealTuples(bucket.columns, bucket.num_groups)) {
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

}  // namespace kvblocks
