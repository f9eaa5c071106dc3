// Published models in given memory: WE-D. The policy is that of vLLM 0.25 unless a test says
// otherwise; worked_033_test.cc has what 0.33 changes.

#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/plan.h"
#include "specs/planning/layer_groups.h"
#include "specs/planning/pool_sizing.h"
#include "specs/planning/stored_specs.h"
#include "specs/planning/testing/plan_test_helpers.h"
#include "specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

// Concurrency with four decimals, as the examples print it.
double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

struct Capacity {
  int64_t blocks;
  int64_t blocks_per_request;
  double concurrency;
  int64_t token_capacity;

  friend bool operator==(const Capacity&, const Capacity&) = default;
};

std::ostream& operator<<(std::ostream& out, const Capacity& c) {
  return out << c.blocks << " / " << c.blocks_per_request << " / " << c.concurrency << " / "
             << c.token_capacity;
}

Capacity CapacityAt(const Plan& plan, int64_t length) {
  return {plan.num_blocks(), plan.TotalBlocksPerRequest(length), Rounded(plan.Concurrency(length)),
          plan.TokenCapacity(length)};
}

std::optional<int64_t> EstimateOf(const std::vector<LayerCache>& caches, int64_t bytes,
                                  int64_t length) {
  return ErrorOf(caches, Upstream025(bytes, length), PlanErrorCode::kRequestDoesNotFit)
      .longest_length;
}

std::vector<LayerCache> V4FlashWithThreeMore() {
  return DeepseekV4(DeepseekV4FlashPattern() + "WWW");
}

TEST(WorkedCapacitiesTest, WeD1ToD13ModelsInTheirMemory) {
  const std::vector<LayerCache> flash = DeepseekV4(DeepseekV4FlashPattern());
  const struct {
    const char* example;
    std::vector<LayerCache> caches;
    int64_t gib, length, in_flight;
    Capacity capacity;
  } rows[] = {
      {"D1 Llama 3.1", Llama31_8b(), 16, 131072, 8192, {8192, 8192, 1, 131072}},
      {"D4 Mistral", Mistral7b(), 16, 32768, 8192, {8192, 769, 10.6528, 349070}},
      {"D5 Gemma 3", Gemma3_27b(), 40, 131072, 8192, {32768, 11654, 2.8117, 368540}},
      {"D8 gpt-oss 120B", GptOss120b(), 16, 131072, 8192, {29127, 8713, 3.3429, 438165}},
      {"D9 Scout", Llama4Scout(), 100, 1048576, 8192, {136533, 68608, 1.99, 2086713}},
      {"D10 DeepSeek V3", DeepseekV3(), 40, 163840, 8192, {9549, 2560, 3.7301, 611136}},
      {"D11 V3.2", DeepseekV32(true), 40, 163840, 8192, {13961, 2560, 5.4535, 893504}},
      {"D12 V4 Flash", flash, 16, 1048576, 8192, {17141, 7450, 2.3008, 2412569}},
      {"D13 two batches", flash, 16, 1048576, 16384, {17141, 10778, 1.5904, 1667623}},
  };
  for (const auto& row : rows) {
    const Plan plan = PlanOf(row.caches, Upstream025(row.gib * kGiB, row.length, row.in_flight));
    EXPECT_EQ(CapacityAt(plan, row.length), row.capacity) << row.example;
  }
}

TEST(WorkedCapacitiesTest, WeD2Llama31In10GiB) {
  EXPECT_EQ(EstimateOf(Llama31_8b(), 10 * kGiB, 131072), 81920);
  EXPECT_EQ(ErrorsOf(Llama31_8b(), Upstream025(10 * kGiB, 131072))[0].message,
            "one request of 131,072 tokens needs 16.00 GiB of KV cache, 10.00 GiB are available; "
            "longest length that fits: 81,920");
}

TEST(WorkedCapacitiesTest, WeD3EstimateIsClampedToTheLength) {
  const std::vector<LayerCache> caches =
      LayersOf(std::string(32, 'F'), "F", {FullSpec(16, 32, 128)});
  EXPECT_EQ(EstimateOf(caches, 8 * kGiB, 16385), 16384);
  EXPECT_EQ(PlanOf(caches, Upstream025(8 * kGiB, 16383)).LongestContext(16383), 16383);
}

TEST(WorkedCapacitiesTest, WeD6Gemma3WithoutHybridManagement) {
  PlanOptions options = Upstream(40 * kGiB, 65536);
  options.hybrid = false;
  const Plan plan = PlanOf(Gemma3_27b(), options);
  EXPECT_THAT(GroupSizes(plan), ElementsAre(62));
  EXPECT_EQ(CapacityAt(plan, 131072), (Capacity{5285, 8192, 0.6451, 84560}));
}

TEST(WorkedCapacitiesTest, WeD7Gemma3In8GiB) {
  const std::vector<PlanError> errors = ErrorsOf(Gemma3_27b(), Upstream025(8 * kGiB, 131072));
  EXPECT_EQ(errors[0].needed, 15275130880);
  EXPECT_EQ(errors[0].longest_length, 49456);
}

TEST(WorkedCapacitiesTest, WeD14UpstreamChecksAProductOfTuples) {
  const std::vector<LayerCache> caches = DeepseekV4(DeepseekV4FlashPattern());
  PlanOptions options = Upstream025(16 * kGiB, 1048576, 16384);
  EXPECT_EQ(PlanOf(caches, options).NeededBytes(1048576), 11336041728);
  EXPECT_EQ(PlanOf(caches, options).TotalBlocksPerRequest(1048576), 10778);  // of 1,002,240 bytes
  // What fits by the stride need not fit by the product.
  options.available_bytes = {11000000000};
  const std::vector<PlanError> errors = ErrorsOf(caches, options);
  EXPECT_EQ(errors[0].needed, 11336041728);
}

TEST(WorkedCapacitiesTest, WeD15ThreeMoreSlidingLayers) {
  const Plan plan = PlanOf(V4FlashWithThreeMore(), Upstream025(16 * kGiB, 33792, 16896));
  EXPECT_EQ(plan.TotalBlocksPerRequest(33792), 7022);
  EXPECT_EQ(plan.NeededBytes(33792), 7721278848);
}

TEST(WorkedCapacitiesTest, WeD16ThreeMoreSlidingLayersIn13270Blocks) {
  PlanOptions options = Upstream025(0, 33792, 16896);
  options.num_blocks_override = 13270;
  // The override gives the stride's bytes, which the product check finds sufficient, too.
  EXPECT_EQ(CapacityAt(PlanOf(V4FlashWithThreeMore(), options), 33792),
            (Capacity{13270, 7022, 1.8898, 63859}));
}

TEST(WorkedCapacitiesTest, WeD17NullBlockIsNobodys) {
  const Plan plan = PlanOf(Llama31_8b(), Exact(16 * kGiB, 131056));
  EXPECT_EQ(plan.num_blocks(), 8192);
  EXPECT_EQ(plan.num_allocatable_blocks(), 8191);
  EXPECT_EQ(plan.LongestContext(1 << 20), 131056);
  EXPECT_EQ(plan.NeededBytes(131072), 17181966336);
  EXPECT_TRUE(MakePlan(Llama31_8b(), Exact(17181966336, 131072)).ok());
  const std::vector<PlanError> errors = ErrorsOf(Llama31_8b(), Exact(17181966335, 131072));
  EXPECT_EQ(errors[0].longest_length, 131056);
}

TEST(WorkedCapacitiesTest, WeD18DealingSpreadsGroupsOverStages) {
  std::vector<LayerCache> caches = Gemma3_27b();
  for (size_t i = 31; i < caches.size(); ++i) caches[i].worker = 1;
  const Plan plan = PlanOf(caches, Upstream(40 * kGiB, 131072));
  ASSERT_EQ(plan.workers.size(), 2);
  std::vector<int64_t> first_stage;
  for (const int64_t page : plan.workers[0].group_page_bytes) first_stage.push_back(page / 131072);
  // The full group is the last one here.
  EXPECT_THAT(first_stage, ElementsAre(5, 5, 4, 4, 4, 4, 5));
  // In runs, the stage would hold all of some groups and nothing of others.
  std::vector<int64_t> in_runs(6, 0);
  int sliding = 0;
  for (const LayerCache& cache : caches) {
    if (!cache.spec.sliding_window().has_value()) continue;
    if (cache.worker == 0) ++in_runs[sliding / 10];
    ++sliding;
  }
  EXPECT_THAT(in_runs, ElementsAre(10, 10, 6, 0, 0, 0));
}

TEST(WorkedCapacitiesTest, WeD19OverrideReplacesTheMemory) {
  PlanOptions options = Upstream(40 * kGiB, 1024, 1024);
  options.num_blocks_override = 1000;
  const Plan plan = PlanOf(Gemma3_27b(), options);
  EXPECT_EQ(plan.num_blocks(), 1000);
  EXPECT_EQ(plan.workers[0].available_bytes, 1310720000);
}

TEST(WorkedCapacitiesTest, WeD20WorkersAdoptTheMinimum) {
  std::vector<LayerCache> caches;
  for (int worker = 0; worker < 2; ++worker) {
    caches.push_back({.name = "layers.0", .spec = FullSpec(16, 8, 128), .worker = worker});
  }
  PlanOptions options = Upstream(0, 1024);
  options.available_bytes = {8192 * 65536, 8000 * 65536};
  const Plan plan = PlanOf(caches, options);
  EXPECT_EQ(plan.num_blocks(), 8000);
  for (const WorkerPlan& worker : plan.workers) {
    ASSERT_EQ(worker.tensors.size(), 1);
    EXPECT_EQ(worker.tensors[0].bytes, 524288000);
  }
  EXPECT_EQ(plan.workers[0].own_num_blocks, 8192);
}

// Block sizes and shapes of the worked examples: WE-A25, WE-A26 and WE-E.

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
  const Plan plan =
      PlanOf(Caches({{"state", 3, StateSpec(16, kConvBytes, ssm_bytes)}, {"full", 1, Attention()}}),
             Upstream(16 * kGiB, 8192));
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

TEST(WorkedShapesTest, WeA25AndA26StatesInHalfAndSinglePrecision) {
  EXPECT_EQ(Align(1048576), (AlignedState{1097728, 544, 1114112, 1.4925}));
  EXPECT_EQ(Align(2097152), (AlignedState{2146304, 1056, 2162688, 0.7634}));
}

TEST(WorkedShapesTest, WeE1AndE2DeepseekV4BlocksWithAndWithoutHashes) {
  EXPECT_EQ(Resolve(V4Groups()), (PlannedBlockSizes{256, 4}));
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
  std::vector<LayerCache> caches =
      Caches({{"full", 1, Attention()},
              {"state", 1, StateSpec(16, kConvBytes, 1048576, MambaCacheMode::kAlign)}});
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
  // 2,048 and 3,072 bytes per token.
  const std::vector<LayerCache> caches = Caches({{"full", 1, FullSpec(16, 4, 128)},
                                                 {"other", 1, FullSpec(16, 6, 128)},
                                                 {"state", 1, StateSpec(16, kConvBytes, 1048576)}});
  const auto specs = AlignStates(caches, 16, 1, &errors);
  ASSERT_TRUE(specs.has_value());
  // lcm 6,144; 16 * ceil(1,097,728 / (16 * 6,144)) = 192.
  EXPECT_EQ((*specs)[0].block_size(), 192);
  EXPECT_EQ((*specs)[2].page_bytes(), 192 * 6144);
}

TEST(StateAlignmentTest, NativeLayoutLeavesBlocksAlone) {
  const Plan plan =
      PlanOf(Caches({{"full", 8, Attention()}, {"state", 24, StateSpec(16, kConvBytes, 1048576)}}),
             Exact(PoolLayout::kNative, 16 * kGiB, 8192));
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
