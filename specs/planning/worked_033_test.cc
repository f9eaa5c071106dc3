// What vLLM 0.33 plans otherwise than 0.25: V-90 to V-95 with their worked examples VE-90 and
// VE-91, and hidden states.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/plan.h"
#include "specs/planning/testing/plan_test_helpers.h"
#include "specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kBlockOutermost = MemoryLayout::kBlockOutermost;
constexpr auto kLayerOutermost = MemoryLayout::kLayerOutermost;

std::vector<int64_t> BlockSizes(const Plan& plan) {
  std::vector<int64_t> sizes;
  for (const PlannedGroup& group : plan.groups) sizes.push_back(group.spec.block_size());
  return sizes;
}

Plan InLayoutOf(MemoryLayout layout, const std::vector<LayerCache>& caches) {
  return PlanOf(caches, InLayout(layout, 400 * kGiB, 131072));
}

KvCacheSpec HiddenSpec(int64_t block_size, int64_t head_size) {
  return *HiddenStateSpec::Create({.block_size = block_size, .head_size = head_size});
}

KvCacheSpec AlignedLatent(int64_t alignment) {
  return *MlaAttentionSpec::Create(
      {.block_size = 16, .head_size = 48, .dtype = DataType::kUint8, .alignment = alignment});
}

KvCacheSpec RingOf(int64_t rows, int64_t row_bytes) {
  return *RingSpec::Create({.block_size = rows, .head_size = row_bytes, .dtype = DataType::kUint8});
}

TEST(FitCheck033Test, Llama31NeedsTheNullBlockToo) {
  // V-90
  const PlanError error =
      ErrorOf(Llama31_8b(), Upstream(17179869184, 131072), PlanErrorCode::kRequestDoesNotFit);
  EXPECT_EQ(error.longest_length, 131056);
  // In GiB with two decimals both would read 16.00.
  EXPECT_THAT(error.message,
              AllOf(HasSubstr("17,181,966,336 bytes"), HasSubstr("17,179,869,184 bytes")));
  EXPECT_FALSE(MakePlan(Llama31_8b(), Upstream(17181966335, 131072)).ok());
  const Plan plan = PlanOf(Llama31_8b(), Upstream(17181966336, 131072));
  EXPECT_EQ(plan.num_blocks(), 8193);
  EXPECT_EQ(plan.NeededBytes(131072), 17181966336);
  EXPECT_EQ(plan.RequestBytes(131072), 17179869184);
  EXPECT_EQ(plan.LongestContext(1 << 20), 131072);
  EXPECT_TRUE(MakePlan(Llama31_8b(), Upstream025(17179869184, 131072)).ok());
}

TEST(FitCheck033Test, TheNumberOfBlocksIsThatOfTheWholeMemory) {
  // V-90
  const Plan plan = PlanOf(Llama31_8b(), Upstream(16 * kGiB, 131056));
  EXPECT_EQ(plan.num_blocks(), 8192);
  EXPECT_EQ(plan.Concurrency(131056), 8192.0 / 8191);
  EXPECT_EQ(plan.LongestContext(1 << 20), 131056);
}

TEST(FitCheck033Test, AutomaticLengthLeavesTheNullBlockOut) {
  // V-90
  const Plan now = PlanOf(Llama31_8b(), Upstream(10 * kGiB, /*length=*/0));
  EXPECT_EQ(now.limits.max_model_len, 81920 - 16);
  const Plan before = PlanOf(Llama31_8b(), Upstream025(10 * kGiB, /*length=*/0));
  EXPECT_EQ(before.limits.max_model_len, 81920);
}

TEST(FitCheck033Test, NeededBytesAreTheStrideTimesBlocksInEveryLayout) {
  // V-92
  const std::vector<LayerCache> flash = DeepseekV4(DeepseekV4FlashPattern());
  const std::vector<std::pair<std::vector<LayerCache>, MemoryLayout>> cases = {
      {Gemma3_27b(), kLayerOutermost},
      {Gemma4(), kLayerOutermost},
      {Gemma4(), kBlockOutermost},
      {flash, kBlockOutermost}};
  for (const auto& [caches, layout] : cases) {
    const Plan plan = InLayoutOf(layout, caches);
    const WorkerPlan& worker = plan.workers[0];
    EXPECT_EQ(worker.check_bytes_per_block, std::nullopt);
    for (const int64_t length : {1, 8192, 131072}) {
      const int64_t bytes = plan.TotalBlocksPerRequest(length) * worker.stride_bytes;
      EXPECT_EQ(plan.RequestBytes(length), bytes);
      EXPECT_EQ(plan.NeededBytes(length), bytes + worker.stride_bytes);
    }
  }
}

TEST(PackedGroupsTest, VE90DeepseekV4Flash) {
  // V-91: buckets in the order of registration, the window's first.
  const std::vector<LayerCache> caches = DeepseekV4(DeepseekV4FlashPattern());
  ASSERT_EQ(caches.front().spec.sliding_window(), 128);
  const Plan plan = PlanOf(caches, Upstream(16 * kGiB, 1048576, 16384));
  EXPECT_EQ(plan.layout, PoolLayout::kSlab);
  EXPECT_THAT(GroupSizes(plan), ElementsAre(22, 21, 62, 42, 20));
  EXPECT_THAT(BlockSizes(plan), ElementsAre(64, 64, 256, 4, 8));
  EXPECT_THAT(GroupPages(plan), ElementsAre(823680, 786240, 1002240, 870912, 656640));
  EXPECT_EQ(plan.workers[0].stride_bytes, 1002240);
  EXPECT_EQ(plan.TotalBlocksPerRequest(1048576), 10778);
  EXPECT_EQ(plan.RequestBytes(1048576), 10802142720);
  // Which is what the check asks for, with the null block.
  EXPECT_TRUE(MakePlan(caches, Upstream(10802142720 + 1002240, 1048576, 16384)).ok());
  EXPECT_FALSE(MakePlan(caches, Upstream(10802142720 + 1002239, 1048576, 16384)).ok());
}

TEST(PackedGroupsTest, DeepseekV4ProHasTheGroupsOf025InOrderOfRegistration) {
  // V-91
  const std::vector<LayerCache> caches = DeepseekV4(DeepseekV4ProPattern());
  const Plan plan = PlanOf(caches, Upstream(400 * kGiB, 131072));
  const Plan before = PlanOf(caches, Upstream025(400 * kGiB, 131072));
  EXPECT_THAT(GroupSizes(plan), ::testing::UnorderedElementsAreArray(GroupSizes(before)));
  EXPECT_EQ(plan.groups[0].layers[0], 0);
  EXPECT_EQ(plan.workers[0].stride_bytes, 1435968);
}

TEST(PackedGroupsTest, DeepseekV41Flash) {
  // V-91: three tuples of rows and index keys, so that 40 windows make 14 groups.
  const std::vector<LayerCache> caches = DeepseekV41Flash();
  const Plan plan = PlanOf(caches, Upstream(16 * kGiB, 1048576, 16384));
  EXPECT_EQ(plan.layout, PoolLayout::kSlab);
  EXPECT_THAT(GroupSizes(plan), ElementsAre(3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 6, 3, 2));
  EXPECT_EQ(plan.groups[14].page_bytes, 3 * (37440 + 8640));
  EXPECT_EQ(plan.workers[0].stride_bytes, 138240);
  // Windows of 32 with 128 - 1 + 16,384 tokens; a ring; the limits are those of the rows.
  EXPECT_EQ(plan.TotalBlocksPerRequest(1048576), 14 * 517 + 8192 + 1 + 16384);
  // V-46: windows and rings limit neither; 128 and 64 do.
  EXPECT_EQ(plan.config.scheduler_block_size, 128);
  EXPECT_EQ(plan.config.hash_block_size, 64);
  // Few of the bytes are at rest in the windows, which is what page classes save.
  const Plan exact = PlanOf(caches, Exact(16 * kGiB, 1048576, 16384));
  EXPECT_EQ(exact.groups.size(), 4);
  EXPECT_GT(exact.Concurrency(1048576), 2 * plan.Concurrency(1048576));
}

TEST(PackedGroupsTest, VE91Gemma4) {
  // V-91: windows are cut to what the full layers take.
  const std::vector<LayerCache> caches =
      Caches({{"full", 5, FullSpec(16, 2, 512)}, {"window", 25, WindowSpec(16, 8, 256, 1024)}});
  const Plan layer = InLayoutOf(kLayerOutermost, caches);
  EXPECT_THAT(GroupSizes(layer), ElementsAre(5, 5, 5, 5, 5, 5));
  EXPECT_THAT(BlockSizes(layer), ElementsAre(32, 16, 16, 16, 16, 16));
  EXPECT_EQ(layer.workers[0].stride_bytes, 655360);
  const Plan block = InLayoutOf(kBlockOutermost, caches);
  EXPECT_THAT(GroupSizes(block), ElementsAre(5, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1));
  EXPECT_THAT(BlockSizes(block), Each(16));
  EXPECT_EQ(block.workers[0].stride_bytes, 327680);
}

TEST(PackedGroupsTest, VE91SixFullAndSixWindows) {
  // V-91, V-93
  const std::vector<LayerCache> caches =
      Caches({{"full", 6, FullSpec(16, 3, 128)}, {"window", 6, WindowSpec(16, 8, 128, 1024)}});
  const Plan layer = InLayoutOf(kLayerOutermost, caches);
  EXPECT_THAT(GroupSizes(layer), ElementsAre(6, 6));
  EXPECT_EQ(layer.layers[0].stored.page_bytes(), 65536);
  EXPECT_EQ(layer.layers[0].stored.block_size(), 16);
  EXPECT_EQ(layer.workers[0].stride_bytes, 393216);
  const Plan block = InLayoutOf(kBlockOutermost, caches);
  EXPECT_THAT(GroupSizes(block), ElementsAre(6, 2, 2, 2));
  EXPECT_EQ(block.workers[0].stride_bytes, 147456);
}

TEST(PackedGroupsTest, VE91StatesFullAndWindows) {
  // V-91
  const std::vector<LayerCache> caches = Caches({{"state", 30, StateSpec(1056, 32768, 32768)},
                                                 {"full", 10, FullSpec(16, 8, 128)},
                                                 {"odd", 1, FullSpec(16, 4, 128)},
                                                 {"window", 5, WindowSpec(16, 8, 128, 1024)}});
  EXPECT_EQ(InLayoutOf(kLayerOutermost, caches).groups.size(), 46);
  const Plan block = InLayoutOf(kBlockOutermost, caches);
  EXPECT_THAT(GroupSizes(block), ElementsAre(10, 10, 10, 11, 5));
  EXPECT_EQ(block.workers[0].stride_bytes, 688128);
}

TEST(PackedGroupsTest, AStateThatNoCutMakesSmallerSetsTheWidth) {
  // V-91: a ring of 4,096 bytes beside windows of 1,024 and a full layer of 2,048.
  const Plan plan = InLayoutOf(kBlockOutermost, Caches({{"full", 1, FullSpec(16, 1, 32)},
                                                        {"ring", 1, RingOf(8, 512)},
                                                        {"window", 8, WindowSpec(8, 1, 32, 64)}}));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(1, 1, 4, 4));
  EXPECT_EQ(plan.workers[0].stride_bytes, 4096);
}

TEST(PackedGroupsTest, RingsAreCutLikeTheTuplesBesideThem) {
  // V-91: 3 tuples of two pages; 40 windows in 14 groups, 6 rings in 2.
  const Plan plan = InLayoutOf(kBlockOutermost, Caches({{"main", 3, FullSpec(16, 4, 32)},
                                                        {"index", 3, FullSpec(16, 1, 32)},
                                                        {"window", 40, WindowSpec(8, 1, 32, 64)},
                                                        {"ring", 6, RingOf(8, 64)}}));
  EXPECT_EQ(plan.groups.size(), 1 + 14 + 2);
  EXPECT_EQ(plan.groups[0].layers.size(), 6);
  EXPECT_TRUE(plan.groups[0].is_aggregate);
  EXPECT_EQ(plan.groups[16].layers.size(), 3);
}

TEST(PackedGroupsTest, ReplayedWindowsShareNoTableWithCachedOnes) {
  // V-91: equal but for the attribute.
  const auto window = [](bool is_replayed) {
    return *SlidingWindowMlaSpec::Create(
        {.block_size = 64, .head_size = 512, .sliding_window = 128, .bounded_replay = is_replayed});
  };
  const Plan plan = PlanOf(Caches({{"cached", 2, window(false)}, {"replayed", 2, window(true)}}),
                           Upstream(kGiB, 1024));
  ASSERT_THAT(GroupSizes(plan), ElementsAre(2, 2));
  EXPECT_TRUE(plan.config.groups[0].spec.is_prefix_cacheable());
  EXPECT_FALSE(plan.config.groups[1].spec.is_prefix_cacheable());
}

TEST(PackedGroupsTest, WhereAllAreStatesNoneIsCut) {
  // V-91 says nothing of it: there is nothing whose bytes a cut could fit.
  EXPECT_THAT(
      GroupSizes(InLayoutOf(kBlockOutermost, Caches({{"near", 4, WindowSpec(16, 1, 32, 64)},
                                                     {"far", 4, WindowSpec(16, 2, 32, 512)}}))),
      ElementsAre(4, 4));
}

TEST(PackedGroupsTest, BlocksBeginAlignedForEveryLayer) {
  // V-91: 1,536 is the common multiple of the alignments 512 and 768.
  const Plan plan = InLayoutOf(kBlockOutermost, Caches({{"a", 1, AlignedLatent(512)},
                                                        {"b", 1, AlignedLatent(768)},
                                                        {"full", 3, FullSpec(32, 1, 16)}}));
  EXPECT_THAT(GroupPages(plan), ElementsAre(1024 + 768, 2048, 2048, 2048));
  EXPECT_EQ(plan.workers[0].stride_bytes, 3072);
  EXPECT_EQ(plan.num_blocks(), 400 * kGiB / 3072);
}

TEST(PackedGroupsTest, AbsurdAlignmentsAreRefused) {
  const std::vector<LayerCache> caches = Caches({{"a", 1, AlignedLatent((int64_t{1} << 29) - 3)},
                                                 {"b", 1, AlignedLatent((int64_t{1} << 29) - 33)},
                                                 {"window", 1, WindowSpec(16, 1, 32, 64)}});
  const PlanError error =
      ErrorOf(caches, InLayout(kBlockOutermost, 400 * kGiB, 1024), PlanErrorCode::kBadValue);
  EXPECT_THAT(error.message, HasSubstr("alignments of the layer caches"));
}

TEST(MemoryLayoutTest, DefaultIsLayerOutermostButForSparseAttention) {
  // V-95
  const auto layout_of = [](const std::vector<LayerCache>& caches) {
    return MemoryLayoutFor(caches, Upstream(kGiB, 1024));
  };
  for (const auto& caches : {Llama31_8b(), Gemma3_27b(), Gemma4(), DeepseekV3(), Llama4Scout()}) {
    EXPECT_EQ(layout_of(caches), kLayerOutermost);
  }
  EXPECT_EQ(layout_of(DeepseekV32(/*fp8=*/true)), kBlockOutermost);
  EXPECT_EQ(layout_of(DeepseekV4("4H")), kBlockOutermost);
  EXPECT_EQ(MemoryLayoutFor(DeepseekV4("4H"), Upstream025(kGiB, 1024)), kLayerOutermost);
}

TEST(MemoryLayoutTest, LayerOutermostRefusesDeepseekV4) {
  // V-91
  const std::vector<PlanError> errors =
      ErrorsOf(DeepseekV4(DeepseekV4FlashPattern()), InLayout(kLayerOutermost, 16 * kGiB, 8192));
  EXPECT_EQ(errors[0].code, PlanErrorCode::kPagesDoNotEqualise);
}

TEST(MemoryLayoutTest, ExactPolicyHasLayoutsOfItsOwn) {
  PlanOptions options = Exact(16 * kGiB, 8192);
  options.memory_layout = kBlockOutermost;
  const PlanError error = ErrorOf(Llama31_8b(), options, PlanErrorCode::kBadValue);
  EXPECT_THAT(error.message, HasSubstr("memory_layout: got block-outermost"));
}

TEST(Equalising033Test, PagesThatDoNotDivideArePadded) {
  // V-93
  const std::vector<LayerCache> caches = Gemma4(QuantMode::kInt8PerTokenHead);
  const Plan plan = PlanOf(caches, Upstream(40 * kGiB, 131072));
  EXPECT_THAT(GroupSizes(plan), Each(5));
  for (const PlannedLayer& layer : plan.layers) {
    EXPECT_EQ(layer.stored.page_bytes(), 66560);
    EXPECT_EQ(layer.stored.block_size(), 16);
  }
}

TEST(Equalising033Test, MlaPagesAreNot) {
  // V-93: 16 latent rows have 18,432 bytes, the window's page 65,536.
  const PlanError error =
      ErrorOf(Caches({{"latent", 2, LatentSpec(16)}, {"chunk", 2, ChunkedSpec(16, 8, 128, 1024)}}),
              Upstream(16 * kGiB, 1024), PlanErrorCode::kPagesDoNotEqualise);
  EXPECT_THAT(error.layers, ElementsAre("latent.0", "latent.1"));
}

TEST(Equalising033Test, MlaNextToWindowsNeedsNoFullStorage) {
  // V-93: the window's page is padded to the larger latent one.
  const Plan plan =
      PlanOf(Caches({{"latent", 1, LatentSpec(64)}, {"window", 1, WindowSpec(16, 8, 128, 1024)}}),
             Upstream(40 * kGiB, 8192));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(1, 1));
  EXPECT_EQ(plan.layers[1].stored.kind(), KvCacheSpecKind::kSlidingWindow);
  EXPECT_EQ(plan.layers[1].stored.page_bytes(), 73728);
}

TEST(Merging033Test, FullSpecsThatDifferInALabelShareABucket) {
  // V-94
  const auto labelled = [](std::optional<int64_t> window, std::optional<int64_t> chunk) {
    return *FullAttentionSpec::Create({.block_size = 16,
                                       .num_kv_heads = 8,
                                       .head_size = 128,
                                       .sliding_window = window,
                                       .attention_chunk_size = chunk});
  };
  const std::vector<LayerCache> caches = Caches({{"near", 2, labelled(64, std::nullopt)},
                                                 {"far", 2, labelled(128, std::nullopt)},
                                                 {"chunk", 2, labelled(std::nullopt, 256)},
                                                 {"window", 6, WindowSpec(16, 8, 128, 64)}});
  const Plan now = PlanOf(caches, Upstream(16 * kGiB, 8192));
  ASSERT_THAT(GroupSizes(now), ElementsAre(6, 6));
  EXPECT_FALSE(now.groups[0].is_aggregate);
  EXPECT_EQ(now.groups[0].spec, FullSpec(16, 8, 128));
  EXPECT_EQ(now.layers[0].declared.options().sliding_window, 64);
  const Plan before = PlanOf(caches, Upstream025(16 * kGiB, 8192));
  EXPECT_THAT(GroupSizes(before), ElementsAre(2, 2, 2, 2, 2, 2));
}

TEST(HiddenStatesTest, HaveGroupsOfTheirOwnBehindTheOthers) {
  // V-94, KS-58: 16 and 32 tokens per block; a row of 5,120 values fits a page of 131,072 bytes
  // twelve times, and 8 is the largest divisor of 16 up to there.
  std::vector<LayerCache> caches = {{.name = "hidden", .spec = HiddenSpec(16, 5120)}};
  for (LayerCache& cache : Gemma4()) caches.push_back(std::move(cache));
  const Plan plan = PlanOf(caches, Upstream(40 * kGiB, 8192));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(5, 5, 5, 5, 5, 5, 1));
  EXPECT_EQ(plan.groups.back().layers[0], 0);
  EXPECT_EQ(plan.layers[0].stored.block_size(), 8);
  EXPECT_EQ(plan.layers[0].stored.page_bytes(), 131072);
  EXPECT_EQ(plan.workers[0].stride_bytes, 5 * 131072);
  EXPECT_EQ(plan.config.hash_block_size, 8);
}

TEST(HiddenStatesTest, Version025LetsThemShareTheTableOfFullAttention) {
  // V-94, KS-56
  std::vector<LayerCache> caches = Llama31_8b();
  caches.push_back({.name = "hidden", .spec = HiddenSpec(16, 4096)});
  const Plan before = PlanOf(caches, Upstream025(40 * kGiB, 8192));
  EXPECT_THAT(GroupSizes(before), ElementsAre(33));
  EXPECT_TRUE(before.groups[0].is_aggregate);
  const Plan now = PlanOf(caches, Upstream(40 * kGiB, 8192));
  EXPECT_THAT(GroupSizes(now), ElementsAre(32, 1));
  // 65,536 bytes of page, 8,192 of a row.
  EXPECT_EQ(now.layers[32].stored.block_size(), 8);
  // The exact policy has one table, too, and pays for no padding.
  EXPECT_EQ(PlanOf(caches, Exact(40 * kGiB, 8192)).groups.size(), 1);
}

TEST(HiddenStatesTest, BlockOutermostLeavesThemAsTheyAre) {
  // V-94
  std::vector<LayerCache> caches = DeepseekV4("4H4");
  caches.push_back({.name = "hidden", .spec = HiddenSpec(64, 4096)});
  const Plan plan = PlanOf(caches, Upstream(16 * kGiB, 8192));
  EXPECT_EQ(plan.layers.back().stored, plan.layers.back().declared);
  EXPECT_THAT(plan.groups.back().layers, ElementsAre(static_cast<int>(caches.size()) - 1));
}

TEST(HiddenStatesTest, ARowThatNoPageHoldsIsRefused) {
  // KS-58
  std::vector<LayerCache> caches = Llama31_8b();
  caches.push_back({.name = "hidden", .spec = HiddenSpec(16, 40000)});
  const PlanError error =
      ErrorOf(caches, Upstream(40 * kGiB, 8192), PlanErrorCode::kPagesDoNotEqualise);
  EXPECT_THAT(error.message, AllOf(HasSubstr("\"hidden\""), HasSubstr("80000 bytes")));
}

TEST(HiddenStatesTest, BesideAnAggregateAllPagesAreMadeEqual) {
  // V-94: one table of two page sizes cannot share memory with another by the page.
  std::vector<LayerCache> caches =
      Caches({{"wide", 2, FullSpec(16, 8, 128)}, {"narrow", 2, FullSpec(16, 4, 128)}});
  caches.push_back({.name = "hidden", .spec = HiddenSpec(16, 1024)});
  const Plan plan = PlanOf(caches, Upstream(kGiB, 1024));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(2, 2, 1));
  for (const PlannedLayer& layer : plan.layers) EXPECT_EQ(layer.stored.page_bytes(), 65536);
}

TEST(RingPlanTest, OneBlockPerRequestAndNoPartInBlockSizes) {
  // V-46
  const std::vector<LayerCache> caches =
      Caches({{"full", 2, FullSpec(16, 8, 128)}, {"ring", 2, RingOf(24, 1024)}});
  const Plan plan = PlanOf(caches, Upstream(kGiB, 1024));
  ASSERT_THAT(GroupSizes(plan), ElementsAre(2, 2));
  EXPECT_THAT(plan.BlocksPerRequest(1), ElementsAre(1, 1));
  EXPECT_THAT(plan.BlocksPerRequest(1024), ElementsAre(64, 1));
  EXPECT_EQ(plan.config.scheduler_block_size, 16);
  EXPECT_EQ(plan.config.hash_block_size, 16);
  EXPECT_EQ(plan.groups[1].page_bytes, 2 * 24 * 1024);
  for (const PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
    const Plan exact = PlanOf(caches, Exact(layout, kGiB, 1024));
    EXPECT_EQ(exact.TotalBlocksPerRequest(1024), 65);
    EXPECT_EQ(exact.layers[2].stored.block_size(), 24);
  }
}

TEST(StatePlanTest, VE92BlocksPerRequest) {
  // V-44, VE-92
  const auto blocks = [](MambaCacheMode mode, int64_t speculative, int64_t checkpoints) {
    const KvCacheSpec spec = *MambaSpec::Create({.block_size = 16,
                                                 .states = {{{1024}}},
                                                 .cache_mode = mode,
                                                 .num_speculative_blocks = speculative,
                                                 .num_checkpoint_blocks = checkpoints});
    return PlanOf(Caches({{"state", 1, spec}}), Upstream(kGiB, 8192)).TotalBlocksPerRequest(8192);
  };
  EXPECT_EQ(blocks(MambaCacheMode::kNone, 0, 0), 1);
  EXPECT_EQ(blocks(MambaCacheMode::kNone, 2, 0), 3);
  EXPECT_EQ(blocks(MambaCacheMode::kAlign, 0, 0), 2);
  EXPECT_EQ(blocks(MambaCacheMode::kAlign, 2, 0), 4);
  EXPECT_EQ(blocks(MambaCacheMode::kAlign, 0, 1), 3);
}

TEST(StatePlanTest, AStateAtEveryBlockIsOfVersion025) {
  // V-44
  const std::vector<LayerCache> caches =
      Caches({{"state", 1, StateSpec(16, 1024, 1024, MambaCacheMode::kAll)}});
  const PlanError error = ErrorOf(caches, Upstream(kGiB, 1024), PlanErrorCode::kBadValue);
  EXPECT_THAT(error.message, AllOf(HasSubstr("state.0"), HasSubstr("version 0.25")));
  EXPECT_EQ(PlanOf(caches, Upstream025(kGiB, 1024)).TotalBlocksPerRequest(1024), 64);
}

TEST(Drafts033Test, DraftLayersKeepTheirMark) {
  for (const PlanOptions& options :
       {Upstream(16 * kGiB, 8192), Upstream025(16 * kGiB, 8192), Exact(16 * kGiB, 8192)}) {
    std::vector<LayerCache> caches = DeepseekV4(DeepseekV4FlashPattern() + "W");
    caches.back().is_draft = true;
    const Plan plan = PlanOf(caches, options);
    for (size_t i = 0; i < caches.size(); ++i) {
      EXPECT_EQ(plan.layers[i].is_draft, caches[i].is_draft) << i;
    }
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      bool any = false;
      for (const int layer : plan.groups[g].layers) any |= plan.layers[layer].is_draft;
      EXPECT_EQ(plan.config.groups[g].is_draft, any) << g;
    }
  }
}

TEST(Drafts033Test, DrafterFlagsTheGroupOfTheLastLayer) {
  // KS-75 in the order of V-91: the last of 44 windows is in the second group of windows.
  PlanOptions options = Upstream(16 * kGiB, 8192);
  options.use_eagle = true;
  const Plan plan = PlanOf(DeepseekV4(DeepseekV4FlashPattern() + "W"), options);
  std::vector<bool> flags;
  for (const KvCacheGroup& group : plan.config.groups) flags.push_back(group.is_draft);
  EXPECT_THAT(flags, ElementsAre(false, true, false, false, false));
}

}  // namespace
}  // namespace kvblocks
