// Sessions and runs of CacheBlend: EX-24, T-25, and what they refuse.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kvblocks/attention/blend/blend_run.h"
#include "kvblocks/attention/blend/blend_session.h"
#include "kvblocks/attention/blend/small_transformer.h"
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
  BlendConfig Config(double ratio) const {
    BlendConfig config = transformer.blend_config();
    config.ratio = ratio;
    return config;
  }
  // Of chunks prefilled apart, each behind a BOS.
  BlendSession Session(const BlendConfig& config, const std::vector<std::vector<int32_t>>& chunks,
                       const std::vector<int32_t>& tail) {
    auto session = BlendSession::Create(config);
    EXPECT_TRUE(session.ok()) << session.status();
    for (const auto& chunk : chunks) {
      const PrefilledPrompt prompt = Prefill(Join({kBos}, chunk));
      const absl::Status added = session->AddChunk(ViewsOf(prompt, transformer.config(), 1).chunk);
      EXPECT_TRUE(added.ok()) << added;
    }
    const absl::Status planned = session->Plan(tail);
    EXPECT_TRUE(planned.ok()) << planned;
    return *std::move(session);
  }
  BlendResult Run(const std::vector<const BlendSession*>& sessions, const BlendModel& model) {
    std::vector<float> hidden;
    for (const BlendSession* session : sessions) {
      const std::vector<float> rows = transformer.Embed(session->token_ids());
      hidden.insert(hidden.end(), rows.begin(), rows.end());
    }
    const int64_t width = transformer.config().hidden_size;
    auto result = RunBlend(
        ops, context, sessions,
        ViewOf(absl::MakeConstSpan(hidden), {static_cast<int64_t>(hidden.size()) / width, width}),
        model);
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }
  BlendResult Run(const std::vector<const BlendSession*>& sessions) {
    return Run(sessions, transformer.Model(ops, context));
  }
  BlendResult Run(const BlendSession& session) { return Run({&session}); }
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
  const std::vector<int32_t> a = Tokens(9, 1), b = Tokens(7, 2), suffix = Tokens(3, 3);
  const std::vector<int32_t> prompt_ids = Join(Join(Join({kBos}, a), b), suffix);
};

INSTANTIATE_TEST_SUITE_P(Backends, BlendTest, ::testing::ValuesIn(Backends()),
                         [](const auto& parameter) { return parameter.param->name(); });

// --- EX-24: rows selected from the middle --------------------------------------------------------

TEST(QueryLimitsTest, Ex24BlendLeak) {
  const std::vector<int32_t> imp = {1, 4, 5};
  EXPECT_EQ(QueryLimits(imp, 6, BlendMask::kByPosition), imp);
  const std::vector<int32_t> leaky = QueryLimits(imp, 6, BlendMask::kCompatBottomRight);
  EXPECT_EQ(leaky, (std::vector<int32_t>{3, 4, 5}));

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
  for (const int check_layer : {0, 1, 3}) {
    BlendConfig config = Config(1.0);
    config.check_layer = check_layer;
    const BlendResult result = Run(Session(config, {a, b}, suffix));
    ASSERT_EQ(result.positions[0].size(), prompt_ids.size());
    for (size_t t = 0; t < prompt_ids.size(); ++t) {
      EXPECT_EQ(Row(result, t), Row(full, t)) << "token " << t;
    }
  }
}

TEST_P(BlendTest, RatioZeroWithTheSameKvIsTheFullPrefillBitForBit) {
  const PrefilledPrompt full = Prefill(prompt_ids);
  // One chunk that was prefilled as the prompt's beginning: what it holds is what would be
  // computed.
  const PrefilledPrompt beginning = Prefill(Join(Join({kBos}, a), b));
  auto session = BlendSession::Create(Config(0));
  ASSERT_TRUE(session->AddChunk(ViewsOf(beginning, transformer.config(), 1).chunk).ok());
  ASSERT_TRUE(session->Plan(suffix, prompt_ids).ok());
  const BlendResult result = Run(*session);
  ASSERT_EQ(result.positions[0], (std::vector<int32_t>{17, 18, 19}));
  for (int r = 0; r < 3; ++r) EXPECT_EQ(Row(result, r), Row(full, 17 + r)) << r;
}

TEST_P(BlendTest, ChunksPrefilledApartDifferAtRatioZeroAndAreMendedByRecomputing) {
  const PrefilledPrompt full = Prefill(prompt_ids);
  const std::vector<float> expected = Row(full, prompt_ids.size() - 1);
  const auto error = [&](double ratio) {
    const BlendResult result = Run(Session(Config(ratio), {a, b}, suffix));
    const std::vector<float> row = Row(result, result.sampling_rows[0]);
    double sum = 0;
    for (size_t i = 0; i < row.size(); ++i) sum += std::pow(row[i] - expected[i], 2);
    return std::sqrt(sum);
  };
  EXPECT_GT(error(0), 1e-3);
  EXPECT_LT(error(0.8), error(0));
  EXPECT_EQ(error(1), 0);
}

TEST_P(BlendTest, MoreRowsNeverLeaveARowUnselected) {
  std::vector<int32_t> before;
  for (const double ratio : {0.0, 0.1, 0.3, 0.5, 0.8, 1.0}) {
    const std::vector<int32_t> now = Run(Session(Config(ratio), {a, b}, suffix)).positions[0];
    EXPECT_TRUE(std::includes(now.begin(), now.end(), before.begin(), before.end())) << ratio;
    EXPECT_GT(now.size() + (ratio == 0), before.size());
    before = now;
  }
}

TEST_P(BlendTest, RanksByValuesOrByKeysAsSaid) {
  const PrefilledPrompt full = Prefill(prompt_ids);
  for (const bool by_keys : {false, true}) {
    BlendConfig config = Config(0.3);
    config.rank_by_keys = by_keys;
    const BlendSession session = Session(config, {a, b}, suffix);
    // The check layer projects every token with what full prefill has there.
    const std::vector<float>& now = (by_keys ? full.k : full.v)[1];
    const float* const then = (by_keys ? session.old_k(1) : session.old_v(1)).as<float>();
    std::vector<std::pair<double, int32_t>> ranked;
    for (int32_t t = 0; t < 17; ++t) {
      double sum = 0;
      for (int d = 0; d < 12; ++d) sum += std::pow(double{now[t * 12 + d]} - then[t * 12 + d], 2);
      ranked.emplace_back(-sum, t);
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<int32_t> expected = {17, 18, 19};
    for (int r = 0; r < 5; ++r) expected.push_back(ranked[r].second);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(Run(session).positions[0], expected);
  }
}

TEST_P(BlendTest, RunningTwiceRotatesNothingTwice) {
  const BlendSession session = Session(Config(0.3), {a, b}, suffix);
  const BlendResult first = Run(session), second = Run(session);
  EXPECT_EQ(first.bytes, second.bytes);
  EXPECT_EQ(first.positions, second.positions);
}

TEST_P(BlendTest, BatchOfTwoEqualsTwoRuns) {
  BlendConfig late = Config(0.5);
  late.check_layer = 2;
  const BlendSession one = Session(Config(0.2), {a, b}, suffix);
  const BlendSession two = Session(late, {b, a, a}, Tokens(1, 9));
  const BlendResult apart_one = Run(one), apart_two = Run(two);
  for (const bool swapped : {false, true}) {
    const BlendResult both = swapped ? Run({&two, &one}) : Run({&one, &two});
    std::vector<std::byte> joined = (swapped ? apart_two : apart_one).bytes;
    const auto& rest = (swapped ? apart_one : apart_two).bytes;
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(both.bytes, joined);
    EXPECT_EQ(both.positions[swapped], apart_one.positions[0]);
    EXPECT_EQ(both.positions[!swapped], apart_two.positions[0]);
    EXPECT_EQ(both.sampling_rows[1], both.hidden.extent[0] - 1);
  }
}

TEST_P(BlendTest, BottomRightMaskLetsSelectedRowsSeeTheirFuture) {
  BlendConfig compat = Config(0.3);
  compat.mask = BlendMask::kCompatBottomRight;
  const BlendResult leaky = Run(Session(compat, {a, b}, suffix));
  const BlendResult exact = Run(Session(Config(0.3), {a, b}, suffix));
  EXPECT_EQ(leaky.positions, exact.positions);
  EXPECT_NE(Row(leaky, 0), Row(exact, 0));
  // With every row selected there is no future to see.
  compat.ratio = 1;
  EXPECT_EQ(Run(Session(compat, {a, b}, suffix)).bytes,
            Run(Session(Config(1), {a, b}, suffix)).bytes);
}

// --- The layers ----------------------------------------------------------------------------------

TEST_P(BlendTest, LayersGoThroughTheirStates) {
  BlendConfig config = Config(0.25);
  config.check_layer = 2;
  const BlendSession session = Session(config, {a, b}, suffix);
  EXPECT_EQ(session.StateOf(0), BlendState::kFullPrefill);
  EXPECT_EQ(session.StateOf(1), BlendState::kFullPrefill);
  EXPECT_EQ(session.StateOf(2), BlendState::kCheck);
  EXPECT_EQ(session.StateOf(3), BlendState::kReuse);
  // 20 tokens, a suffix of 3, a quarter of 17.
  const BlendResult result = Run(session);
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (const BlendLayerReport& layer : result.layers) {
    rows.emplace_back(layer.projected_rows, layer.attended_rows);
  }
  EXPECT_EQ(rows, (std::vector<std::pair<int64_t, int64_t>>{{20, 20}, {20, 20}, {20, 7}, {7, 7}}));
  EXPECT_EQ(result.layers[2].bytes_moved, 0);
  EXPECT_EQ(result.layers[3].bytes_moved, 2 * (20 + 7) * 2 * 6 * 4);
  EXPECT_EQ(result.hidden.extent[0], 7);
  EXPECT_EQ(result.sampling_rows, (std::vector<int64_t>{6}));
}

TEST_P(BlendTest, StoredKvIsThatOfTheChunksWithRecomputedRowsInIt) {
  const BlendSession session = Session(Config(0.25), {a, b}, suffix);
  BlendModel model = transformer.Model(ops, context);
  int64_t layers_seen = 0;
  model.store = [&](const BlendedKv& kv) {
    EXPECT_EQ(kv.layer, layers_seen++);
    EXPECT_EQ(kv.session, 0);
    const bool reused = kv.layer > 1;
    EXPECT_EQ(kv.new_rows.size(), reused ? 7 : 20);
    if (!reused) return absl::OkStatus();
    for (int32_t t = 0; t < 20; ++t) {
      const bool fresh = std::binary_search(kv.new_rows.begin(), kv.new_rows.end(), t);
      const bool same = std::memcmp(kv.v.At(t), session.old_v(kv.layer).At(t), 12 * 4) == 0;
      EXPECT_EQ(same, !fresh) << "layer " << kv.layer << " token " << t;
    }
    // Position 0 is not rotated, 1 is.
    EXPECT_NE(std::memcmp(kv.k.At(1), session.old_k(kv.layer).At(1), 12 * 4), 0);
    return absl::OkStatus();
  };
  Run({&session}, model);
  EXPECT_EQ(layers_seen, 4);
}

TEST_P(BlendTest, StoreTakesNewRowsOrAll) {
  // Remembers the slots it is asked to write.
  class Writer : public AttentionOps {
   public:
    const char* name() const override { return "writer"; }
    absl::Status Run(const Checked<ReshapeAndCacheArgs>& call) const override {
      const ConstTensorView& mapping = call.args().slot_mapping;
      slots.assign(mapping.as<int64_t>(), mapping.as<int64_t>() + mapping.extent[0]);
      return absl::OkStatus();
    }
    mutable std::vector<int64_t> slots;
  } writer;
  const std::vector<float> rows(3);
  const std::vector<int32_t> new_rows = {0, 2};
  BlendedKv kv;
  kv.k = kv.v = ViewOf(absl::MakeConstSpan(rows), {3, 1, 1});
  kv.new_rows = new_rows;
  const std::vector<int64_t> slots = {40, 41, 8};
  std::vector<float> keys(42), values(42);
  const KvCacheView cache(KvLayout::kNhd, ViewOf(absl::MakeSpan(keys), {42, 1, 1, 1}),
                          ViewOf(absl::MakeSpan(values), {42, 1, 1, 1}));
  ASSERT_TRUE(StoreBlendedKv(writer, {}, kv, slots, cache, BlendStore::kAllRows).ok());
  EXPECT_EQ(writer.slots, slots);
  ASSERT_TRUE(StoreBlendedKv(writer, {}, kv, slots, cache, BlendStore::kNewRows).ok());
  EXPECT_EQ(writer.slots, (std::vector<int64_t>{40, -1, 8}));
  EXPECT_EQ(StoreBlendedKv(writer, {}, kv, {slots.data(), 2}, cache, BlendStore::kAllRows).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(BlendTest, FailingCallbackEndsTheRunWithItsStatus) {
  const BlendSession session = Session(Config(0.25), {a}, suffix);
  BlendModel model = transformer.Model(ops, context);
  int finished = 0;
  model.finish = [&](int, const ConstTensorView&, const TensorView&) {
    return ++finished == 2 ? absl::UnavailableError("out of rows") : absl::OkStatus();
  };
  const std::vector<float> hidden = transformer.Embed(session.token_ids());
  const BlendSession* const sessions[] = {&session};
  const auto result =
      RunBlend(ops, context, sessions, ViewOf(absl::MakeConstSpan(hidden), {13, 24}), model);
  EXPECT_EQ(result.status(), absl::UnavailableError("out of rows"));
  EXPECT_EQ(finished, 2);
  EXPECT_TRUE(RunBlend(ops, context, {}, {}, {}).ok());  // no sessions, no work
}

// --- Collecting, and what is refused -------------------------------------------------------------

TEST_P(BlendTest, LeadingTokensStayWithTheFirstChunkOnly) {
  const BlendSession session = Session(Config(0.1), {a, b}, suffix);
  EXPECT_EQ(std::vector<int32_t>(session.token_ids().begin(), session.token_ids().end()),
            prompt_ids);
  EXPECT_EQ(session.suffix_len(), 3);
  const PrefilledPrompt second = Prefill(Join({kBos}, b));
  // Row 10 of the prompt is the first token of b, row 1 of what was prefilled.
  EXPECT_EQ(std::memcmp(session.old_v(2).At(10), second.v[2].data() + 12, 12 * 4), 0);
  EXPECT_EQ(std::memcmp(session.old_k(2).At(16), second.k[2].data() + 7 * 12, 12 * 4), 0);
}

TEST_P(BlendTest, BadConfigurationsAreRefused) {
  const auto refused = [&](auto change, const std::string& names) {
    BlendConfig config = Config(0.5);
    change(config);
    const absl::Status status = BlendSession::Create(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(names), std::string::npos) << status;
  };
  refused([](auto& config) { config.ratio = -0.01; }, "ratio is -0.01");
  refused([](auto& config) { config.ratio = 1.5; }, "ratio is 1.5");
  refused([](auto& config) { config.ratio = std::nan(""); }, "ratio is nan");
  refused([](auto& config) { config.check_layer = 4; }, "check_layer is 4");
  refused([](auto& config) { config.check_layer = -1; }, "check_layer is -1");
  refused([](auto& config) { config.num_layers = 0; }, "num_layers is 0");
  refused([](auto& config) { config.num_kv_heads = 3; }, "num_kv_heads 3");
  refused([](auto& config) { config.head_dim = 0; }, "head_dim is 0");
  refused([](auto& config) { config.dtype = DType::kI8; }, "dtype is i8");
  refused([](auto& config) { config.theta = 0; }, "theta is 0");
  refused([](auto& config) { config.rotary_dim = 8; }, "rotary_dim is 8 of head_dim 6");
  refused([](auto& config) { config.head_dim = 5; }, "rotary_dim is 0 of head_dim 5");
  refused([](auto& config) { config.head_dim = int64_t{1} << 62; }, "at most 2^28");
}

TEST_P(BlendTest, ChunksThatDoNotFitAreRefusedAndChangeNothing) {
  auto session = *BlendSession::Create(Config(0.5));
  const PrefilledPrompt prompt = Prefill(a);
  const ChunkViews good = ViewsOf(prompt, transformer.config(), 0);
  const auto refused = [&](const BlendChunk& chunk, const std::string& names) {
    const absl::Status status = session.AddChunk(chunk);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(names), std::string::npos) << status;
    EXPECT_EQ(session.num_tokens(), 0);
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
  ASSERT_TRUE(session.AddChunk(good.chunk).ok());

  // The suffix and the prompt.
  const absl::Status no_suffix = session.Plan({});
  EXPECT_EQ(no_suffix.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(no_suffix.message().find("suffix_len is 0"), std::string::npos) << no_suffix;
  EXPECT_EQ(session.Plan(suffix, Join(a, Tokens(4, 3))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session.Plan(suffix, Join(a, Tokens(3, 4))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(session.planned());
  EXPECT_EQ(session.num_tokens(), 9);
  const std::vector<float> hidden(9 * 24);
  const BlendSession* const sessions[] = {&session};
  const auto run = [&](int64_t rows) {
    return RunBlend(ops, context, sessions,
                    ViewOf(absl::MakeConstSpan(hidden).first(rows * 24), {rows, 24}),
                    transformer.Model(ops, context))
        .status();
  };
  EXPECT_EQ(run(9).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(session.Plan(suffix, Join(a, suffix)).ok());
  EXPECT_EQ(run(9).code(), absl::StatusCode::kInvalidArgument);  // 12 tokens
  const BlendSession* const null_session[] = {nullptr};
  EXPECT_EQ(RunBlend(ops, context, null_session, {}, transformer.Model(ops, context)).status(),
            absl::InvalidArgumentError("RunBlend: session 0 is null"));
  EXPECT_EQ(RunBlend(ops, context, sessions, {}, transformer.Model(ops, context)).status(),
            absl::InvalidArgumentError("RunBlend: hidden is absent; it is needed"));
  EXPECT_EQ(session.AddChunk(good.chunk).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session.Plan(suffix).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(BlendTest, SessionsOfDifferentModelsDoNotRunTogether) {
  BlendConfig other = Config(0.5);
  other.theta = 500000;
  const BlendSession one = Session(Config(0.5), {a}, suffix), two = Session(other, {a}, suffix);
  const std::vector<float> hidden(26 * 24);
  const BlendSession* const sessions[] = {&one, &two};
  const auto result =
      RunBlend(ops, context, sessions, ViewOf(absl::MakeConstSpan(hidden), {26, 24}),
               transformer.Model(ops, context));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("session 1"), std::string::npos) << result.status();
}

}  // namespace
}  // namespace kvblocks::attention
