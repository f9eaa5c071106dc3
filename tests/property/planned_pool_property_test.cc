// The planner's promise, kept by the block manager: a request of the planned length runs to its end
// in a pool that is otherwise empty, whatever the groups.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/plan.h"
#include "rapidcheck/gtest.h"
#include "specs/planning/testing/check_plans.h"
#include "specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

int64_t Number(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}

// Steps of `budget` tokens. False if some step found no room.
bool RunsToItsEnd(const Plan& plan, int64_t budget) {
  KvCacheManagerOptions options;
  options.max_model_len = plan.limits.max_model_len;
  options.max_in_flight_tokens = plan.limits.max_in_flight_tokens;
  if (plan.policy == PlanPolicy::kUpstream) {
    options.block_count_formula = BlockCountFormula::kUpstream;
  }
  // Chunks next to coarser blocks cannot be looked up, so the manager refuses to cache them.
  options.enable_caching = std::ranges::none_of(plan.groups, [](const PlannedGroup& group) {
    return group.spec.attention_chunk_size().has_value();
  });
  auto manager = KvCacheManager::Create(plan.config, options);
  EXPECT_TRUE(manager.ok()) << manager.status();
  if (!manager.ok()) return false;
  const std::vector<TokenId> prompt(plan.limits.max_model_len, 7);
  auto request = (*manager)->NewRequest({.id = "longest", .content = {.token_ids = prompt}});
  EXPECT_TRUE(request.ok()) << request.status();
  while ((*request)->num_computed_tokens() < plan.limits.max_model_len) {
    const int64_t computed = (*request)->num_computed_tokens();
    const int64_t tokens = std::min(budget, plan.limits.max_model_len - computed);
    const auto slots = (*manager)->AllocateSlots(**request, {.num_new_tokens = tokens});
    EXPECT_TRUE(slots.ok()) << slots.status();
    if (!slots.ok() || !slots->has_value()) return false;
    (*request)->set_num_computed_tokens(computed + tokens);
  }
  return true;
}

std::vector<LayerCache> AnyModel(bool may_have_sinks = true) {
  std::vector<LikeCaches> all;
  const int64_t kinds = Number(1, 3);
  for (int64_t k = 0; k < kinds; ++k) {
    const int64_t block = Number(1, 2) * 4;
    const auto spec = [&]() -> KvCacheSpec {
      switch (Number(0, may_have_sinks ? 3 : 2)) {
        case 0:
          return FullSpec(block, Number(1, 2), 16);
        case 1:
          return WindowSpec(block, Number(1, 2), 16, Number(1, 20));
        case 2:
          return ChunkedSpec(block, Number(1, 2), 16, block * Number(1, 3));
        default:
          return *SinkFullAttentionSpec::Create(
              {.block_size = block, .num_kv_heads = 1, .head_size = 16, .sink_length = block});
      }
    }();
    all.push_back({"kind" + std::to_string(k), Number(1, 5), spec});
  }
  return Caches(all);
}

TEST(PlannedPoolTest, LongestRequestRunsToItsEnd) {
  CheckPlans(25, [] {
    const int64_t budget = Number(1, 12);
    PlanOptions options = {.layout = Number(0, 1) == 1 ? PoolLayout::kUniform : PoolLayout::kSlab,
                           .limits = {.max_in_flight_tokens = budget},
                           .longest_automatic_len = 200,
                           .num_blocks_override = Number(2, 60),
                           .table_cost_bytes = 0};
    const PlanResult result = MakePlan(AnyModel(), options);
    if (!result.ok()) return false;
    RC_ASSERT(RunsToItsEnd(*result.plan, Number(1, budget)));
    return true;
  });
}

// V-90: sinks aside, which it still forgets. Both memory layouts.
TEST(PlannedPoolTest, UpstreamsPlanKeepsItsPromiseFrom033On) {
  CheckPlans(25, [] {
    const int64_t budget = Number(1, 12);
    PlanOptions options = {.policy = PlanPolicy::kUpstream,
                           .memory_layout = Number(0, 1) == 1 ? MemoryLayout::kBlockOutermost
                                                              : MemoryLayout::kLayerOutermost,
                           .limits = {.max_in_flight_tokens = budget},
                           .longest_automatic_len = 200,
                           .num_blocks_override = Number(2, 60)};
    const PlanResult result = MakePlan(AnyModel(/*may_have_sinks=*/false), options);
    if (!result.ok()) return false;
    RC_ASSERT(RunsToItsEnd(*result.plan, Number(1, budget)));
    return true;
  });
}

// The plan of 0.25 counts the null block as one that the request could have.
TEST(PlannedPoolTest, WeD17UpstreamPromisesOneBlockTooMany) {
  const std::vector<LayerCache> caches = Caches({{"full", 2, FullSpec(16, 1, 16)}});
  PlanOptions options = {.policy = PlanPolicy::kUpstream,
                         .version = EngineVersion::kVllm025,
                         .limits = {.max_model_len = 160, .max_in_flight_tokens = 16},
                         .num_blocks_override = 10};
  const PlanResult upstream = MakePlan(caches, options);
  ASSERT_TRUE(upstream.ok());
  EXPECT_EQ(upstream.plan->Concurrency(160), 1);
  EXPECT_FALSE(RunsToItsEnd(*upstream.plan, 16));
  options.version = EngineVersion::kVllm033;  // V-90
  ASSERT_FALSE(MakePlan(caches, options).ok());
  options.policy = PlanPolicy::kExact;
  const PlanResult refused = MakePlan(caches, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.errors[0].longest_length, 144);
  options.limits.max_model_len = 144;
  const PlanResult exact = MakePlan(caches, options);
  ASSERT_TRUE(exact.ok());
  EXPECT_TRUE(RunsToItsEnd(*exact.plan, 16));
}

}  // namespace
}  // namespace kvblocks
