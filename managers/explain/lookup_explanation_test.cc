#include "kvblocks/managers/explain/lookup_explanation.h"

#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

constexpr int64_t kHistory = 1000;

std::unique_ptr<KvCacheManager> Remembering(int64_t num_blocks, std::vector<KvCacheSpec> specs,
                                            KvCacheManagerOptions options = {}) {
  if (options.lookup_history_blocks == 0) options.lookup_history_blocks = kHistory;
  return Manager(num_blocks, std::move(specs), options);
}

// As a server of 0.33 keeps windows and states.
std::unique_ptr<KvCacheManager> Sparse(std::vector<KvCacheSpec> specs) {
  return KvCacheManager::Create(Config(60, std::move(specs)), {.max_model_len = 8192,
                                                               .hash_seed = "seed",
                                                               .lookup_history_blocks = kHistory})
      .value();
}

LookupExplanation Explain(const KvCacheManager& manager, const Request& request) {
  const auto why = ExplainLookup(manager, request);
  EXPECT_TRUE(why.ok()) << why.status();
  EXPECT_EQ(why->num_hit_tokens, Hits(manager, request).num_tokens());
  int64_t token = why->num_hit_tokens;
  for (const MissedRun& run : why->missed) {
    EXPECT_EQ(run.first_token, token);
    EXPECT_GT(run.num_tokens, 0);
    token += run.num_tokens;
  }
  EXPECT_EQ(token, request.num_tokens());
  return *why;
}

// "first use 0+8, partial block 8+1".
std::string Missed(const LookupExplanation& why) {
  std::string text;
  for (const MissedRun& run : why.missed) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", std::string(MissReasonName(run.reason)), " ",
                    run.first_token, "+", run.num_tokens);
  }
  return text;
}
std::string Missed(const KvCacheManager& manager, std::vector<TokenId> tokens) {
  return Missed(Explain(manager, *NewRequest(manager, std::move(tokens))));
}

// Computes the prompt without reading the cache, and frees it.
void ComputeContent(KvCacheManager& manager, PrefixContent::Options content) {
  const auto request =
      manager.NewRequest({.id = "c", .content = content, .skip_reading_prefix_cache = true})
          .value();
  ASSERT_TRUE(Step(manager, *request, request->num_tokens()).has_value());
  ASSERT_TRUE(manager.Free(*request).ok());
}
void Compute(KvCacheManager& manager, std::vector<TokenId> tokens) {
  ComputeContent(manager, {.token_ids = std::move(tokens)});
}

// --- What no cache could serve ---

TEST(LookupExplanationTest, FreshCacheHasSeenNothing) {
  const auto manager = Remembering(10, {Full(4)});
  EXPECT_EQ(Missed(*manager, Tokens(9)), "first use 0+8, partial block 8+1");
  EXPECT_EQ(Missed(*manager, Tokens(8)), "first use 0+8");
}

TEST(LookupExplanationTest, APromptShorterThanABlockIsSaidToBe) {
  const auto manager = Remembering(10, {Full(4)});
  EXPECT_EQ(Missed(*manager, Tokens(3)), "shorter than a block 0+3");
  const auto hybrid = Remembering(100, {Full(16), Window(4, 8)});
  EXPECT_EQ(Missed(*hybrid, Tokens(15)), "shorter than a block 0+15");
}

TEST(LookupExplanationTest, CachingOffAndSkippedReadingAreTheirOwnReasons) {
  const auto off = Manager(10, {Full(4)}, {.enable_caching = false, .lookup_history_blocks = 5});
  const LookupExplanation why = Explain(*off, *NewRequest(*off, Tokens(9)));
  EXPECT_EQ(Missed(why), "caching off 0+9");
  EXPECT_EQ(why.hit_alignment, 0);
  EXPECT_TRUE(why.groups.empty());
  const auto manager = Remembering(10, {Full(4)});
  Compute(*manager, Tokens(9));
  EXPECT_EQ(Missed(Explain(*manager, *NewRequest(*manager, Tokens(9), "r", true))),
            "reading skipped 0+9");
}

TEST(LookupExplanationTest, MisuseIsRefusedAsByTheLookup) {
  const auto manager = Remembering(10, {Full(4)});
  EXPECT_FALSE(ExplainLookup(*manager, *NewRequest(*manager, {})).ok());
  const auto other = Remembering(10, {Full(4)});
  EXPECT_FALSE(ExplainLookup(*manager, *NewRequest(*other, Tokens(9))).ok());
}

// --- What the rules cost ---

TEST(LookupExplanationTest, TheLastTokenCostsTheBlockItFills) {
  const auto manager = Remembering(10, {Full(4)});
  Compute(*manager, Tokens(8));
  EXPECT_EQ(Missed(*manager, Tokens(8)), "last token 4+4");
  EXPECT_EQ(Missed(*manager, Tokens(9)), "partial block 8+1");
  EXPECT_EQ(Missed(*manager, Tokens(12)), "first use 8+4");
}

// WE-25.
TEST(LookupExplanationTest, DraftDropCostsTheLastMatchedBlock) {
  const auto manager = Remembering(20, {Full(16)}, {.use_eagle = true});
  Compute(*manager, Tokens(48));
  const LookupExplanation why = Explain(*manager, *NewRequest(*manager, Tokens(37)));
  EXPECT_EQ(Missed(why), "draft drop 16+16, partial block 32+5");
  EXPECT_EQ(why.missed[0].group, 0);
  EXPECT_EQ(Missed(*manager, Tokens(48)), "draft drop 16+16, last token 32+16");
  const auto window = Remembering(20, {Window(16, 16)}, {.use_eagle = true});
  Compute(*window, Tokens(37));
  EXPECT_EQ(Missed(*window, Tokens(37)), "draft drop 16+16, partial block 32+5");
  ASSERT_TRUE(window->EvictBlocks({1}).ok());
  // Without the drop block 2 alone would do.
  EXPECT_EQ(Missed(*window, Tokens(37)), "draft drop 0+32, partial block 32+5");
}

// WE-26, without its tail.
TEST(LookupExplanationTest, DraftDropOfAHybridModel) {
  const auto manager =
      Remembering(31, {Full(16), Window(16, 48), Window(16, 48)}, {.use_eagle = true});
  Compute(*manager, Tokens(103));
  EXPECT_EQ(Missed(*manager, Tokens(96) + Tokens(5, 500)), "draft drop 80+16, partial block 96+5");
}

TEST(LookupExplanationTest, AlignmentCostsPartsOfTheCommonBlock) {
  const auto manager = Remembering(40, {Full(4), Window(8, 9)});
  Compute(*manager, Tokens(16));  // full: blocks 1 to 4
  ASSERT_TRUE(manager->EvictBlocks({4}).ok());
  const LookupExplanation why = Explain(*manager, *NewRequest(*manager, Tokens(17)));
  EXPECT_EQ(why.num_hit_tokens, 8);
  EXPECT_EQ(why.hit_alignment, 8);
  EXPECT_EQ(Missed(why), "alignment 8+4, removed 12+4, partial block 16+1");
}

// --- Groups ---

// WE-22.
TEST(LookupExplanationTest, AWindowedGroupVetoes) {
  const auto manager = Remembering(21, {Full(16), Window(16, 32), Window(16, 32)});
  Compute(*manager, Tokens(55));  // [1..4], [5..8], [9..12]
  const auto b = NewRequest(*manager, Tokens(48) + Tokens(5, 500));
  EXPECT_EQ(Missed(Explain(*manager, *b)), "partial block 48+5");

  ASSERT_TRUE(manager->EvictBlocks({11}).ok());  // position 2 of group 2
  LookupExplanation why = Explain(*manager, *b);
  EXPECT_EQ(Missed(why), "group veto 32+16, partial block 48+5");
  EXPECT_EQ(why.missed[0].group, 2);
  EXPECT_EQ(why.missed[0].block, 2);
  EXPECT_EQ(why.missed[0].absence,
            (Absence{.reason = MissReason::kRemoved, .num_blocks_since = 0}));
  ASSERT_EQ(why.groups.size(), 3u);
  EXPECT_EQ(why.groups[0],
            (GroupReach{.group = 0, .kind = "full_attention", .num_hit_tokens = 48}));
  EXPECT_EQ(why.groups[1],
            (GroupReach{.group = 1, .kind = "sliding_window", .num_hit_tokens = 48}));
  EXPECT_EQ(why.groups[2], (GroupReach{.group = 2,
                                       .kind = "sliding_window",
                                       .num_hit_tokens = 32,
                                       .stop_block = 2,
                                       .absence = why.missed[0].absence}));
  EXPECT_EQ(why.ToString(),
            "32 of 53 tokens hit\n"
            "  16 from token 32: group veto by group 2 at block 2, removed 0 blocks ago\n"
            "  5 from token 48: partial block\n"
            "  group 0 (full_attention) alone would hit 48\n"
            "  group 1 (sliding_window) alone would hit 48\n"
            "  group 2 (sliding_window) alone would hit 32, stopped at block 2: removed 0 blocks "
            "ago");

  ASSERT_TRUE(manager->EvictBlocks({3, 5}).ok());  // full position 2, window position 0
  EXPECT_EQ(Missed(Explain(*manager, *b)), "group veto 0+32, removed 32+16, partial block 48+5");
}

TEST(LookupExplanationTest, AVetoSaysTheFirstGroupInTheWay) {
  const auto manager = Remembering(21, {Full(16), Window(16, 32), Window(16, 32)});
  Compute(*manager, Tokens(55));
  ASSERT_TRUE(manager->EvictBlocks({6, 10}).ok());  // position 1 of both
  const LookupExplanation why =
      Explain(*manager, *NewRequest(*manager, Tokens(48) + Tokens(5, 500)));
  EXPECT_EQ(Missed(why), "group veto 16+32, partial block 48+5");
  EXPECT_EQ(why.missed[0].group, 1);
  EXPECT_EQ(why.missed[0].block, 1);
}

// V-2: with retention 0 a window keeps its blocks at the prompt's end, and nothing before.
TEST(LookupExplanationTest, WindowsThatWereNotKeptAreNoFirstUse) {
  const auto manager = Sparse({Full(16), Window(16, 16)});
  Compute(*manager, Tokens(200));
  const auto shared = NewRequest(*manager, Tokens(100) + Tokens(5, 500));
  LookupExplanation why = Explain(*manager, *shared);
  EXPECT_EQ(Missed(why), "group veto 0+96, partial block 96+9");
  EXPECT_EQ(why.missed[0].absence, (Absence{.reason = MissReason::kNotKept}));
  EXPECT_EQ(why.groups[1].absence, (Absence{.reason = MissReason::kNotKept}));
  EXPECT_NE(why.ToString().find("group veto by group 1 at block 0, not kept"), std::string::npos);
  EXPECT_FALSE(why.may_not_be_kept);
  // Nobody computed what comes next.
  why = Explain(*manager, *NewRequest(*manager, Tokens(200) + Tokens(40, 500)));
  EXPECT_EQ(Missed(why), "first use 192+48");
  EXPECT_EQ(why.groups[1].absence, (Absence{.reason = MissReason::kFirstUse}));
}

// Where no group keeps whole prefixes, nobody knows.
TEST(LookupExplanationTest, AWindowModelSaysThatFirstUseMayBeNotKept) {
  const auto manager = Sparse({Window(16, 16)});
  Compute(*manager, Tokens(200));
  const auto shared = NewRequest(*manager, Tokens(100) + Tokens(5, 500));
  const LookupExplanation why = Explain(*manager, *shared);
  EXPECT_EQ(Missed(why), "first use 0+96, partial block 96+9");
  EXPECT_TRUE(why.may_not_be_kept);
  EXPECT_NE(why.ToString().find("or computed and not kept"), std::string::npos);
  const auto dense = Remembering(60, {Window(16, 16)});
  EXPECT_FALSE(Explain(*dense, *NewRequest(*dense, Tokens(20))).may_not_be_kept);
}

TEST(LookupExplanationTest, AWindowModelIsStoppedByItsGaps) {
  const auto manager = Remembering(20, {Window(2, 4)});
  Compute(*manager, Tokens(12));
  EXPECT_EQ(Missed(*manager, Tokens(13)), "partial block 12+1");
  ASSERT_TRUE(manager->EvictBlocks({5}).ok());  // position 4
  const LookupExplanation why = Explain(*manager, *NewRequest(*manager, Tokens(13)));
  EXPECT_EQ(Missed(why), "removed 8+2, group veto 10+2, partial block 12+1");
  EXPECT_EQ(why.missed[1].block, 4);
  EXPECT_EQ(Missed(*manager, Tokens(14)), "removed 8+2, group veto 10+2, first use 12+2");
}

TEST(LookupExplanationTest, ChunksCountWhatLiesBeforeThemAsHit) {
  const auto manager = Remembering(20, {Chunked(4, 8)});
  EXPECT_EQ(Missed(*manager, Tokens(15)), "first use 8+4, partial block 12+3");
  Compute(*manager, Tokens(16));
  EXPECT_EQ(Missed(*manager, Tokens(16)), "last token 12+4");
}

TEST(LookupExplanationTest, ACachedBlockBehindAGapCountsLikeTheGap) {
  const auto manager = Remembering(20, {Full(4)});
  Compute(*manager, Tokens(16));
  ASSERT_TRUE(manager->EvictBlocks({2}).ok());
  const LookupExplanation why = Explain(*manager, *NewRequest(*manager, Tokens(17)));
  EXPECT_EQ(Missed(why), "removed 4+12, partial block 16+1");
  EXPECT_EQ(why.missed[0].block, 1);
  EXPECT_EQ(why.groups[0].stop_block, 1);
}

// --- Evictions ---

TEST(LookupExplanationTest, EvictionsAreDatedInBlocksTaken) {
  const auto manager = Remembering(7, {Full(4)});
  Compute(*manager, Tokens(12));  // 1 to 3; the queue is 4, 5, 6, 3, 2, 1
  const auto x = NewRequest(*manager, Tokens(20, 100));
  ASSERT_TRUE(Step(*manager, *x, 20).has_value());  // takes 5 blocks, among them 3 and 2
  const auto a = NewRequest(*manager, Tokens(13));
  LookupExplanation why = Explain(*manager, *a);
  EXPECT_EQ(Missed(why), "evicted 4+8, partial block 12+1");
  EXPECT_EQ(why.missed[0].absence,
            (Absence{.reason = MissReason::kEvicted, .num_blocks_since = 5}));
  const auto y = NewRequest(*manager, Tokens(4, 200));
  ASSERT_TRUE(Step(*manager, *y, 4).has_value());  // takes block 1
  why = Explain(*manager, *a);
  ASSERT_EQ(Missed(why), "evicted 0+4, evicted 4+8, partial block 12+1");
  EXPECT_EQ(why.missed[0].absence->num_blocks_since, 1);
  EXPECT_EQ(why.missed[1].absence->num_blocks_since, 6);
  EXPECT_EQ(why.ToString(),
            "0 of 13 tokens hit\n"
            "  4 from token 0: evicted 1 block ago (group 0 from block 0)\n"
            "  8 from token 4: evicted 6 blocks ago (group 0 from block 1)\n"
            "  1 from token 12: partial block");
}

TEST(LookupExplanationTest, WithoutHistoryEvictedIsNotToldFromNeverSeen) {
  const auto manager = Manager(7, {Full(4)});
  Compute(*manager, Tokens(12));
  Compute(*manager, Tokens(24, 100));
  const LookupExplanation why = Explain(*manager, *NewRequest(*manager, Tokens(13)));
  EXPECT_EQ(Missed(why), "not cached 0+12, partial block 12+1");
  EXPECT_FALSE(why.has_history);
  EXPECT_NE(why.ToString().find("lookup_history_blocks"), std::string::npos);
}

TEST(LookupExplanationTest, ARemovalForgottenLooksNeverSeen) {
  const auto manager = Remembering(7, {Full(4)}, {.lookup_history_blocks = 2});
  Compute(*manager, Tokens(12));
  EXPECT_FALSE(Explain(*manager, *NewRequest(*manager, Tokens(13))).num_removals_remembered);
  Compute(*manager, Tokens(24, 100));  // evicts 3, 2 and 1 in this order
  const LookupExplanation why = Explain(*manager, *NewRequest(*manager, Tokens(13)));
  EXPECT_EQ(Missed(why), "evicted 0+8, first use 8+4, partial block 12+1");
  EXPECT_EQ(why.num_removals_remembered, 2);
  EXPECT_NE(why.ToString().find("before the last 2 removals"), std::string::npos);
}

TEST(LookupExplanationTest, AResetRemoves) {
  const auto manager = Remembering(10, {Full(4)});
  Compute(*manager, Tokens(8));
  ASSERT_TRUE(manager->ResetPrefixCache());
  EXPECT_EQ(Missed(*manager, Tokens(9)), "removed 0+8, partial block 8+1");
  Compute(*manager, Tokens(8));
  EXPECT_EQ(Missed(*manager, Tokens(9)), "partial block 8+1");
}

// --- The same tokens elsewhere ---

class OtherExtraKeysTest : public ::testing::Test {
 protected:
  std::string MissedWith(PrefixContent::Options content) {
    const auto request = manager_->NewRequest({.id = "r", .content = std::move(content)}).value();
    return Missed(Explain(*manager_, *request));
  }
  std::unique_ptr<KvCacheManager> manager_ = Remembering(100, {Full(4)});
};

TEST_F(OtherExtraKeysTest, Salt) {
  ComputeContent(*manager_, {.token_ids = Tokens(8), .cache_salt = "a"});
  EXPECT_EQ(MissedWith({.token_ids = Tokens(12), .cache_salt = "b"}),
            "salt/adapter 0+8, first use 8+4");
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9)}), "salt/adapter 0+8, partial block 8+1");
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9), .cache_salt = "a"}), "partial block 8+1");
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9, 50), .cache_salt = "b"}),
            "first use 0+8, partial block 8+1");
}

TEST_F(OtherExtraKeysTest, CachedWithoutSalt) {
  Compute(*manager_, Tokens(8));
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9), .cache_salt = "a"}),
            "salt/adapter 0+8, partial block 8+1");
  ASSERT_TRUE(manager_->ResetPrefixCache());  // it was cached, and that is remembered
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9), .cache_salt = "a"}),
            "salt/adapter 0+8, partial block 8+1");
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9)}), "removed 0+8, partial block 8+1");
}

TEST_F(OtherExtraKeysTest, Adapter) {
  ComputeContent(*manager_, {.token_ids = Tokens(8), .lora_name = "l"});
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9)}), "salt/adapter 0+8, partial block 8+1");
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9), .lora_name = "m"}),
            "salt/adapter 0+8, partial block 8+1");
}

TEST_F(OtherExtraKeysTest, ImageFromItsBlockOn) {
  ComputeContent(*manager_, {.token_ids = Tokens(12), .features = {{"cat", 5, 2}}});
  EXPECT_EQ(MissedWith({.token_ids = Tokens(13), .features = {{"dog", 5, 2}}}),
            "salt/adapter 4+8, partial block 12+1");
  EXPECT_EQ(MissedWith({.token_ids = Tokens(13)}), "salt/adapter 4+8, partial block 12+1");
}

TEST_F(OtherExtraKeysTest, OwnRemovalComesFirst) {
  ComputeContent(*manager_, {.token_ids = Tokens(8), .cache_salt = "a"});
  ASSERT_TRUE(manager_->ResetPrefixCache());
  ComputeContent(*manager_, {.token_ids = Tokens(8), .cache_salt = "b"});
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9), .cache_salt = "a"}),
            "removed 0+8, partial block 8+1");
}

TEST_F(OtherExtraKeysTest, EmbeddingsHaveNoTokensToCompare) {
  const auto digest = [](std::string name) { return [name](int64_t, int64_t) { return name; }; };
  ComputeContent(*manager_, {.token_ids = Tokens(8), .embedding_digest = digest("x")});
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9), .embedding_digest = digest("y")}),
            "first use 0+8, partial block 8+1");
  EXPECT_EQ(MissedWith({.token_ids = Tokens(9)}), "first use 0+8, partial block 8+1");
}

TEST_F(OtherExtraKeysTest, RequestsMadeFromHashesCannotKnow) {
  ComputeContent(*manager_, {.token_ids = Tokens(8), .cache_salt = "a"});
  const auto plain = NewRequest(*manager_, Tokens(9));
  const auto hashes = plain->content().hashes();
  const auto request =
      manager_->NewRequestFromHashes("h", 9, {hashes.begin(), hashes.end()}).value();
  EXPECT_EQ(Missed(Explain(*manager_, *request)), "first use 0+8, partial block 8+1");
}

TEST_F(OtherExtraKeysTest, PlainHashesGrowWithTheContent) {
  const auto request =
      manager_->NewRequest({.id = "r", .content = {.token_ids = Tokens(6), .cache_salt = "a"}})
          .value();
  ASSERT_TRUE(request->AppendOutputTokens(Tokens(6, 6)).ok());
  const auto plain = NewRequest(*manager_, Tokens(12));
  for (int64_t block = 0; block < 3; ++block) {
    EXPECT_EQ(request->content().PlainHashOfBlock(block, 1),
              plain->content().HashOfBlock(block, 1));
    EXPECT_EQ(plain->content().PlainHashOfBlock(block, 1), plain->content().HashOfBlock(block, 1));
    EXPECT_FALSE(request->content().HashOfBlock(block, 1) ==
                 plain->content().HashOfBlock(block, 1));
  }
  EXPECT_FALSE(Manager(10, {Full(4)})
                   ->NewRequest({.content = {.token_ids = Tokens(6), .cache_salt = "a"}})
                   .value()
                   ->content()
                   .knows_plain_hashes());
}

// --- Side effects, statistics, options ---

TEST(LookupExplanationTest, ExplainingChangesNothing) {
  const auto manager = Remembering(21, {Full(16), Window(16, 32), Window(16, 32)});
  Compute(*manager, Tokens(55));
  const auto request = NewRequest(*manager, Tokens(60));
  const std::string before = State(*manager, {request.get()});
  const LookupExplanation first = Explain(*manager, *request);
  EXPECT_EQ(Explain(*manager, *request), first);
  EXPECT_EQ(State(*manager, {request.get()}), before);
}

TEST(LookupExplanationTest, ReasonsAreCountedInTokens) {
  const auto manager = Remembering(20, {Full(4)});
  Compute(*manager, Tokens(8));
  const auto request = NewRequest(*manager, Tokens(8) + Tokens(6, 100));
  const LookupExplanation why = Explain(*manager, *request);
  const MissCounts missed = why.TokensByReason();
  manager->RecordPrefixCacheStats(*request, why.num_hit_tokens, &missed);
  manager->RecordPrefixCacheStats(*request, why.num_hit_tokens);  // not explained
  request->MarkPreempted();
  manager->RecordPrefixCacheStats(*request, why.num_hit_tokens, &missed);
  const PrefixCacheStats stats = manager->MakePrefixCacheStats();
  EXPECT_EQ(stats.queries, 28);
  EXPECT_EQ(stats.missed[static_cast<size_t>(MissReason::kFirstUse)], 4);
  EXPECT_EQ(stats.missed[static_cast<size_t>(MissReason::kPartialBlock)], 2);
  EXPECT_EQ(std::accumulate(stats.missed.begin(), stats.missed.end(), int64_t{0}), 6);
  EXPECT_EQ(stats.preempted_missed, stats.missed);
  EXPECT_EQ(manager->MakePrefixCacheStats(), PrefixCacheStats());
}

TEST(LookupExplanationTest, UncountedLookupsCountNoReasons) {
  const auto manager = Remembering(20, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(9), "r", /*skip_reading=*/true);
  const LookupExplanation why = Explain(*manager, *request);
  const MissCounts missed = why.TokensByReason();
  manager->RecordPrefixCacheStats(*request, 0, &missed);
  EXPECT_EQ(manager->MakePrefixCacheStats(), PrefixCacheStats());
}

TEST(LookupExplanationTest, TheOptionIsChecked) {
  const auto create = [](int64_t history) {
    return KvCacheManager::Create(Config(10, {Full(4)}), Seeded({.lookup_history_blocks = history}))
        .status();
  };
  EXPECT_EQ(create(-1).message(), "lookup_history_blocks is -1, expected 0 (off) to 2147483646");
  EXPECT_EQ(create(std::numeric_limits<int64_t>::max()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(create(0).ok());
  EXPECT_TRUE(create(1).ok());
  EXPECT_EQ(Manager(10, {Full(4)})->pool().history(), nullptr);
}

TEST(LookupExplanationTest, EveryReasonHasANameAndAMeaning) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kNumMissReasons; ++i) {
    const auto reason = static_cast<MissReason>(i);
    names.emplace_back(MissReasonName(reason));
    EXPECT_NE(names.back(), "unknown");
    EXPECT_FALSE(MissReasonMeaning(reason).empty());
    EXPECT_EQ(std::count(names.begin(), names.end(), names.back()), 1) << names.back();
  }
}

}  // namespace
}  // namespace kvblocks
