#include "sim/verify/small_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/kv_cache_spec.h"
#include "specs/planning/grouping.h"
#include "specs/planning/memory_map.h"
#include "specs/planning/pool_sizing.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t PageBytes(const SmallGroup& group) {
  return group.rows * (group.key_floats + group.value_floats) * kFloat;
}

// Rows alone matter to memory, not what they are for.
KvCacheSpec SpecOf(const SmallGroup& group, std::optional<int64_t> page_bytes) {
  KvCacheSpecOptions options = {.block_size = group.rows,
                                .head_size = group.key_floats,
                                .dtype = DataType::kFloat32,
                                .page_size_padded = page_bytes};
  if (group.value_floats == 0) return *HiddenStateSpec::Create(options);
  options.num_kv_heads = 1;
  options.head_size_v = group.value_floats;
  return *FullAttentionSpec::Create(options);
}

}  // namespace

Plan MakeSmallPlan(const KvCacheConfig& config, int64_t num_blocks, PoolLayout layout,
                   const std::vector<SmallGroup>& groups) {
  const bool native = layout == PoolLayout::kNative;
  // Bytes of a block: of the largest page, of all a group's pages, or of those of its class.
  int64_t largest_page = 0, largest_group = 0;
  std::vector<int64_t> class_bytes(native ? config.native->pages_per_chunk.size() : 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].num_layers == 0) continue;
    const int64_t bytes = groups[g].num_layers * PageBytes(groups[g]);
    largest_page = std::max(largest_page, PageBytes(groups[g]));
    largest_group = std::max(largest_group, bytes);
    if (!native) continue;
    int64_t& of_class = class_bytes[static_cast<size_t>(config.native->class_of_group[g])];
    of_class = std::max(of_class, bytes);
  }

  Plan plan;
  plan.layout = layout;
  plan.config.num_blocks = num_blocks;
  plan.config.native = native ? config.native : std::nullopt;
  Grouping grouping;
  PoolSize pool;
  pool.num_blocks = num_blocks;
  pool.native = plan.config.native;
  WorkerPlan& worker = pool.workers.emplace_back();
  worker.stride_bytes = layout == PoolLayout::kSlab ? largest_group : 0;
  worker.null_page_bytes = native ? largest_group : 0;
  for (size_t k = 0; k < class_bytes.size(); ++k) {
    worker.chunk_bytes =
        std::max(worker.chunk_bytes, config.native->pages_per_chunk[k] * class_bytes[k]);
  }
  ProjectedGroups projected(1);
  for (size_t g = 0; g < groups.size(); ++g) {
    const SmallGroup& group = groups[g];
    projected[0].emplace_back();
    worker.group_page_bytes.push_back(
        native ? class_bytes[static_cast<size_t>(config.native->class_of_group[g])]
               : group.num_layers * PageBytes(group));
    PlannedGroup planned = {.spec = config.groups[g].spec};
    planned.page_class = native ? config.native->class_of_group[g] : 0;
    for (int64_t i = 0; i < group.num_layers; ++i) {
      const int layer = static_cast<int>(plan.layers.size());
      const std::string name = absl::StrCat("group", g, ".", i);
      const KvCacheSpec spec = SpecOf(
          group, layout == PoolLayout::kUniform ? std::optional(largest_page) : std::nullopt);
      grouping.stored.push_back({.name = name, .spec = spec});
      plan.layers.push_back({.name = name, .declared = spec, .stored = spec, .workers = {0}});
      projected[0].back().push_back(layer);
      planned.layers.push_back(layer);
    }
    plan.groups.push_back(std::move(planned));
  }
  MapMemory(grouping, projected, layout, &pool);
  plan.workers = std::move(pool.workers);
  return plan;
}

}  // namespace kvblocks::sim
