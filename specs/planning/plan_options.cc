#include "kvblocks/specs/planning/plan_options.h"

#include <algorithm>

namespace kvblocks {

std::string_view PolicyName(PlanPolicy policy) {
  return policy == PlanPolicy::kUpstream ? "upstream" : "exact";
}

std::string_view LayoutName(PoolLayout layout) {
  switch (layout) {
    case PoolLayout::kUniform:
      return "uniform";
    case PoolLayout::kSlab:
      return "slab";
    case PoolLayout::kNative:
      return "native";
  }
  return "unknown";
}

MemoryLayout MemoryLayoutFor(std::span<const LayerCache> caches, const PlanOptions& options) {
  if (options.memory_layout.has_value()) return *options.memory_layout;
  if (options.version == EngineVersion::kVllm025) return MemoryLayout::kLayerOutermost;
  const bool sparse = std::ranges::any_of(caches, [](const LayerCache& cache) {
    return cache.spec.options().model_version != ModelVersion::kNone ||
           cache.spec.kind() == KvCacheSpecKind::kSlidingWindowMla ||
           cache.spec.kind() == KvCacheSpecKind::kRing;
  });
  return sparse ? MemoryLayout::kBlockOutermost : MemoryLayout::kLayerOutermost;
}

bool ReservesNullBlock(PlanPolicy policy, EngineVersion version) {
  return policy == PlanPolicy::kExact || version == EngineVersion::kVllm033;
}

}  // namespace kvblocks
