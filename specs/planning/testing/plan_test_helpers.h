// Shorthand of the planner's tests.

#ifndef KVBLOCKS_SPECS_PLANNING_TESTING_PLAN_TEST_HELPERS_H_
#define KVBLOCKS_SPECS_PLANNING_TESTING_PLAN_TEST_HELPERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

// The only error, with this code; a failed test if there are others.
inline PlanError ErrorOf(const std::vector<LayerCache>& caches, const PlanOptions& options,
                         PlanErrorCode code) {
  const std::vector<PlanError> errors = ErrorsOf(caches, options);
  EXPECT_EQ(errors.size(), 1u);
  if (errors.empty()) return {};
  EXPECT_EQ(errors[0].code, code) << errors[0].message;
  return errors[0];
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

// "9x4 8": four times nine, then eight.
inline std::string Runs(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0, end = 0; i < numbers.size(); i = end) {
    while (end < numbers.size() && numbers[end] == numbers[i]) ++end;
    absl::StrAppend(&text, text.empty() ? "" : " ", numbers[i]);
    if (end - i > 1) absl::StrAppend(&text, "x", end - i);
  }
  return text;
}

// How many layers each group and each tensor has, the blocks' bytes, and what is beyond that.
inline std::string Shape(const Plan& plan) {
  std::vector<int64_t> tensors;
  int64_t padding = 0, aggregates = 0;
  for (const PlannedTensor& tensor : plan.workers[0].tensors) {
    tensors.push_back(static_cast<int64_t>(tensor.layers.size()));
  }
  for (const PlannedGroup& group : plan.groups) {
    padding += group.padding_layers;
    aggregates += group.is_aggregate;
  }
  std::string text = absl::StrCat("groups ", Runs(GroupSizes(plan)), ", tensors ", Runs(tensors),
                                  ", stride ", plan.workers[0].stride_bytes);
  if (padding > 0) absl::StrAppend(&text, ", padding ", padding);
  if (aggregates > 0) absl::StrAppend(&text, ", aggregates ", aggregates);
  if (plan.workers[0].check_bytes_per_block) {
    absl::StrAppend(&text, ", checked at ", *plan.workers[0].check_bytes_per_block);
  }
  return text;
}

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_TESTING_PLAN_TEST_HELPERS_H_
