#include "kvblocks/specs/planning/plan_options.h"

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

}  // namespace kvblocks
