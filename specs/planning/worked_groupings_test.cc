// Published models and the groups that upstream makes of them: WE-C.

#include <cmath>
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
  return Caches(
      {{"full", full, FullSpec(16, 8, 64)}, {"window", window, WindowSpec(16, 8, 64, 128)}});
}

TEST(WorkedGroupingsTest, WeA6UpstreamCountsInt4WindowsUnpacked) {
  const std::vector<LayerCache> caches =
      Caches({{"window", 1, WindowSpec(16, 8, 128, 64, QuantMode::kInt4PerTokenHead)}});
  EXPECT_EQ(Groups(caches).groups[0].page_bytes, 33792);
  EXPECT_EQ(PlanOf(caches, Exact(kGiB, 1024)).groups[0].page_bytes, 17408);
}

TEST(WorkedGroupingsTest, WeC1ToC20GroupsTensorsAndStrides) {
  const std::vector<LayerCache> flash = DeepseekV4(DeepseekV4FlashPattern());
  const std::vector<LayerCache> pro = DeepseekV4(DeepseekV4ProPattern());
  const struct {
    const char* example;
    Plan plan;
    const char* shape;
  } rows[] = {
      {"C1 Llama 3.1", Groups(Llama31_8b()), "groups 32, tensors 1x32, stride 2097152"},
      {"C2 Mistral", Groups(Mistral7b()), "groups 32, tensors 1x32, stride 2097152"},
      // The window bucket comes first in registration order.
      {"C3 Gemma 3", Groups(Gemma3_27b()),
       "groups 9x4 8x2 10, tensors 7x8 5 1, stride 1310720, padding 8"},
      {"C4 gpt-oss 120B", Groups(GptOss120b()), "groups 18x2, tensors 2x18, stride 589824"},
      {"C5 with a draft layer, 5.56 % of 18", Groups(FullAndWindow(19, 18)),
       "groups 19 18, tensors 2x18 1, stride 622592, padding 1"},
      {"C6 the 20B with one, 8.33 % of 12", Groups(FullAndWindow(13, 12)),
       "groups 13 12, tensors 2x12 1, stride 425984, padding 1"},
      {"C7 Llama 4 Scout", Groups(Llama4Scout()), "groups 12x4, tensors 4x12, stride 786432"},
      {"C8 33.33 % of 30", Groups(FullAndWindow(20, 30)),
       "groups 20 15x2, tensors 3x15 1x5, stride 655360, padding 10"},
      {"C9 25 % of 16", Groups(FullAndWindow(10, 16)),
       "groups 10 8x2, tensors 3x8 1x2, stride 327680, padding 4"},
      {"C11 DeepSeek V3", Groups(DeepseekV3()), "groups 61, tensors 1x61, stride 4497408"},
      {"C12 V3.2 in FP8", Groups(DeepseekV32(/*fp8=*/true)),
       "groups 122, tensors 1x122, stride 3076352, aggregates 1"},
      {"C13 V3.2 in BF16", Groups(DeepseekV32(/*fp8=*/false)),
       "groups 122, tensors 1x122, stride 5012736, aggregates 1"},
      {"C14, C17 V4 Flash", Groups025(flash),
       "groups 62 22 21 42 20, tensors 167, stride 1002240, aggregates 5, checked at 1051776"},
      {"C18 V4 Pro", Groups025(pro),
       "groups 91 31 30 31 60, tensors 243, stride 1435968, aggregates 5, checked at 1482048"},
      {"C20 V4 Flash in BF16", Groups(DeepseekV4(DeepseekV4FlashPattern(), /*fp8=*/false)),
       "groups 22 21 62 42 20, tensors 167, stride 1600000, aggregates 2"},
      {"C21 Gemma 4", Groups(Gemma4()), "groups 5x6, tensors 6x5, stride 655360"},
  };
  for (const auto& row : rows) EXPECT_EQ(Shape(row.plan), row.shape) << row.example;
  EXPECT_EQ(rows[1].plan.config.groups[0].spec.kind(), KvCacheSpecKind::kSlidingWindow);
  EXPECT_THAT(GroupPages(rows[12].plan), ElementsAre(1002240, 823680, 786240, 870912, 656640));
  EXPECT_THAT(GroupPages(rows[13].plan), ElementsAre(1435968, 1160640, 1123200, 1017792, 1244160));
  EXPECT_EQ(rows[12].plan.layout, PoolLayout::kSlab);
  for (const PlannedTensor& tensor : rows[0].plan.workers[0].tensors) {
    EXPECT_EQ(tensor.bytes, 65536 * rows[0].plan.num_blocks());
  }
  // The three local groups of Scout differ in the table only.
  std::vector<int> keys;
  for (const PlannedGroup& group : rows[6].plan.groups) keys.push_back(group.metadata_key);
  EXPECT_THAT(keys, ElementsAre(0, 0, 0, 1));
}

TEST(WorkedGroupingsTest, WeC10OneOddLayerMakesFortySixGroups) {
  const std::vector<LayerCache> caches = Caches({{"state", 30, StateSpec(544, 16384, 1097728)},
                                                 {"full", 10, FullSpec(544, 4, 128)},
                                                 {"window", 5, WindowSpec(544, 4, 128, 1024)},
                                                 {"odd", 1, FullSpec(544, 2, 256)}});
  const Plan plan = Groups(caches);
  EXPECT_EQ(plan.groups.size(), 46);
  // The exact policy keeps to buckets.
  EXPECT_LT(PlanOf(caches, Exact(400 * kGiB, 131072)).groups.size(), 8);
}

TEST(WorkedGroupingsTest, WeC16DeepseekV4FlashTupleCounts) {
  const std::vector<LayerCache> caches = DeepseekV4(DeepseekV4FlashPattern());
  std::vector<PlanError> errors;
  const auto tuples = GroupByTuples(caches, &errors);
  ASSERT_TRUE(tuples.has_value());
  EXPECT_THAT(tuples->tuple_counts, ElementsAre(21, 43, 21, 20));
  EXPECT_EQ(tuples->tuples_per_group, 22);
}

TEST(WorkedGroupingsTest, WeC21Gemma4EqualisesWithALargerBlock) {
  for (const PlannedLayer& layer : Groups(Gemma4()).layers) {
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

TEST(WorkedWasteTest, WeB9AndB10BlocksOfADeepseekV4RequestWithOneAndTwoBatchesInFlight) {
  EXPECT_THAT(PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion)).BlocksPerRequest(kMillion),
              ElementsAre(4096, 131, 131, 2051, 1041));
  EXPECT_THAT(PlanOf(V4Flash(), Upstream025(16 * kGiB, kMillion, 16384)).BlocksPerRequest(kMillion),
              ElementsAre(4096, 259, 259, 4099, 2065));
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

TEST(WorkedWasteTest, WeF8AndF9ChunkThatFitsFiveClassesAndItsRemainder) {
  const std::vector<int64_t> pages = {1002240, 823680, 786240, 870912, 656640};
  const ChunkSize chunk = ChunkSizes(pages, int64_t{32} << 20).back();
  EXPECT_EQ(chunk.bytes, 32235840);
  EXPECT_THAT(chunk.pages, ElementsAre(32, 39, 41, 37, 49));
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

TEST(WorkedWasteTest, WeF10AndF11StateRowsOfEveryTokenAndAtABoundary) {
  EXPECT_EQ(StateRowBytes(4) + StateRowBytes(8), 296960);
  EXPECT_EQ((StateRowBytes(4) + StateRowBytes(8)) * kMillion, 311385128960);
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
  const Plan plan = PlanOf(
      Caches({{"full", 20, FullSpec(16, 8, 128)}, {"window", 30, WindowSpec(16, 8, 128, 1024)}}),
      Exact(PoolLayout::kUniform, 40 * kGiB, 131072));
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
