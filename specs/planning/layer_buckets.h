// Buckets of layers that are alike, and how buckets are cut into groups of equal size.
//
// A group takes every k-th layer of its bucket, not a run: a pipeline stage then holds its share of
// every group instead of all of some groups and nothing of others.

#ifndef KVBLOCKS_SPECS_PLANNING_LAYER_BUCKETS_H_
#define KVBLOCKS_SPECS_PLANNING_LAYER_BUCKETS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/specs/kv_cache_spec.h"

namespace kvblocks {

struct LayerBucket {
  std::vector<int> layers = {};  // in registration order
  KvCacheSpec spec;              // merged
};

// What the window and chunk labels of full specs say about who shares a table.
enum class LabelRule {
  kApart,   // layers with and without a label do not
  kAgree,   // all labels that are set must agree
  kIgnore,  // nothing: labels change neither pages nor blocks
};

// Layers of equal spec, in registration order of their first; then each bucket is merged into an
// earlier one where that is possible.
std::vector<LayerBucket> BucketBySpec(std::span<const KvCacheSpec> specs, LabelRule labels);

// As Merge, but full specs whose labels disagree merge to one without a label if the rule is
// kIgnore.
absl::StatusOr<KvCacheSpec> MergeByRule(std::span<const KvCacheSpec> specs, LabelRule labels);

// Layers that always need the same number of blocks, whatever their pages are.
std::vector<LayerBucket> BucketByUniformType(std::span<const KvCacheSpec> specs,
                                             bool keep_labels_apart);

// Whether a full spec carries a window or chunk as a label.
bool HasLocalLabel(const KvCacheSpec& spec);

// Upstream's rule: the largest bucket if it is below one and a half of the smallest, else the
// smallest. REQUIRES: counts is not empty, each at least 1.
int64_t UpstreamGroupSize(std::span<const int64_t> counts);

// A bucket of `count` layers in groups of `group_size`: so many pages have no layer.
int64_t PaddingLayers(int64_t count, int64_t group_size);

// One bucket at the price of one more block in each of its groups.
struct BucketCost {
  int64_t layers = 0;
  int64_t blocks = 0;  // of a request of typical length, in one group
};

// The group size g that minimises
//   pages of the largest group * sum of groups * blocks * page_bytes + table_cost_bytes * groups,
// the largest such g on a tie, since fewer groups are less work.
int64_t CheapestGroupSize(std::span<const BucketCost> buckets, int64_t page_bytes,
                          int64_t table_cost_bytes);

// `layers` dealt into `num_groups` groups: group i takes i, i + num_groups, ...
std::vector<std::vector<int>> Deal(std::span<const int> layers, int64_t num_groups);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_LAYER_BUCKETS_H_
