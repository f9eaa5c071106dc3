#include "kvblocks/attention_metadata.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

// A bit per new token and key, as AttachMasks makes them for long requests.
absl::Status AttachBits(const KvGroupConfig&, CommonAttentionMetadata* metadata) {
  int64_t bits = 0;
  for (int32_t b = 0; b < metadata->num_reqs; ++b) {
    bits += (metadata->host_query_start_loc[b + 1] - metadata->host_query_start_loc[b]) *
            metadata->host_seq_lens[b];
  }
  const int64_t bytes = (bits + 7) / 8;
  const auto memory = std::make_shared<std::vector<std::byte>>(bytes, std::byte{0x5A});
  metadata->custom_mask = {memory, ConstTensorView::Contiguous(memory->data(), DType::kU8, {bytes}),
                           MaskEncoding::kMarker, MaskForm::kRaggedBits};
  return absl::OkStatus();
}

using testing::ElementsAre;

template <typename T>
std::vector<T> Contents(const ConstTensorView& view) {
  return {view.as<T>(), view.as<T>() + view.num_elements()};
}

MetadataBuilderOptions BuilderOptions() {
  return {.groups = {{.manager_block_size = 4, .kernel_block_size = 4, .num_blocks = 40},
                     {.manager_block_size = 4,
                      .kernel_block_size = 4,
                      .num_blocks = 40,
                      .sink_blocks = {1}}},
          .max_num_reqs = 8,
          .max_num_tokens = 16,
          .max_seq_len = 12,
          .split = {.decode_threshold = 2}};
}

GraphParameters Made(const GraphParameterOptions& graphs) {
  auto made = GraphParameters::Create(BuilderOptions(), graphs);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// A step of requests that have computed so many tokens, each with blocks of its own.
struct DecodeStep {
  explicit DecodeStep(const std::vector<int64_t>& computed, int64_t tokens = 1) {
    int32_t block = 2;
    for (const int64_t count : computed) {
      requests.push_back({count, tokens});
      blocks.push_back({block, block + 1, block + 2});
      block += 3;
    }
    for (const std::vector<int32_t>& one : blocks) {
      tables.push_back(one);
      tables.push_back(one);
    }
  }
  BatchInput Input() const { return {.requests = requests, .block_ids = tables}; }

  std::vector<RequestInput> requests;
  std::vector<std::vector<int32_t>> blocks;
  std::vector<absl::Span<const int32_t>> tables;
};

TEST(GraphParametersTest, SizesAreThoseOfEngines) {
  EXPECT_THAT(GraphCaptureSizes(0), ElementsAre());
  EXPECT_THAT(GraphCaptureSizes(3), ElementsAre(1, 2));
  EXPECT_THAT(GraphCaptureSizes(20), ElementsAre(1, 2, 4, 8, 16));
  const std::vector<int64_t> sizes = GraphCaptureSizes(512);
  EXPECT_EQ(sizes.size(), 51u);  // 3, 31 multiples of 8 below 256, 17 of 16 from there on
  EXPECT_EQ(sizes[33], 248);
  EXPECT_EQ(sizes[34], 256);
  EXPECT_EQ(sizes[35], 272);
  EXPECT_EQ(sizes.back(), 512);
}

TEST(GraphParametersTest, AStepIsRewrittenInPlaceAndPadded) {
  GraphParameters graphs = Made({.sizes = {1, 2, 4, 8}});
  ASSERT_EQ(graphs.sets().size(), 4u);
  const std::vector<GraphParameterSet> before = graphs.sets();
  const DecodeStep five({3, 3, 3, 3, 3}), three({5, 11, 0}), two({1, 2});
  ASSERT_TRUE(graphs.Update(five.Input()).ok());  // leaves something to pad over
  for (const DecodeStep* step : {&three, &two, &three}) {
    const auto set = graphs.Update(step->Input());
    ASSERT_TRUE(set.ok()) << set.status();
    const bool is_three = step == &three;
    EXPECT_EQ((*set)->num_tokens, is_three ? 4 : 2);
    const CommonAttentionMetadata& meta = (*set)->metadata[1];
    if (is_three) {
      EXPECT_THAT(Contents<int32_t>(meta.query_start_loc), ElementsAre(0, 1, 2, 3, 3));
      EXPECT_THAT(Contents<int32_t>(meta.seq_lens), ElementsAre(10, 16, 5, 0));
      EXPECT_THAT(Contents<int64_t>(meta.slot_mapping), ElementsAre(13, 31, 32, -1));
      EXPECT_THAT(Contents<int32_t>(meta.block_table),
                  ElementsAre(1, 2, 3, 0, 1, 5, 6, 7, 1, 8, 0, 0, 1, 0, 0, 0));
    } else {
      EXPECT_THAT(Contents<int32_t>(meta.query_start_loc), ElementsAre(0, 1, 2));
      EXPECT_THAT(Contents<int32_t>(meta.seq_lens), ElementsAre(6, 7));
      EXPECT_THAT(Contents<int64_t>(meta.slot_mapping), ElementsAre(9, 22));
    }
    // What graphs were captured with has not moved or changed, but for what is in the buffers.
    for (size_t i = 0; i < before.size(); ++i) {
      for (size_t g = 0; g < 2; ++g) {
        const CommonAttentionMetadata &was = before[i].metadata[g],
                                      &is = graphs.sets()[i].metadata[g];
        EXPECT_EQ(is.num_actual_tokens, before[i].num_tokens);
        EXPECT_EQ(is.num_decodes, before[i].num_reqs);
        EXPECT_EQ(is.max_seq_len, g == 0 ? 12 : 16);
        EXPECT_EQ(is.host_seq_lens.size(), static_cast<size_t>(before[i].num_reqs));
        EXPECT_THAT(is.host_seq_lens, testing::Each(g == 0 ? 12 : 16));
        for (const auto& [now, then] :
             {std::pair(is.query_start_loc, was.query_start_loc), {is.seq_lens, was.seq_lens},
              {is.block_table, was.block_table}, {is.slot_mapping, was.slot_mapping},
              {is.positions, was.positions}}) {
          EXPECT_EQ(now.data, then.data);
          EXPECT_EQ(now.extent[0], then.extent[0]);
        }
      }
    }
    const CommonAttentionMetadata &small = graphs.sets()[0].metadata[1],
                                  &large = graphs.sets()[3].metadata[1];
    EXPECT_EQ(small.block_table.data, large.block_table.data);
    EXPECT_EQ(small.seq_lens.data, large.seq_lens.data);
    EXPECT_EQ(small.slot_mapping.data, large.slot_mapping.data);
  }
  // The step's own counts, for who runs without a graph.
  EXPECT_EQ(graphs.builder().metadata(0).num_reqs, 3);
}

TEST(GraphParametersTest, TheSmallestSetThatFitsIsFound) {
  GraphParameters decodes = Made({.sizes = {2, 4}});
  const auto tokens_of = [](const GraphParameters& graphs, const DecodeStep& step) -> int64_t {
    const auto set = graphs.Find(step.Input());
    return set.ok() ? (*set)->num_tokens : -1;
  };
  EXPECT_EQ(tokens_of(decodes, DecodeStep({})), 2);
  EXPECT_EQ(tokens_of(decodes, DecodeStep({1, 1})), 2);
  EXPECT_EQ(tokens_of(decodes, DecodeStep({1, 1, 1})), 4);
  EXPECT_THAT(decodes.Find(DecodeStep({1, 1, 1, 1, 1}).Input()).status(),
              Says("5 requests and 5 tokens; the largest graph is of 4 and 4; run the step"));
  EXPECT_THAT(decodes.Find(DecodeStep({1}, 2).Input()).status(),
              Says("request 0 has 2 tokens; graphs were captured for 1 per request"));

  GraphParameters speculating = Made({.sizes = {2, 6}, .uniform_query_len = 2});
  EXPECT_EQ(tokens_of(speculating, DecodeStep({1, 1}, 2)), 6);
  EXPECT_EQ(speculating.sets()[1].num_reqs, 3);
  EXPECT_THAT(speculating.sets()[1].metadata[0].host_query_start_loc, ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(speculating.sets()[1].metadata[0].max_query_len, 2);
  EXPECT_EQ(speculating.sets()[1].metadata[0].attn_state, AttentionState::kSpecDecoding);

  GraphParameters any = Made({.sizes = {4, 16}, .uniform_query_len = 0});
  EXPECT_EQ(tokens_of(any, DecodeStep({1, 1}, 2)), 4);
  EXPECT_EQ(tokens_of(any, DecodeStep({1, 1}, 5)), 16);
  EXPECT_EQ(any.sets()[1].num_reqs, 8);
  EXPECT_EQ(any.sets()[1].metadata[0].num_prefills, 8);
  EXPECT_EQ(any.sets()[1].metadata[0].host_query_start_loc.back(), 16);
}

TEST(GraphParametersTest, RefusalsChangeNothing) {
  GraphParameters graphs = Made({.sizes = {2, 4}});
  ASSERT_TRUE(graphs.Update(DecodeStep({5, 11}).Input()).ok());
  const std::vector<std::byte> before(graphs.builder().storage().begin(),
                                      graphs.builder().storage().end());
  const DecodeStep beyond({12});  // a 13th token
  BatchInput padded = DecodeStep({1}).Input();
  const DecodeStep one({1});
  padded = one.Input();
  padded.padded_num_reqs = 2;
  EXPECT_THAT(graphs.Update(beyond.Input()).status(), Says("block tables cover max_seq_len 12"));
  EXPECT_THAT(graphs.Update(padded).status(), Says("leave 0"));
  EXPECT_FALSE(graphs.Update(DecodeStep({1, 1, 1, 1, 1}).Input()).ok());
  EXPECT_EQ(before, std::vector<std::byte>(graphs.builder().storage().begin(),
                                           graphs.builder().storage().end()));

  const auto refuse = [](GraphParameterOptions given, auto change, const char* words) {
    MetadataBuilderOptions options = BuilderOptions();
    change(options);
    EXPECT_THAT(GraphParameters::Create(options, given).status(), Says(words));
  };
  const auto as_is = [](auto&) {};
  refuse({}, as_is, "0 sizes and uniform_query_len 1");
  refuse({.sizes = {1}, .uniform_query_len = -1}, as_is, "uniform_query_len -1");
  refuse({.sizes = {3}, .uniform_query_len = 3}, as_is, "at most decode_threshold 2");
  refuse({.sizes = {2, 2}}, as_is, "sizes[1] is 2");
  refuse({.sizes = {0}}, as_is, "sizes[0] is 0");
  refuse({.sizes = {3}, .uniform_query_len = 2}, as_is, "multiples");
  refuse({.sizes = {17}, .uniform_query_len = 0}, as_is, "max_num_tokens 16");
  refuse({.sizes = {9}}, as_is, "max_num_reqs 8");
  refuse({.sizes = {1}}, [](auto& o) { o.max_num_reqs = 0; }, "max_num_reqs is 0");
  refuse({.sizes = {1}}, [](auto& o) { o.attach_masks = AttachBits; }, "max_mask_bytes is 0");
  refuse({.sizes = {1}}, [](auto& o) { o.max_mask_bytes = -1; }, "max_mask_bytes is -1");
}

TEST(GraphParametersTest, MasksStayWhereTheyWereCaptured) {
  MetadataBuilderOptions options = BuilderOptions();
  options.attach_masks = AttachBits;
  options.max_mask_bytes = 3;
  auto graphs = GraphParameters::Create(options, {.sizes = {2, 4}});
  ASSERT_TRUE(graphs.ok()) << graphs.status();
  const MaskRef& captured = graphs->sets()[0].metadata[0].custom_mask;
  EXPECT_EQ(captured.form, MaskForm::kRaggedBits);
  EXPECT_EQ(captured.view.extent[0], 3);
  const DecodeStep step({5, 2});
  ASSERT_TRUE(graphs->Update(step.Input()).ok());
  const MaskRef& mask = graphs->builder().metadata().custom_mask;
  EXPECT_EQ(mask.view.data, captured.view.data);
  EXPECT_EQ(mask.view.extent[0], 2);  // of 6 and 3 keys
  EXPECT_EQ(mask.view.data[1], std::byte{0x5A});
  const absl::Span<const std::byte> storage = graphs->builder().storage();
  EXPECT_GE(storage.data() + storage.size(), mask.view.data + 3);
  // Too many bits, and masks of another form.
  EXPECT_THAT(graphs->Update(DecodeStep({7, 7, 7, 7}).Input()).status(),
              Says("the step's mask has 4 bytes of bits; max_mask_bytes is 3"));
  options.attach_masks = [num_calls = 0](const KvGroupConfig& config,
                                         CommonAttentionMetadata* metadata) mutable {
    return ++num_calls > 4 ? absl::OkStatus() : AttachBits(config, metadata);
  };
  auto others = GraphParameters::Create(options, {.sizes = {2}});
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_THAT(others->Update(step.Input()).status(),
              Says("masks of a group are others"));
}

TEST(GraphParametersTest, TheLargestWorkspaceOfAllLayersIsKept) {
  GraphParameters graphs = Made({.sizes = {2, 4}});
  const auto require = [&](int64_t per_token, int64_t extra) {
    return graphs.RequireWorkspace([&](const GraphParameterSet& set) -> absl::StatusOr<int64_t> {
      return set.num_tokens * per_token + extra;
    });
  };
  ASSERT_TRUE(require(100, 0).ok());
  ASSERT_TRUE(require(0, 300).ok());  // a layer of another shape
  EXPECT_EQ(graphs.sets()[0].workspace_bytes, 300);
  EXPECT_EQ(graphs.sets()[1].workspace_bytes, 400);
  const absl::Status failed =
      graphs.RequireWorkspace([&](const GraphParameterSet& set) -> absl::StatusOr<int64_t> {
        if (set.num_tokens == 2) return 1000;
        return InvalidArgument("no");
      });
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(graphs.sets()[0].workspace_bytes, 300);
}

}  // namespace
}  // namespace kvblocks::attention
