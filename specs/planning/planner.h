// MakePlan: from layer caches to a Plan - the whole of planning as one pure function.
//
//   const PlanResult result = MakePlan(caches, {.limits = {.max_model_len = 131072,
//                                                          .max_in_flight_tokens = 8192},
//                                               .available_bytes = {int64_t{16} << 30}});
//   if (!result.ok()) for (const PlanError& error : result.errors) Report(error.message);
//   KvCacheManager::Create(result.plan->config, ...);
//
// No globals, no exceptions, nothing of the input changes, and equal inputs give equal plans. If it
// fails, every error that could be found is reported. Cost: a few sorts and merges over the layer
// caches; DeepSeek-V4-Pro's 243 caches in all three layouts take about half a millisecond
// (planner_benchmark).

#ifndef KVBLOCKS_SPECS_PLANNING_PLANNER_H_
#define KVBLOCKS_SPECS_PLANNING_PLANNER_H_

#include <optional>
#include <span>
#include <vector>

#include "kvblocks/specs/layer_cache.h"
#include "kvblocks/specs/planning/plan.h"
#include "kvblocks/specs/planning/plan_error.h"
#include "kvblocks/specs/planning/plan_options.h"

namespace kvblocks {

// Exactly one of the two is there.
struct PlanResult {
  std::optional<Plan> plan = std::nullopt;
  std::vector<PlanError> errors = {};

  bool ok() const { return plan.has_value(); }
};

PlanResult MakePlan(std::span<const LayerCache> caches, const PlanOptions& options);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_PLANNER_H_
