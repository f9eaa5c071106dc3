#include "kvblocks/lookup_explanation.h"

#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

constexpr int64_t kHistory = 1000;

std::unique_ptr<KvCacheManager> Remembering(int64_t num_blocks, std::vector<KvCacheSpec> specs,
                                            KvCacheManagerOptions options = {}) {
  if (options.lookup_history_blocks == 0) options.lookup_history_blocks = kHistory;
  return Manager(num_blocks, std::move(specs), options);
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
std::string Misses(const LookupExplanation& why) {
  std::string text;
  for (const MissedRun& run : why.missed) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", std::string(MissReasonName(run.reason)), " ",
                    run.first_token, "+", run.num_tokens);
  }
  return text;
}
std::string Misses(const KvCacheManager& manager, std::vector<TokenId> tokens) {
  return Misses(Explain(manager, *NewRequest(manager, std::move(tokens))));
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

TEST(LookupExplanationTest, APromptShorterThanABlockIsSaidToBe) {
  const auto manager = Remembering(10, {Full(4)});
  EXPECT_EQ(Misses(*manager, Tokens(3)), "shorter than a block 0+3");
  const auto hybrid = Remembering(100, {Full(16), Window(4, 8)});
  EXPECT_EQ(Misses(*hybrid, Tokens(15)), "shorter than a block 0+15");
}

TEST(LookupExplanationTest, CachingOffAndSkippedReadingAreTheirOwnReasons) {
  const auto off = Manager(10, {Full(4)}, {.enable_caching = false, .lookup_history_blocks = 5});
  const LookupExplanation why = Explain(*off, *NewRequest(*off, Tokens(9)));
  EXPECT_EQ(Misses(why), "caching off 0+9");
  EXPECT_EQ(why.hit_alignment, 0);
  EXPECT_TRUE(why.groups.empty());
  const auto manager = Remembering(10, {Full(4)});
  Compute(*manager, Tokens(9));
  EXPECT_EQ(Misses(Explain(*manager, *NewRequest(*manager, Tokens(9), "r", true))),
            "reading skipped 0+9");
}

// --- Groups ---

// WE-22.
TEST(LookupExplanationTest, AWindowedGroupVetoes) {
  const auto manager = Remembering(21, {Full(16), Window(16, 32), Window(16, 32)});
  Compute(*manager, Tokens(55));  // [1..4], [5..8], [9..12]
  const auto b = NewRequest(*manager, Tokens(48) + Tokens(5, 500));
  EXPECT_EQ(Misses(Explain(*manager, *b)), "partial block 48+5");

  ASSERT_TRUE(manager->EvictBlocks({11}).ok());  // position 2 of group 2
  LookupExplanation why = Explain(*manager, *b);
  EXPECT_EQ(Misses(why), "group veto 32+16, partial block 48+5");
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
  EXPECT_EQ(Misses(Explain(*manager, *b)), "group veto 0+32, removed 32+16, partial block 48+5");
}

// --- The same tokens elsewhere ---

class OtherExtraKeysTest : public ::testing::Test {
 protected:
  std::string MissedWith(PrefixContent::Options content) {
    const auto request = manager_->NewRequest({.id = "r", .content = std::move(content)}).value();
    return Misses(Explain(*manager_, *request));
  }
  std::unique_ptr<KvCacheManager> manager_ = Remembering(100, {Full(4)});
};

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
  EXPECT_EQ(Misses(Explain(*manager_, *request)), "first use 0+8, partial block 8+1");
}

// --- Side effects, statistics, options ---

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

}  // namespace
}  // namespace kvblocks
