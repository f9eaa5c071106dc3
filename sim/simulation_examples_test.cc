// Worked examples of the simulator: schedules, block ids and token times.

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/eviction.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Times = std::vector<double>;

// Token ids first, first + 1, ...: n of them.
std::vector<int64_t> Ids(int64_t first, int64_t n) {
  std::vector<int64_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

class SimulatorExamples : public ::testing::Test {
 protected:
  void Blocks(int64_t n) { replay_.config.kv_cache.num_blocks = n; }
  void Budget(int64_t t) { replay_.config.scheduler.max_num_batched_tokens = t; }
  void RunToTheEnd() {
    const absl::Status status = replay_.Run();
    ASSERT_TRUE(status.ok()) << status;
  }
  Replay replay_;
};

TEST_F(SimulatorExamples, WE1_BlockGrowth) {
  Blocks(10);
  replay_.Add({.id = "A", .prompt = 7, .output = 3});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:7 [1,2]", "1: A:1 []", "2: A:1 [3] fin A"));
  EXPECT_EQ(replay_.token_times["A"], (Times{1, 2, 3}));
  EXPECT_THAT(replay_.free_queue, ElementsAre(3, 4, 5, 6, 7, 8, 9, 2, 1));
  EXPECT_THAT(replay_.keyed_blocks, ElementsAre(1, 2));
}

TEST_F(SimulatorExamples, WE2_ChunkedByTheBudget) {
  Blocks(10);
  Budget(8);
  replay_.Add({.id = "A", .prompt = 20, .output = 2});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:8 [1,2]", "1: A:8 [3,4]", "2: A:4 [5]", "3: A:1 [6] fin A"));
  EXPECT_EQ(replay_.token_times["A"], (Times{3, 4}));
}

TEST_F(SimulatorExamples, WE3_LongPrefillThreshold) {
  Budget(8);
  replay_.config.scheduler.long_prefill_token_threshold = 4;
  replay_.Add({.id = "A", .prompt = 10, .output = 2});
  replay_.Add({.id = "B", .prompt = 3, .output = 3});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:4 [1], B:3 [2]", "1: A:4 [3], B:1 []",
                                         "2: A:2 [4], B:1 [5] fin B", "3: A:1 [] fin A"));
}

TEST_F(SimulatorExamples, WE4_LastTokenRuleAndDuplicates) {
  Blocks(10);
  replay_.Add({.id = "A", .prompt = 8, .output = 1, .at = 0, .content = Ids(1, 8)});
  replay_.Add({.id = "B", .prompt = 8, .output = 1, .at = 10, .content = Ids(1, 8)});
  replay_.Add({.id = "C", .prompt = 9, .output = 1, .at = 20, .content = Ids(1, 8)});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:8 [1,2] fin A", "10: B:4h4 [3] fin B", "20: C:1h8 [4] fin C"));
  EXPECT_THAT(replay_.free_queue, ElementsAre(4, 5, 6, 7, 8, 9, 3, 2, 1));
  EXPECT_THAT(replay_.keyed_blocks, ElementsAre(1, 2, 3));
}

TEST_F(SimulatorExamples, WE5_SharingWithinAStep) {
  replay_.Add({.id = "A", .prompt = 10, .output = 1, .content = Ids(1, 8)});
  replay_.Add({.id = "B", .prompt = 10, .output = 1, .content = Ids(1, 8)});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:10 [1,2,3], B:2h8 [4] fin A fin B"));
}

TEST_F(SimulatorExamples, WE6_DecodeAndPrefillShareTheBudget) {
  Budget(8);
  replay_.Add({.id = "A", .prompt = 4, .output = 6, .at = 0});
  replay_.Add({.id = "B", .prompt = 12, .output = 2, .at = 1});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:4 [1]", "1: A:1 [2], B:7 [3,4]", "2: A:1 [], B:5 [5]",
                          "3: A:1 [], B:1 [6] fin B", "4: A:1 []", "5: A:1 [6] fin A"));
}

void AddTwoOfEightAndNine(Replay& replay) {
  replay.config.kv_cache.num_blocks = 7;
  replay.Add({.id = "A", .prompt = 8, .output = 9});
  replay.Add({.id = "B", .prompt = 8, .output = 9});
}

TEST_F(SimulatorExamples, WE7_FcfsPreemption) {
  AddTwoOfEightAndNine(replay_);
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:8 [1,2], B:8 [3,4]", "1: A:1 [5], B:1 [6]", "2: A:1 [], B:1 []",
                          "3: A:1 [], B:1 []", "4: A:1 [], B:1 []", "5: A:1 [6] preempt B",
                          "6: A:1 []", "7: A:1 []", "8: A:1 [] fin A", "9: B:5h8 [6,5]",
                          "10: B:1 []", "11: B:1 []", "12: B:1 [] fin B"));
  EXPECT_EQ(replay_.result.scheduler.num_recomputed, 4);
  const PrefixCacheStats& stats = replay_.result.prefix_cache;
  EXPECT_EQ(stats.queries, 16);
  EXPECT_EQ(stats.hits, 0);
  EXPECT_EQ(stats.preempted_queries, 13);
  EXPECT_EQ(stats.preempted_hits, 8);
}

TEST_F(SimulatorExamples, WE8_CannotEverFit) {
  Blocks(4);
  replay_.config.scheduler.too_big = TooBigRequest::kRun;
  replay_.Add({.id = "A", .prompt = 8, .output = 8});
  const absl::Status status = replay_.Run();
  EXPECT_TRUE(IsNoProgress(status));
  EXPECT_THAT(status.message(), HasSubstr("request A"));
  EXPECT_THAT(status.message(), HasSubstr("needs 4 blocks"));
  EXPECT_THAT(status.message(), HasSubstr("3 usable blocks"));
  EXPECT_THAT(status.message(), HasSubstr("--num-blocks"));
  EXPECT_THAT(status.message(), HasSubstr("--too-big=reject"));
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:8 [1,2]", "1: A:1 [3]", "2: A:1 []", "3: A:1 []",
                                         "4: A:1 []", "5: preempt A"));
}

TEST_F(SimulatorExamples, WE8_CannotEverFitIsRejectedByDefault) {
  Blocks(4);
  replay_.Add({.id = "A", .prompt = 8, .output = 8});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, IsEmpty());
  EXPECT_THAT(replay_.rejections["A"], HasSubstr("need 4 blocks"));
}

TEST_F(SimulatorExamples, WE9_AnEmptyStep) {
  Blocks(7);
  replay_.config.scheduler.policy = SchedulingPolicy::kPriority;
  replay_.config.scheduler.rules = SchedulerRules::Of(EngineVersion::kVllm025);  // until V-72
  replay_.Add({.id = "A", .prompt = 8, .output = 6, .at = 0, .priority = 5});
  replay_.Add({.id = "B", .prompt = 8, .output = 6, .at = 0.5, .priority = 1});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:8 [1,2]", "1: A:1 [3], B:8 [4,5]", "2: A:1 [], B:1 [6]",
                          "3: A:1 [], B:1 []", "4: A:1 [], B:1 []", "5: preempt A", "5: B:1 []",
                          "6: B:1 [3] fin B", "7: A:5h8 [3,6] fin A"));
}

TEST_F(SimulatorExamples, WE10_Refund) {
  Blocks(5);
  replay_.config.scheduler.policy = SchedulingPolicy::kPriority;
  replay_.Add({.id = "A", .prompt = 6, .output = 4, .at = 0, .priority = 5});
  replay_.Add({.id = "B", .prompt = 8, .output = 4, .at = 1, .priority = 1});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:6 [1,2]", "1: A:1 [], B:8 [3,4]", "2: B:1 [2] preempt A",
                          "3: B:1 []", "4: B:1 [] fin B", "5: A:4h4 [2]", "6: A:1 [4] fin A"));
}

void AddSixteenTwice(Replay& replay) {
  replay.config.kv_cache.num_blocks = 9;
  replay.config.scheduler.max_num_batched_tokens = 8;
  replay.Add({.id = "A", .prompt = 16, .output = 4});
  replay.Add({.id = "B", .prompt = 16, .output = 2});
}

TEST_F(SimulatorExamples, WE11_WholeSequenceGateOn) {
  AddSixteenTwice(replay_);
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:8 [1,2]", "1: A:8 [3,4]", "2: A:1 [5]", "3: A:1 []",
                          "4: A:1 [] fin A", "5: B:8 [5,6]", "6: B:8 [7,8]", "7: B:1 [4] fin B"));
  EXPECT_EQ(replay_.result.scheduler.num_preemptions, 0);
}

TEST_F(SimulatorExamples, WE11_WholeSequenceGateOff) {
  AddSixteenTwice(replay_);
  replay_.config.scheduler.reserve_full_isl = false;
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:8 [1,2]", "1: A:8 [3,4]", "2: A:1 [5], B:7 [6,7]",
                                         "3: A:1 [] preempt B", "4: A:1 [], B:7h4 [7,8] fin A",
                                         "5: B:5 [5]", "6: B:1 [4] fin B"));
  EXPECT_EQ(replay_.result.scheduler.num_preemptions, 1);
}

void AddForWatermark(Replay& replay, double watermark) {
  replay.config.kv_cache.num_blocks = 12;
  replay.config.manager.watermark = watermark;
  replay.Add({.id = "A", .prompt = 16, .output = 8});
  replay.Add({.id = "B", .prompt = 20, .output = 2});
}

TEST_F(SimulatorExamples, WE12_WatermarkZero) {
  AddForWatermark(replay_, 0.0);
  RunToTheEnd();
  EXPECT_EQ(replay_.lines.front(), "0: A:16 [1,2,3,4], B:20 [5,6,7,8,9]");
  EXPECT_EQ(replay_.token_times["B"].back(), 2);
  EXPECT_EQ(replay_.token_times["A"].back(), 8);
}

TEST_F(SimulatorExamples, WE12_WatermarkOfThreeBlocks) {
  AddForWatermark(replay_, 0.25);
  RunToTheEnd();
  EXPECT_EQ(replay_.lines.front(), "0: A:16 [1,2,3,4]");
  EXPECT_EQ(replay_.token_times["A"].back(), 8);
  EXPECT_EQ(replay_.lines[8], "8: B:20 [6,7,8,9,10]");
  EXPECT_EQ(replay_.token_times["B"].back(), 10);
}

TEST_F(SimulatorExamples, WE13_SequenceLimit) {
  replay_.config.scheduler.max_num_seqs = 1;
  replay_.Add({.id = "A", .prompt = 4, .output = 3});
  replay_.Add({.id = "B", .prompt = 4, .output = 2});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:4 [1]", "1: A:1 [2]", "2: A:1 [] fin A",
                                         "3: B:4 [2]", "4: B:1 [3] fin B"));
}

TEST_F(SimulatorExamples, WE14_ChunkedPrefillOff) {
  Budget(8);
  replay_.config.scheduler.enable_chunked_prefill = false;
  replay_.Add({.id = "A", .prompt = 6, .output = 2});
  replay_.Add({.id = "B", .prompt = 6, .output = 2});
  replay_.Add({.id = "C", .prompt = 2, .output = 1});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:6 [1,2]", "1: A:1 [], B:6 [3,4] fin A",
                                         "2: B:1 [], C:2 [2] fin B fin C"));
}

TEST_F(SimulatorExamples, WE15_DraftsWithLookahead) {
  replay_.config.scheduler.num_draft_tokens = 2;
  replay_.config.scheduler.num_lookahead_tokens = 2;
  replay_.Add({.id = "A", .prompt = 6, .output = 7, .accepted = {2, 0, 1}});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:6 [1,2]", "1: A:3 [3]", "2: A:3 [4]", "3: A:3 [] fin A"));
  EXPECT_EQ(replay_.token_times["A"], (Times{1, 2, 2, 2, 3, 4, 4}));
}

TEST_F(SimulatorExamples, WE15_DraftsWithoutLookahead) {
  replay_.config.scheduler.num_draft_tokens = 2;
  replay_.Add({.id = "A", .prompt = 6, .output = 7, .accepted = {2, 0, 1}});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:6 [1,2]", "1: A:3 [3]", "2: A:3 []", "3: A:3 [4] fin A"));
}

TEST_F(SimulatorExamples, WE16_Padding) {
  replay_.config.scheduler.num_draft_tokens = 2;
  replay_.config.scheduler.num_lookahead_tokens = 2;
  replay_.Add({.id = "C", .prompt = 9, .output = 1, .at = 0, .content = Ids(1, 9)});
  replay_.Add({.id = "A", .prompt = 6, .output = 9, .at = 1, .accepted = {2, 1, 2}});
  replay_.Add(
      {.id = "B", .prompt = 9, .output = 4, .at = 3, .content = Ids(1, 9), .accepted = {1, 2}});
  RunToTheEnd();
  ASSERT_EQ(replay_.lines.size(), 6);
  EXPECT_EQ(replay_.lines[3], "3: A:3 [6], B:3h8 [7,8]");
  EXPECT_THAT(replay_.lines[4], HasSubstr("A:3"));
  EXPECT_THAT(replay_.lines[4], HasSubstr("fin A"));
  EXPECT_THAT(replay_.lines[5], HasSubstr("B:3 [] fin B"));
  EXPECT_EQ(replay_.token_times["B"], (Times{4, 5, 5, 6}));
}

// --- Asynchronous scheduling. Lines begin with the time at which a step was scheduled. ---

class AsyncSimulatorExamples : public SimulatorExamples {
 protected:
  AsyncSimulatorExamples() { replay_.config.scheduler.async = true; }
};

TEST_F(AsyncSimulatorExamples, WE17_AsyncEqualsSyncHere) {
  Blocks(10);
  replay_.Add({.id = "A", .prompt = 7, .output = 3});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:7 [1,2]", "0: A:1 []", "1: A:1 [3] fin A"));
  EXPECT_THAT(replay_.device, ElementsAre("0-1", "1-2", "2-3"));
  EXPECT_EQ(replay_.token_times["A"], (Times{1, 2, 3}));
  EXPECT_THAT(replay_.free_queue, ElementsAre(3, 4, 5, 6, 7, 8, 9, 2, 1));
  EXPECT_THAT(replay_.keyed_blocks, ElementsAre(1, 2));
  EXPECT_EQ(replay_.result.scheduler.num_wasted, 0);
}

TEST_F(AsyncSimulatorExamples, WE18_AsyncWithDraftsWastesAStep) {
  replay_.config.scheduler.num_draft_tokens = 2;
  replay_.config.scheduler.num_lookahead_tokens = 2;
  replay_.Add({.id = "A", .prompt = 6, .output = 7, .accepted = {2, 0, 1}});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:6 [1,2]", "0: A:3 [3]", "1: A:3 [4]",
                                         "2: A:3 [5] fin A", "3: A:3 []"));
  EXPECT_THAT(replay_.device, ElementsAre("0-1", "1-2", "2-3", "3-4", "4-5"));
  EXPECT_EQ(replay_.token_times["A"], (Times{1, 2, 2, 2, 3, 4, 4}));
  const SchedulerTotals& totals = replay_.result.scheduler;
  EXPECT_EQ(totals.num_wasted, 3);
  EXPECT_EQ(totals.num_rejected_drafts, 3);
  EXPECT_EQ(totals.num_first_time, 12);
  EXPECT_EQ(totals.num_computed, 18);
  EXPECT_EQ(replay_.result.end_time, 5 * kSecond);
}

TEST_F(AsyncSimulatorExamples, WE19_AsyncPreemption) {
  AddTwoOfEightAndNine(replay_);
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:8 [1,2], B:8 [3,4]", "0: A:1 [5], B:1 [6]", "1: A:1 [], B:1 []",
                          "2: A:1 [], B:1 []", "3: A:1 [], B:1 []", "4: A:1 [6] preempt B",
                          "5: A:1 []", "6: A:1 []", "7: A:1 [] fin A", "9: B:5h8 [6,5]",
                          "9: B:1 []", "10: B:1 []", "11: B:1 [] fin B"));
  EXPECT_EQ(replay_.device[5], "5-6");
  EXPECT_EQ(replay_.device[9], "9-10");
  EXPECT_EQ(replay_.token_times["A"], (Times{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(replay_.token_times["B"], (Times{1, 2, 3, 4, 5, 10, 11, 12, 13}));
  EXPECT_EQ(replay_.result.scheduler.num_recomputed, 4);
  EXPECT_EQ(replay_.result.scheduler.num_wasted, 0);
  EXPECT_EQ(replay_.result.prefix_cache.preempted_queries, 13);
  EXPECT_EQ(replay_.result.prefix_cache.preempted_hits, 8);
}

TEST_F(AsyncSimulatorExamples, WE20_AsyncChunks) {
  Blocks(10);
  Budget(8);
  replay_.Add({.id = "A", .prompt = 20, .output = 2});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:8 [1,2]", "0: A:8 [3,4]", "1: A:4 [5]", "2: A:1 [6] fin A"));
  EXPECT_EQ(replay_.token_times["A"], (Times{3, 4}));
}

void AddForFreeOrder(Replay& replay) {
  replay.config.kv_cache.num_blocks = 5;
  replay.Add({.id = "A", .prompt = 9, .output = 1, .at = 0, .content = Ids(1, 9)});
  replay.Add({.id = "B", .prompt = 5, .output = 1, .at = 10});
  replay.Add({.id = "C", .prompt = 5, .output = 1, .at = 20});
  replay.Add({.id = "D", .prompt = 9, .output = 1, .at = 30, .content = Ids(1, 9)});
}

TEST_F(SimulatorExamples, WE21_FreeOrderAppendAll) {
  AddForFreeOrder(replay_);
  replay_.config.manager.free_order = FreeOrder::kAppendAll;
  RunToTheEnd();
  EXPECT_EQ(replay_.lines[0], "0: A:9 [1,2,3] fin A");
  EXPECT_EQ(replay_.lines[1], "10: B:5 [4,3] fin B");
  EXPECT_EQ(replay_.lines[2], "20: C:5 [2,1] fin C");
  EXPECT_THAT(replay_.lines[3], HasSubstr("D:9 ["));
  EXPECT_EQ(replay_.evictions, 3);
}

TEST_F(SimulatorExamples, WE21_FreeOrderUnhashedFirst) {
  AddForFreeOrder(replay_);
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:9 [1,2,3] fin A", "10: B:5 [3,4] fin B",
                                         "20: C:5 [4,2] fin C", "30: D:5h4 [2,3] fin D"));
  EXPECT_EQ(replay_.evictions, 2);
}

TEST_F(SimulatorExamples, WE22_ChildrenGoFirst) {
  Blocks(6);
  replay_.Add({.id = "A", .prompt = 13, .output = 1, .at = 0, .content = Ids(1, 13)});
  replay_.Add({.id = "B", .prompt = 9, .output = 1, .at = 5});
  replay_.Add({.id = "C", .prompt = 13, .output = 1, .at = 10, .content = Ids(1, 13)});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:13 [1,2,3,4] fin A", "5: B:9 [4,5,3] fin B",
                                         "10: C:5h8 [3,5] fin C"));
}

TEST_F(SimulatorExamples, WE23_ResumeWithoutHits) {
  Blocks(10);
  replay_.Add({.id = "A", .prompt = 12, .output = 6});
  replay_.Add({.id = "B", .prompt = 8, .output = 6});
  replay_.Add({.id = "C", .prompt = 8, .output = 6});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines,
              ElementsAre("0: A:12 [1,2,3], B:8 [4,5], C:8 [6,7]", "1: A:1 [8], B:1 [9] preempt C",
                          "2: A:1 [], B:1 []", "3: A:1 [], B:1 []", "4: A:1 [], B:1 []",
                          "5: A:1 [7], B:1 [6] fin A fin B", "6: C:9 [6,7,8]", "7: C:1 []",
                          "8: C:1 []", "9: C:1 []", "10: C:1 [3] fin C"));
}

TEST_F(SimulatorExamples, WE24_LengthLimit) {
  replay_.config.manager.max_model_len = 10;
  replay_.Add({.id = "A", .prompt = 8, .output = 100});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:8 [1,2]", "1: A:1 [3] fin A"));
  EXPECT_EQ(replay_.token_times["A"].size(), 2);
}

TEST_F(SimulatorExamples, WE25_Abort) {
  replay_.config.scheduler.max_num_seqs = 1;
  replay_.Add({.id = "A", .prompt = 4, .output = 10, .abort_after = 2});
  replay_.Add({.id = "B", .prompt = 4, .output = 3});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:4 [1]", "1: A:1 [2]", "2: B:4 [2]", "3: B:1 [3]",
                                         "4: B:1 [] fin B"));
  EXPECT_EQ(replay_.ends["A"], "abort");
  EXPECT_EQ(replay_.result.num_aborted_time, 1);
}

TEST_F(SimulatorExamples, WE26_Turns) {
  replay_.Add(
      {.id = "T1", .prompt = 6, .output = 3, .content = Ids(1, 6), .output_ids = {7, 8, 9}});
  replay_.Add({.id = "T2", .prompt = 12, .output = 1, .at = 10, .content = Ids(1, 12)});
  RunToTheEnd();
  EXPECT_EQ(replay_.lines.back(), "10: T2:4h8 [3] fin T2");
}

TEST_F(SimulatorExamples, WE27_EagleDrop) {
  replay_.config.manager.use_eagle = true;
  replay_.Add({.id = "A", .prompt = 9, .output = 1, .at = 0, .content = Ids(1, 9)});
  replay_.Add({.id = "B", .prompt = 9, .output = 1, .at = 10, .content = Ids(1, 9)});
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:9 [1,2,3] fin A", "10: B:5h4 [3,4] fin B"));
}

// A's session keeps blocks 1 and 2. B finds three empty blocks and takes the deeper of the two. C
// passes block 1 over, though it was released first, and D hits it.
void AddForRetention(Replay& replay, std::optional<SimTime> ttl) {
  replay.config.kv_cache.num_blocks = 6;
  replay.config.manager.eviction_policy = *ParseEvictionPolicy("lru");
  replay.config.manager.max_retained_share = 0.4;
  replay.config.scheduler.retention = {{.kind = RetentionRule::Kind::kSession, .ttl = ttl}};
  replay.Add({.id = "A", .prompt = 9, .output = 1, .at = 0, .content = Ids(1, 9), .session = 1});
  replay.Add({.id = "B", .prompt = 13, .output = 1, .at = 5});
  replay.Add({.id = "C", .prompt = 9, .output = 1, .at = 10});
  replay.Add(
      {.id = "D", .prompt = 9, .output = 1, .at = 20, .content = Ids(1, 9), .session = 2});
}

TEST_F(SimulatorExamples, ASessionsBlocksAreRetained) {
  AddForRetention(replay_, std::nullopt);
  RunToTheEnd();
  EXPECT_THAT(replay_.lines, ElementsAre("0: A:9 [1,2,3] fin A", "5: B:13 [3,4,5,2] fin B",
                                         "10: C:9 [2,5,4] fin C", "20: D:5h4 [4,3] fin D"));
  EXPECT_EQ(replay_.retention, (RetentionTotals{.num_begun = 3,
                                                .num_renewed = 1,
                                                .num_taken = 1,
                                                .num_hits = 1,
                                                .peak = 2}));
}

// A ends at 1 s, and C begins at 10 s.
TEST_F(SimulatorExamples, RetentionCountsFromTheEndOfTheRequest) {
  AddForRetention(replay_, 10 * kSecond);
  RunToTheEnd();
  EXPECT_EQ(replay_.lines.back(), "20: D:5h4 [4,3] fin D");
  Replay shorter;
  AddForRetention(shorter, 9 * kSecond);
  ASSERT_TRUE(shorter.Run().ok());
  EXPECT_THAT(shorter.lines, ElementsAre("0: A:9 [1,2,3] fin A", "5: B:13 [3,4,5,2] fin B",
                                         "10: C:9 [2,1,5] fin C", "20: D:9 [5,4,3] fin D"));
  EXPECT_EQ(shorter.retention.num_expired, 1);
}

TEST_F(SimulatorExamples, WE31_LatenciesOfWE7) {
  AddTwoOfEightAndNine(replay_);
  RunToTheEnd();
  EXPECT_EQ(replay_.first_scheduled["A"], 0);
  EXPECT_EQ(replay_.first_scheduled["B"], 0);
  EXPECT_EQ(replay_.token_times["A"], (Times{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(replay_.token_times["B"], (Times{1, 2, 3, 4, 5, 10, 11, 12, 13}));
}

}  // namespace
}  // namespace kvblocks::sim
