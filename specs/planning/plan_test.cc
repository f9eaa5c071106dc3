// What a plan says beyond sizes: drafts, descriptors, layouts, waste, purity.

#include "kvblocks/plan.h"

#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "specs/planning/testing/plan_test_helpers.h"
#include "specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<bool> DraftFlags(const Plan& plan) {
  std::vector<bool> flags;
  for (const KvCacheGroup& group : plan.config.groups) flags.push_back(group.is_draft);
  return flags;
}

std::map<WasteReason, int64_t> WasteByReason(const Plan& plan) {
  std::map<WasteReason, int64_t> bytes;
  for (const Waste& waste : plan.StandingWaste()) bytes[waste.reason] += waste.bytes;
  return bytes;
}

TEST(PlanTest, NoLayersNeedTheNullBlockOnly) {
  for (const PlanPolicy policy : {PlanPolicy::kExact, PlanPolicy::kUpstream}) {
    const Plan plan = PlanOf({}, Options(policy, kGiB, 1024));
    EXPECT_EQ(plan.num_blocks(), 1);
    EXPECT_THAT(plan.config.groups, IsEmpty());
    EXPECT_THAT(plan.workers[0].tensors, IsEmpty());
    EXPECT_EQ(plan.NeededBytes(1024), 0);
  }
}

TEST(PlanTest, EncoderOnlyLayersAreLeftOut) {
  std::vector<LayerCache> caches = Llama31_8b();
  const auto encoder =
      EncoderOnlyAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 64});
  caches.push_back({.name = "encoder", .spec = *encoder});
  EXPECT_EQ(PlanOf(caches, Exact(17 * kGiB, 131072)).layers.size(), 32);
}

TEST(PlanTest, CrossAttentionIsBilledByTheEncoder) {
  const auto cross =
      CrossAttentionSpec::Create({.block_size = 16, .num_kv_heads = 20, .head_size = 64});
  const std::vector<LayerCache> caches =
      Caches({{"self", 32, FullSpec(16, 20, 64)}, {"cross", 32, *cross}});
  PlanOptions options = Exact(16 * kGiB, 448);
  EXPECT_EQ(ErrorsOf(caches, options)[0].code, PlanErrorCode::kBadValue);  // encoder tokens unset
  options.limits.max_encoder_tokens = 1500;
  const Plan plan = PlanOf(caches, options);
  EXPECT_EQ(plan.TotalBlocksPerRequest(448), 28 + 94);
  EXPECT_EQ(plan.TotalBlocksPerRequest(16), 1 + 94);
}

TEST(PlanTest, DraftLayersFlagTheirGroup) {
  std::vector<LayerCache> caches = GptOss120b();
  caches.push_back({.name = "draft.0", .spec = FullSpec(16, 8, 64), .is_draft = true});
  const Plan plan = PlanOf(caches, Upstream(16 * kGiB, 8192));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(18, 19));
  EXPECT_THAT(DraftFlags(plan), ElementsAre(false, true));
}

TEST(PlanTest, DrafterOfATupleModelFlagsTheGroupOfTheLastLayer) {
  std::vector<LayerCache> caches = DeepseekV4(DeepseekV4FlashPattern() + "W");
  PlanOptions options = Upstream025(16 * kGiB, 8192);
  EXPECT_THAT(DraftFlags(PlanOf(caches, options)), ElementsAre(false, false, false, false, false));
  options.use_eagle = true;
  // 44 sliding caches in two groups; the last one is in the second.
  EXPECT_THAT(DraftFlags(PlanOf(caches, options)), ElementsAre(false, false, true, false, false));
}

TEST(PlanTest, DescriptorsOfASlab) {
  const Plan plan = PlanOf(DeepseekV4(DeepseekV4FlashPattern()), Upstream(16 * kGiB, 8192));
  const WorkerPlan& worker = plan.workers[0];
  ASSERT_EQ(worker.tensors.size(), 1);
  EXPECT_EQ(worker.tensors[0].bytes, 1002240 * plan.num_blocks());
  ASSERT_EQ(worker.descriptors.size(), plan.layers.size());
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    EXPECT_EQ(worker.descriptors[i].layer, static_cast<int>(i));
    EXPECT_EQ(worker.descriptors[i].block_stride, 1002240);
    EXPECT_EQ(worker.descriptors[i].dims[worker.descriptors[i].block_dim], "block");
  }
  // The first two layers slide only; the third has a main cache, first in the MLA group.
  const LayerDescriptor& main = worker.descriptors[3];
  EXPECT_EQ(plan.layers[3].name, "layers.2.main");
  EXPECT_EQ(main.offset, 0);
  EXPECT_EQ(main.page_bytes, 37440);
  EXPECT_EQ(main.rows, 64);
  EXPECT_EQ(main.row_bytes, 584);
  EXPECT_EQ(worker.descriptors[4].offset, 37440);  // its indexer
}

TEST(PlanTest, DescriptorsOfEqualPages) {
  const Plan plan = PlanOf(Gemma3_27b(), Upstream(40 * kGiB, 8192));
  for (const LayerDescriptor& d : plan.workers[0].descriptors) {
    EXPECT_EQ(d.offset, 0);
    EXPECT_EQ(d.block_stride, 131072);
    EXPECT_EQ(d.rows * d.row_bytes, 131072);
    EXPECT_EQ(plan.groups[d.group].layers[d.tensor], d.layer);
  }
}

TEST(PlanTest, CrossLayerBlocksMakeOneAllocation) {
  PlanOptions options = Upstream(40 * kGiB, 8192);
  const Plan without = PlanOf(Gemma3_27b(), options);
  options.memory_layout = MemoryLayout::kBlockOutermost;
  const Plan plan = PlanOf(Gemma3_27b(), options);
  EXPECT_EQ(plan.layout, PoolLayout::kSlab);
  ASSERT_EQ(plan.workers[0].tensors.size(), 1);
  EXPECT_EQ(plan.num_blocks(), without.num_blocks());
  // A single group keeps a tensor per layer.
  EXPECT_EQ(PlanOf(Llama31_8b(), options).workers[0].tensors.size(), 32);
}

TEST(PlanTest, CostIsAFixedPartAndAPartPerToken) {
  const Plan plan = PlanOf(Gemma3_27b(), Upstream(40 * kGiB, 131072));
  const RequestCost cost = plan.CostOfRequest();
  EXPECT_EQ(cost.fixed_blocks, 6 * 577);
  EXPECT_EQ(cost.blocks_per_token, 1.0 / 16);
  EXPECT_EQ(plan.TotalBlocksPerRequest(131072),
            cost.fixed_blocks + static_cast<int64_t>(131072 * cost.blocks_per_token));
}

TEST(PlanTest, ExactPlansServeAtLeastWhatUpstreamsDo) {
  struct Case {
    std::vector<LayerCache> caches;
    int64_t length;
  };
  const Case cases[] = {{Gemma3_27b(), 131072},
                        {GptOss120b(), 131072},
                        {Llama4Scout(), 131072},
                        {Gemma4(), 131072},
                        {DeepseekV4(DeepseekV4FlashPattern()), 1048576},
                        {DeepseekV4(DeepseekV4ProPattern()), 1048576}};
  for (const Case& c : cases) {
    const Plan upstream = PlanOf(c.caches, Upstream(64 * kGiB, c.length));
    const Plan exact = PlanOf(c.caches, Exact(64 * kGiB, c.length));
    EXPECT_GT(exact.MaxRequests(c.length), 0);
    EXPECT_GE(exact.Concurrency(c.length), upstream.Concurrency(c.length)) << c.caches.size();
  }
}

TEST(PlanTest, PlannerTriesAllLayouts) {
  const std::vector<LayerCache> caches = DeepseekV4(DeepseekV4FlashPattern());
  const double best = PlanOf(caches, Exact(64 * kGiB, 1048576)).Concurrency(1048576);
  for (const PoolLayout layout : {PoolLayout::kSlab, PoolLayout::kNative}) {
    EXPECT_LE(PlanOf(caches, Exact(layout, 64 * kGiB, 1048576)).Concurrency(1048576), best);
  }
}

TEST(PlanTest, NativeBlocksAreCommonToStagesOfDifferentPages) {
  std::vector<LayerCache> caches = DeepseekV4(DeepseekV4FlashPattern());
  for (size_t i = caches.size() / 3; i < caches.size(); ++i) caches[i].worker = 1;
  const Plan plan = PlanOf(caches, Exact(PoolLayout::kNative, 16 * kGiB, 131072));
  ASSERT_EQ(plan.workers.size(), 2);
  const NativeLayout& native = *plan.config.native;
  for (const WorkerPlan& worker : plan.workers) {
    ASSERT_EQ(worker.tensors.size(), 1);
    EXPECT_EQ(worker.tensors[0].bytes,
              native.num_chunks * worker.chunk_bytes + worker.null_page_bytes);
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const int64_t pages = native.pages_per_chunk[plan.groups[g].page_class];
      EXPECT_LE(pages * worker.group_page_bytes[g], worker.chunk_bytes);
    }
  }
  EXPECT_TRUE(Validate(plan.config).ok()) << Validate(plan.config);
}

TEST(PlanTest, OverrideInTheNativeLayoutRoundsDownToChunks) {
  PlanOptions options = Exact(PoolLayout::kNative, 0, 8192);
  options.num_blocks_override = 20000;
  const Plan plan = PlanOf(Gemma4(QuantMode::kInt8PerTokenHead), options);
  EXPECT_LE(plan.num_blocks(), 20000);
  EXPECT_GT(plan.num_blocks(), 20000 - plan.config.native->ids_per_chunk());
}

TEST(PlanWasteTest, MemoryIsPoolAndRemainder) {
  const int64_t available = 40 * kGiB + 12345;
  const Plan plan = PlanOf(Gemma3_27b(), Upstream(available, 8192));
  const std::map<WasteReason, int64_t> waste = WasteByReason(plan);
  EXPECT_EQ(waste.at(WasteReason::kUnusedMemory), available - plan.num_blocks() * 1310720);
  EXPECT_EQ(waste.at(WasteReason::kNullBlock), 1310720);
  EXPECT_EQ(waste.at(WasteReason::kPaddingLayers), 8 * 131072);
  // Six window groups are billed one block too many each at 8,192 tokens.
  EXPECT_EQ(waste.at(WasteReason::kUpstreamCap), 6 * 1310720);
  EXPECT_EQ(waste.count(WasteReason::kPagePadding), 0);
}

TEST(PlanWasteTest, AlignmentAndChunksAreAccountedFor) {
  const std::vector<LayerCache> caches = DeepseekV4(DeepseekV4FlashPattern());
  const Plan slab = PlanOf(caches, Upstream(16 * kGiB, 8192));
  // 64 bytes of every 37,440-byte page of 584-byte rows, and so on for all caches.
  int64_t padding = 0;
  for (const LayerDescriptor& d : slab.workers[0].descriptors) {
    padding += d.page_bytes - d.rows * d.row_bytes;
  }
  EXPECT_EQ(WasteByReason(slab).at(WasteReason::kPagePadding), padding);
  const Plan native = PlanOf(caches, Exact(PoolLayout::kNative, 16 * kGiB, 8192));
  const std::map<WasteReason, int64_t> waste = WasteByReason(native);
  EXPECT_GT(waste.at(WasteReason::kChunkRemainder), 0);
  EXPECT_EQ(waste.at(WasteReason::kPartialChunk), 4 * native.workers[0].chunk_bytes);
  EXPECT_EQ(waste.count(WasteReason::kUpstreamCap), 0);
}

TEST(PlanWasteTest, SinkBlocksAreTakenForGood) {
  const auto sink = SinkFullAttentionSpec::Create(
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .sink_length = 64});
  const std::vector<LayerCache> caches = Caches({{"sink", 32, *sink}});
  const Plan plan = PlanOf(caches, Exact(16 * kGiB, 8192));
  EXPECT_EQ(plan.num_allocatable_blocks(), 8192 - 1 - 4);
  EXPECT_EQ(plan.LongestContext(1 << 20), (8192 - 5) * 16);
  EXPECT_EQ(plan.NeededBytes(16), (1 + 1 + 4) * (int64_t{2} << 20));
  EXPECT_EQ(WasteByReason(plan).at(WasteReason::kSinkBlocks), 4 * (int64_t{2} << 20));
  // Upstream promises them to requests.
  EXPECT_EQ(PlanOf(caches, Upstream025(16 * kGiB, 8192)).LongestContext(1 << 20), 131072);
}

}  // namespace
}  // namespace kvblocks
