// What is wasted where, and what the in-flight tokens cost: WE-F. And blocks per request of whole
// models: the part of WE-B that spans groups.

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/specs/planning/native_chunks.h"
#include "kvblocks/specs/planning/planner.h"
#include "kvblocks/specs/planning/testing/plan_test_helpers.h"
#include "kvblocks/specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

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
