// CheckInputs: layer caches and options before anything is planned with them.
//
// Brings the caches of all workers to one list of distinct names and finds every error that does
// not need groups: E-1, E-2, E-9, E-10 and E-16.

#ifndef KVBLOCKS_SPECS_PLANNING_PLAN_INPUTS_H_
#define KVBLOCKS_SPECS_PLANNING_PLAN_INPUTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvblocks/model_facts.h"
#include "kvblocks/plan.h"

namespace kvblocks {

// Limits below which every sum and product of planning fits 63 bits.
inline constexpr int64_t kMaxPlannedTokens = int64_t{1} << 40;
inline constexpr int64_t kMaxPlannedPages = int64_t{1} << 44;  // bytes, sum over the layer caches
inline constexpr int64_t kMaxWorkerBytes = int64_t{1} << 50;
inline constexpr int64_t kMaxPlannedCaches = 1 << 12;  // distinct names
inline constexpr int64_t kMaxCacheEntries = 1 << 18;   // over all workers
inline constexpr int kMaxPlannedWorkers = 1 << 12;

struct PlanInputs {
  // By name, in registration order; encoder-only layers, which store nothing, are left out.
  std::vector<LayerCache> distinct = {};
  std::vector<std::vector<int>> workers = {};  // that hold it, ascending, per distinct cache
  std::vector<int64_t> available_bytes = {};   // per worker; 0 where the block count is given
};

// E-1 if the pages of `caches` sum to more than kMaxPlannedPages.
bool CheckSumOfPages(std::span<const LayerCache> caches, std::vector<PlanError>* errors);

// The result is meaningful only if no error was added.
PlanInputs CheckInputs(std::span<const LayerCache> caches, const PlanOptions& options,
                       std::vector<PlanError>* errors);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_PLAN_INPUTS_H_
