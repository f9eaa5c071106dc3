#include "kvblocks/specs/planning/layer_buckets.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/checks/checked_int64.h"
#include "kvblocks/specs/merge.h"

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

std::vector<std::vector<int>> Deal(std::span<const int> layers, int64_t num_groups) {
  std::vector<std::vector<int>> groups(num_groups);
  for (size_t i = 0; i < layers.size(); ++i) groups[i % num_groups].push_back(layers[i]);
  return groups;
}

}  // namespace kvblocks
