// Sessions and runs of CacheBlend: EX-24, T-25, and what they refuse.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/attention/blend/blend_quality.h"
#include "kvblocks/attention/blend/blend_run.h"
#include "kvblocks/attention/blend/blend_session.h"
#include "kvblocks/attention/blend/small_transformer.h"
#include "kvblocks/attention/blend/testing/paged_model.h"
#include "kvblocks/attention/cpu/cpu_ops.h"
#include "kvblocks/attention/cpu/reference_ops.h"

namespace kvblocks::attention {
namespace {

std::vector<const AttentionOps*> Backends() { return {&CpuReference(), &Cpu()}; }

constexpr int32_t kBos = 0;

std::vector<int32_t> Tokens(int64_t count, int32_t salt) {
  std::vector<int32_t> ids(count);
  for (int64_t t = 0; t < count; ++t) ids[t] = static_cast<int32_t>(1 + (t * 37 + salt * 11) % 120);
  return ids;
}

std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class BlendTest : public ::testing::TestWithParam<const AttentionOps*> {
 protected:
  SmallTransformerConfig Shape() const {
    return {.num_layers = 4, .hidden_size = 24, .head_dim = 6, .ffn_size = 32};
  }

  PrefilledPrompt Prefill(const std::vector<int32_t>& ids) {
    auto prompt = transformer.Prefill(ops, context, ids);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    return *std::move(prompt);
  }
  BlendConfig Config(std::vector<BlendCheck> checks) const {
    BlendConfig config = transformer.blend_config();
    config.check_layers = std::move(checks);
    return config;
  }
  BlendConfig Config(double ratio) const { return Config({{1, ratio}}); }
  // Of chunks prefilled apart, each behind a BOS.
  BlendSession Session(const BlendConfig& config, const std::vector<std::vector<int32_t>>& chunks,
                       const std::vector<int32_t>& tail, int64_t num_computed = 0) {
    auto session = BlendSession::Create(config, num_computed);
    EXPECT_TRUE(session.ok()) << session.status();
    for (const auto& chunk : chunks) {
      const PrefilledPrompt& prompt = prefilled.emplace_back(Prefill(Join({kBos}, chunk)));
      const absl::Status added = session->AddChunk(ViewsOf(prompt, transformer.config(), 1).chunk);
      EXPECT_TRUE(added.ok()) << added;
    }
    const absl::Status planned = session->Plan(tail);
    EXPECT_TRUE(planned.ok()) << planned;
    return *std::move(session);
  }
  // A request of the session, whose first tokens are in the cache if it says so.
  StepRequest Request(PagedModel& paged, const BlendSession& session) {
    StepRequest request{.session = &session, .num_computed = session.num_computed_tokens()};
    request.blocks = paged.TakeBlocks(session.num_tokens());
    if (request.num_computed > 0) {
      const auto computed = session.token_ids().first(request.num_computed);
      Run(paged, {{.ids = {computed.begin(), computed.end()}, .blocks = request.blocks}});
    }
    return request;
  }
  BlendResult Run(PagedModel& paged, const std::vector<StepRequest>& requests) {
    auto result = paged.Run(ops, context, requests);
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }
  BlendResult Run(const BlendSession& session) {
    PagedModel paged(transformer, {});
    return Run(paged, {Request(paged, session)});
  }
  // Row r of a result.
  std::vector<float> Row(const BlendResult& result, int64_t r) const {
    const int64_t width = transformer.config().hidden_size;
    const float* row = result.hidden.as<float>() + r * width;
    return {row, row + width};
  }
  std::vector<float> Row(const PrefilledPrompt& prompt, int64_t t) const {
    const int64_t width = transformer.config().hidden_size;
    return {prompt.hidden.begin() + t * width, prompt.hidden.begin() + (t + 1) * width};
  }

  const AttentionOps& ops = *GetParam();
  ExecContext context;
  SmallTransformer transformer{Shape()};
  std::deque<PrefilledPrompt> prefilled;  // sessions look into it
  const std::vector<int32_t> a = Tokens(9, 1), b = Tokens(7, 2), suffix = Tokens(3, 3);
  const std::vector<int32_t> prompt_ids = Join(Join(Join({kBos}, a), b), suffix);
};

std::vector<int32_t> Positions(const BlendResult& result) {
  const int32_t* const positions = result.positions.as<int32_t>();
  return {positions, positions + result.positions.extent[0]};
}

INSTANTIATE_TEST_SUITE_P(Backends, BlendTest, ::testing::ValuesIn(Backends()),
                         [](const auto& parameter) { return parameter.param->name(); });

// --- EX-24: rows selected from the middle --------------------------------------------------------

TEST(QueryPositionsTest, Ex24BlendLeak) {
  const std::vector<int32_t> imp = {1, 4, 5};
  const std::vector<int32_t> leaky = {3, 4, 5};  // r + n - M

  // Equal scores, values 1 to 6.
  const std::vector<float> q(3), k(6), v = {1, 2, 3, 4, 5, 6};
  const std::vector<int32_t> starts = {0, 3}, key_starts = {0, 6}, lengths = {6}, table = {1, 0};
  // The same keys in blocks of four: block 1 holds tokens 0 to 3, block 0 the other two.
  std::vector<float> k_cache(8), v_cache = {5, 6, NAN, NAN, 1, 2, 3, 4};
  k_cache[2] = k_cache[3] = NAN;
  std::vector<float> out(3);
  for (const bool paged : {false, true}) {
    for (const AttentionOps* ops : Backends())
      for (const auto& [limits, expected] :
           {std::pair(imp, std::vector<float>{1.5, 3, 3.5}), {leaky, {2.5, 3, 3.5}}}) {
        absl::Status status;
        if (paged) {
          PagedPrefillArgs args;
          args.q = ViewOf(absl::MakeConstSpan(q), {3, 1, 1});
          args.cache =
              ConstKvCacheView(KvLayout::kNhd, ViewOf(absl::MakeConstSpan(k_cache), {2, 4, 1, 1}),
                               ViewOf(absl::MakeConstSpan(v_cache), {2, 4, 1, 1}));
          args.query_start_loc = ViewOf(absl::MakeConstSpan(starts));
          args.seq_lens = ViewOf(absl::MakeConstSpan(lengths));
          args.block_table = ViewOf(absl::MakeConstSpan(table), {1, 2});
          args.max_query_len = 3;
          args.max_seq_len = 6;
          args.query_positions = ViewOf(absl::MakeConstSpan(limits));
          args.out = ViewOf(absl::MakeSpan(out), {3, 1, 1});
          status = ops->PagedPrefill({}, args);
        } else {
          VarlenSelfAttentionArgs args;
          args.q = ViewOf(absl::MakeConstSpan(q), {3, 1, 1});
          args.k = ViewOf(absl::MakeConstSpan(k), {6, 1, 1});
          args.v = ViewOf(absl::MakeConstSpan(v), {6, 1, 1});
          args.query_start_loc = ViewOf(absl::MakeConstSpan(starts));
          args.kv_start_loc = ViewOf(absl::MakeConstSpan(key_starts));
          args.query_positions = ViewOf(absl::MakeConstSpan(limits));
          args.out = ViewOf(absl::MakeSpan(out), {3, 1, 1});
          status = ops->VarlenSelfAttention({}, args);
        }
        ASSERT_TRUE(status.ok()) << status;
        for (int r = 0; r < 3; ++r) EXPECT_NEAR(out[r], expected[r], 1e-6) << paged << r;
      }
  }
}

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

TEST_P(BlendTest, MoreRowsNeverLeaveARowUnselected) {
  std::vector<int32_t> before;
  for (const double ratio : {0.0, 0.1, 0.3, 0.5, 0.8, 1.0}) {
    const std::vector<int32_t> now = Positions(Run(Session(Config(ratio), {a, b}, suffix)));
    EXPECT_TRUE(std::includes(now.begin(), now.end(), before.begin(), before.end())) << ratio;
    EXPECT_GT(now.size() + (ratio == 0), before.size());
    before = now;
  }
}

TEST_P(BlendTest, RanksByValuesOrByKeysAsSaid) {
  const PrefilledPrompt full = Prefill(prompt_ids);
  const PrefilledPrompt chunks[] = {Prefill(Join({kBos}, a)), Prefill(Join({kBos}, b))};
  for (const bool by_keys : {false, true}) {
    BlendConfig config = Config(0.3);
    config.rank_by_keys = by_keys;
    // The check layer projects every token with what full prefill has there.
    const std::vector<float>& now = (by_keys ? full.k : full.v)[1];
    std::vector<std::pair<double, int32_t>> ranked;
    for (int32_t t = 0; t < 17; ++t) {
      const PrefilledPrompt& chunk = chunks[t >= 10];
      const float* const then = (by_keys ? chunk.k : chunk.v)[1].data() + (t < 10 ? t : t - 9) * 12;
      double sum = 0;
      for (int d = 0; d < 12; ++d) sum += std::pow(double{now[t * 12 + d]} - then[d], 2);
      ranked.emplace_back(-sum, t);
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<int32_t> expected = {17, 18, 19};
    for (int r = 0; r < 5; ++r) expected.push_back(ranked[r].second);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(Positions(Run(Session(config, {a, b}, suffix))), expected);
  }
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

TEST_P(BlendTest, BottomRightMaskLetsSelectedRowsSeeTheirFuture) {
  BlendConfig compat = Config(0.3);
  compat.mask = BlendMask::kCompatBottomRight;
  const BlendResult leaky = Run(Session(compat, {a, b}, suffix));
  const BlendResult exact = Run(Session(Config(0.3), {a, b}, suffix));
  EXPECT_EQ(Positions(leaky), Positions(exact));
  EXPECT_NE(Row(leaky, 0), Row(exact, 0));
  // With every row selected there is no future to see.
  compat.check_layers = {{1, 1.0}};
  EXPECT_EQ(RowsOf(Run(Session(compat, {a, b}, suffix)), 0),
            RowsOf(Run(Session(Config(1.0), {a, b}, suffix)), 0));
}

// --- Prefix hits, rotated chunks, other requests ---------------------------------------------------

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

TEST_P(BlendTest, RotatedChunksAreRotatedByTheDifference) {
  for (const int64_t computed : {0, 4, 13}) {
    const BlendResult plain = Run(Session(Config(0.3), {a, b}, suffix, computed));
    auto session = *BlendSession::Create(Config(0.3), computed);
    std::deque<PrefilledPrompt> prompts;
    for (const auto& [ids, from] : {std::pair(&a, 0), {&b, 100}}) {
      PrefilledPrompt& prompt = prompts.emplace_back(Prefill(Join({kBos}, *ids)));
      const int64_t n = static_cast<int64_t>(prompt.ids.size());
      std::vector<int32_t> positions(n);
      std::iota(positions.begin(), positions.end(), from);
      for (std::vector<float>& keys : prompt.k) {
        RotateKeysArgs rotate;
        rotate.in = rotate.out = ViewOf(absl::MakeSpan(keys), {n, 2, 6});
        rotate.positions = ViewOf(absl::MakeConstSpan(positions));
        ASSERT_EQ(ops.RotateKeys(context, rotate), absl::OkStatus());
      }
      ChunkViews views = ViewsOf(prompt, transformer.config(), 1);
      views.chunk.rotated_for = positions;
      ASSERT_EQ(session.AddChunk(views.chunk), absl::OkStatus());
    }
    ASSERT_EQ(session.Plan(suffix), absl::OkStatus());
    const BlendResult rotated = Run(session);
    ASSERT_EQ(Positions(rotated), Positions(plain));
    const std::vector<float> expected = RowsOf(plain, 0), actual = RowsOf(rotated, 0);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5) << i;
  }
}

TEST_P(BlendTest, RequestsOfABatchDoNotMatterToEachOther) {
  BlendConfig late = Config({{2, 0.5}, {3, 0.2}});
  late.mask = BlendMask::kCompatBottomRight;
  const BlendSession one = Session(Config(0.2), {a, b}, suffix);
  const BlendSession two = Session(late, {b, a, a}, Tokens(1, 9), 5);
  const std::vector<int32_t> chunked = Tokens(14, 5), decoded = Tokens(9, 6);
  std::vector<std::vector<float>> apart;
  for (const bool together : {false, true}) {
    PagedModel paged(transformer, {});
    const std::vector<int32_t> chunked_blocks = paged.TakeBlocks(14);
    const std::vector<int32_t> decoded_blocks = paged.TakeBlocks(9);
    Run(paged, {{.ids = {chunked.begin(), chunked.begin() + 6}, .blocks = chunked_blocks},
                {.ids = {decoded.begin(), decoded.begin() + 8}, .blocks = decoded_blocks}});
    const std::vector<StepRequest> requests = {
        Request(paged, one),
        {.ids = chunked, .num_computed = 6, .blocks = chunked_blocks},
        Request(paged, two),
        {.ids = decoded, .num_computed = 8, .blocks = decoded_blocks}};
    if (!together) {
      for (const StepRequest& request : requests) {
        apart.push_back(RowsOf(Run(paged, {request}), 0));
      }
      // What is no blend is the prefill of its tokens.
      const PrefilledPrompt full = Prefill(chunked);
      EXPECT_EQ(apart[1], std::vector<float>(full.hidden.begin() + 6 * 24, full.hidden.end()));
      EXPECT_EQ(apart[3], Row(Prefill(decoded), 8));
      continue;
    }
    const BlendResult result = Run(paged, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(RowsOf(result, paged.RowOf(static_cast<int64_t>(i))), apart[i]) << "request " << i;
    }
    EXPECT_EQ(paged.RowOf(3), 0);  // decodes come first
  }
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

TEST_P(BlendTest, LaterChecksSelectAmongTheRowsThatAreLeft) {
  const std::vector<int32_t> first = Positions(Run(Session(Config({{1, 0.5}}), {a, b}, suffix)));
  const BlendResult result = Run(Session(Config({{1, 0.5}, {2, 0.3}, {3, 0.1}}), {a, b}, suffix));
  const std::vector<int32_t> last = Positions(result);
  EXPECT_EQ(last.size(), 4u);
  EXPECT_TRUE(std::includes(first.begin(), first.end(), last.begin(), last.end()));
  EXPECT_EQ(last.back(), 19);
  // A check with the ratio of the one before leaves everything as it is.
  EXPECT_EQ(RowsOf(Run(Session(Config({{1, 0.5}, {2, 0.5}}), {a, b}, suffix)), 0),
            RowsOf(Run(Session(Config({{1, 0.5}}), {a, b}, suffix)), 0));
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

TEST_P(BlendTest, CacheHasRowsOfTheChunksWithRecomputedOnesOverThem) {
  const BlendSession session = Session(Config(0.25), {a, b}, suffix);
  PagedModel paged(transformer, {});
  const StepRequest request = Request(paged, session);
  const std::vector<int32_t> computed = Positions(Run(paged, {request}));
  ASSERT_EQ(computed.size(), 7u);
  for (int layer = 0; layer < 4; ++layer) {
    for (int32_t t = 0; t < 17; ++t) {
      const int64_t slot = paged.SlotOf(request.blocks, t);
      const PrefilledPrompt& chunk = prefilled[t >= 10];
      const int row = t < 10 ? t : t - 9;
      const bool fresh = layer <= 1 || std::binary_search(computed.begin(), computed.end(), t);
      const auto same = [&](const std::byte* cached, const std::vector<float>& rows) {
        return std::memcmp(cached, rows.data() + row * 12, 12 * 4) == 0;
      };
      // Values of layer 0 depend on the token alone; before the first chunk there is nothing else.
      EXPECT_EQ(same(paged.ValueAt(layer, slot), chunk.v[layer]), !fresh || layer == 0 || t < 10)
          << "layer " << layer << " token " << t;
      // Position 0 is not rotated.
      EXPECT_EQ(same(paged.KeyAt(layer, slot), chunk.k[layer]), t == 0) << t;
    }
  }
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
  EXPECT_NE(small.message().find("the memory has 1000"), std::string::npos) << small;
  for (const BlendBounds& bad : {BlendBounds{-1, 1, 1}, BlendBounds{1, int64_t{1} << 40, 1}}) {
    EXPECT_EQ(BlendWorkBytes(transformer.blend_config(), bad).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  BlendConfig huge = transformer.blend_config();
  huge.num_heads = huge.head_dim = int64_t{1} << 28;
  const absl::Status beyond = BlendWorkBytes(huge, {1, 1 << 30, 1}).status();
  EXPECT_NE(beyond.message().find("more than 2^63 bytes"), std::string::npos) << beyond;
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

// --- Collecting, and what is refused -------------------------------------------------------------

TEST_P(BlendTest, LeadingTokensStayWithTheFirstChunkOnly) {
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

TEST_P(BlendTest, BadConfigurationsAreRefused) {
  const auto refused = [&](auto change, const std::string& names) {
    BlendConfig config = Config(0.5);
    change(config);
    const absl::Status status = BlendSession::Create(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(names), std::string::npos) << status;
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

TEST_P(BlendTest, ChunksThatDoNotFitAreRefusedAndChangeNothing) {
  auto session = *BlendSession::Create(Config(0.5), 4);
  const PrefilledPrompt prompt = Prefill(a);
  const ChunkViews good = ViewsOf(prompt, transformer.config(), 0);
  const auto refused = [&](const BlendChunk& chunk, const std::string& names) {
    const absl::Status status = session.AddChunk(chunk);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(names), std::string::npos) << status;
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
  EXPECT_NE(no_suffix.message().find("suffix_len is 0"), std::string::npos) << no_suffix;
  EXPECT_EQ(session.Plan(suffix, Join(a, Tokens(4, 3))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session.Plan(suffix, Join(a, Tokens(3, 4))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(session.planned());
  EXPECT_EQ(session.num_tokens(), 9);
  ASSERT_TRUE(session.Plan(suffix, Join(a, suffix)).ok());
  EXPECT_EQ(session.AddChunk(good.chunk).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session.Plan(suffix).code(), absl::StatusCode::kFailedPrecondition);
  auto all_computed = *BlendSession::Create(Config(0.5), 3);
  const absl::Status nothing_left = all_computed.Plan(suffix);
  EXPECT_NE(nothing_left.message().find("num_computed_tokens is 3 of a prompt of 3"),
            std::string::npos)
      << nothing_left;
}

TEST_P(BlendTest, BadStepsAreRefusedBeforeTheModelIsAsked) {
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
    EXPECT_NE(status.message().find(names), std::string::npos) << status;
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

TEST_P(BlendTest, RunsWithoutSessionsNeedNoLayerToCheck) {
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

TEST_P(BlendTest, NoTokensAreNoWork) {
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
