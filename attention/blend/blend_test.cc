// Sessions and runs of CacheBlend: T-25, prefix hits, states of layers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attention/blend/testing/blend_fixture.h"
#include "attention/blend/testing/paged_model.h"
#include "attention/testing/says.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/cache_blend.h"

namespace kvblocks::attention {
namespace {

std::vector<int32_t> Positions(const BlendResult& result) {
  const int32_t* const positions = result.positions.as<int32_t>();
  return {positions, positions + result.positions.extent[0]};
}

class BlendTest : public BlendFixture {};
INSTANTIATE_TEST_SUITE_P(Backends, BlendTest, ::testing::ValuesIn(BlendBackends()),
                         [](const auto& parameter) { return parameter.param->name(); });

// --- T-25 ----------------------------------------------------------------------------------------

TEST_P(BlendTest, RatioOneIsTheFullPrefillBitForBit) {
  const PrefilledPrompt full = Prefill(prompt_ids);
  for (const std::vector<BlendCheck>& checks :
       {std::vector<BlendCheck>{{0, 1}}, {{1, 1}}, {{3, 1}}, {{0, 1}, {1, 1}, {3, 1}}}) {
    for (const int64_t computed : {0, 1, 6, 10, 12, 17, 19}) {
      const BlendResult result = Run(Session(Config(checks), {a, b}, suffix, computed));
      ASSERT_EQ(result.hidden.extent[0], 20 - computed);
      for (int64_t t = computed; t < 20; ++t) {
        EXPECT_EQ(Row(result, t - computed), Row(full, t)) << "token " << t;
      }
    }
  }
}

TEST_P(BlendTest, RatioZeroWithTheSameKvIsTheFullPrefillBitForBit) {
  const PrefilledPrompt full = Prefill(prompt_ids);
  // One chunk that was prefilled as the prompt's beginning: what it holds is what would be
  // computed.
  const PrefilledPrompt beginning = Prefill(Join(Join({kBos}, a), b));
  for (const int64_t computed : {0, 5, 16}) {
    auto session = BlendSession::Create(Config(0), computed);
    ASSERT_TRUE(session->AddChunk(ViewsOf(beginning, transformer.config(), 1).chunk).ok());
    ASSERT_TRUE(session->Plan(suffix, prompt_ids).ok());
    const BlendResult result = Run(*session);
    ASSERT_EQ(Positions(result), (std::vector<int32_t>{17, 18, 19}));
    for (int r = 0; r < 3; ++r) EXPECT_EQ(Row(result, r), Row(full, 17 + r)) << r;
  }
}

TEST_P(BlendTest, ChunksPrefilledApartDifferAtRatioZeroAndAreMendedByRecomputing) {
  const PrefilledPrompt full = Prefill(prompt_ids);
  const int64_t width = transformer.config().hidden_size;
  const auto error = [&](double ratio) {
    const BlendResult result = Run(Session(Config(ratio), {a, b}, suffix));
    const int64_t rows = result.hidden.extent[0];
    const auto deviation = CompareWithPrefill(
        *result.hidden.Slice(0, rows - 1, rows), *result.positions.Slice(0, rows - 1, rows),
        ViewOf(absl::MakeConstSpan(full.hidden), {20, width}));
    EXPECT_TRUE(deviation.ok()) << deviation.status();
    return *deviation;
  };
  EXPECT_GT(error(0).relative, 1e-3);
  EXPECT_LT(error(0.8).relative, error(0).relative);
  EXPECT_LT(error(0.8).mean, error(0).mean);
  EXPECT_EQ(error(1).largest, 0);
}

TEST_P(BlendTest, RunningTwiceRotatesNothingTwice) {
  const BlendSession session = Session(Config(0.3), {a, b}, suffix);
  PagedModel paged(transformer, {});
  const StepRequest request = Request(paged, session);
  const BlendResult first = Run(paged, {request});
  const std::vector<std::byte> cached = paged.k[2].bytes;
  const BlendResult second = Run(paged, {request});
  EXPECT_EQ(RowsOf(first, 0), RowsOf(second, 0));
  EXPECT_EQ(Positions(first), Positions(second));
  EXPECT_EQ(paged.k[2].bytes, cached);
}

// --- Prefix hits, other requests
// ------------------------------------------------------------------

TEST_P(BlendTest, ComputedTokensAreReadOnlyAndNotCounted) {
  // A hit of 12 tokens ends inside b, of which five tokens are left; 0.4 of them are two.
  const BlendSession session = Session(Config(0.4), {a, b}, suffix, 12);
  EXPECT_EQ(session.num_rows(), 8);
  EXPECT_EQ(session.num_old_rows(), 5);
  ASSERT_EQ(session.pieces().size(), 1u);
  EXPECT_EQ(session.pieces()[0].position, 12);
  PagedModel paged(transformer, {});
  const StepRequest request = Request(paged, session);
  std::vector<std::vector<float>> before;
  const auto hit = [&](int layer, int64_t t) {
    const auto* const key =
        reinterpret_cast<const float*>(paged.KeyAt(layer, paged.SlotOf(request.blocks, t)));
    return std::vector<float>(key, key + 12);
  };
  for (int t = 0; t < 12; ++t) before.push_back(hit(3, t));
  const BlendResult result = Run(paged, {request});
  EXPECT_EQ(result.hidden.extent[0], 5);
  for (int t = 0; t < 12; ++t) EXPECT_EQ(hit(3, t), before[t]) << t;
  EXPECT_GE(Positions(result)[0], 12);
  EXPECT_EQ(result.layers[2].projected_rows, 5);
  EXPECT_EQ(result.layers[2].recomputed_rows, 2);
  // The deviation of the computed tokens does not matter any more.
  EXPECT_NE(Row(result, 4), Row(Run(Session(Config(0.4), {a, b}, suffix)), 8));
}

TEST_P(BlendTest, ComputedChunksNeedNoRows) {
  auto session = *BlendSession::Create(Config(0.3), 10);
  const std::vector<int32_t> beginning = Join({kBos}, a);
  ASSERT_EQ(session.AddChunk({.ids = beginning}), absl::OkStatus());
  const PrefilledPrompt chunk = Prefill(Join({kBos}, b));
  ASSERT_EQ(session.AddChunk(ViewsOf(chunk, transformer.config(), 1).chunk), absl::OkStatus());
  ASSERT_EQ(session.Plan(suffix, prompt_ids), absl::OkStatus());
  EXPECT_EQ(RowsOf(Run(session), 0), RowsOf(Run(Session(Config(0.3), {a, b}, suffix, 10)), 0));
}

// --- The layers ----------------------------------------------------------------------------------

TEST_P(BlendTest, LayersGoThroughTheirStates) {
  const BlendSession session = Session(Config({{1, 0.5}, {3, 0.25}}), {a, b}, suffix);
  EXPECT_EQ(session.StateOf(0), BlendState::kFullPrefill);
  EXPECT_EQ(session.StateOf(1), BlendState::kCheck);
  EXPECT_EQ(session.StateOf(2), BlendState::kReuse);
  EXPECT_EQ(session.StateOf(3), BlendState::kCheck);
  // 20 tokens, a suffix of 3, half and a quarter of 17.
  const BlendResult result = Run(session);
  std::vector<std::vector<int64_t>> rows;
  for (const BlendLayerReport& layer : result.layers) {
    rows.push_back({layer.projected_rows, layer.attended_rows, layer.recomputed_rows});
  }
  EXPECT_EQ(rows, (std::vector<std::vector<int64_t>>{
                      {20, 20, 17}, {20, 11, 17}, {11, 11, 8}, {11, 7, 8}}));
  const int64_t row = 2 * 6 * 4;  // bytes of K or V
  std::vector<std::pair<int64_t, int64_t>> bytes;
  for (const BlendLayerReport& layer : result.layers) {
    bytes.emplace_back(layer.bytes_from_chunks, layer.bytes_stored);
  }
  EXPECT_EQ(bytes, (std::vector<std::pair<int64_t, int64_t>>{{0, 2 * 20 * row},
                                                             {17 * row, 2 * 20 * row},
                                                             {2 * 17 * row, 2 * 28 * row},
                                                             {3 * 17 * row, 2 * 28 * row}}));
  EXPECT_EQ(result.row_start, (std::vector<int32_t>{0, 7}));
  EXPECT_EQ(result.hidden.extent[0], 7);
}

TEST_P(BlendTest, MomentsComeInOrder) {
  const BlendSession session = Session(Config({{1, 0.5}, {3, 0.25}}), {a, b}, suffix);
  PagedModel paged(transformer, {});
  paged.Build({Request(paged, session)});
  BlendModel model = transformer.Model(ops, context);
  std::vector<std::pair<BlendMoment, int>> moments;
  model.at = [&](BlendMoment moment, int layer) { moments.emplace_back(moment, layer); };
  const auto result = paged.Run(ops, context, model);
  ASSERT_TRUE(result.ok()) << result.status();
  using enum BlendMoment;
  EXPECT_EQ(moments, (std::vector<std::pair<BlendMoment, int>>{{kRunBegins, -1},
                                                               {kLayerEnds, 0},
                                                               {kSelectionBegins, 1},
                                                               {kSelectionEnds, 1},
                                                               {kLayerEnds, 1},
                                                               {kLayerEnds, 2},
                                                               {kSelectionBegins, 3},
                                                               {kSelectionEnds, 3},
                                                               {kLayerEnds, 3},
                                                               {kHiddenRowsAreThere, -1}}));
  double before = 0;
  for (const BlendLayerReport& layer : result->layers) {
    EXPECT_GE(layer.ended_microseconds, before);
    EXPECT_LE(layer.selection_microseconds, layer.ended_microseconds);
    before = layer.ended_microseconds;
  }
  EXPECT_GT(result->layers[1].selection_microseconds, 0);
  EXPECT_EQ(result->layers[2].selection_microseconds, 0);
}

TEST_P(BlendTest, NewRowsAloneAreStoredIfTheCacheHasTheChunks) {
  const BlendSession all = Session(Config(0.25), {a, b}, suffix);
  PagedModel paged(transformer, {});
  const StepRequest request = Request(paged, all);
  const BlendResult expected = Run(paged, {request});
  BlendConfig config = Config(0.25);
  config.store = BlendStore::kNewRows;
  const BlendSession session = Session(config, {a, b}, suffix);
  // Now the cache has the chunks' rows where they were not recomputed.
  StepRequest again = request;
  again.session = &session;
  const BlendResult result = Run(paged, {again});
  EXPECT_EQ(RowsOf(result, 0), RowsOf(expected, 0));
  EXPECT_EQ(result.layers[2].bytes_stored, 2 * 7 * 48);
  EXPECT_EQ(result.layers[2].bytes_from_chunks, 0);
  // In a cache that has nothing there is NaN.
  PagedModel empty(transformer, {});
  EXPECT_TRUE(std::isnan(RowsOf(Run(empty, {Request(empty, session)}), 0)[0]));
}

TEST_P(BlendTest, QuantisedCachesTakeTheirScales) {
  const BlendSession session = Session(Config(0.4), {a, b}, suffix, 5);
  PagedModel exact(transformer, {});
  const std::vector<float> expected = RowsOf(Run(exact, {Request(exact, session)}), 0);
  PagedModel codes(transformer, {.dtype = DType::kF8E4M3});
  const std::vector<float> k_scale = {0.02f}, v_scale = {0.03f};
  for (BlendLayer& layer : codes.layers) {
    layer.scales = {ViewOf(absl::MakeConstSpan(k_scale)), ViewOf(absl::MakeConstSpan(v_scale))};
  }
  const std::vector<float> actual = RowsOf(Run(codes, {Request(codes, session)}), 0);
  ASSERT_EQ(actual.size(), expected.size());
  double off = 0, size = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    off += std::pow(actual[i] - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  EXPECT_LT(off, 0.01 * size);
  EXPECT_GT(off, 0);
}

TEST_P(BlendTest, WorkMemoryMayBeTheCallers) {
  const BlendSession session = Session(Config(0.25), {a, b}, suffix);
  PagedModel paged(transformer, {});
  const StepRequest request = Request(paged, session);
  const BlendResult expected = Run(paged, {request});
  const auto bytes = BlendWorkBytes(transformer.blend_config(),
                                    {.max_num_reqs = 3, .max_num_tokens = 40, .max_seq_len = 50});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  std::vector<std::byte> memory(*bytes, std::byte{0xFF});
  paged.Build({request});
  BlendStep step = paged.step();
  step.work = ViewOf(absl::MakeSpan(memory));
  const BlendModel model = transformer.Model(ops, context);
  const auto result = RunBlend(ops, context, transformer.blend_config(), step, model);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->memory, nullptr);
  EXPECT_EQ(RowsOf(*result, 0), RowsOf(expected, 0));
  step.work.extent[0] = 1000;
  const absl::Status small =
      RunBlend(ops, context, transformer.blend_config(), step, model).status();
  EXPECT_EQ(small.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(small, Says("the memory has 1000"));
  for (const BlendBounds& bad : {BlendBounds{-1, 1, 1}, BlendBounds{1, int64_t{1} << 40, 1}}) {
    EXPECT_EQ(BlendWorkBytes(transformer.blend_config(), bad).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  BlendConfig huge = transformer.blend_config();
  huge.num_heads = huge.head_dim = int64_t{1} << 28;
  const absl::Status beyond = BlendWorkBytes(huge, {1, 1 << 30, 1}).status();
  EXPECT_THAT(beyond, Says("more than 2^63 bytes"));
}

TEST_P(BlendTest, FailingCallbackEndsTheRunWithItsStatus) {
  const BlendSession session = Session(Config(0.25), {a}, suffix);
  PagedModel paged(transformer, {});
  paged.Build({Request(paged, session)});
  BlendModel model = transformer.Model(ops, context);
  int finished = 0;
  model.finish = [&](int, const ConstTensorView&, const TensorView&) {
    return ++finished == 2 ? absl::UnavailableError("out of rows") : absl::OkStatus();
  };
  EXPECT_EQ(paged.Run(ops, context, model).status(), absl::UnavailableError("out of rows"));
  EXPECT_EQ(finished, 2);
}

}  // namespace
}  // namespace kvblocks::attention
