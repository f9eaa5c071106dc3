// Block sizes and shapes of the worked examples: WE-A25, WE-A26 and WE-E.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/specs/planning/backend_shapes.h"
#include "kvblocks/specs/planning/planned_block_sizes.h"
#include "kvblocks/specs/planning/planner.h"
#include "kvblocks/specs/planning/state_alignment.h"
#include "kvblocks/specs/planning/testing/plan_test_helpers.h"
#include "kvblocks/specs/planning/testing/sample_models.h"
#include "kvblocks/specs/planning/tuple_groups.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kConvBytes = 49152;

// 2,048 bytes of attention per token.
KvCacheSpec Attention() { return FullSpec(16, 4, 128); }

struct AlignedState {
  int64_t state_bytes;
  int64_t block_size;
  int64_t page_bytes;
  double padding_percent;

  friend bool operator==(const AlignedState&, const AlignedState&) = default;
};

AlignedState Align(int64_t ssm_bytes) {
  std::vector<LayerCache> caches;
  Append(&caches, "state", 3, StateSpec(16, kConvBytes, ssm_bytes));
  Append(&caches, "full", 1, Attention());
  const Plan plan = PlanOf(caches, Upstream(16 * kGiB, 8192));
  const KvCacheSpec& state = plan.layers[0].stored;
  EXPECT_EQ(plan.layers[3].stored.page_bytes(), state.page_bytes());
  const int64_t bytes = plan.layers[0].declared.page_bytes();
  const double padding = static_cast<double>(state.page_bytes()) / static_cast<double>(bytes) - 1;
  return {bytes, plan.layers[3].stored.block_size(), state.page_bytes(),
          std::round(padding * 1e6) / 1e4};
}

PlannedBlockSizes Resolve(const std::vector<KvCacheSpec>& groups, bool hashes = true,
                          std::optional<int64_t> match_unit = std::nullopt, int64_t ranks = 1) {
  std::vector<PlanError> errors;
  const auto sizes = PlanBlockSizes(groups, ranks, hashes, match_unit, &errors);
  EXPECT_TRUE(sizes.has_value());
  return sizes.value_or(PlannedBlockSizes{0, 0});
}

std::vector<KvCacheSpec> V4Groups() {
  const Plan plan = PlanOf(DeepseekV4(DeepseekV4FlashPattern()), Upstream(16 * kGiB, 1048576));
  std::vector<KvCacheSpec> specs;
  for (const PlannedGroup& group : plan.groups) specs.push_back(group.spec);
  return specs;
}

TEST(WorkedShapesTest, WeA25StateInHalfPrecision) {
  EXPECT_EQ(Align(1048576), (AlignedState{1097728, 544, 1114112, 1.4925}));
}

TEST(WorkedShapesTest, WeA26StateInSinglePrecision) {
  EXPECT_EQ(Align(2097152), (AlignedState{2146304, 1056, 2162688, 0.7634}));
}

TEST(WorkedShapesTest, WeE1DeepseekV4Blocks) {
  EXPECT_EQ(Resolve(V4Groups()), (PlannedBlockSizes{256, 4}));
}

TEST(WorkedShapesTest, WeE2WithoutAnyoneWhoNeedsHashes) {
  EXPECT_EQ(Resolve(V4Groups(), /*hashes=*/false), (PlannedBlockSizes{256, 256}));
}

TEST(WorkedShapesTest, WeE3Gemma4Blocks) {
  const Plan plan = PlanOf(Gemma4(), Upstream(40 * kGiB, 131072));
  EXPECT_EQ(plan.config.scheduler_block_size, 32);
  EXPECT_EQ(plan.config.hash_block_size, 16);
}

TEST(WorkedShapesTest, WeE4ContextParallelRanksShareABlock) {
  EXPECT_EQ(Resolve({Attention()}, true, std::nullopt, 2), (PlannedBlockSizes{32, 32}));
  PlanOptions options = Upstream(16 * kGiB, 8192);
  options.limits.decode_context_parallel = 2;
  const Plan plan = PlanOf(Llama31_8b(), options);
  EXPECT_EQ(plan.config.scheduler_block_size, 32);
  // The block manager counts what a block covers over both ranks.
  EXPECT_EQ(plan.config.groups[0].spec.block_size(), 32);
  EXPECT_EQ(plan.groups[0].spec.block_size(), 16);
}

TEST(WorkedShapesTest, WeE5BlocksNextToStates) {
  const KvCacheSpec full = FullSpec(544, 4, 128);
  const KvCacheSpec none = StateSpec(544, kConvBytes, 1048576);
  const KvCacheSpec align = StateSpec(544, kConvBytes, 1048576, MambaCacheMode::kAlign);
  EXPECT_EQ(Resolve({full, none}), (PlannedBlockSizes{544, 544}));
  EXPECT_EQ(Resolve({full, none}, true, 16), (PlannedBlockSizes{544, 544}));
  EXPECT_EQ(Resolve({full, align}, true, 16), (PlannedBlockSizes{544, 16}));
}

TEST(WorkedShapesTest, WeE6PagedV0Tensors) {
  const auto shape = ShapeOf(BackendFamily::kPagedV0, FullSpec(16, 32, 128), 1000);
  ASSERT_TRUE(shape.ok()) << shape.status();
  int64_t elements = 1;
  for (const int64_t dim : shape->dims) elements *= dim;
  EXPECT_EQ(elements, 131072000);
  EXPECT_EQ(elements * shape->element_bytes, 262144000);
  EXPECT_THAT(shape->dims, ElementsAre(2, 1000, 65536));
}

TEST(WorkedShapesTest, WeE7PagedV0Views) {
  const auto views = ViewsOfPagedV0(FullSpec(16, 8, 128));
  ASSERT_TRUE(views.ok()) << views.status();
  EXPECT_EQ(views->x, 8);
  EXPECT_THAT(views->key, ElementsAre(8, 16, 16, 8));
  EXPECT_THAT(views->value, ElementsAre(8, 128, 16));
  EXPECT_EQ(ViewsOfPagedV0(FullSpec(16, 8, 128, QuantMode::kFp8PerTensor))->x, 16);
}

TEST(WorkedShapesTest, WeE8Slot) { EXPECT_EQ(SlotOf(7, 5, 16), 117); }

TEST(WorkedShapesTest, WeE9PaddingOfTuples) {
  const std::vector<int64_t> counts = {21, 43, 21, 20};
  EXPECT_EQ(TuplePadding(counts, 21), 21);
  EXPECT_EQ(TuplePadding(counts, 22), 5);
  EXPECT_EQ(TuplePadding(counts, 43), 67);
  EXPECT_EQ(ChooseTuplesPerGroup(counts, 21), 22);
}

TEST(StateAlignmentTest, ModesRoundDifferently) {
  std::vector<PlanError> errors;
  std::vector<LayerCache> caches;
  Append(&caches, "full", 1, Attention());
  Append(&caches, "state", 1, StateSpec(16, kConvBytes, 1048576, MambaCacheMode::kAlign));
  auto specs =
      AlignStates(caches, /*smallest_kernel_block=*/16, /*state_chunk_tokens=*/256, &errors);
  ASSERT_TRUE(specs.has_value());
  EXPECT_EQ((*specs)[0].block_size(), 544);
  EXPECT_EQ((*specs)[1].block_size(), 544);  // so that states are kept at block ends
  caches[1].spec = StateSpec(16, kConvBytes, 1048576, MambaCacheMode::kAll);
  specs = AlignStates(caches, 16, 256, &errors);
  ASSERT_TRUE(specs.has_value());
  EXPECT_EQ((*specs)[0].block_size(), 768);
  EXPECT_EQ((*specs)[1].page_bytes(), 768 * 2048);
}

TEST(StateAlignmentTest, FormatsOfDifferentSizesMeetInTheirCommonMultiple) {
  std::vector<PlanError> errors;
  std::vector<LayerCache> caches;
  Append(&caches, "full", 1, FullSpec(16, 4, 128));   // 2,048 bytes per token
  Append(&caches, "other", 1, FullSpec(16, 6, 128));  // 3,072
  Append(&caches, "state", 1, StateSpec(16, kConvBytes, 1048576));
  const auto specs = AlignStates(caches, 16, 1, &errors);
  ASSERT_TRUE(specs.has_value());
  // lcm 6,144; 16 * ceil(1,097,728 / (16 * 6,144)) = 192.
  EXPECT_EQ((*specs)[0].block_size(), 192);
  EXPECT_EQ((*specs)[2].page_bytes(), 192 * 6144);
}

TEST(StateAlignmentTest, NativeLayoutLeavesBlocksAlone) {
  std::vector<LayerCache> caches;
  Append(&caches, "full", 8, Attention());
  Append(&caches, "state", 24, StateSpec(16, kConvBytes, 1048576));
  const Plan plan = PlanOf(caches, Exact(PoolLayout::kNative, 16 * kGiB, 8192));
  for (const PlannedLayer& layer : plan.layers) EXPECT_EQ(layer.stored, layer.declared);
}

TEST(BackendShapeTest, OrdersInMemory) {
  EXPECT_THAT(StrideOrder(BackendFamily::kFlash, HeadOrder::kNhd), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(StrideOrder(BackendFamily::kFlash, HeadOrder::kHnd), ElementsAre(0, 1, 3, 2, 4));
  EXPECT_TRUE(StrideOrder(BackendFamily::kCpu, HeadOrder::kNhd).empty());
  EXPECT_THAT(CrossLayerOrder(BackendFamily::kTriton, HeadOrder::kNhd),
              ElementsAre("block", "layer", "kv", "token", "head", "value"));
  EXPECT_THAT(CrossLayerOrder(BackendFamily::kFlash, HeadOrder::kHnd),
              ElementsAre("block", "head", "layer", "kv", "token", "value"));
  EXPECT_THAT(CrossLayerOrder(BackendFamily::kFlashInfer, HeadOrder::kHnd),
              ElementsAre("block", "kv", "head", "layer", "token", "value"));
  EXPECT_TRUE(CrossLayerOrder(BackendFamily::kLatent, HeadOrder::kNhd).empty());
}

TEST(BackendShapeTest, LatentRows) {
  const auto dims = [](const KvCacheSpec& spec) {
    const auto shape = ShapeOf(BackendFamily::kLatent, spec, 10);
    EXPECT_TRUE(shape.ok()) << shape.status();
    return shape->dims;
  };
  EXPECT_THAT(dims(LatentSpec(64)), ElementsAre(10, 64, 576));
  EXPECT_THAT(dims(LatentSpec(64, QuantMode::kFp8DsMla)), ElementsAre(10, 64, 656));
  const std::vector<LayerCache> v4 = DeepseekV4("4");
  EXPECT_THAT(dims(v4[0].spec), ElementsAre(10, 64, 584));  // sliding
  EXPECT_THAT(dims(v4[1].spec), ElementsAre(10, 64, 584));  // main
  EXPECT_THAT(dims(v4[2].spec), ElementsAre(10, 64, 132));  // indexer
  EXPECT_THAT(dims(v4[3].spec), ElementsAre(10, 4, 2048));  // compressor state
  EXPECT_THAT(dims(DeepseekV4("4", /*fp8=*/false)[0].spec), ElementsAre(10, 64, 512));
}

TEST(BackendShapeTest, RefusesWhatTheFamilyDoesNotStore) {
  EXPECT_FALSE(ShapeOf(BackendFamily::kLatent, FullSpec(16, 8, 128), 10).ok());
  EXPECT_FALSE(ShapeOf(BackendFamily::kFlash, LatentSpec(64), 10).ok());
  EXPECT_FALSE(ShapeOf(BackendFamily::kFlash, FullSpec(8, 8, 128), 10).ok());
  EXPECT_FALSE(
      ShapeOf(BackendFamily::kFlash, FullSpec(16, 8, 128, QuantMode::kInt8PerTokenHead), 10).ok());
  EXPECT_FALSE(ShapeOf(BackendFamily::kFlash, FullSpec(16, 8, 128, QuantMode::kNvfp4), 10).ok());
  EXPECT_FALSE(ShapeOf(BackendFamily::kFlash, FullSpec(16, 8, 128), 0).ok());
}

}  // namespace
}  // namespace kvblocks
