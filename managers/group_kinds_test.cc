// Groups whose blocks no other request can hit, beside those whose blocks one can: rings, windows
// that are computed again, encoders; and hidden states, which are managed as full attention is.

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "block_pool/testing/pool_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/lookup_explanation.h"
#include "kvblocks/single_type_manager.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

KvCacheConfig FullAnd(const KvCacheSpec& other) {
  const auto full =
      FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 1, .head_size = 8});
  return {.num_blocks = 20, .groups = {{*full, {"full"}}, {other, {"other"}}}};
}

constexpr int kMost = 100;

std::vector<TokenId> Prompt(int64_t count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::unique_ptr<Request> New(const KvCacheManager& manager, int64_t num_tokens,
                             std::string salt = "") {
  auto request = manager.NewRequest(
      {.id = "r", .content = {.token_ids = Prompt(num_tokens), .cache_salt = std::move(salt)}});
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

// BM-103: how many tokens can be registered is said by the tables of groups that are registered. A
// ring's has one block, and an encoder's as many as its input needs.
TEST(NewKindsTest, TablesOfGroupsThatAreNeverHitBoundNoRegistration) {
  const auto cross =
      CrossAttentionSpec::Create({.block_size = 16, .num_kv_heads = 1, .head_size = 8});
  for (const KvCacheSpec& other :
       {*RingSpec::Create({.block_size = 8, .head_size = 8}), *cross}) {
    SCOPED_TRACE(std::string(other.kind_name()));
    const auto manager = *KvCacheManager::Create(FullAnd(other), {.max_model_len = kMost});
    const auto request = New(*manager, 40, "salt");
    const auto slots = manager->AllocateSlots(
        *request, {.num_new_tokens = 40,
                   .delay_cache_blocks = true,
                   .num_encoder_tokens = other.kind() == KvCacheSpecKind::kRing ? 0 : 16});
    ASSERT_TRUE(slots.ok() && slots->has_value()) << slots.status();
    ASSERT_EQ(manager->GetBlocks(*request, 1).size(), 1u);
    request->set_num_computed_tokens(40);
    const absl::Status status = manager->CacheBlocks(*request, 40);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(manager->GetComputedBlocks(*New(*manager, 40, "salt"))->num_tokens(), 32);
    EXPECT_FALSE(manager->CacheBlocks(*request, 41).ok());
  }
}

// A decoder's prefix is that of one input of the encoder.
TEST(NewKindsTest, DecodersCachePrefixesPerInputOfTheEncoder) {
  const auto cross =
      CrossAttentionSpec::Create({.block_size = 16, .num_kv_heads = 1, .head_size = 8});
  const auto manager = *KvCacheManager::Create(FullAnd(*cross), {.max_model_len = kMost});
  EXPECT_THAT(manager->NewRequest({.id = "r", .content = {.token_ids = Prompt(40)}})
                  .status()
                  .message(),
              ::testing::HasSubstr("cache_salt is empty"));
  const auto a = New(*manager, 40, "picture");
  const ComputedBlocks none;
  ASSERT_TRUE((*manager->AllocateSlots(*a, {.num_new_tokens = 40, .num_encoder_tokens = 20}))
                  .has_value());
  EXPECT_EQ(manager->GetComputedBlocks(*New(*manager, 40, "picture"))->num_tokens(), 32);
  EXPECT_EQ(manager->GetComputedBlocks(*New(*manager, 40, "other"))->num_tokens(), 0);
}

TEST(NewKindsTest, SomeGroupMustBeCacheable) {
  const KvCacheConfig config{
      .num_blocks = 20, .groups = {{*RingSpec::Create({.block_size = 8, .head_size = 8}), {"r"}}}};
  EXPECT_THAT(KvCacheManager::Create(config, {.max_model_len = kMost}).status().message(),
              ::testing::HasSubstr("set enable_caching to false"));
  EXPECT_TRUE(
      KvCacheManager::Create(config, {.max_model_len = kMost, .enable_caching = false}).ok());
}

// Windows over the output alone (BM-116): the prompt stays, and of the output the last w tokens.

KvCacheSpec OutputWindow(int64_t block_size, int64_t window) {
  return FullAttentionSpec::Create({.block_size = block_size,
                                    .num_kv_heads = 1,
                                    .head_size = 8,
                                    .output_window = window})
      .value();
}

void Decode(KvCacheManager& manager, Request& request, int64_t num_tokens) {
  for (int64_t i = 0; i < num_tokens; ++i) {
    ASSERT_TRUE(
        request.AppendOutputTokens({static_cast<TokenId>(1'000 + request.num_tokens())}).ok());
    ASSERT_TRUE(Step(manager, request, 1));
  }
}

TEST(OutputWindowTest, TokensThatMayBeComputedAgainAreKeptToo) {
  const auto manager = Manager(30, {OutputWindow(4, 6)}, {.prefill_lookahead_tokens = 3});
  const auto request = NewRequest(*manager, Tokens(10));
  ASSERT_TRUE(Step(*manager, *request, 10));
  Decode(*manager, *request, 14);
  EXPECT_EQ(manager->GetBlocks(*request, 0)[3], 4);
  Decode(*manager, *request, 1);
  EXPECT_EQ(manager->GetBlocks(*request, 0)[3], kNullBlockId);
}

TEST(OutputWindowTest, RefusedWhereItMeansNothing) {
  EXPECT_THAT(
      std::string(FullAttentionSpec::Create(
                      {.block_size = 4, .num_kv_heads = 1, .head_size = 8, .output_window = 0})
                      .status()
                      .message()),
      HasSubstr("output_window: got 0"));
}

// Blocks whose tokens are spread over the ranks of context parallelism (BM-3, BM-113).

KvCacheSpec States(int64_t block_size) {
  return MambaSpec::Create({.block_size = block_size,
                            .states = {{.shape = {4}}},
                            .cache_mode = MambaCacheMode::kAlign})
      .value();
}

// With partial hits, states as large as a hash block are enough: rows have larger blocks (BM-118).
TEST(ContextParallelTest, HitsMayEndInsideSpreadBlocks) {
  const auto manager = Manager(30, {Full(4), States(4)},
                               {.partial_hits = true, .decode_context_parallel = 2});
  EXPECT_EQ(manager->hash_block_size(), 4);
  EXPECT_EQ(manager->scheduler_block_size(), 8);
  const auto first = NewRequest(*manager, Tokens(13));
  ASSERT_TRUE(Step(*manager, *first, 12));
  manager->NewStepStarts();
  const auto second = NewRequest(*manager, Tokens(13));
  EXPECT_EQ(Hits(*manager, *second).num_tokens(), 12);
  ASSERT_TRUE(Step(*manager, *second, 1));
  EXPECT_EQ(manager->TakeBlockCopies().size(), 1u);  // the rows' block; the state's is full

  KvCacheConfig config = Config(30, {Full(4), States(4)});
  EXPECT_THAT(
      std::string(
          KvCacheManager::Create(config, Seeded({.partial_hits = true})).status().message()),
      HasSubstr("without a Mamba group in align mode with a block size above the hash block size"));
}

TEST(ContextParallelTest, RefusedWhereBlocksCannotBeSpread) {
  const auto refusal = [](std::vector<KvCacheSpec> specs, KvCacheManagerOptions options) {
    KvCacheConfig config = Config(30, std::move(specs));
    return std::string(KvCacheManager::Create(config, Seeded(options)).status().message());
  };
  EXPECT_THAT(refusal({Full(4), Window(4, 9)}, {.decode_context_parallel = 2}),
              HasSubstr("decode_context_parallel is 2, expected 1 with groups[1] (sliding_window): "
                        "windows, chunks and sinks cannot be spread over ranks"));
  EXPECT_THAT(refusal({Chunked(4, 8)}, {.prefill_context_parallel = 2}),
              HasSubstr("prefill_context_parallel is 2, expected 1 with groups[0] "
                        "(chunked_local_attention)"));
  EXPECT_THAT(refusal({Sink(4, 8)}, {.decode_context_parallel = 2}), HasSubstr("sinks"));
  EXPECT_THAT(
      refusal({Full(4), Full(8)}, {.prefill_context_parallel = 2}),
      HasSubstr("prefill_context_parallel is 2, expected 1 unless the only group is of full "
                "attention or MLA"));
  EXPECT_THAT(refusal({States(4)}, {.prefill_context_parallel = 2}), HasSubstr("the only group"));
  EXPECT_THAT(refusal({Full(4)}, {.decode_context_parallel = 0}),
              HasSubstr("decode_context_parallel is 0, expected 1 (off) to 4096"));
  EXPECT_THAT(refusal({Full(4)}, {.prefill_context_parallel = 4097}),
              HasSubstr("prefill_context_parallel is 4097"));
  EXPECT_THAT(refusal({Full(kMaxTokens)}, {.decode_context_parallel = 2}),
              HasSubstr("covers more than"));
  KvCacheConfig config = Config(30, {Full(4), Full(8)});
  config.scheduler_block_size = 8;  // a multiple of what a rank holds, not of a block
  EXPECT_THAT(std::string(KvCacheManager::Create(config, Seeded({.decode_context_parallel = 2}))
                              .status()
                              .message()),
              HasSubstr("scheduler_block_size is 8, expected a multiple of groups[1] "
                        "(full_attention)'s block size 16"));
}

// States that a backend exports inside a prefill chunk (V-45).

KvCacheSpec ExportingStates(int64_t num_checkpoint_blocks, int64_t num_speculative_blocks = 0) {
  return MambaSpec::Create({.block_size = 16,
                            .states = {{.shape = {4}}},
                            .cache_mode = MambaCacheMode::kAlign,
                            .num_speculative_blocks = num_speculative_blocks,
                            .num_checkpoint_blocks = num_checkpoint_blocks})
      .value();
}

std::unique_ptr<KvCacheManager> Create(std::vector<KvCacheSpec> specs,
                                       KvCacheManagerOptions options = {},
                                       std::optional<int64_t> retention = 0,
                                       std::optional<int64_t> hash_block_size = std::nullopt) {
  KvCacheConfig config = Config(40, std::move(specs));
  config.hash_block_size = hash_block_size;
  options.max_model_len = 1'000;
  options.semantics.retention_interval = retention;
  return KvCacheManager::Create(config, options).value();
}

// A prompt of 100 tokens in one chunk: without a checkpoint nothing of it can be hit again.
TEST(StateCheckpointTest, AChunkKeepsTheStateThatAResendCanUse) {
  for (int64_t checkpoints : {0, 1}) {
    const auto manager = Create({Full(16), ExportingStates(checkpoints)});
    const auto first = NewRequest(*manager, Tokens(100));
    const int64_t free = manager->num_free_blocks();
    ASSERT_TRUE(Step(*manager, *first, 100));
    const auto at = manager->GetStateCheckpoint(*first, 1);
    EXPECT_EQ(free - manager->num_free_blocks(), 7 + 1 + checkpoints);
    manager->NewStepStarts();
    EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(100))).num_tokens(),
              checkpoints == 0 ? 0 : 96);
    EXPECT_EQ(at.has_value(), checkpoints > 0);
    if (!at) continue;
    EXPECT_EQ(at->num_tokens, 96);
    EXPECT_EQ(at->block, manager->GetBlocks(*first, 1)[5]);
    EXPECT_THAT(manager->GetBlocks(*first, 1), ElementsAre(0, 0, 0, 0, 0, 8, 9));
    EXPECT_EQ(manager->GetStateCheckpoint(*first, 0), std::nullopt);
    // The next step keeps its own state only.
    ASSERT_TRUE(first->AppendOutputTokens({1}).ok());
    ASSERT_TRUE(Step(*manager, *first, 1));
    EXPECT_THAT(manager->GetBlocks(*first, 1), ElementsAre(0, 0, 0, 0, 0, 0, 9));
    EXPECT_FALSE(manager->GetStateCheckpoint(*first, 1).has_value());
    manager->NewStepStarts();
    EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(100))).num_tokens(), 96);
  }
}

// Kinds of layers that a program registers, and managers for them.

const KvCacheSpecOptions kOptions = {
    .block_size = 4, .num_kv_heads = 1, .head_size = 8, .sliding_window = 8};

absl::StatusOr<std::unique_ptr<KvCacheManager>> ManagerOf(const KvCacheKind& kind) {
  const auto spec = KvCacheSpec::Create(kind, kOptions);
  if (!spec.ok()) return spec.status();
  return KvCacheManager::Create({.num_blocks = 20, .groups = {{.spec = *spec}}},
                                {.max_model_len = 64});
}

TEST(RegisteredKindTest, IsManagedLikeTheKindItNames) {
  const auto kind = RegisterKvCacheKind(
      {.name = "windowed_kind", .managed_like = KvCacheSpecKind::kSlidingWindow});
  ASSERT_TRUE(kind.ok()) << kind.status();
  auto manager = ManagerOf(**kind);
  ASSERT_TRUE(manager.ok()) << manager.status();
  EXPECT_FALSE((*manager)->group(0).is_full_type());
  EXPECT_EQ((*manager)->group(0).NumSkippedTokens(20), 13);
  EXPECT_EQ((*manager)->group(0).spec().kind_name(), "windowed_kind");
}

TEST(RegisteredKindTest, ItsFactoryMakesItsManagers) {
  const auto kind = RegisterKvCacheKind(
      {.name = "patient_kind", .managed_like = KvCacheSpecKind::kSlidingWindow});
  ASSERT_TRUE(kind.ok()) << kind.status();
  // Reuses nothing, and gives blocks up four tokens later than a window of 8 would.
  class PatientManager : public SingleTypeManager {
   public:
    PatientManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
        : SingleTypeManager(spec, options, pool, {}) {}
    int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override {
      for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
      return 0;
    }

   protected:
    int64_t NumUnneededTokensImpl(int64_t n) const override {
      return std::max<int64_t>(0, n - 8 + 1 - 4);
    }
  };
  const auto factory = [](const KvCacheSpec& spec, const SingleTypeManager::Options& options,
                          BlockPool* pool) -> absl::StatusOr<std::unique_ptr<SingleTypeManager>> {
    return std::make_unique<PatientManager>(spec, options, pool);
  };
  ASSERT_TRUE(SingleTypeManager::RegisterFactory(**kind, factory).ok());
  auto manager = ManagerOf(**kind);
  ASSERT_TRUE(manager.ok()) << manager.status();
  EXPECT_EQ((*manager)->group(0).NumSkippedTokens(20), 9);
  const absl::Status twice = SingleTypeManager::RegisterFactory(**kind, factory);
  EXPECT_EQ(twice.message(), "kind patient_kind: got a second manager, expected one");
}

TEST(RegisteredKindTest, WhatTheFactoryRefusesCreateRefuses) {
  const auto kind = RegisterKvCacheKind(
      {.name = "refused_kind", .managed_like = KvCacheSpecKind::kSlidingWindow});
  ASSERT_TRUE(kind.ok()) << kind.status();
  ASSERT_TRUE(SingleTypeManager::RegisterFactory(
                  **kind,
                  [](const KvCacheSpec&, const SingleTypeManager::Options&,
                     BlockPool*) -> absl::StatusOr<std::unique_ptr<SingleTypeManager>> {
                    return absl::InvalidArgumentError("not today");
                  })
                  .ok());
  EXPECT_EQ(ManagerOf(**kind).status().message(), "not today");
}

TEST(PrefixLookupTest, EqualSpecsAreLookedUpTogether) {
  const auto manager = Manager(60, {Window(4, 5), Full(4), Window(4, 5)});
  const auto donor = NewRequest(*manager, Tokens(16));
  ASSERT_TRUE(Step(*manager, *donor, 16));
  // The block of position 1 in the third group.
  ASSERT_TRUE(manager->EvictBlocks({manager->GetBlocks(*donor, 2)[1]}).ok());
  const auto request = NewRequest(*manager, Tokens(9));
  const ComputedBlocks hits = Hits(*manager, *request);
  EXPECT_EQ(hits.num_tokens(), 4);
  for (GroupId g = 0; g < 3; ++g) EXPECT_EQ(hits.blocks(g).size(), 1u) << g;
  EXPECT_EQ(hits.shared_prefix_boundary(), 8);  // the full group could have served more
}

int64_t Searches() { return PrefixHashTable::NumSearchesForTest(); }

class SlidingWindowProbesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Step(*manager_, *donor_, 256));
    if (Searches() == 0)
      GTEST_SKIP() << "counted in debug builds only, such as ./test.sh runs unit tests in";
  }
  int64_t ProbesFor(const std::vector<TokenId>& tokens) {
    const auto request = NewRequest(*manager_, tokens);
    const int64_t before = Searches();
    Hits(*manager_, *request);
    return Searches() - before;
  }
  // 64 positions, of which a hit needs 7.
  std::unique_ptr<KvCacheManager> manager_ = Manager(100, {Window(4, 29)});
  std::unique_ptr<Request> donor_ = NewRequest(*manager_, Tokens(256));
};

TEST_F(SlidingWindowProbesTest, EmptyCacheCostsOneProbePerWindow) {
  EXPECT_EQ(ProbesFor(Tokens(257, 1'000)), 10);
}

TEST_F(SlidingWindowProbesTest, WarmTailCostsItsOwnProbes) {
  EXPECT_EQ(ProbesFor(Tokens(257)), 7);
  EXPECT_EQ(ProbesFor(Tokens(256)), 7);
}

TEST_F(SlidingWindowProbesTest, OneMissDoesNotProbeAnythingTwice) {
  // Positions 57..63 are probed from the low end; position 63 misses after 6 hits, and ends up to
  // 63 then lack only position 56.
  ASSERT_TRUE(manager_->EvictBlocks({64}).ok());
  EXPECT_EQ(ProbesFor(Tokens(257)), 8);
  const auto request = NewRequest(*manager_, Tokens(257));
  EXPECT_EQ(Hits(*manager_, *request).num_tokens(), 63 * 4);
}

TEST(SlidingWindowManagerTest, CommonPrefixIsAlwaysZero) {
  const auto manager = Manager(12, {Window(4, 100)});
  const auto request = NewRequest(*manager, Tokens(12));
  ASSERT_TRUE(Step(*manager, *request, 12));
  EXPECT_THAT(manager->GetNumCommonPrefixBlocks(*request), ElementsAre(0));
}

// With lookahead hashes the last whole chunk may have no hash yet. It counts as computed all the
// same, as in vLLM 0.33; a position inside the last chunk counts only if it is hashed and cached.
TEST(ChunkedLocalAttentionManagerTest, ChunksThatAreNotHashedYetAreHit) {
  for (const auto& [chunk, num_tokens, hit] :
       {std::tuple{4, 18, 16}, {4, 17, 16}, {4, 16, 12}, {8, 18, 16}, {8, 15, 8}, {8, 23, 16}}) {
    const auto manager = Manager(40, {Chunked(4, chunk)}, {.num_hash_lookahead_tokens = 6});
    const auto request = NewRequest(*manager, Tokens(num_tokens));
    EXPECT_EQ(Hits(*manager, *request).num_tokens(), hit) << chunk << " of " << num_tokens;
    const LookupExplanation why = ExplainLookup(*manager, *request).value();
    EXPECT_EQ(why.num_hit_tokens, hit);
    int64_t missed = 0;
    for (const MissedRun& run : why.missed) missed += run.num_tokens;
    EXPECT_EQ(hit + missed, num_tokens);
    EXPECT_TRUE(Step(*manager, *request, num_tokens - hit)) << chunk << " of " << num_tokens;
  }
}

// V-1: sparse retention is for windows and states. A chunk's blocks are registered whatever the
// interval, as are those of full attention, and such groups alone are no reason to set one.
TEST(ChunkedLocalAttentionManagerTest, RetentionIntervalIsIgnored) {
  const auto keyed = [](const KvCacheManager& manager, const Request& request, GroupId g) {
    int64_t count = 0;
    for (BlockId id : manager.GetBlocks(request, g)) count += manager.pool().block(id).has_key();
    return count;
  };
  for (int64_t interval : {0, 16}) {
    KvCacheManagerOptions options{.max_model_len = 100};
    options.semantics.retention_interval = interval;
    const auto manager =
        KvCacheManager::Create(Config(60, {Full(4), Window(4, 5), Chunked(4, 8)}), options).value();
    const auto request = NewRequest(*manager, Tokens(33), "r", /*skip_reading=*/true);
    ASSERT_TRUE(Step(*manager, *request, 33));
    EXPECT_EQ(keyed(*manager, *request, 0), 8);
    EXPECT_EQ(keyed(*manager, *request, 1), interval == 0 ? 1 : 2);
    EXPECT_EQ(keyed(*manager, *request, 2), 8);
    // Nor do hits within the prompt end earlier for the chunks' sake.
    const auto alone = KvCacheManager::Create(Config(60, {Full(4), Chunked(4, 8)}),
                                              {.max_model_len = 100}).value();
    ASSERT_TRUE(Step(*alone, *NewRequest(*alone, Tokens(33)), 33));
    EXPECT_EQ(Hits(*alone, *NewRequest(*alone, Tokens(23))).num_tokens(), 20);
  }
  KvCacheManagerOptions options{.max_model_len = 100};
  options.semantics.retention_interval = 16;
  EXPECT_THAT(std::string(KvCacheManager::Create(Config(60, {Full(4), Chunked(4, 8)}), options)
                              .status()
                              .message()),
              testing::HasSubstr("expected 0 or none without a window or Mamba group"));
}

TEST(FullAttentionManagerTest, LookupProbesTheHitsAndOneMore) {
  const auto manager = Manager(40, {Full(4)});
  const auto donor = NewRequest(*manager, Tokens(20));
  ASSERT_TRUE(Step(*manager, *donor, 20));
  const auto request = NewRequest(*manager, Tokens(100));
  const int64_t before = PrefixHashTable::NumSearchesForTest();
  if (before == 0)
    GTEST_SKIP() << "counted in debug builds only, such as ./test.sh runs unit tests in";
  EXPECT_EQ(Hits(*manager, *request).num_tokens(), 20);
  EXPECT_EQ(PrefixHashTable::NumSearchesForTest() - before, 6);
}

TEST(FullAttentionManagerTest, CommonPrefixCountsTablesNotReferences) {
  const auto manager = Manager(20, {Full(4)});
  const auto common = [&](const Request& r) { return manager->GetNumCommonPrefixBlocks(r)[0]; };
  const auto a = NewRequest(*manager, Tokens(12), "a");
  const auto b = NewRequest(*manager, Tokens(8) + Tokens(5, 50), "b");
  EXPECT_EQ(common(*a), 0);  // holds nothing yet
  ASSERT_TRUE(Step(*manager, *a, 12));
  EXPECT_EQ(common(*a), 3);  // alone, it shares everything with everybody
  ASSERT_TRUE(Step(*manager, *b, 5));
  EXPECT_EQ(common(*a), 2);
  EXPECT_EQ(common(*b), 2);
  // A pin is no table: it neither makes a block common nor stops it from being so.
  ASSERT_TRUE(manager->PinBlocks({1, 3}).ok());
  EXPECT_EQ(common(*a), 2);
  ASSERT_TRUE(manager->FreeBlocks({3, 1}).ok());
  ASSERT_TRUE(manager->Free(*a).ok());
  EXPECT_EQ(common(*b), 4);
}

}  // namespace
}  // namespace kvblocks
