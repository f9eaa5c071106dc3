// Parts of the verifier. Whole faults are in tests/attention_engine, the observer that runs it
// along with a simulation in sim/verify.

#include "kvblocks/kv_cache_verifier.h"

#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attention/testing/dense_oracle.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"

namespace kvblocks::attention {
namespace {

using ::testing::HasSubstr;

std::vector<float> Values(const TokenValues& values, uint64_t prefix, int64_t layer,
                          TokenValueKind kind = TokenValueKind::kKeyAndValue) {
  std::vector<float> out(12);
  values.Fill(prefix, layer, kind, absl::MakeSpan(out));
  return out;
}

TEST(TokenValuesTest, FollowFromThePrefixTheLayerAndTheSeed) {
  const TokenValues values(7), same(7), other(8);
  const auto prefix = [](const TokenValues& v, uint64_t salt, const std::vector<int64_t>& tokens) {
    uint64_t digest = v.EmptyPrefix(salt);
    for (const int64_t token : tokens) digest = TokenValues::Extend(digest, token);
    return digest;
  };
  const uint64_t abc = prefix(values, 0, {1, 2, 3});
  EXPECT_EQ(Values(values, abc, 0), Values(same, prefix(same, 0, {1, 2, 3}), 0));
  // Whatever differs, the values do.
  std::set<std::vector<float>> all = {Values(values, abc, 0)};
  for (const uint64_t digest :
       {prefix(values, 0, {1, 3, 2}), prefix(values, 0, {9, 2, 3}), prefix(values, 0, {1, 2, 4}),
        prefix(values, 0, {1, 2}), prefix(values, 1, {1, 2, 3}), prefix(other, 0, {1, 2, 3})}) {
    EXPECT_TRUE(all.insert(Values(values, digest, 0)).second);
  }
  EXPECT_TRUE(all.insert(Values(values, abc, 1)).second);
  EXPECT_TRUE(all.insert(Values(values, abc, 0, TokenValueKind::kQuery)).second);
  EXPECT_TRUE(all.insert(Values(values, abc, 0, TokenValueKind::kSinkToken)).second);
  for (const std::vector<float>& row : all) {
    for (const float value : row) {
      EXPECT_GE(value, -2);
      EXPECT_LT(value, 2);
      EXPECT_EQ(value * 64, std::round(value * 64));
    }
  }
}

TEST(PlainAttentionTest, EqualsTheDenseOracle) {
  const RowShape shape{.num_heads = 4, .num_kv_heads = 2, .key_size = 6, .value_size = 4};
  const int64_t num_rows = 37;
  const TokenValues values(1);
  std::vector<float> rows, query(4 * 6);
  DenseRequest request;
  request.q_len = 1;
  request.kv_len = num_rows;
  request.num_heads = 4;
  request.num_kv_heads = 2;
  request.key_dim = 6;
  request.value_dim = 4;
  for (int64_t i = 0; i < num_rows; ++i) {
    std::vector<float> row(static_cast<size_t>(shape.floats()));
    values.Fill(static_cast<uint64_t>(i), 0, TokenValueKind::kKeyAndValue, absl::MakeSpan(row));
    rows.insert(rows.end(), row.begin(), row.end());
    request.k.insert(request.k.end(), row.begin(), row.begin() + 12);
    request.v.insert(request.v.end(), row.begin() + 12, row.end());
  }
  values.Fill(99, 0, TokenValueKind::kQuery, absl::MakeSpan(query));
  request.q.assign(query.begin(), query.end());
  const std::vector<float> sinks = {0.5f, -INFINITY, 2.0f, -1.0f};
  for (const bool with_sinks : {false, true}) {
    DenseParams params;
    params.scale = 0.7;
    if (with_sinks) params.sinks.assign(sinks.begin(), sinks.end());
    const DenseResult expected = DenseAttention(request, params);
    std::vector<double> got(4 * 4);
    AttendPlainly(shape, 0.7, query, rows.data(), num_rows,
                  with_sinks ? absl::MakeConstSpan(sinks) : absl::Span<const float>(),
                  absl::MakeSpan(got));
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected.out[i], 1e-13) << i;
  }
}

// --- Sampling ---

// Five requests that decode side by side, each with blocks of its own; one row is checked per step.
class Decodes {
 public:
  static constexpr int64_t kRequests = 5;

  // The tables of the first `num_growing` requests change in every step.
  explicit Decodes(int64_t max_rows = 1, int64_t num_growing = 0) : num_growing_(num_growing) {
    for (int64_t i = 0; i < 200; ++i) tokens_.push_back(i);
    VerifierOptions options;
    options.num_blocks = 300;
    options.groups = {{.name = "full", .block_size = 16}};
    options.ops = &CpuReference();
    options.max_rows_per_step = max_rows;
    verifier_ = KvCacheVerifier::Create(options).value();
  }

  absl::Status Step(int64_t position) {
    std::vector<std::vector<int32_t>> blocks(kRequests);
    std::vector<absl::Span<const int32_t>> tables(kRequests);
    std::vector<VerifiedRequest> step;
    for (int64_t r = 0; r < kRequests; ++r) {
      const size_t i = static_cast<size_t>(r);
      const int64_t num_blocks = r < num_growing_ ? position + 1 : position / 16 + 1;
      for (int64_t b = 0; b < num_blocks; ++b) {
        blocks[i].push_back(FirstBlock(i) + static_cast<int32_t>(b));
      }
      tables[i] = blocks[i];
      step.push_back({.id = static_cast<uint64_t>(r),
                      .name = names_[i],
                      .salt = static_cast<uint64_t>(r),
                      .num_computed = position,
                      .num_scheduled = 1,
                      .tokens = tokens_,
                      .block_tables = absl::MakeConstSpan(&tables[i], 1)});
    }
    return verifier_->OnStep(step);
  }

  static int32_t FirstBlock(size_t request) { return 1 + 50 * static_cast<int32_t>(request); }
  KvCacheVerifier& verifier() { return *verifier_; }
  const std::string& name(size_t request) const { return names_[request]; }

 private:
  const int64_t num_growing_;
  const std::vector<std::string> names_ = {"A", "B", "C", "D", "E"};
  std::vector<int64_t> tokens_;
  std::unique_ptr<KvCacheVerifier> verifier_;
};

TEST(SamplingTest, EveryRequestHasItsTurn) {
  // Also where more tables change in each step than rows are attended.
  for (const int64_t num_growing : {0, 3}) {
    for (size_t victim = 0; victim < Decodes::kRequests; ++victim) {
      Decodes decodes(num_growing == 0 ? 1 : 2, num_growing);
      int64_t position = 0;
      for (; position < 3; ++position) ASSERT_TRUE(decodes.Step(position).ok());
      ASSERT_TRUE(decodes.verifier().Drop({Decodes::FirstBlock(victim)}).ok());
      absl::Status status;
      for (int64_t i = 0; i < Decodes::kRequests && status.ok(); ++i) {
        status = decodes.Step(position++);
      }
      ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << num_growing << " " << victim;
      EXPECT_EQ(decodes.verifier().failure()->request, decodes.name(victim));
      EXPECT_THAT(decodes.verifier().failure()->text, HasSubstr("the engine dropped the block's"));
    }
  }
}

TEST(SamplingTest, RowsAreLimitedPerStep) {
  Decodes decodes;
  for (int64_t position = 0; position < 20; ++position) ASSERT_TRUE(decodes.Step(position).ok());
  const VerifierStats& stats = decodes.verifier().stats();
  EXPECT_EQ(stats.num_rows_attended, 20);
  EXPECT_EQ(stats.num_tokens, 20 * Decodes::kRequests);
  EXPECT_EQ(stats.num_blocks_poisoned, 1 + 2 * Decodes::kRequests);  // the null block, too
}

// --- States ---

// One group of states, a block for 4 tokens.
class States {
 public:
  explicit States(bool at_boundaries = false) {
    for (int64_t i = 0; i < 64; ++i) tokens_.push_back(i);
    VerifierOptions options;
    options.num_blocks = 20;
    options.groups = {{.name = "states",
                       .block_size = 4,
                       .num_layers = 2,
                       .is_state = true,
                       .at_boundaries = at_boundaries}};
    options.ops = &CpuReference();
    verifier = KvCacheVerifier::Create(options).value();
  }
  absl::Status Step(uint64_t id, int64_t num_computed, int64_t num_scheduled,
                    const std::vector<int32_t>& table,
                    const std::vector<VerifiedCheckpoint>& checkpoints = {}) {
    const absl::Span<const int32_t> span = table;
    return verifier->OnStep({{.id = id,
                              .name = id == 1 ? "A" : "B",
                              .num_computed = num_computed,
                              .num_scheduled = num_scheduled,
                              .tokens = tokens_,
                              .block_tables = {&span, 1},
                              .checkpoints = checkpoints}});
  }
  std::unique_ptr<KvCacheVerifier> verifier;

 private:
  std::vector<int64_t> tokens_;
};

TEST(StatesTest, AHitFindsTheStateBehindItsTokens) {
  States s;
  EXPECT_TRUE(s.Step(1, 0, 8, {0, 5}).ok());
  EXPECT_TRUE(s.Step(1, 8, 1, {0, 5, 6}).ok());
  EXPECT_TRUE(s.Step(1, 9, 1, {0, 5, 6}).ok());
  EXPECT_TRUE(s.Step(2, 8, 3, {0, 5, 7}).ok());
  EXPECT_EQ(s.verifier->stats().num_states_read, 2 * 3);
  EXPECT_EQ(s.verifier->stats().num_states_written, 2 * 4);
}

TEST(StatesTest, AnotherStateIsAWrongNumber) {
  States s;
  ASSERT_TRUE(s.Step(1, 0, 9, {0, 0, 5}).ok());
  // Nobody wrote a state behind eight tokens: block 5 has the one behind nine.
  const absl::Status status = s.Step(2, 8, 2, {0, 5, 6});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(s.verifier->failure()->request, "B");
  EXPECT_EQ(s.verifier->failure()->key_position, 7);
  EXPECT_EQ(s.verifier->failure()->block, 5);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the state behind token 7, with which"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds other numbers"));
}

TEST(StatesTest, OnlyStatesAtBoundariesAreLeftOnTheWay) {
  for (const bool at_boundaries : {false, true}) {
    States s(at_boundaries);
    ASSERT_TRUE(s.Step(1, 0, 9, {3, 4, 5}).ok());
    EXPECT_EQ(s.Step(2, 8, 2, {3, 4, 6}).ok(), at_boundaries);
  }
  // A checkpoint leaves one, too.
  States s;
  ASSERT_TRUE(s.Step(1, 0, 9, {0, 4, 5}, {{0, 8, 4}}).ok());
  EXPECT_TRUE(s.Step(2, 8, 2, {0, 4, 6}).ok());
}

TEST(StatesTest, AStateThatIsGoneIsFoundAsPoison) {
  States s;
  ASSERT_TRUE(s.Step(1, 0, 8, {0, 5}).ok());
  ASSERT_TRUE(s.verifier->Release(1).ok());  // not cached
  const absl::Status status = s.Step(2, 8, 2, {0, 5, 6});
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds poison; the block was left by"));
  States t;
  EXPECT_THAT(std::string(t.Step(1, 0, 8, {0, 0}).message()), HasSubstr("is the null block"));
}

TEST(StatesTest, RejectedDraftsGoBackToTheStateOfTheLastAccepted) {
  States s;
  ASSERT_TRUE(s.Step(1, 0, 6, {0, 5}).ok());
  ASSERT_TRUE(s.Step(1, 6, 4, {0, 5, 6}).ok());  // three drafts
  ASSERT_TRUE(s.verifier->Rollback(1, 7).ok());
  EXPECT_TRUE(s.Step(1, 7, 2, {0, 5, 6}).ok());
}

TEST(StatesTest, CheckpointsAndOptionsAreChecked) {
  States s;
  for (const VerifiedCheckpoint& bad :
       std::vector<VerifiedCheckpoint>{{1, 8, 4}, {0, 0, 4}, {0, 10, 4}, {0, 8, 0}, {0, 8, 20}}) {
    const absl::Status status = s.Step(1, 0, 9, {0, 4, 5}, {bad});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("got a checkpoint of group"));
  }
  VerifierOptions options;
  options.num_blocks = 20;
  options.groups = {{.name = "states", .block_size = 4, .window = 3, .is_state = true}};
  options.ops = &CpuReference();
  EXPECT_THAT(std::string(KvCacheVerifier::Create(options).status().message()),
              HasSubstr("groups[0].is_state"));
}

// --- Windows and compressed rows at once ---

// Forgets the compressed rows, or a token of the window, from the third call on.
class HalfBlindOps final : public AttentionOps {
 public:
  explicit HalfBlindOps(bool forgets_rows) : forgets_rows_(forgets_rows) {}
  const char* name() const override { return "HALF_BLIND"; }
  absl::Status Run(const Checked<ConcatAndCacheMlaArgs>& call) const override {
    return sound_.Run(call);
  }
  absl::Status Run(const Checked<MlaDecodeArgs>& call) const override { return sound_.Run(call); }
  absl::Status Run(const Checked<SparseMlaDecodeArgs>& call) const override {
    SparseMlaDecodeArgs with = call.args();
    if (++num_calls_ < 3) return sound_.Run(call);
    if (forgets_rows_) {
      with.extra = {};
    } else {
      const auto* slots = with.main.indices.as<int32_t>();
      std::vector<int32_t> changed(slots, slots + with.main.indices.num_elements());
      changed[0] = -1;
      with.main.indices = ViewOf(absl::MakeConstSpan(changed), {1, 1, with.main.indices.extent[2]});
      return sound_.SparseMlaDecode(call.context(), with);
    }
    return sound_.SparseMlaDecode(call.context(), with);
  }

 private:
  const bool forgets_rows_;
  const AttentionOps& sound_ = CpuReference();
  mutable int num_calls_ = 0;
};

absl::Status AttendJointly(const AttentionOps& ops, std::unique_ptr<KvCacheVerifier>* verifier) {
  VerifierOptions options;
  options.num_blocks = 40;
  options.groups = {{.name = "window", .is_mla = true, .block_size = 4, .window = 6},
                    {.name = "rows", .is_mla = true, .block_size = 8, .compress_ratio = 4}};
  options.joints = {{.window_group = 0, .rows_group = 1, .sinks = {0.5f, -INFINITY}}};
  options.ops = &ops;
  *verifier = KvCacheVerifier::Create(options).value();
  std::vector<int64_t> tokens(64, 3);
  absl::Status status;
  for (int64_t computed = 0, n = 13; status.ok() && computed < 20; computed += n, n = 1) {
    std::vector<int32_t> window, rows;
    for (int32_t i = 0; i * 4 < computed + n; ++i) {
      window.push_back((i + 1) * 4 <= computed - 5 ? 0 : 1 + i);
    }
    for (int32_t i = 0; i * 8 < computed + n; ++i) rows.push_back(30 + i);
    const std::vector<absl::Span<const int32_t>> tables = {window, rows};
    status = (*verifier)->OnStep({{.id = 1,
                                   .name = "A",
                                   .num_computed = computed,
                                   .num_scheduled = n,
                                   .tokens = tokens,
                                   .block_tables = tables}});
  }
  return status;
}

TEST(JointTest, WindowAndRowsAreOneSetOfKeys) {
  std::unique_ptr<KvCacheVerifier> verifier;
  const absl::Status status = AttendJointly(CpuReference(), &verifier);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(verifier->num_joint_layers(), 1);
  EXPECT_EQ(verifier->stats().num_joint_rows_attended, 20);
}

TEST(JointTest, WhatIsLeftOutIsAWrongNumber) {
  for (const bool forgets_rows : {false, true}) {
    const HalfBlindOps ops(forgets_rows);
    std::unique_ptr<KvCacheVerifier> verifier;
    const absl::Status status = AttendJointly(ops, &verifier);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_EQ(verifier->failure()->position, 14);
    EXPECT_THAT(std::string(status.message()), HasSubstr("jointly with layer 1 (rows)"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("6 tokens of the window and 3 rows; all"));
  }
}

TEST(JointTest, GroupsAreChecked) {
  VerifierOptions options;
  options.num_blocks = 40;
  options.groups = {{.name = "window", .is_mla = true, .block_size = 4, .window = 6},
                    {.name = "rows", .is_mla = true, .block_size = 8, .compress_ratio = 4}};
  options.ops = &CpuReference();
  const auto message = [&](VerifiedJoint joint) {
    options.joints = {joint};
    return std::string(KvCacheVerifier::Create(options).status().message());
  };
  EXPECT_THAT(message({1, 0}), HasSubstr("joints[0]: got groups 1 and 0"));
  EXPECT_THAT(message({0, 2}), HasSubstr("joints[0]: got groups 0 and 2"));
  EXPECT_THAT(message({0, 1, {1.0f}}), HasSubstr("joints[0].sinks: got 1"));
}

// --- Places ---

// Two groups of one layer in chunks of 512 bytes, which hold 1 page of blocks of 8 tokens or 2 of 4;
// ids_per_chunk is 2, so ids 1 and 2 are chunk 0. A row has 64 bytes.
class InChunks {
 public:
  InChunks() : bytes_(4 * 512 / sizeof(float)) {
    for (int64_t i = 0; i < 64; ++i) tokens_.push_back(i);
    options_.num_blocks = 7;
    options_.groups = {{.name = "large", .block_size = 8}, {.name = "small", .block_size = 4}};
    options_.head_size = 8;
    options_.ops = &CpuReference();
    options_.memory.tensors = {ViewOf(absl::MakeSpan(bytes_))};
    PagePlace place = {.page_bytes = 512,
                       .block_stride = 512,
                       .ids_per_chunk = 2,
                       .pages_per_chunk = 1,
                       .chunk_bytes = 512,
                       .null_offset = 3 * 512};
    options_.memory.layers.push_back({.place = place});
    place.page_bytes = place.block_stride = 256;
    place.pages_per_chunk = 2;
    options_.memory.layers.push_back({.place = place});
  }
  absl::Status Step(uint64_t id, int64_t num_computed, int64_t num_scheduled,
                    const std::vector<int32_t>& large, const std::vector<int32_t>& small) {
    if (verifier == nullptr) verifier = KvCacheVerifier::Create(options_).value();
    const std::vector<absl::Span<const int32_t>> tables = {large, small};
    return verifier->OnStep({{.id = id,
                              .name = id == 1 ? "A" : "B",
                              .salt = id,
                              .num_computed = num_computed,
                              .num_scheduled = num_scheduled,
                              .tokens = tokens_,
                              .block_tables = tables}});
  }
  VerifierOptions options_;
  std::unique_ptr<KvCacheVerifier> verifier;

 private:
  std::vector<int64_t> tokens_;
  std::vector<float> bytes_;
};

TEST(PlacesTest, IdsOfChunksAreAttendedTo) {
  InChunks c;
  EXPECT_TRUE(c.Step(1, 0, 6, {1}, {4, 3}).ok());
  EXPECT_TRUE(c.Step(1, 6, 1, {1}, {4, 3}).ok());
  EXPECT_TRUE(c.Step(2, 0, 3, {5}, {}).code() == absl::StatusCode::kDataLoss);  // no small block
}

// Id 2 is 256 bytes into chunk 0 for the small group, all of which is the large page of id 1.
TEST(PlacesTest, AChunkLentTwiceIsAWrongNumber) {
  InChunks c;
  ASSERT_TRUE(c.Step(1, 0, 6, {1}, {4, 3}).ok());
  ASSERT_TRUE(c.Step(2, 0, 3, {5}, {2}).ok());
  const absl::Status status = c.Step(1, 6, 1, {1}, {4, 3});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(c.verifier->failure()->block, 1);
  EXPECT_EQ(c.verifier->failure()->key_position, 0) << status;
}

TEST(PlacesTest, AnIdBehindTheLastPageIsNamed) {
  InChunks c;
  const absl::Status status = c.Step(1, 0, 6, {2}, {4, 3});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is 2, which is no page of this group's"));
}

TEST(PlacesTest, PlacesAreChecked) {
  const auto message = [](auto change) {
    InChunks c;
    change(c.options_);
    return std::string(KvCacheVerifier::Create(c.options_).status().message());
  };
  using O = VerifierOptions;
  EXPECT_EQ(message([](O&) {}), "");
  EXPECT_THAT(message([](O& o) { o.memory.layers.pop_back(); }), HasSubstr("got 1, expected 2"));
  EXPECT_THAT(message([](O& o) { o.memory.layers[1].tensor = 1; }), HasSubstr("tensor 1 of 1"));
  EXPECT_THAT(message([](O& o) { o.memory.layers[0].place.page_bytes = 508; }),
              HasSubstr("pages have 508 bytes; 8 rows need 512"));
  EXPECT_THAT(message([](O& o) { o.memory.layers[1].place.ids_per_chunk = 0; }),
              HasSubstr("some layers lie in chunks"));
}

TEST(KvCacheVerifierTest, OptionsAreChecked) {
  const auto message = [&](auto change) {
    VerifierOptions options;
    options.num_blocks = 10;
    options.groups = {{.name = "full", .block_size = 16}};
    options.ops = &CpuReference();
    change(options);
    const auto verifier = KvCacheVerifier::Create(options);
    EXPECT_EQ(verifier.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(verifier.status().message());
  };
  using O = VerifierOptions;
  EXPECT_THAT(message([](O& o) { o.ops = nullptr; }), HasSubstr("ops is null"));
  EXPECT_THAT(message([](O& o) { o.num_blocks = 0; }), HasSubstr("num_blocks: got 0"));
  EXPECT_THAT(message([](O& o) { o.num_blocks = int64_t{1} << 40; }), HasSubstr("2^31 - 1"));
  // With these no difference would ever be too large.
  EXPECT_THAT(message([](O& o) { o.tolerance = NAN; }), HasSubstr("tolerance: got nan"));
  EXPECT_THAT(message([](O& o) { o.tolerance = INFINITY; }), HasSubstr("tolerance: got inf"));
  EXPECT_THAT(message([](O& o) { o.tolerance = -1; }), HasSubstr("tolerance: got -1"));
  EXPECT_THAT(message([](O& o) { o.head_size = int64_t{1} << 62; }), HasSubstr("at most 2^20"));
  EXPECT_THAT(message([](O& o) { o.groups[0].block_size = INT64_MAX; }), HasSubstr("1 to 2^20"));
  EXPECT_THAT(message([](O& o) { o.groups.clear(); }), HasSubstr("groups: got 0"));
  EXPECT_THAT(message([](O& o) { o.num_heads = 3, o.num_kv_heads = 2; }), HasSubstr("num_heads"));
  EXPECT_THAT(message([](O& o) { o.head_size = 7; }), HasSubstr("head_size: got 7"));
  EXPECT_THAT(message([](O& o) { o.groups[0].block_size = 0; }),
              HasSubstr("groups[0].block_size: got 0"));
  EXPECT_THAT(message([](O& o) { o.groups[0].chunk = 24; }), HasSubstr("groups[0].chunk: got 24"));
  EXPECT_THAT(message([](O& o) { o.groups[0].compress_ratio = 3; }), HasSubstr("compress_ratio"));
  EXPECT_THAT(message([](O& o) { o.groups[0].sinks = {1}; }), HasSubstr("one per head"));
  EXPECT_THAT(message([](O& o) { o.groups[0].sink_blocks = {10}; }), HasSubstr("sink_blocks"));
}

}  // namespace
}  // namespace kvblocks::attention
