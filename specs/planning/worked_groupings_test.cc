// Published models and the groups that upstream makes of them: WE-C.

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/plan.h"
#include "specs/planning/layer_groups.h"
#include "specs/planning/pool_sizing.h"
#include "specs/planning/testing/plan_test_helpers.h"
#include "specs/planning/testing/sample_models.h"

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

// What is wasted where, and what the in-flight tokens cost: WE-F. And blocks per request of whole
// models: the part of WE-B that spans groups.

constexpr int64_t kMillion = 1048576;  // tokens

double Percent(double share) { return std::round(share * 1e4) / 1e2; }

// What is charged beyond what is needed, against what is needed.
double Surplus(const Plan& plan, int64_t length) {
  const RequestWaste waste = plan.WasteOfRequest(length);
  return static_cast<double>(waste.bytes_charged) / static_cast<double>(waste.bytes_used) - 1;
}

std::vector<LayerCache> V4Flash() { return DeepseekV4(DeepseekV4FlashPattern()); }

// The five groups that upstream makes, under the exact rules: an exact plan is free to cut
// otherwise.
PoolCapacity ExactDemandOfUpstreamGroups(int64_t in_flight) {
  const Plan upstream = PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion, in_flight));
  PoolCapacity capacity;
  for (const PlannedGroup& group : upstream.groups) {
    std::vector<LayerCache> members;
    for (const int layer : group.layers) {
      members.push_back(
          {.name = upstream.layers[layer].name, .spec = upstream.layers[layer].stored});
    }
    const Plan alone =
        PlanOf(members, Exact(PoolLayout::kUniform, 400 * kGiB, kMillion, in_flight));
    capacity.groups.push_back(alone.capacity.groups.at(0));
  }
  capacity.units = upstream.num_blocks();
  return capacity;
}

int64_t Slabs(const PoolCapacity& capacity, int64_t requests) {
  return capacity.UnitsNeeded(requests, kMillion);
}

TEST(WorkedWasteTest, WeB9BlocksOfADeepseekV4Request) {
  const Plan plan = PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion));
  EXPECT_THAT(plan.BlocksPerRequest(kMillion), ElementsAre(4096, 131, 131, 2051, 1041));
}

TEST(WorkedWasteTest, WeB10TheSameWithTwoBatchesInFlight) {
  const Plan plan = PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion, 16384));
  EXPECT_THAT(plan.BlocksPerRequest(kMillion), ElementsAre(4096, 259, 259, 4099, 2065));
}

TEST(WorkedWasteTest, WeF1SteadyBlocksPerGroup) {
  std::vector<int64_t> steady;
  for (const GroupDemand& group : ExactDemandOfUpstreamGroups(16384).groups) {
    steady.push_back(group.steady.At(kMillion));
  }
  EXPECT_THAT(steady, ElementsAre(4096, 3, 3, 3, 17));
}

TEST(WorkedWasteTest, WeF2SteadyAndTransientTotals) {
  const PoolCapacity exact = ExactDemandOfUpstreamGroups(16384);
  int64_t steady = 0;
  int64_t transient = 0;
  for (const GroupDemand& group : exact.groups) {
    steady += group.steady.At(kMillion);
    transient += group.transient_blocks;
  }
  EXPECT_EQ(steady, 4122);
  EXPECT_EQ(transient, 6656);
  const Plan upstream = PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion, 16384));
  EXPECT_EQ(upstream.TotalBlocksPerRequest(kMillion) - steady, 6656);
}

TEST(WorkedWasteTest, WeF3FourRequestsReserveInFlightTokensOnce) {
  const PoolCapacity exact = ExactDemandOfUpstreamGroups(16384);
  const auto gib = [](int64_t blocks) {
    return std::round(static_cast<double>(blocks * 1002240) / kGiB * 100) / 100;
  };
  EXPECT_EQ(Slabs(exact, 4), 4 * (4122 + 4) + 6656);
  EXPECT_EQ(gib(Slabs(exact, 4)), 21.62);
  const Plan upstream = PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion, 16384));
  EXPECT_EQ(gib(upstream.capacity.UnitsNeeded(4, kMillion)), 40.24);
}

TEST(WorkedWasteTest, WeF4ShareOfTheSlabThatGroupsLeaveUnused) {
  const Plan plan = PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion));
  std::vector<double> unused(plan.groups.size(), 0);
  for (const Waste& waste : plan.StandingWaste()) {
    if (waste.reason == WasteReason::kSlabOverlap) unused[*waste.group] = Percent(waste.share);
  }
  EXPECT_THAT(unused, ElementsAre(0, 17.82, 21.55, 13.1, 34.48));
}

TEST(WorkedWasteTest, WeF5RequestInsideTheSlab) {
  const Plan plan = PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion, 16384));
  const RequestWaste waste = plan.WasteOfRequest(kMillion);
  EXPECT_EQ(waste.bytes_used, 9447974208);
  EXPECT_EQ(waste.bytes_charged, 10802142720);
  EXPECT_EQ(Percent(waste.share()), 12.54);
}

TEST(WorkedWasteTest, WeF6Gemma3RequestPaysForPaddingLayers) {
  const Plan plan = PlanOf(Gemma3_27b(), Upstream(40 * kGiB, 131072));
  const auto layer_pages = [&plan](int64_t length) {
    const RequestWaste waste = plan.WasteOfRequest(length);
    return std::vector<int64_t>{waste.bytes_used / 131072, waste.bytes_charged / 131072};
  };
  EXPECT_THAT(layer_pages(131072), ElementsAre(111924, 116540));
  EXPECT_THAT(layer_pages(8192), ElementsAre(31796, 35900));
  // The example's 4.12% and 12.91% count the surplus against what is needed.
  EXPECT_EQ(Percent(Surplus(plan, 131072)), 4.12);
  EXPECT_EQ(Percent(Surplus(plan, 8192)), 12.91);
}

TEST(WorkedWasteTest, WeF7Gemma3ChoosesGroupsOfFive) {
  const PlanOptions options = Exact(PoolLayout::kUniform, 40 * kGiB, 131072);
  const Plan plan = PlanOf(Gemma3_27b(), options);
  EXPECT_EQ(plan.groups.size(), 13);
  EXPECT_EQ(plan.workers[0].tensors.size(), 5);
  EXPECT_EQ(Percent(Surplus(plan, 131072)), 1.55);
}

TEST(WorkedWasteTest, WeF8ChunkThatFitsFiveClasses) {
  const std::vector<int64_t> pages = {1002240, 823680, 786240, 870912, 656640};
  const ChunkSize chunk = ChunkSizes(pages, int64_t{32} << 20).back();
  EXPECT_EQ(chunk.bytes, 32235840);
  EXPECT_THAT(chunk.pages, ElementsAre(32, 39, 41, 37, 49));
}

TEST(WorkedWasteTest, WeF9RemainderOfTheChunk) {
  const std::vector<int64_t> pages = {1002240, 823680, 786240, 870912, 656640};
  const ChunkSize chunk = ChunkSizes(pages, int64_t{32} << 20).back();
  EXPECT_EQ(std::round(chunk.largest_remainder * 1e5) / 1e3, 0.509);
}

// Bytes of the state caches per token, over all layers.
int64_t StateRowBytes(int block_size) {
  const Plan plan = PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion));
  int64_t bytes = 0;
  for (const LayerDescriptor& d : plan.workers[0].descriptors) {
    if (plan.layers[d.layer].stored.block_size() == block_size) bytes += d.row_bytes;
  }
  return bytes;
}

TEST(WorkedWasteTest, WeF10StateRowsOfEveryToken) {
  EXPECT_EQ(StateRowBytes(4) + StateRowBytes(8), 296960);
  EXPECT_EQ((StateRowBytes(4) + StateRowBytes(8)) * kMillion, 311385128960);
}

TEST(WorkedWasteTest, WeF11StateRowsLiveAtABoundary) {
  // Four rows of each ratio-4 state, once per 256 tokens.
  EXPECT_EQ(4 * StateRowBytes(4) / 256, 3360);
}

TEST(WorkedWasteTest, WeF12BlocksThatCacheAPrefix) {
  const Plan plan = PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion));
  int64_t blocks = 0;
  for (const KvCacheGroup& group : plan.config.groups) blocks += 32768 / group.spec.block_size();
  EXPECT_EQ(blocks, 13440);
}

TEST(GroupSizeTest, TwentyAndThirtyInTensWasteNothing) {
  std::vector<LayerCache> caches;
  Append(&caches, "full", 20, FullSpec(16, 8, 128));
  Append(&caches, "window", 30, WindowSpec(16, 8, 128, 1024));
  const Plan plan = PlanOf(caches, Exact(PoolLayout::kUniform, 40 * kGiB, 131072));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(10, 10, 10, 10, 10));
  EXPECT_EQ(plan.WasteOfRequest(131072).share(), 0);
}

TEST(NativePlanTest, DeepseekV4NeedsNoPadding) {
  const Plan plan = PlanOf(V4Flash(), Exact(PoolLayout::kNative, 16 * kGiB, kMillion));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(43, 62, 42, 20));
  EXPECT_LT(plan.WasteOfRequest(kMillion).share(), 0.01);
  // In the slab the same request wastes more.
  const Plan slab = PlanOf(V4Flash(), Exact(PoolLayout::kSlab, 16 * kGiB, kMillion));
  EXPECT_GT(slab.WasteOfRequest(kMillion).share(), plan.WasteOfRequest(kMillion).share());
  EXPECT_EQ(plan.config.num_blocks,
            1 + plan.config.native->num_chunks * plan.config.native->ids_per_chunk());
  EXPECT_TRUE(Validate(plan.config).ok()) << Validate(plan.config);
}

}  // namespace
}  // namespace kvblocks
