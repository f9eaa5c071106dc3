// What sessions and runs of CacheBlend collect, and what they refuse.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attention/blend/testing/blend_fixture.h"
#include "attention/testing/says.h"
#include "kvblocks/cache_blend.h"

namespace kvblocks::attention {
namespace {

class BlendRefusalTest : public BlendFixture {};
INSTANTIATE_TEST_SUITE_P(Backends, BlendRefusalTest, ::testing::ValuesIn(BlendBackends()),
                         [](const auto& parameter) { return parameter.param->name(); });

TEST_P(BlendRefusalTest, LeadingTokensStayWithTheFirstChunkOnly) {
  const BlendSession session = Session(Config(0.1), {a, b}, suffix);
  EXPECT_EQ(std::vector<int32_t>(session.token_ids().begin(), session.token_ids().end()),
            prompt_ids);
  EXPECT_EQ(session.suffix_len(), 3);
  // Row 10 of the prompt is the first token of b, row 1 of what was prefilled.
  ASSERT_EQ(session.pieces().size(), 2u);
  EXPECT_EQ(session.pieces()[1].position, 10);
  EXPECT_EQ(session.pieces()[1].num_rows, 7);
  EXPECT_EQ(session.pieces()[1].v[2].as<float>(), prefilled[1].v[2].data() + 12);
}

TEST_P(BlendRefusalTest, BadConfigurationsAreRefused) {
  const auto refused = [&](auto change, const std::string& names) {
    BlendConfig config = Config(0.5);
    change(config);
    const absl::Status status = BlendSession::Create(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status, Says(names));
  };
  const auto checks = [&](std::vector<BlendCheck> layers, const std::string& names) {
    refused([&](auto& config) { config.check_layers = layers; }, names);
  };
  checks({}, "check_layers is empty");
  checks({{1, -0.01}}, "check_layers[0].ratio is -0.01");
  checks({{1, 1.5}}, "ratio is 1.5");
  checks({{1, std::nan("")}}, "ratio is nan");
  checks({{4, 0.5}}, "check_layers[0].layer is 4");
  checks({{-1, 0.5}}, "layer is -1");
  checks({{1, 0.5}, {1, 0.2}}, "check_layers[1].layer is 1; it must be above that before, 1");
  checks({{2, 0.5}, {1, 0.2}}, "check_layers[1].layer is 1");
  checks({{1, 0.2}, {2, 0.3}}, "check_layers[1].ratio is 0.3");
  refused([](auto& config) { config.num_layers = 0; }, "num_layers is 0");
  refused([](auto& config) { config.num_kv_heads = 3; }, "num_kv_heads 3");
  refused([](auto& config) { config.head_dim = 0; }, "head_dim is 0");
  refused([](auto& config) { config.dtype = DType::kI8; }, "dtype is i8");
  refused([](auto& config) { config.theta = 0; }, "theta is 0");
  refused([](auto& config) { config.rotary_dim = 8; }, "rotary_dim is 8 of head_dim 6");
  refused([](auto& config) { config.head_dim = 5; }, "rotary_dim is 0 of head_dim 5");
  refused([](auto& config) { config.head_dim = int64_t{1} << 62; }, "at most 2^28");
  EXPECT_EQ(BlendSession::Create(Config(0.5), -1).status(),
            absl::InvalidArgumentError("BlendSession: num_computed_tokens is -1; at least 0"));
}

TEST_P(BlendRefusalTest, ChunksThatDoNotFitAreRefusedAndChangeNothing) {
  auto session = *BlendSession::Create(Config(0.5), 4);
  const PrefilledPrompt prompt = Prefill(a);
  const ChunkViews good = ViewsOf(prompt, transformer.config(), 0);
  const auto refused = [&](const BlendChunk& chunk, const std::string& names) {
    const absl::Status status = session.AddChunk(chunk);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status, Says(names));
    EXPECT_EQ(session.num_tokens(), 0);
    EXPECT_TRUE(session.pieces().empty());
  };
  // Encoded again, the text has another number of tokens than K and V.
  BlendChunk chunk = good.chunk;
  chunk.ids = absl::MakeConstSpan(a).first(8);
  refused(chunk, "the chunk has 8 tokens");
  chunk = good.chunk;
  chunk.k = chunk.k.first(3);
  refused(chunk, "K of 3 and V of 4 layers");
  std::vector<ConstTensorView> other(good.v);
  other[2].extent[1] = 3;
  chunk = good.chunk;
  chunk.v = other;
  refused(chunk, "V of layer 2");
  other = good.v;
  other[1].dtype = DType::kI32;
  refused(chunk, "V of layer 1");
  other = good.v;
  other[1].data = nullptr;
  refused(chunk, "V of layer 1 is f32[9, 2, 6] with null data");
  chunk = good.chunk;
  chunk.num_leading_tokens = 10;
  refused(chunk, "num_leading_tokens is 10");
  chunk = good.chunk;
  chunk.k = chunk.v = {};
  refused(chunk, "no K and V and ends at token 9 of the prompt, of which 4 are computed");
  const std::vector<int32_t> short_positions(8), negative = {0, 1, 2, 3, 4, 5, 6, 7, -8};
  chunk = good.chunk;
  chunk.rotated_for = short_positions;
  refused(chunk, "rotated_for has 8 positions");
  chunk.rotated_for = negative;
  refused(chunk, "rotated_for[8] is -8");
  ASSERT_TRUE(session.AddChunk(good.chunk).ok());

  // The suffix and the prompt.
  const absl::Status no_suffix = session.Plan({});
  EXPECT_EQ(no_suffix.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(no_suffix, Says("suffix_len is 0"));
  EXPECT_EQ(session.Plan(suffix, Join(a, Tokens(4, 3))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session.Plan(suffix, Join(a, Tokens(3, 4))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(session.planned());
  EXPECT_EQ(session.num_tokens(), 9);
  ASSERT_TRUE(session.Plan(suffix, Join(a, suffix)).ok());
  EXPECT_EQ(session.AddChunk(good.chunk).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session.Plan(suffix).code(), absl::StatusCode::kFailedPrecondition);
  auto all_computed = *BlendSession::Create(Config(0.5), 3);
  const absl::Status nothing_left = all_computed.Plan(suffix);
  EXPECT_THAT(nothing_left, Says("num_computed_tokens is 3 of a prompt of 3"));
}

TEST_P(BlendRefusalTest, BadStepsAreRefusedBeforeTheModelIsAsked) {
  const BlendSession session = Session(Config(0.5), {a}, suffix, 3);
  auto unplanned = *BlendSession::Create(Config(0.5));
  BlendConfig other_config = Config(0.5);
  other_config.theta = 500000;
  const BlendSession other_model = Session(other_config, {a}, suffix, 3);
  const BlendSession other_hit = Session(Config(0.5), {a}, suffix, 2);
  PagedModel paged(transformer, {});
  paged.Build({Request(paged, session)});
  const std::vector<std::byte> cached = paged.k[0].bytes;
  BlendModel model = transformer.Model(ops, context);
  model.project = [](auto...) -> absl::Status {
    ADD_FAILURE() << "the model was asked";
    return absl::OkStatus();
  };
  const auto refused = [&](auto change, const std::string& names,
                           absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    BlendStep step = paged.step();
    CommonAttentionMetadata metadata = *step.metadata;
    step.metadata = &metadata;
    std::vector<BlendLayer> layers = paged.layers;
    step.layers = layers;
    change(step, metadata, layers);
    const absl::Status status =
        RunBlend(ops, context, transformer.blend_config(), step, model).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status, Says(names));
    EXPECT_EQ(paged.k[0].bytes, cached);
  };
  using Sessions = std::vector<const BlendSession*>;
  const auto with = [&](const Sessions& sessions) {
    return [&sessions](BlendStep& step, auto&, auto&) { step.sessions = sessions; };
  };
  refused([](auto& step, auto&, auto&) { step.metadata = nullptr; }, "no metadata");
  refused(with(Sessions{}), "0 sessions; the metadata has 1 requests");
  refused(with(Sessions{&unplanned}), "session 0 is not planned",
          absl::StatusCode::kFailedPrecondition);
  refused(with(Sessions{&other_model}), "session 0 is of another model");
  refused(with(Sessions{&other_hit}),
          "request 0 of the metadata has 3 computed tokens of 13, session 0 2 of 13");
  // Blocks behind the hit that other requests could hit.
  refused([](auto& step, auto&, auto&) { step.num_registered_tokens = {}; },
          "num_registered_tokens has 0 entries; the metadata has 1 requests");
  const int64_t registered = 4;
  refused(
      [&](auto& step, auto&, auto&) {
        step.num_registered_tokens = {&registered, 1};
      },
      "request 0 of the metadata has 4 tokens in the prefix cache, of which session 0 writes "
      "those behind the first 3; other requests would hit them: evict its blocks and make the "
      "request with skip_writing_prefix_cache",
      absl::StatusCode::kFailedPrecondition);
  refused([](auto&, auto& metadata, auto&) { metadata.causal = false; }, "not causal");
  refused([](auto&, auto& metadata, auto&) { metadata.chunk = 4; }, "of pieces");
  refused([](auto&, auto& metadata, auto&) { metadata.custom_mask.form = MaskForm::kShared; },
          "custom mask");
  refused([](auto&, auto& metadata, auto&) { metadata.host_seq_lens = {}; },
          "2 starts and 0 lengths");
  refused([](auto&, auto& metadata, auto&) { metadata.num_actual_tokens = 9; },
          "rows 0 to 10; num_actual_tokens is 9");
  refused([](auto&, auto& metadata, auto&) { metadata.slot_mapping = {}; }, "slot_mapping");
  refused([](auto& step, auto&, auto&) { step.layers = step.layers.first(3); },
          "caches of 3 layers");
  refused([](auto& step, auto&, auto&) { step.hidden = {}; }, "hidden is absent");
  refused([](auto& step, auto&, auto&) { step.hidden.extent[0] = 9; }, "f32[10, 24]");
  // Of the last layer: found before the first is stored.
  refused([](auto&, auto&, auto& layers) { layers[3].cache.k.extent[2] = 1; }, "cache");
  refused([](auto&, auto& metadata, auto&) { metadata.block_table.extent[1] = 1; }, "block_table",
          absl::StatusCode::kOutOfRange);
  refused(
      [](auto& step, auto&, auto&) {
        step.work.device = {DeviceKind::kCuda, 0}, step.work.rank = 1;
      },
      "the work memory is on cuda:0");
  model.finish = nullptr;
  refused([](auto&, auto&, auto&) {}, "the model lacks project, attend or finish");
}

TEST_P(BlendRefusalTest, RegisteredBlocksOfTheHitAndOfOtherRequestsAreFine) {
  const BlendSession session = Session(Config(0.5), {a}, suffix, 4);
  PagedModel paged(transformer, {});
  paged.Build({Request(paged, session), {.ids = b, .blocks = paged.TakeBlocks(7)}});
  const BlendModel model = transformer.Model(ops, context);
  paged.num_registered_tokens[paged.RowOf(0)] = 4;
  paged.num_registered_tokens[paged.RowOf(1)] = 7;
  EXPECT_EQ(paged.Run(ops, context, model).status(), absl::OkStatus());
  std::swap(paged.num_registered_tokens[0], paged.num_registered_tokens[1]);
  EXPECT_EQ(paged.Run(ops, context, model).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(BlendRefusalTest, RunsWithoutSessionsNeedNoLayerToCheck) {
  const SmallTransformer one_layer({.num_layers = 1, .hidden_size = 24, .head_dim = 6});
  EXPECT_FALSE(BlendSession::Create(one_layer.blend_config()).ok());
  PagedModel paged(one_layer, {});
  const BlendResult result = Run(paged, {{.ids = a, .blocks = paged.TakeBlocks(9)}});
  EXPECT_EQ(RowsOf(result, 0), one_layer.Prefill(ops, context, a)->hidden);
  BlendConfig config = one_layer.blend_config();
  config.theta = -1;
  EXPECT_EQ(RunBlend(ops, context, config, paged.step(), one_layer.Model(ops, context)).status(),
            absl::InvalidArgumentError("BlendConfig: theta is -1; finite and above 0"));
}

TEST_P(BlendRefusalTest, NoTokensAreNoWork) {
  PagedModel paged(transformer, {});
  BlendStep step = paged.step();
  step.hidden = ViewOf(absl::Span<const float>(), {0, 24});
  const auto result =
      RunBlend(ops, context, transformer.blend_config(), step, transformer.Model(ops, context));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->layers.empty());
}

TEST(CompareWithPrefillTest, MeasuresAndRefuses) {
  const std::vector<float> full = {1, 2, 3, 4, 5, 6}, rows = {3, 4.5, 5, 4};
  const std::vector<int32_t> positions = {8, 9};
  const ConstTensorView all = ViewOf(absl::MakeConstSpan(full), {3, 2});
  ConstTensorView compared = ViewOf(absl::MakeConstSpan(rows), {2, 2});
  const ConstTensorView at = ViewOf(absl::MakeConstSpan(positions));
  const auto deviation = CompareWithPrefill(compared, at, all, 7);
  ASSERT_TRUE(deviation.ok()) << deviation.status();
  EXPECT_EQ(deviation->largest, 2);
  EXPECT_EQ(deviation->mean, 2.5 / 4);
  EXPECT_DOUBLE_EQ(deviation->relative, std::sqrt(4.25 / (9 + 16 + 25 + 36)));
  EXPECT_EQ(CompareWithPrefill(compared, at, all, 6).status(),
            absl::OutOfRangeError(
                "CompareWithPrefill: positions[1] is 9; full has rows of 6 to below 9"));
  compared.extent[0] = 1;
  EXPECT_EQ(CompareWithPrefill(compared, at, all, 7).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<float> nan = {1, NAN, 3, 4};
  EXPECT_TRUE(std::isnan(
      CompareWithPrefill(ViewOf(absl::MakeConstSpan(nan), {2, 2}), at, all, 7)->largest));
}

}  // namespace
}  // namespace kvblocks::attention
