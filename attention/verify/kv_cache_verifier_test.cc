// Parts of the verifier. Whole faults are in tests/attention_engine, the observer that runs it
// along with a simulation in sim/verify.

#include "kvblocks/kv_cache_verifier.h"

#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "attention/testing/says.h"
#include "attention/testing/verified_steps.h"
#include "attention/verify/token_values.h"
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

// --- Sampling ---

// Five requests that decode side by side, each with blocks of its own; one row is checked per step.
class Decodes : public VerifiedSteps {
 public:
  static constexpr uint64_t kRequests = 5;

  // The tables of the first `num_growing` requests change in every step.
  explicit Decodes(int64_t max_rows = 1, uint64_t num_growing = 0)
      : VerifiedSteps(Options(max_rows)), num_growing_(num_growing) {}

  absl::Status Step(int64_t position) {
    std::vector<VerifiedPart> parts;
    for (uint64_t id = 1; id <= kRequests; ++id) {
      std::vector<int32_t> blocks(id <= num_growing_ ? position + 1 : position / 16 + 1);
      std::iota(blocks.begin(), blocks.end(), FirstBlock(id));
      parts.push_back({.id = id, .num_computed = position, .tables = {blocks}, .salt = id});
    }
    return Run(parts);
  }
  static int32_t FirstBlock(uint64_t id) { return 1 + 50 * static_cast<int32_t>(id - 1); }

 private:
  static VerifierOptions Options(int64_t max_rows) {
    VerifierOptions options;
    options.num_blocks = 300;
    options.groups = {{.name = "full", .block_size = 16}};
    options.ops = &CpuReference();
    options.max_rows_per_step = max_rows;
    return options;
  }

  const uint64_t num_growing_;
};

TEST(SamplingTest, EveryRequestHasItsTurn) {
  // Also where more tables change in each step than rows are attended.
  for (const uint64_t num_growing : {0, 3}) {
    for (uint64_t victim = 1; victim <= Decodes::kRequests; ++victim) {
      Decodes decodes(num_growing == 0 ? 1 : 2, num_growing);
      int64_t position = 0;
      for (; position < 3; ++position) ASSERT_TRUE(decodes.Step(position).ok());
      ASSERT_TRUE(decodes.verifier->Drop({Decodes::FirstBlock(victim)}).ok());
      absl::Status status;
      for (uint64_t i = 0; i < Decodes::kRequests && status.ok(); ++i) {
        status = decodes.Step(position++);
      }
      ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << num_growing << " " << victim;
      EXPECT_EQ(decodes.verifier->failure()->request, Decodes::NameOf(victim));
      EXPECT_THAT(decodes.verifier->failure()->text, HasSubstr("the engine dropped the block's"));
    }
  }
}

TEST(SamplingTest, RowsAreLimitedPerStep) {
  Decodes decodes;
  for (int64_t position = 0; position < 20; ++position) ASSERT_TRUE(decodes.Step(position).ok());
  const VerifierStats& stats = decodes.verifier->stats();
  EXPECT_EQ(stats.num_rows_attended, 20);
  EXPECT_EQ(stats.num_tokens, 20 * Decodes::kRequests);
  EXPECT_EQ(stats.num_blocks_poisoned, 1 + 2 * Decodes::kRequests);  // the null block, too
}

// --- States ---

// One group of states, a block for 4 tokens.
class States : public VerifiedSteps {
 public:
  explicit States(bool at_boundaries = false) : VerifiedSteps(Options(at_boundaries)) {}
  absl::Status Step(uint64_t id, int64_t num_computed, int64_t num_scheduled,
                    const std::vector<int32_t>& table,
                    const std::vector<VerifiedCheckpoint>& checkpoints = {}) {
    return Run({{id, num_computed, num_scheduled, {table}, {}, checkpoints}});
  }

 private:
  static VerifierOptions Options(bool at_boundaries) {
    VerifierOptions options;
    options.num_blocks = 20;
    options.groups = {{.name = "states",
                       .block_size = 4,
                       .num_layers = 2,
                       .is_state = true,
                       .at_boundaries = at_boundaries}};
    options.ops = &CpuReference();
    return options;
  }
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
  EXPECT_THAT(status, Says("the state behind token 7, with which"));
  EXPECT_THAT(status, Says("holds other numbers"));
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
  EXPECT_THAT(status, Says("holds poison; the block was left by"));
  States t;
  EXPECT_THAT(t.Step(1, 0, 8, {0, 0}), Says("is the null block"));
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
    EXPECT_THAT(status, Says("got a checkpoint of group"));
  }
  VerifierOptions options;
  options.num_blocks = 20;
  options.groups = {{.name = "states", .block_size = 4, .window = 3, .is_state = true}};
  options.ops = &CpuReference();
  EXPECT_THAT(KvCacheVerifier::Create(options).status(), Says("groups[0].is_state"));
}

// --- Windows and compressed rows at once ---

// CPU_REFERENCE's, for others to spoil.
class SoundOps : public AttentionOps {
 public:
  const char* name() const override { return "SOUND"; }
  absl::Status Run(const Checked<ConcatAndCacheMlaArgs>& call) const override {
    return CpuReference().Run(call);
  }
  absl::Status Run(const Checked<MlaDecodeArgs>& call) const override {
    return CpuReference().Run(call);
  }
  absl::Status Run(const Checked<SparseMlaDecodeArgs>& call) const override {
    return CpuReference().Run(call);
  }
};

// Forgets the compressed rows, or a token of the window, from the third call on.
class HalfBlindOps final : public SoundOps {
 public:
  explicit HalfBlindOps(bool forgets_rows) : forgets_rows_(forgets_rows) {}
  using SoundOps::Run;
  absl::Status Run(const Checked<SparseMlaDecodeArgs>& call) const override {
    if (++num_calls_ < 3) return SoundOps::Run(call);
    SparseMlaDecodeArgs with = call.args();
    const auto* slots = with.main.indices.as<int32_t>();
    std::vector<int32_t> changed(slots, slots + with.main.indices.num_elements());
    changed[0] = -1;
    if (forgets_rows_) {
      with.extra = {};
    } else {
      with.main.indices = ViewOf(absl::MakeConstSpan(changed), {1, 1, with.main.indices.extent[2]});
    }
    return CpuReference().SparseMlaDecode(call.context(), with);
  }

 private:
  const bool forgets_rows_;
  mutable int num_calls_ = 0;
};

VerifierOptions JointOptions(const AttentionOps& ops) {
  VerifierOptions options;
  options.num_blocks = 40;
  options.groups = {{.name = "window", .is_mla = true, .block_size = 4, .window = 6},
                    {.name = "rows", .is_mla = true, .block_size = 8, .compress_ratio = 4}};
  options.joints = {{.window_group = 0, .rows_group = 1, .sinks = {0.5f, -INFINITY}}};
  options.ops = &ops;
  return options;
}

absl::Status AttendJointly(VerifiedSteps& steps) {
  absl::Status status;
  for (int64_t computed = 0, n = 13; status.ok() && computed < 20; computed += n, n = 1) {
    std::vector<int32_t> window, rows;
    for (int32_t i = 0; i * 4 < computed + n; ++i) {
      window.push_back((i + 1) * 4 <= computed - 5 ? 0 : 1 + i);
    }
    for (int32_t i = 0; i * 8 < computed + n; ++i) rows.push_back(30 + i);
    status = steps.Run({{1, computed, n, {window, rows}}});
  }
  return status;
}

TEST(JointTest, WindowAndRowsAreOneSetOfKeys) {
  VerifiedSteps steps(JointOptions(CpuReference()));
  EXPECT_EQ(AttendJointly(steps), absl::OkStatus());
  EXPECT_EQ(steps.verifier->num_joint_layers(), 1);
  EXPECT_EQ(steps.verifier->stats().num_joint_rows_attended, 20);
}

TEST(JointTest, WhatIsLeftOutIsAWrongNumber) {
  for (const bool forgets_rows : {false, true}) {
    const HalfBlindOps ops(forgets_rows);
    VerifiedSteps steps((JointOptions(ops)));
    const absl::Status status = AttendJointly(steps);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_EQ(steps.verifier->failure()->position, 14);
    EXPECT_THAT(status, Says("jointly with layer 1 (rows)"));
    EXPECT_THAT(status, Says("6 tokens of the window and 3 rows; all"));
  }
}

TEST(JointTest, GroupsAreChecked) {
  const auto refuse = [&](VerifiedJoint joint, const char* words) {
    VerifierOptions options = JointOptions(CpuReference());
    options.joints = {joint};
    EXPECT_THAT(KvCacheVerifier::Create(options).status(), Says(words));
  };
  refuse({1, 0}, "joints[0]: got groups 1 and 0");
  refuse({0, 2}, "joints[0]: got groups 0 and 2");
  refuse({0, 1, {1.0f}}, "joints[0].sinks: got 1");
}

// --- Indexers and compressors ---

// One wrong number in what an indexer chose or a compressor made.
class WrongOps final : public SoundOps {
 public:
  using SoundOps::Run;
  absl::Status Run(const Checked<IndexTopkArgs>& call) const override {
    const absl::Status status = CpuReference().Run(call);
    *call.args().indices.as<int32_t>() = -1;
    return status;
  }
  absl::Status Run(const Checked<CompressTokensArgs>& call) const override {
    const absl::Status status = CpuReference().Run(call);
    *call.args().out.as<float>() += 1e-3f;
    return status;
  }
};

// All is right, until the indexer makes one wrong choice.
void ExpectChoiceIsChecked(VerifierOptions options, const char* words) {
  VerifiedSteps steps(options);
  EXPECT_EQ(AttendJointly(steps), absl::OkStatus());
  EXPECT_EQ(steps.verifier->stats().num_joint_rows_attended, 20);

  const WrongOps wrong;
  options.ops = &wrong;
  VerifiedSteps wrong_steps(options);
  EXPECT_THAT(AttendJointly(wrong_steps), Says(words));
}

TEST(JointTest, AnIndexerChoosesRows) {
  VerifierOptions options = JointOptions(CpuReference());
  options.joints[0].topk = 2;
  ExpectChoiceIsChecked(
      options, "all rows are right, the choice among them or the attention over them is not");
}

TEST(JointTest, AnIndexerChoosesAmongAllRows) {
  VerifierOptions options = JointOptions(CpuReference());
  options.groups[1].compress_ratio = 1;
  options.joints = {{.window_group = 1, .rows_group = 1}};
  EXPECT_THAT(KvCacheVerifier::Create(options).status(), Says("or the latter twice with topk"));
  options.joints[0].topk = 3;
  ExpectChoiceIsChecked(
      options, "from rows that an indexer chose among 1; all rows are right, the choice among");
}

TEST(CompressorTest, RowsAreMadeOfTheStatesInTheWindow) {
  VerifierOptions options;
  options.num_blocks = 40;
  options.groups = {{.name = "states", .is_mla = true, .block_size = 4, .window = 8}};
  options.compressors = {{.states_group = 0, .ratio = 4, .overlap = true},
                         {.states_group = 0, .ratio = 8}};
  options.ops = &CpuReference();
  const auto run = [&](VerifiedSteps& steps) {
    absl::Status status;
    for (int64_t computed = 0, n = 13; status.ok() && computed < 20; computed += n, n = 1) {
      std::vector<int32_t> states;
      for (int32_t i = 0; i * 4 < computed + n; ++i) {
        states.push_back((i + 1) * 4 <= computed - 7 ? 0 : 1 + i);
      }
      status = steps.Run({{1, computed, n, {states}}});
    }
    return status;
  };
  VerifiedSteps steps(options);
  EXPECT_EQ(run(steps), absl::OkStatus());
  EXPECT_EQ(steps.verifier->stats().num_rows_compressed, 5 + 2);

  const WrongOps wrong;
  options.ops = &wrong;
  VerifiedSteps wrong_steps(options);
  EXPECT_THAT(run(wrong_steps), Says("value 0 of the row made of 4 states"));
  EXPECT_THAT(run(wrong_steps), Says("all states are right, the row is not"));
  EXPECT_EQ(wrong_steps.verifier->failure()->position, 3);

  options.compressors = {{.states_group = 0, .ratio = 8, .overlap = true}};
  EXPECT_THAT(KvCacheVerifier::Create(options).status(),
              Says("a window of 2 times the ratio at least"));
}

// --- Places ---

// Two groups of one layer in chunks of 512 bytes, which hold 1 page of blocks of 8 tokens or 2 of
// 4; ids_per_chunk is 2, so ids 1 and 2 are chunk 0. A row has 64 bytes.
struct InChunks {
  InChunks() : bytes(4 * 512 / sizeof(float)) {
    options.num_blocks = 7;
    options.groups = {{.name = "large", .block_size = 8}, {.name = "small", .block_size = 4}};
    options.head_size = 8;
    options.ops = &CpuReference();
    options.memory.tensors = {ViewOf(absl::MakeSpan(bytes))};
    PagePlace place = {.page_bytes = 512,
                       .block_stride = 512,
                       .ids_per_chunk = 2,
                       .pages_per_chunk = 1,
                       .chunk_bytes = 512,
                       .null_offset = 3 * 512};
    options.memory.layers.push_back({.place = place});
    place.page_bytes = place.block_stride = 256;
    place.pages_per_chunk = 2;
    options.memory.layers.push_back({.place = place});
  }
  absl::Status Step(uint64_t id, int64_t num_computed, int64_t num_scheduled,
                    const std::vector<int32_t>& large, const std::vector<int32_t>& small) {
    if (!steps.has_value()) steps.emplace(options);
    return steps->Run({{.id = id,
                        .num_computed = num_computed,
                        .num_scheduled = num_scheduled,
                        .tables = {large, small},
                        .salt = id}});
  }

  std::vector<float> bytes;
  VerifierOptions options;
  std::optional<VerifiedSteps> steps;
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
  EXPECT_EQ(c.steps->verifier->failure()->block, 1);
  EXPECT_EQ(c.steps->verifier->failure()->key_position, 0) << status;
}

TEST(PlacesTest, AnIdBehindTheLastPageIsNamed) {
  InChunks c;
  const absl::Status status = c.Step(1, 0, 6, {2}, {4, 3});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status, Says("is 2, which is no page of this group's"));
}

TEST(PlacesTest, PlacesAreChecked) {
  EXPECT_TRUE(KvCacheVerifier::Create(InChunks().options).ok());
  const auto refuse = [](auto change, const char* words) {
    InChunks c;
    change(c.options);
    EXPECT_THAT(KvCacheVerifier::Create(c.options).status(), Says(words));
  };
  using O = VerifierOptions;
  refuse([](O& o) { o.memory.layers.pop_back(); }, "got 1, expected 2");
  refuse([](O& o) { o.memory.layers[1].tensor = 1; }, "tensor 1 of 1");
  refuse([](O& o) { o.memory.layers[0].place.page_bytes = 508; },
         "pages have 508 bytes; 8 rows need 512");
  refuse([](O& o) { o.memory.layers[1].place.ids_per_chunk = 0; }, "some layers lie in chunks");
}

TEST(KvCacheVerifierTest, OptionsAreChecked) {
  const auto refuse = [&](auto change, const char* words) {
    VerifierOptions options;
    options.num_blocks = 10;
    options.groups = {{.name = "full", .block_size = 16}};
    options.ops = &CpuReference();
    change(options);
    const absl::Status status = KvCacheVerifier::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status, Says(words));
  };
  using O = VerifierOptions;
  refuse([](O& o) { o.ops = nullptr; }, "ops is null");
  refuse([](O& o) { o.num_blocks = 0; }, "num_blocks: got 0");
  refuse([](O& o) { o.num_blocks = int64_t{1} << 40; }, "2^31 - 1");
  // With these no difference would ever be too large.
  refuse([](O& o) { o.tolerance = NAN; }, "tolerance: got nan");
  refuse([](O& o) { o.tolerance = INFINITY; }, "tolerance: got inf");
  refuse([](O& o) { o.tolerance = -1; }, "tolerance: got -1");
  refuse([](O& o) { o.head_size = int64_t{1} << 62; }, "at most 2^20");
  refuse([](O& o) { o.groups[0].block_size = INT64_MAX; }, "1 to 2^20");
  refuse([](O& o) { o.groups.clear(); }, "groups: got 0");
  refuse([](O& o) { o.num_heads = 3, o.num_kv_heads = 2; }, "num_heads");
  refuse([](O& o) { o.head_size = 7; }, "head_size: got 7");
  refuse([](O& o) { o.groups[0].block_size = 0; }, "groups[0].block_size: got 0");
  refuse([](O& o) { o.groups[0].chunk = 24; }, "groups[0].chunk: got 24");
  refuse([](O& o) { o.groups[0].compress_ratio = 3; }, "compress_ratio");
  refuse([](O& o) { o.groups[0].sinks = {1}; }, "one per head");
  refuse([](O& o) { o.groups[0].sink_blocks = {10}; }, "sink_blocks");
}

}  // namespace
}  // namespace kvblocks::attention
