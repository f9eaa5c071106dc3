// GroupLayers: which layer caches share a block table, and how each of them is stored.
//
// Steps, the first that applies: local layers stored in full if hybrid management is off; one group
// if all specs merge; one aggregate if they are of uniform type; then what the layout calls for -
// equal pages (uniform, upstream), tuples or packed groups (upstream where pages differ), a common
// stride (slab), one group per type (native). Upstream's policy gives every hidden-state cache a
// group of its own, behind the others.
//
// Groups and the order within them depend on registration order only.

#ifndef KVBLOCKS_SPECS_PLANNING_GROUPING_H_
#define KVBLOCKS_SPECS_PLANNING_GROUPING_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/model_facts.h"
#include "kvblocks/plan.h"

namespace kvblocks {

struct LayerGroup {
  std::vector<int> layers = {};
  KvCacheSpec spec;  // merged, or the first member's
  bool is_aggregate = false;
  std::optional<int64_t> billed_window = std::nullopt;
};

struct Grouping {
  std::vector<LayerCache> stored = {};  // the input with specs as they are stored
  std::vector<LayerGroup> groups = {};
  bool by_tuples = false;
  bool block_outermost = false;  // upstream: all groups' pages of a block lie together
  int64_t stride_alignment = 1;  // bytes; what a block costs is a multiple
};

// `caches` has each name once. The exact policy needs `layout` and a typical length; upstream's
// policy ignores both.
std::optional<Grouping> GroupLayers(std::span<const LayerCache> caches, const PlanOptions& options,
                                    PoolLayout layout, int64_t typical_len,
                                    std::vector<PlanError>* errors);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_GROUPING_H_
