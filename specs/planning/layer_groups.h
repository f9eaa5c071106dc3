// Buckets of layers that are alike, and how buckets are cut into groups of equal size.
//
// A group takes every k-th layer of its bucket, not a run: a pipeline stage then holds its share of
// every group instead of all of some groups and nothing of others.

#ifndef KVBLOCKS_SPECS_PLANNING_LAYER_GROUPS_H_
#define KVBLOCKS_SPECS_PLANNING_LAYER_GROUPS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/model_facts.h"
#include "kvblocks/plan.h"

namespace kvblocks {

struct LayerBucket {
  std::vector<int> layers = {};  // in registration order
  KvCacheSpec spec;              // merged
};

// Which full specs share a table, by their window and chunk labels.
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

// `layers` distributed into `num_groups` groups: group i takes i, i + num_groups, ...
std::vector<std::vector<int>> Distribute(std::span<const int> layers, int64_t num_groups);

// Tuple groups: how vLLM 0.25 groups caches of MLA kinds with different pages (DeepSeek-V4).
//
// All MLA caches form one group. Sliding MLA caches are bucketed by (block size, window). A tuple
// of a bucket is one cache of each of its page sizes; each bucket is cut into groups of about N
// tuples, with one N for the model, so that the groups fill the stride of the pool about equally.

// Layers of each page size, in registration order; sizes in the order of their first layer.
std::vector<std::vector<int>> ColumnsByPage(std::span<const LayerCache> caches,
                                            std::span<const int> layers);

// Columns distributed into `num_groups` groups, layers in registration order. Some groups are empty
// if the longest column has fewer layers.
std::vector<std::vector<int>> DistributeTuples(std::span<const std::vector<int>> columns,
                                               int64_t num_groups);

// How many tuples are missing if every count is filled up to a multiple of `tuples_per_group`.
int64_t TuplePadding(std::span<const int64_t> counts, int64_t tuples_per_group);

// The number in [lowest, largest count] with the least padding, the larger one on a tie. REQUIRES:
// counts is not empty, 1 <= lowest <= the largest count.
int64_t ChooseTuplesPerGroup(std::span<const int64_t> counts, int64_t lowest);

// How often the most frequent page size occurs. 0 for no layers.
int64_t TupleCount(std::span<const LayerCache> caches, std::span<const int> layers);

struct TupleGroups {
  std::vector<int64_t> tuple_counts = {};  // per bucket, the MLA bucket first
  int64_t tuples_per_group = 0;
  std::vector<std::vector<int>> groups = {};  // layers in registration order
};

// Whether the procedure applies: sliding MLA caches are there, no kinds but MLA and sliding MLA,
// and pages differ.
bool CallsForTuples(std::span<const LayerCache> caches);

// Compressed attention with its windows, states and rings, and nothing else.
bool HasCompressedRows(std::span<const LayerCache> caches);

// REQUIRES: CallsForTuples(caches). Errors: E-6 if MLA caches have different block sizes, E-7 if
// the page sizes of a bucket do not occur equally often.
std::optional<TupleGroups> GroupByTuples(std::span<const LayerCache> caches,
                                         std::vector<PlanError>* errors);

// Bytes that one block id costs in the layout before the packed slab, which upstream's memory check
// still assumes: the sum of the distinct pages, where sliding pages grow to the next MLA page,
// times the largest tuple count of a group. `groups` may be projected on one worker.
int64_t TupleProductBytes(std::span<const LayerCache> caches,
                          std::span<const std::vector<int>> groups);

// Packed groups: how vLLM since 0.29 groups caches whose pages differ in a block-outermost pool
// (V-91).
//
// A block id costs the widest group, and each group lays its pages from the block's start. Caches
// that need the same blocks form a bucket. A bucket is balanced if each of its page sizes occurs
// equally often, say n times; it then has n tuples of one page of each size. Where a balanced
// bucket mixes page sizes, all balanced buckets are cut into groups of about N tuples, with one N
// for the model. Buckets of states, whose blocks do not grow with the request, are cut further,
// until their groups fit what the others take anyway.

// Groups in the order of their buckets' first layers; layers of a group in registration order.
// Where all buckets are of states none is cut for another's sake. Cost: for n layers O(n^2)
// comparisons in the worst case, of as many buckets.
std::vector<std::vector<int>> PackGroups(std::span<const LayerCache> caches);

// Slab groups of the exact policy: layers of any pages in groups that fill one stride.
//
// A block id costs the bytes of the largest group, so a good cut makes groups about equally large.
// Buckets whose layers already share a table are cut into as few groups as stay below a stride, and
// the stride is chosen by what a request of typical length then costs.

// Layers that may share a table, with the page of each.
struct SlabBucket {
  std::vector<int> layers = {};
  std::vector<int64_t> page_bytes = {};
  int64_t blocks = 0;  // of a request of typical length, in one group
};

// Per bucket its groups, layers in their order in the bucket. Minimises
//   stride * sum of groups * blocks + table_cost_bytes * groups,
// fewer groups on a tie. Cost: for n layers, O(n^2) additions.
std::vector<std::vector<std::vector<int>>> CheapestSlabGroups(std::span<const SlabBucket> buckets,
                                                              int64_t table_cost_bytes);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_LAYER_GROUPS_H_
