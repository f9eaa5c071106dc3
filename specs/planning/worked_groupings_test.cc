// Published models and the groups that upstream makes of them: WE-C.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/specs/planning/planner.h"
#include "kvblocks/specs/planning/testing/plan_test_helpers.h"
#include "kvblocks/specs/planning/testing/sample_models.h"
#include "kvblocks/specs/planning/tuple_groups.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

// Upstream's plan of a pool that is large enough for anything.
Plan Groups(const std::vector<LayerCache>& caches) {
  return PlanOf(caches, Upstream(400 * kGiB, 131072));
}

// The same by the rules of vLLM 0.25.
Plan Groups025(const std::vector<LayerCache>& caches) {
  return PlanOf(caches, Upstream025(400 * kGiB, 131072));
}

std::vector<LayerCache> FullAndWindow(int full, int window) {
  std::vector<LayerCache> caches;
  Append(&caches, "full", full, FullSpec(16, 8, 64));
  Append(&caches, "window", window, WindowSpec(16, 8, 64, 128));
  return caches;
}

TEST(WorkedGroupingsTest, WeA6UpstreamCountsInt4WindowsUnpacked) {
  std::vector<LayerCache> caches;
  Append(&caches, "window", 1, WindowSpec(16, 8, 128, 64, QuantMode::kInt4PerTokenHead));
  EXPECT_EQ(Groups(caches).groups[0].page_bytes, 33792);
  EXPECT_EQ(PlanOf(caches, Exact(kGiB, 1024)).groups[0].page_bytes, 17408);
}

TEST(WorkedGroupingsTest, WeC1Llama31HasOneGroup) {
  const Plan plan = Groups(Llama31_8b());
  EXPECT_THAT(GroupSizes(plan), ElementsAre(32));
  EXPECT_EQ(plan.workers[0].stride_bytes, 2 << 20);
  EXPECT_EQ(plan.workers[0].tensors.size(), 32);
  EXPECT_EQ(plan.workers[0].tensors[0].bytes, 65536 * plan.num_blocks());
}

TEST(WorkedGroupingsTest, WeC2MistralSlidesInOneGroup) {
  const Plan plan = Groups(Mistral7b());
  EXPECT_THAT(GroupSizes(plan), ElementsAre(32));
  EXPECT_EQ(plan.config.groups[0].spec.kind(), KvCacheSpecKind::kSlidingWindow);
}

TEST(WorkedGroupingsTest, WeC3Gemma3HasSevenGroups) {
  const Plan plan = Groups(Gemma3_27b());
  // The window bucket comes first in registration order.
  EXPECT_THAT(GroupSizes(plan), ElementsAre(9, 9, 9, 9, 8, 8, 10));
  EXPECT_EQ(PaddingLayersOf(plan), 8);
  const WorkerPlan& worker = plan.workers[0];
  EXPECT_EQ(worker.stride_bytes, 1310720);
  ASSERT_EQ(worker.tensors.size(), 10);
  EXPECT_EQ(worker.tensors[8].layers.size(), 5);
  EXPECT_EQ(worker.tensors[9].layers.size(), 1);
}

TEST(WorkedGroupingsTest, WeC4GptOss120bSplitsInHalves) {
  const Plan plan = Groups(GptOss120b());
  EXPECT_THAT(GroupSizes(plan), ElementsAre(18, 18));
  EXPECT_EQ(PaddingLayersOf(plan), 0);
}

TEST(WorkedGroupingsTest, WeC5OneDraftLayerPadsGptOss120b) {
  const Plan plan = Groups(FullAndWindow(19, 18));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(19, 18));
  EXPECT_EQ(PaddingLayersOf(plan), 1);  // 5.56% of 18
}

TEST(WorkedGroupingsTest, WeC6OneDraftLayerPadsGptOss20b) {
  const Plan plan = Groups(FullAndWindow(13, 12));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(13, 12));
  EXPECT_EQ(PaddingLayersOf(plan), 1);  // 8.33% of 12
}

TEST(WorkedGroupingsTest, WeC7Llama4HasFourGroupsOfTwelve) {
  const Plan plan = Groups(Llama4Scout());
  EXPECT_THAT(GroupSizes(plan), ElementsAre(12, 12, 12, 12));
  // The three local groups differ in the table only.
  std::vector<int> keys;
  for (const PlannedGroup& group : plan.groups) keys.push_back(group.metadata_key);
  EXPECT_THAT(keys, ElementsAre(0, 0, 0, 1));
}

TEST(WorkedGroupingsTest, WeC8TwentyAndThirty) {
  const Plan plan = Groups(FullAndWindow(20, 30));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(20, 15, 15));
  EXPECT_EQ(PaddingLayersOf(plan), 10);  // 33.33% of 30
}

TEST(WorkedGroupingsTest, WeC9TenAndSixteen) {
  const Plan plan = Groups(FullAndWindow(10, 16));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(10, 8, 8));
  EXPECT_EQ(PaddingLayersOf(plan), 4);  // 25% of 16
}

TEST(WorkedGroupingsTest, WeC10OneOddLayerMakesFortySixGroups) {
  std::vector<LayerCache> caches;
  Append(&caches, "state", 30, StateSpec(544, 16384, 1097728));
  Append(&caches, "full", 10, FullSpec(544, 4, 128));
  Append(&caches, "window", 5, WindowSpec(544, 4, 128, 1024));
  Append(&caches, "odd", 1, FullSpec(544, 2, 256));
  const Plan plan = Groups(caches);
  EXPECT_EQ(plan.groups.size(), 46);
  // The exact policy keeps to buckets.
  EXPECT_LT(PlanOf(caches, Exact(400 * kGiB, 131072)).groups.size(), 8);
}

TEST(WorkedGroupingsTest, WeC11DeepseekV3) {
  const Plan plan = Groups(DeepseekV3());
  EXPECT_THAT(GroupSizes(plan), ElementsAre(61));
  EXPECT_EQ(plan.workers[0].stride_bytes, 4497408);
}

TEST(WorkedGroupingsTest, WeC12DeepseekV32InFp8IsOneAggregate) {
  const Plan plan = Groups(DeepseekV32(/*fp8=*/true));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(122));
  EXPECT_TRUE(plan.groups[0].is_aggregate);
  EXPECT_EQ(plan.workers[0].stride_bytes, 3076352);
  EXPECT_EQ(plan.workers[0].tensors.size(), 122);
}

TEST(WorkedGroupingsTest, WeC13DeepseekV32InBf16) {
  EXPECT_EQ(Groups(DeepseekV32(/*fp8=*/false)).workers[0].stride_bytes, 5012736);
}

TEST(WorkedGroupingsTest, WeC14DeepseekV4FlashCachesPerGroup) {
  EXPECT_THAT(GroupSizes(Groups025(DeepseekV4(DeepseekV4FlashPattern()))),
              ElementsAre(62, 22, 21, 42, 20));
}

TEST(WorkedGroupingsTest, WeC15DeepseekV4FlashPagesPerGroup) {
  EXPECT_THAT(GroupPages(Groups025(DeepseekV4(DeepseekV4FlashPattern()))),
              ElementsAre(1002240, 823680, 786240, 870912, 656640));
}

TEST(WorkedGroupingsTest, WeC16DeepseekV4FlashTupleCounts) {
  const std::vector<LayerCache> caches = DeepseekV4(DeepseekV4FlashPattern());
  std::vector<PlanError> errors;
  const auto tuples = GroupByTuples(caches, &errors);
  ASSERT_TRUE(tuples.has_value());
  EXPECT_THAT(tuples->tuple_counts, ElementsAre(21, 43, 21, 20));
  EXPECT_EQ(tuples->tuples_per_group, 22);
}

TEST(WorkedGroupingsTest, WeC17DeepseekV4FlashStrideAndOlderTupleBytes) {
  const Plan plan = Groups025(DeepseekV4(DeepseekV4FlashPattern()));
  EXPECT_EQ(plan.layout, PoolLayout::kSlab);
  EXPECT_EQ(plan.workers[0].stride_bytes, 1002240);
  EXPECT_EQ(plan.workers[0].check_bytes_per_block, 1051776);
}

TEST(WorkedGroupingsTest, WeC18DeepseekV4ProCachesPerGroup) {
  EXPECT_THAT(GroupSizes(Groups025(DeepseekV4(DeepseekV4ProPattern()))),
              ElementsAre(91, 31, 30, 31, 60));
}

TEST(WorkedGroupingsTest, WeC19DeepseekV4ProPagesPerGroup) {
  EXPECT_THAT(GroupPages(Groups025(DeepseekV4(DeepseekV4ProPattern()))),
              ElementsAre(1435968, 1160640, 1123200, 1017792, 1244160));
}

TEST(WorkedGroupingsTest, WeC20DeepseekV4FlashInBf16) {
  const Plan plan = Groups(DeepseekV4(DeepseekV4FlashPattern(), /*fp8=*/false));
  EXPECT_EQ(plan.workers[0].stride_bytes, 1600000);
}

TEST(WorkedGroupingsTest, WeC21Gemma4EqualisesWithALargerBlock) {
  const Plan plan = Groups(Gemma4());
  EXPECT_THAT(GroupSizes(plan), ElementsAre(5, 5, 5, 5, 5, 5));
  for (const PlannedLayer& layer : plan.layers) {
    EXPECT_EQ(layer.stored.page_bytes(), 131072);
    const bool full = layer.stored.kind() == KvCacheSpecKind::kFullAttention;
    EXPECT_EQ(layer.stored.block_size(), full ? 32 : 16) << layer.name;
    EXPECT_EQ(layer.declared.block_size(), 16);
  }
}

TEST(WorkedGroupingsTest, WeC22Gemma4WithScalesHasNoCommonPage) {
  const std::vector<LayerCache> caches = Gemma4(QuantMode::kInt8PerTokenHead);
  const std::vector<PlanError> errors = ErrorsOf(caches, Upstream025(40 * kGiB, 131072));
  ASSERT_EQ(errors.size(), 1);
  EXPECT_EQ(errors[0].code, PlanErrorCode::kPagesDoNotEqualise);
  EXPECT_EQ(errors[0].available, 33024);
  EXPECT_EQ(errors[0].needed, 66560);
  EXPECT_EQ(errors[0].layers.size(), 5);
}

TEST(WorkedGroupingsTest, WeC22Gemma4WithScalesPlansInTheOtherLayouts) {
  const std::vector<LayerCache> caches = Gemma4(QuantMode::kInt8PerTokenHead);
  const Plan slab = PlanOf(caches, Exact(PoolLayout::kSlab, 40 * kGiB, 131072));
  EXPECT_GT(slab.Concurrency(131072), 1);
  const Plan native = PlanOf(caches, Exact(PoolLayout::kNative, 40 * kGiB, 131072));
  EXPECT_THAT(GroupPages(native), ElementsAre(25 * 66560, 5 * 33024));
  EXPECT_GT(native.Concurrency(131072), 1);
  // Without a layout the planner finds one that works.
  EXPECT_NE(PlanOf(caches, Exact(40 * kGiB, 131072)).layout, PoolLayout::kUniform);
}

}  // namespace
}  // namespace kvblocks
