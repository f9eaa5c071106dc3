// The scheduler's rules of vLLM 0.33 (V-70 to V-89 of docs/simulator.md) that NaiveEngine does not
// have, one small schedule each, and what it cannot say of policies.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Tokens first .. first + count - 1 of a document.
std::vector<int64_t> Tokens(int64_t document, int64_t count, int64_t first = 0) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(document * 1000 + first + i);
  return tokens;
}

std::vector<int64_t> Joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Blocks of 4, full attention, synchronous steps of 1 s.
class SchedulerRulesTest : public ::testing::Test {
 protected:
  SchedulerRulesTest() {
    replay_.config.kv_cache.num_blocks = 20;
    replay_.config.manager.max_model_len = 1000;
    scheduler().max_num_seqs = 8;
  }

  SchedulerOptions& scheduler() { return replay_.config.scheduler; }
  void Ngram(int64_t num_drafts) {
    ASSERT_TRUE(
        ApplyDrafts({.drafter = Drafter::kNgram, .num_draft_tokens = num_drafts}, &replay_.config)
            .ok());
  }
  // A prompt of its own, or tokens of a document.
  void Add(const std::string& id, double at, int64_t prompt, int64_t output,
           std::vector<int64_t> content = {}) {
    replay_.Add({.id = id, .prompt = prompt, .output = output, .at = at, .content = content});
  }
  const std::vector<std::string>& Lines() {
    const absl::Status status = replay_.Run();
    EXPECT_TRUE(status.ok()) << status;
    return replay_.lines;
  }

  Replay replay_;
};

// --- V-71: two budgets ---

TEST_F(SchedulerRulesTest, V71_APromptThatFitsNoStepBesideTheSlotsIsNamed) {
  scheduler().max_num_batched_tokens = 8;
  scheduler().num_draft_slots = 2;
  scheduler().enable_chunked_prefill = false;
  Add("A", 0, 7, 1);
  EXPECT_THAT(replay_.Run().message(),
              AllOf(HasSubstr("request A"), HasSubstr("needs 7 tokens in one step"),
                    HasSubstr("room for 6"), HasSubstr("less 2 slots for drafts")));
}

// --- V-80, V-81: where parts of prompts end ---

TEST_F(SchedulerRulesTest, V80_ADrafterOfSeveralModulesReadsBehindAPart) {
  scheduler().max_num_batched_tokens = 8;
  ASSERT_TRUE(
      ApplyDrafts({.drafter = Drafter::kMtpModules, .num_draft_tokens = 3}, &replay_.config).ok());
  Add("A", 0, 10, 1);
  // 8 would leave 2 tokens, fewer than the three that the drafter reads.
  EXPECT_THAT(Lines(), ElementsAre("0: A:7 [1,2,3]", "1: A:3 [4] fin A"));
}

// What it needs behind a part keeps nobody else from entering.
TEST_F(SchedulerRulesTest, V80_WhoGetsNothingForItsDrafterLetsOthersPass) {
  replay_.config.kv_cache.num_blocks = 60;
  scheduler().max_num_batched_tokens = 8;
  ASSERT_TRUE(
      ApplyDrafts(
          {.drafter = Drafter::kMtpModules, .num_draft_tokens = 2, .lookahead_hashes = false},
          &replay_.config)
          .ok());
  Add("A", 0, 7, 1);
  Add("B", 0, 2, 1);
  Add("C", 0, 20, 1);
  EXPECT_THAT(Lines(), ElementsAre("0: A:7 [1,2,3], C:1 [4] fin A", "1: C:8 [3,2]", "2: C:8 [5,6]",
                                   "3: C:3 [7], B:2 [8] fin C fin B"));
}

TEST_F(SchedulerRulesTest, V81_APartThatWouldEndBeforeABlockWaits) {
  replay_.config.kv_cache.groups = {FullGroup(8), StateGroup(8)};
  scheduler().max_num_batched_tokens = 14;
  Add("A", 0, 11, 1);
  Add("B", 0, 11, 1);
  // A stops at 8, the end of its last block; the 6 tokens left do not fill a block of B.
  EXPECT_THAT(Lines(),
              ElementsAre("0: A:8 [1,2]", "1: A:3 [3,4], B:8 [5,6] fin A", "2: B:3 [4,3] fin B"));
}

// Nor do the drafts that fill an admission up: it enters bare.
TEST_F(SchedulerRulesTest, V81_NoPaddingOverTheEndOfABlock) {
  replay_.config.kv_cache.num_blocks = 60;
  replay_.config.kv_cache.groups = {StateGroup(8), FullGroup(4)};
  replay_.config.manager.partial_hits = true;
  replay_.config.manager.semantics.retention_interval = std::nullopt;
  Ngram(4);
  Add("A", 0, 7, 1, Tokens(1, 7));
  Add("B", 3, 5, 3, Tokens(1, 5));
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[2].substr(0, 9), "3: B:1h4 ");
  EXPECT_EQ(lines[3].substr(0, 7), "4: B:5 ");
}

TEST_F(SchedulerRulesTest, V81_BlocksLongerThanAStepAreComputedInParts) {
  replay_.config.kv_cache.groups = {FullGroup(8), StateGroup(8)};
  scheduler().max_num_batched_tokens = 6;
  Add("A", 0, 18, 1);
  // From inside a block up to its end.
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0].substr(0, 6), "0: A:6");
  EXPECT_EQ(lines[1].substr(0, 6), "1: A:2");
  EXPECT_EQ(lines[2].substr(0, 6), "2: A:6");
  EXPECT_EQ(lines[3].substr(0, 6), "3: A:2");
  EXPECT_EQ(lines[4].substr(0, 6), "4: A:2");
}

// --- V-82: registration when outputs arrive ---

TEST_F(SchedulerRulesTest, V82_SynchronousDraftsRegisterWithTheirOutputs) {
  Ngram(3);
  replay_.Add({.id = "A",
               .prompt = 5,
               .output = 4,
               .content = Tokens(1, 5),
               .output_ids = {7, 8, 9, 10},
               .accepted = {3}});
  Add("B", 5, 9, 1, Joined(Tokens(1, 5), {7, 8, 9, 10}));
  EXPECT_THAT(Lines(), ElementsAre("0: A:5 [1,2]", "1: A:4 [3] fin A", "5: B:4h8 [3] fin B"));
}

// --- V-87: prefixes that others share ---

// So a prefix is hit from the third request on (V-5).
TEST_F(SchedulerRulesTest, V87_TheSecondRequestKeepsWhatTheThirdShares) {
  replay_.config.kv_cache.num_blocks = 40;
  replay_.config.kv_cache.groups = {FullGroup(4), WindowGroup(4, 4)};
  for (int64_t i = 0; i < 3; ++i) {
    Add(std::string(1, static_cast<char>('A' + i)), static_cast<double>(2 * i), 21, 1,
        Joined(Tokens(1, 12), Tokens(2 + i, 9)));
  }
  EXPECT_THAT(Lines(), ElementsAre("0: A:21 [1,2,3,4,5,6,7,8,9,10,11,12] fin A",
                                   "2: B:21 [12,10,9,8,7,6,13,14,15,16,17,18] fin B",
                                   "4: C:9h12 [18,16,14,13,6,19] fin C"));
}

// --- V-89: windows of older engines ---

TEST_F(SchedulerRulesTest, V89_OlderEnginesTrimWindowsByWhatIsScheduled) {
  // A's first block is behind the window of token 8, but not of token 7, whose step is under way
  // when that of token 8 is scheduled.
  for (const bool is_old : {false, true}) {
    Replay replay;
    replay.config.kv_cache.groups = {WindowGroup(4, 5)};
    replay.config.scheduler.async = true;
    replay.config.scheduler.rules.trims_settled_windows = !is_old;
    replay.Add({.id = "A", .prompt = 4, .output = 12});
    ASSERT_TRUE(replay.Run().ok());
    std::vector<std::string> taken;
    for (const std::string& line : replay.lines) {
      if (line.find("[]") == std::string::npos) taken.push_back(line);
    }
    if (is_old) {
      EXPECT_THAT(taken, ElementsAre("0: A:4 [1]", "0: A:1 [2]", "4: A:1 [1]", "8: A:1 [2]"));
    } else {
      EXPECT_THAT(taken, ElementsAre("0: A:4 [1]", "0: A:1 [2]", "4: A:1 [3]", "8: A:1 [1]"));
    }
  }
}

// --- Lookahead hashes (V-10) and drops ---

TEST_F(SchedulerRulesTest, V10_LookaheadHashesHitTheWholePrompt) {
  ASSERT_TRUE(
      ApplyDrafts({.drafter = Drafter::kEagle, .num_draft_tokens = 1}, &replay_.config).ok());
  Add("A", 0, 9, 1, Tokens(1, 9));
  Add("B", 2, 9, 1, Tokens(1, 9));
  EXPECT_THAT(Lines(), ElementsAre("0: A:9 [1,2,3] fin A", "2: B:2h8 [3] fin B"));
}

TEST_F(SchedulerRulesTest, V10_WithoutThemTheLastBlockIsDropped) {
  ASSERT_TRUE(
      ApplyDrafts({.drafter = Drafter::kEagle, .num_draft_tokens = 1, .lookahead_hashes = false},
                  &replay_.config)
          .ok());
  EXPECT_TRUE(replay_.config.manager.use_eagle);
  Add("A", 0, 9, 1, Tokens(1, 9));
  Add("B", 2, 9, 1, Tokens(1, 9));
  EXPECT_EQ(Lines().back().substr(0, 8), "2: B:5h4");
}

// --- SM-29: policies. NaiveEngine has their orders ---

TEST_F(SchedulerRulesTest, SM29_WithMoreThan128WaitingByArrival) {
  replay_.config.kv_cache.num_blocks = 1000;
  scheduler().max_num_seqs = 1;
  scheduler().policy = SchedulingPolicy::kLongestPrefix;
  Add("first", 0, 41, 1, Tokens(1, 41));
  for (int i = 0; i < 129; ++i) Add(absl::StrCat("own", i), 0.5, 5, 1);
  Add("hits", 0.5, 41, 1, Tokens(1, 41));
  Lines();
  // 130 wait at 1 s, 129 at 2 s.
  EXPECT_EQ(replay_.first_scheduled.at("own0"), 1);
  EXPECT_EQ(replay_.first_scheduled.at("own1"), 2);
  EXPECT_EQ(replay_.first_scheduled.at("hits"), 3);
}

TEST_F(SchedulerRulesTest, SM29_PrefixesNeedCaching) {
  Add("A", 0, 8, 6);
  replay_.config.manager.enable_caching = false;
  for (const SchedulingPolicy policy :
       {SchedulingPolicy::kLongestPrefix, SchedulingPolicy::kPrefixTree}) {
    scheduler().policy = policy;
    EXPECT_THAT(replay_.Run().message(),
                AllOf(HasSubstr(SchedulingPolicyName(policy)), HasSubstr("caching is off")));
  }
}

TEST(SchedulingPolicyTest, NamesAreParsedBack) {
  for (int i = 0; i <= static_cast<int>(SchedulingPolicy::kNoEvict); ++i) {
    const auto policy = static_cast<SchedulingPolicy>(i);
    EXPECT_EQ(ParseSchedulingPolicy(SchedulingPolicyName(policy)), policy);
  }
  EXPECT_EQ(ParseSchedulingPolicy("FCFS"), std::nullopt);
}

}  // namespace
}  // namespace kvblocks::sim
