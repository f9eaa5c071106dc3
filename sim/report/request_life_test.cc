#include "sim/report/request_life.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/report/human_table.h"
#include "sim/testing/measured_replay.h"
#include "sim/testing/message_fields.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

using testing::HasSubstr;

// --- Request selector ---

bool Matches(std::string_view text, const TraceRequest& request) {
  const auto selector = RequestSelector::Parse(text);
  EXPECT_TRUE(selector.ok()) << selector.status();
  return selector->Matches(request);
}

TEST(RequestSelectorTest, SelectsById) {
  TraceRequest request;
  request.row = 4;
  request.line = 6;
  request.id = "chat";
  EXPECT_TRUE(Matches("chat", request));
  EXPECT_TRUE(Matches("id:chat", request));
  EXPECT_FALSE(Matches("chat2", request));
  EXPECT_FALSE(Matches("4", request));
  request.id = "row:9";
  EXPECT_TRUE(Matches("id:row:9", request));
  EXPECT_FALSE(Matches("row:9", request));
}

TEST(RequestSelectorTest, SelectsByRowAndLine) {
  TraceRequest request;
  request.row = 4;
  request.line = 6;
  request.id = "chat";
  EXPECT_TRUE(Matches("row:4", request));
  EXPECT_FALSE(Matches("row:6", request));
  EXPECT_TRUE(Matches("line:6", request));
  EXPECT_FALSE(Matches("line:4", request));
}

TEST(RequestSelectorTest, RefusesWhatSelectsNothing) {
  for (const char* text : {"", "id:", "row:", "row:x", "row:-1", "row:1.5", "line:0",
                           "line:", "row:99999999999999999999"}) {
    EXPECT_FALSE(RequestSelector::Parse(text).ok()) << text;
  }
  EXPECT_EQ(RequestSelector::Parse("line:0").status().message(),
            "got \"line:0\", expected a whole number of 1 or more behind the colon");
  EXPECT_TRUE(RequestSelector::Parse("row:0").ok());
}

// --- Request life ---

// One request's life as kvsim explain shows it, and the list of those that lost most.
struct Explained {
  pb::Explanation explanation;
  RequestLife::Seen seen;
  std::vector<std::string> ids;
  bool is_found = false;

  const pb::RequestLife& life() const { return explanation.request(); }
  std::string Text() const { return FormatExplanation(explanation, /*color=*/false); }
};

Explained Explain(Replay& replay, const std::string& request, int64_t history = 1000) {
  RequestLife life(RequestSelector::Parse(request).value());
  replay.config.manager.lookup_history_blocks = history;
  ReplayMetricsOptions options;
  options.admissions = &life;
  ReplayMetrics metrics(options);
  replay.further_observers = {&metrics, &life};
  EXPECT_TRUE(replay.Run().ok());
  Explained explained;
  explained.is_found = life.is_found();
  if (life.is_found()) life.Fill(&explained.explanation);
  metrics.Fill(replay.result, explained.explanation.mutable_replay());
  explained.explanation.mutable_replay()->mutable_config()->set_prefix_caching(
      replay.config.manager.enable_caching);
  explained.seen = life.seen();
  explained.ids = life.ids();
  return explained;
}

std::string Runs(const pb::AdmissionLife& admission) {
  std::string text;
  for (const pb::BlockRunLife& run : admission.runs()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", run.cause(), " ", run.first_token(), "+",
                    run.tokens());
  }
  return absl::StrCat(text, " | ", admission.partial_tokens());
}

TEST(RequestLifeTest, TellsWhatWasEvictedWhenAndByWhom) {
  // As MissCausesTest.EvictedBlocksWereSeen: X takes the deepest of A's three full blocks.
  Replay replay;
  replay.config.kv_cache.num_blocks = 6;
  const auto content = Content(13, 0, 13);
  replay.Add({.id = "A", .prompt = 13, .output = 1, .content = content});
  replay.Add({.id = "X", .prompt = 9, .output = 1, .at = 5});
  replay.Add({.id = "A2", .prompt = 13, .output = 2, .at = 10, .content = content});
  const Explained explained = Explain(replay, "A2");
  const pb::RequestLife& life = explained.life();
  EXPECT_FIELDS(life, "name.row 2, arrival_s 10");
  ASSERT_EQ(life.admissions_size(), 1);
  const pb::AdmissionLife& admission = life.admissions(0);
  EXPECT_EQ(Runs(admission), "hit 0+8, evicted 8+4 | 1");
  EXPECT_FIELDS(admission, "hit_tokens 8, known_tokens 13, attempts 1");
  EXPECT_EQ(admission.runs(0).first_computed_by().id(), "A");
  const pb::BlockRunLife& evicted = admission.runs(1);
  EXPECT_FIELDS(evicted, "first_block 2, first_computed_by.id A");
  // A let go of it at 1 s, X took three blocks at 5 s.
  EXPECT_FIELDS(evicted,
                "last_use.age_s 9, last_use.distance_blocks 3, gone.first_s 5, gone.last_s 5, "
                "gone.min_blocks_since 3, gone.max_blocks_since 3");
  EXPECT_FIELDS(life, "first_token_s 11, end_s 12, end length, output_tokens 2");
  EXPECT_EQ(
      explained.Text(),
      ": 3 requests; 6 blocks of 4 tokens\n"
      "\n"
      "request A2 (row 2), line 3: 13 prompt tokens, 2 output tokens asked for\n"
      "10.000 s  arrived\n"
      "10.000 s  admitted after 0.000 s, 1 attempt\n"
      "    8 of 13 known tokens hit (61.54 %)\n"
      "    from token     tokens   blocks  fate\n"
      "             0          8        2  hit; first computed by request A (row 0)\n"
      "             8          4        1  evicted; last used 9.000 s and 3 blocks earlier; "
      "gone since\n"
      "                                    5.000 s, 3 blocks ago; first computed by request A "
      "(row 0)\n"
      "            12          1           partial block: never cached\n"
      "11.000 s  first token\n"
      "12.000 s  finished (length) with 2 output tokens, 2.000 s after its arrival\n");
}

TEST(RequestLifeTest, WithoutHistoryNobodyKnowsWhenBlocksLeft) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 6;
  const auto content = Content(13, 0, 13);
  replay.Add({.id = "A", .prompt = 13, .output = 1, .content = content});
  replay.Add({.id = "X", .prompt = 9, .output = 1, .at = 5});
  replay.Add({.id = "A2", .prompt = 13, .output = 2, .at = 10, .content = content});
  const Explained explained = Explain(replay, "A2", 0);
  EXPECT_EQ(Runs(explained.life().admissions(0)), "hit 0+8, evicted 8+4 | 1");
  EXPECT_FALSE(explained.life().admissions(0).runs(1).has_gone());
  EXPECT_TRUE(explained.life().admissions(0).runs(1).has_last_use());
  EXPECT_THAT(explained.Text(),
              testing::ContainsRegex("when[ \n]+it[ \n]+was[ \n]+removed[ \n]+is[ \n]+forgotten"));
}

TEST(RequestLifeTest, SaysWhichGroupVetoed) {
  // A2 renews the use of A's full blocks and of the last window block only; X takes the other
  // window blocks. B shares twelve tokens, at whose end the window group has nothing left.
  Replay replay;
  replay.config.kv_cache.num_blocks = 14;
  replay.config.kv_cache.groups = {FullGroup(4), WindowGroup(4, 4)};
  replay.config.manager.semantics.retention_interval.reset();  // windows are kept everywhere
  const auto content = Content(17, 0, 17);
  replay.Add({.id = "A", .prompt = 17, .output = 1, .content = content});
  replay.Add({.id = "A2", .prompt = 17, .output = 1, .at = 5, .content = content});
  replay.Add({.id = "X", .prompt = 13, .output = 1, .at = 10});
  replay.Add({.id = "B", .prompt = 13, .output = 1, .at = 20, .content = Content(12, 900, 13)});
  const Explained explained = Explain(replay, "B");
  const pb::AdmissionLife& admission = explained.life().admissions(0);
  ASSERT_EQ(admission.groups_size(), 2);
  EXPECT_EQ(admission.groups(0).kind(), "full_attention");
  EXPECT_EQ(admission.groups(1).kind(), "sliding_window");
  EXPECT_EQ(admission.hit_tokens(),
            std::min(admission.groups(0).hit_tokens(), admission.groups(1).hit_tokens()));
  int64_t vetoed = 0;
  for (const pb::BlockRunLife& run : admission.runs()) {
    if (run.cause() != "group veto") continue;
    ASSERT_TRUE(run.has_veto());
    EXPECT_EQ(run.veto().group(), 1);
    EXPECT_EQ(run.veto().block(), run.first_block());
    EXPECT_THAT(run.veto().why(), HasSubstr("evicted"));
    vetoed += run.blocks();
  }
  EXPECT_EQ(vetoed, Blocks(explained.explanation.replay().first_admission_misses(),
                           MissReason::kGroupVeto));
  EXPECT_EQ(vetoed, 3);
  EXPECT_EQ(admission.groups(0).hit_tokens(), 12);
  EXPECT_EQ(admission.groups(1).hit_tokens(), 0);
  EXPECT_THAT(explained.Text(), HasSubstr("group 1 (sliding_window) alone would hit"));
}

TEST(RequestLifeTest, TellsOfPreemptionAndResume) {
  // Two requests that outgrow the pool together: the later one is preempted for the first.
  Replay replay;
  replay.config.kv_cache.num_blocks = 6;
  replay.config.scheduler.reserve_full_isl = false;
  replay.Add({.id = "A", .prompt = 7, .output = 8});
  replay.Add({.id = "B", .prompt = 8, .output = 8});
  const Explained explained = Explain(replay, "B");
  const pb::RequestLife& life = explained.life();
  ASSERT_GE(life.preemptions_size(), 1);
  EXPECT_EQ(life.preemptions(0).cause().id(), "A");
  EXPECT_GT(life.preemptions(0).lost_tokens(), 0);
  ASSERT_EQ(life.admissions_size(), life.preemptions_size() + 1);
  EXPECT_TRUE(life.admissions(1).is_resume());
  EXPECT_DOUBLE_EQ(life.admissions(1).waited_s(),
                   life.admissions(1).time_s() - life.preemptions(0).time_s());
  EXPECT_EQ(life.output_tokens(), 8);
  const std::string text = explained.Text();
  EXPECT_THAT(text, HasSubstr("preempted, "));
  EXPECT_THAT(text, HasSubstr("the block went to request A (row 0)"));
  EXPECT_LT(text.find("preempted"), text.find("resumed after"));
}

TEST(RequestLifeTest, TellsOfRejection) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 6;
  replay.config.manager.max_model_len = 16;
  replay.Add({.id = "long", .prompt = 40, .output = 1});
  const Explained explained = Explain(replay, "long");
  EXPECT_FALSE(explained.life().rejection().empty());
  EXPECT_EQ(explained.life().admissions_size(), 0);
  EXPECT_THAT(explained.Text(), HasSubstr("rejected: "));
}

TEST(RequestLifeTest, TellsOfATurnThatNeverArrived) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 8, .output = 50, .abort_after = 2, .session = 1});
  replay.Add({.id = "B", .prompt = 8, .output = 1, .session = 1, .waits_for = {0}, .think = 1});
  const Explained explained = Explain(replay, "B");
  EXPECT_TRUE(explained.is_found);
  EXPECT_TRUE(explained.life().never_arrived());
  EXPECT_THAT(explained.Text(), HasSubstr("given up before it arrived"));
  const Explained aborted = [] {
    Replay again;
    again.Add({.id = "A", .prompt = 8, .output = 50, .abort_after = 2});
    return Explain(again, "A");
  }();
  EXPECT_EQ(aborted.life().end(), "abort");
}

TEST(RequestLifeTest, TheFirstOfSeveralNamesakesIsExplained) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 8, .output = 1});
  replay.Add({.id = "A", .prompt = 12, .output = 1, .at = 3});
  EXPECT_FIELDS(Explain(replay, "A").life(), "prompt_tokens 8, namesakes 1");
  EXPECT_EQ(Explain(replay, "row:1").life().prompt_tokens(), 12);
}

TEST(RequestLifeTest, AnUnknownRequestIsNotFound) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 8, .output = 1});
  replay.Add({.id = "B", .prompt = 12, .output = 1, .at = 3});
  const Explained explained = Explain(replay, "C");
  EXPECT_FALSE(explained.is_found);
  EXPECT_EQ(explained.seen.requests, 2);
  EXPECT_EQ(explained.seen.first_row, 0);
  EXPECT_EQ(explained.seen.last_row, 1);
  EXPECT_EQ(explained.ids, (std::vector<std::string>{"A", "B"}));
}

TEST(RequestLifeTest, PrefixCachingOffLooksNothingUp) {
  Replay replay;
  replay.config.manager.enable_caching = false;
  replay.Add({.id = "A", .prompt = 9, .output = 2});
  const Explained explained = Explain(replay, "A");
  ASSERT_EQ(explained.life().admissions_size(), 1);
  EXPECT_EQ(explained.life().admissions(0).runs_size(), 0);
  EXPECT_THAT(explained.Text(), HasSubstr("prefix caching is off"));
}

// --- On random workloads ---

// The classifier's runs against its own counts, and against what the block manager says.
class RunChecker final : public EngineObserver, public AdmissionSink {
 public:
  void OnRunStart(const RunInfo& info) override { manager_ = info.manager; }
  bool wants_runs() const override { return true; }

  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime) override {
    why_ = ExplainLookup(*manager_, *record.request->kv).value();
    ASSERT_EQ(why_.num_tokens, record.num_queried_tokens);
    ASSERT_EQ(why_.num_hit_tokens, record.num_hit_tokens);
  }
  void OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                const RequestProgress& progress, SimTime) override {
    MissCounts blocks = {};
    int64_t next = 0, hits = 0, dated = 0;
    for (const BlockRun& run : misses.runs) {
      ASSERT_EQ(run.first_block, next);
      next += run.num_blocks;
      ASSERT_LE(run.owner, progress.ordinal);
      if (run.age >= 0) dated += run.num_blocks;
      (run.reason ? blocks[static_cast<size_t>(*run.reason)] : hits) += run.num_blocks;
      if (run.reason == MissReason::kEvicted || run.reason == MissReason::kNotYetComputed) {
        ASSERT_GE(run.owner, 0);
      }
    }
    ASSERT_EQ(next, misses.num_full_blocks);
    ASSERT_EQ(hits, misses.num_hit_blocks);
    ASSERT_EQ(blocks, misses.blocks);
    int64_t released = 0;
    for (const EvictedRun& run : misses.evicted) released += run.num_blocks;
    ASSERT_EQ(dated, released);
    CheckManager(record, misses);
  }

  int64_t num_checked = 0;

 private:
  // Two ways to the same figures: what both can distinguish must agree.
  void CheckManager(const AdmissionRecord& record, const AdmissionMisses& misses) {
    const auto tokens = why_.TokensByReason();
    const auto by_manager = [&](MissReason reason) { return tokens[static_cast<size_t>(reason)]; };
    const auto by_replay = [&](MissReason reason) {
      return misses.blocks[static_cast<size_t>(reason)] * misses.block_tokens;
    };
    ASSERT_EQ(by_manager(MissReason::kPartialBlock) + by_manager(MissReason::kShorterThanABlock),
              record.num_queried_tokens - misses.num_full_blocks * misses.block_tokens);
    ASSERT_EQ(by_manager(MissReason::kLastToken), by_replay(MissReason::kLastToken));
    ASSERT_EQ(by_manager(MissReason::kDraftDrop), by_replay(MissReason::kDraftDrop));
    ASSERT_EQ(by_manager(MissReason::kGroupVeto) + by_manager(MissReason::kAlignment),
              by_replay(MissReason::kGroupVeto));
    num_checked += misses.num_full_blocks - misses.num_hit_blocks;
  }

  const KvCacheManager* manager_ = nullptr;
  LookupExplanation why_;
};

TEST(RequestLifeTest, RunsAgreeWithCountsAndWithTheBlockManager) {
  int64_t checked = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Replay replay;
    AddRandomRequests(seed, replay);
    TightenPool(seed, replay);
    replay.config.manager.lookup_history_blocks = 10'000;
    RunChecker checker;
    ReplayMetricsOptions options;
    options.admissions = &checker;
    ReplayMetrics metrics(options);
    replay.further_observers = {&metrics, &checker};
    ASSERT_TRUE(replay.Run().ok());
    if (HasFatalFailure()) FAIL() << "seed " << seed;
    checked += checker.num_checked;
  }
  EXPECT_GT(checked, 1000);
}

TEST(RequestLifeTest, EveryLifeAddsUp) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    for (const int64_t row : {3, 11, 24}) {
      Replay replay;
      AddRandomRequests(seed, replay);
      TightenPool(seed, replay);
      const Explained explained = Explain(replay, absl::StrCat("row:", row));
      ASSERT_TRUE(explained.is_found);
      for (const pb::AdmissionLife& admission : explained.life().admissions()) {
        int64_t tokens = admission.partial_tokens(), hit = 0;
        for (const pb::BlockRunLife& run : admission.runs()) {
          tokens += run.tokens();
          if (run.cause() == "hit") hit += run.tokens();
          EXPECT_LE(run.gone().last_s(), admission.time_s());
        }
        ASSERT_EQ(tokens, admission.known_tokens());
        ASSERT_EQ(hit, admission.hit_tokens());
      }
      const std::vector<std::string> lines = absl::StrSplit(explained.Text(), '\n');
      for (const std::string& line : lines) {
        ASSERT_LE(line.size(), 100u) << line;
      }
    }
  }
}

// --- The worst ---

TEST(WorstMissesTest, ListsThoseThatLostMostEarlierRowsFirst) {
  const auto content = Content(13, 0, 13), shorter = Content(0, 100, 9);
  for (const size_t top : {size_t{0}, size_t{1}, size_t{5}}) {
    Replay replay;
    replay.config.kv_cache.num_blocks = 8;
    replay.Add({.id = "A", .prompt = 13, .output = 1, .content = content});
    replay.Add({.id = "X", .prompt = 25, .output = 1, .at = 5});
    replay.Add({.id = "A2", .prompt = 13, .output = 1, .at = 10, .content = content});
    replay.Add({.id = "Y", .prompt = 25, .output = 1, .at = 15});
    replay.Add({.id = "A3", .prompt = 13, .output = 1, .at = 20, .content = content});
    replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 25, .content = shorter});
    replay.Add({.id = "Z", .prompt = 25, .output = 1, .at = 30});
    replay.Add({.id = "B2", .prompt = 9, .output = 1, .at = 35, .content = shorter});
    WorstMisses worst(top);
    ReplayMetricsOptions options;
    options.admissions = &worst;
    ReplayMetrics metrics(options);
    replay.further_observers = {&metrics};
    ASSERT_TRUE(replay.Run().ok());
    pb::Explanation explanation;
    worst.Fill(&explanation);
    ASSERT_EQ(explanation.worst_size(), static_cast<int>(std::min<size_t>(top, 3)));
    if (top == 0) continue;
    if (top > 2) EXPECT_FIELDS(explanation.worst(2), "name.id B2, evicted_tokens 8");
    EXPECT_FIELDS(explanation.worst(0),
                  "name.id A2, evicted_tokens 12, partial_tokens 1, last_use.age_s 9, "
                  "last_use.distance_blocks 7");
  }
}

// --- Text ---

TEST(ExplanationTextTest, HostileNamesReachNoTerminal) {
  pb::Explanation explanation;
  explanation.mutable_replay()->mutable_config()->set_prefix_caching(true);
  explanation.mutable_replay()->mutable_workload()->set_name("a\033[2Jb");
  auto* worst = explanation.add_worst();
  worst->mutable_name()->set_id(std::string("\033]0;x\a") + std::string(200, 'y'));
  *worst = WithFields(*worst, "evicted_tokens: 999999999999 known_tokens: 999999999999");
  const std::string text = FormatExplanation(explanation, false);
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << int{c};
  pb::Explanation one;
  one.mutable_request()->mutable_name()->set_id("\n\n\033");
  one.mutable_request()->set_tenant("\t\033");
  for (const char c : FormatExplanation(one, false)) {
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << int{c};
  }
}

TEST(ExplanationTextTest, ColorMarksHeadingsOnly) {
  pb::Explanation explanation;
  explanation.mutable_request()->mutable_name()->set_id("A");
  EXPECT_EQ(FormatExplanation(explanation, false).find('\033'), std::string::npos);
  EXPECT_THAT(FormatExplanation(explanation, true), HasSubstr("\033[1mrequest A"));
}

}  // namespace
}  // namespace kvblocks::sim
