// Shorthand of the planner's tests.

#ifndef KVBLOCKS_SPECS_PLANNING_TESTING_PLAN_TEST_HELPERS_H_
#define KVBLOCKS_SPECS_PLANNING_TESTING_PLAN_TEST_HELPERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/plan.h"

namespace kvblocks {

inline constexpr int64_t kGiB = int64_t{1} << 30;

inline PlanOptions Options(PlanPolicy policy, int64_t bytes, int64_t length,
                           int64_t in_flight = 8192) {
  return {.policy = policy,
          .limits = {.max_model_len = length, .max_in_flight_tokens = in_flight},
          .available_bytes = {bytes}};
}
inline PlanOptions Upstream(int64_t bytes, int64_t length, int64_t in_flight = 8192) {
  return Options(PlanPolicy::kUpstream, bytes, length, in_flight);
}
inline PlanOptions Upstream025(int64_t bytes, int64_t length, int64_t in_flight = 8192) {
  PlanOptions options = Upstream(bytes, length, in_flight);
  options.version = EngineVersion::kVllm025;
  return options;
}
inline PlanOptions InLayout(MemoryLayout layout, int64_t bytes, int64_t length,
                            int64_t in_flight = 8192) {
  PlanOptions options = Upstream(bytes, length, in_flight);
  options.memory_layout = layout;
  return options;
}
inline PlanOptions Exact(int64_t bytes, int64_t length, int64_t in_flight = 8192) {
  return Options(PlanPolicy::kExact, bytes, length, in_flight);
}
inline PlanOptions Exact(PoolLayout layout, int64_t bytes, int64_t length,
                         int64_t in_flight = 8192) {
  PlanOptions options = Exact(bytes, length, in_flight);
  options.layout = layout;
  return options;
}

// The plan, or a failed test with its errors and an empty plan.
inline Plan PlanOf(const std::vector<LayerCache>& caches, const PlanOptions& options) {
  PlanResult result = MakePlan(caches, options);
  for (const PlanError& error : result.errors) {
    ADD_FAILURE() << PlanErrorName(error.code) << ": " << error.message;
  }
  return result.ok() ? *std::move(result.plan) : Plan();
}

inline std::vector<PlanError> ErrorsOf(const std::vector<LayerCache>& caches,
                                       const PlanOptions& options) {
  PlanResult result = MakePlan(caches, options);
  EXPECT_FALSE(result.ok());
  return std::move(result.errors);
}

inline std::vector<int64_t> GroupSizes(const Plan& plan) {
  std::vector<int64_t> sizes;
  for (const PlannedGroup& group : plan.groups) {
    sizes.push_back(static_cast<int64_t>(group.layers.size()));
  }
  return sizes;
}

inline std::vector<int64_t> GroupPages(const Plan& plan) {
  std::vector<int64_t> pages;
  for (const PlannedGroup& group : plan.groups) pages.push_back(group.page_bytes);
  return pages;
}

inline int64_t PaddingLayersOf(const Plan& plan) {
  int64_t padding = 0;
  for (const PlannedGroup& group : plan.groups) padding += group.padding_layers;
  return padding;
}

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_TESTING_PLAN_TEST_HELPERS_H_
