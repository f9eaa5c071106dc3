// Replays with KV from elsewhere (SM-4, SM-15, SM-17), worked out by hand, and what went wrong in
// the field: vllm#45387, vllm#46283, vllm#57104.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/replay.h"
#include "sim/testing/scripted_connector.h"

namespace kvblocks::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct LoadReplay : Replay {
  explicit LoadReplay(ConnectorScript script, int64_t num_blocks = 10)
      : scripted(std::move(script)) {
    config.kv_cache.num_blocks = num_blocks;
    connector = &scripted;
  }
  ScriptedConnector scripted;
};

// B shares A's prompt, but finds nothing of it while it is on its way; C finds it when it has come.
TEST(SimulationLoadsTest, AnAsynchronousLoadHoldsBlocksAndRegistersThemWhenItEnds) {
  LoadReplay replay({{0, {.loads = {{.prefix = 8, .seconds = 3}}}}}, 20);
  replay.Add({.id = "A", .prompt = 12, .output = 2, .content = Document(12)});
  replay.Add({.id = "B", .prompt = 5, .output = 1, .at = 1, .content = Document(5)});
  replay.Add({.id = "C", .prompt = 13, .output = 1, .at = 3, .content = Document(12)});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines,
              ElementsAre("0: load A +8", "1: B:5 [3,4] fin B", "3: A:4 [4], C:1h12 [5] fin C",
                          "4: A:1 [5] fin A"));
  EXPECT_THAT(replay.scripted.calls, ElementsAre("start A 0+8", "leave B finished",
                                                 "leave C finished", "leave A finished"));
  EXPECT_EQ(replay.result.scheduler.num_external, 8);
  EXPECT_EQ(replay.result.scheduler.num_first_time, 4 + 1 + 5 + 1);
}

// What the connector has of all known tokens is loaded; the last one is computed all the same.
TEST(SimulationLoadsTest, TheLastTokenOfAWholePromptIsComputed) {
  LoadReplay replay({{0, {.loads = {{.prefix = 8, .seconds = 2}}}}});
  replay.Add({.id = "A", .prompt = 8, .output = 2});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: load A +8", "2: A:1 []", "3: A:1 [3] fin A"));
  EXPECT_THAT(replay.keyed_blocks, ElementsAre(1, 2));
}

// Added to the step, or beside it.
TEST(SimulationLoadsTest, StepsWaitForSynchronousAndLayerwiseLoads) {
  LoadReplay replay({{0, {.loads = {{.prefix = 12, .mode = LoadMode::kSync, .seconds = 3}}}},
                     {1, {.loads = {{.prefix = 8, .mode = LoadMode::kLayerwise, .seconds = 4}}}}},
                    20);
  replay.Add({.id = "A", .prompt = 12, .output = 1});
  replay.Add({.id = "B", .prompt = 12, .output = 1, .at = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:1+11 [] fin A", "4: B:4+8 [6] fin B"));
  EXPECT_THAT(replay.device, ElementsAre("0-4", "4-8"));
  EXPECT_EQ(replay.result.load_time, 6 * kSecond);
}

// The second of the blocks did not come whole.
TEST(SimulationLoadsTest, AFailedLoadIsComputedFromItsFirstBadBlockOn) {
  LoadReplay replay({{0, {.loads = {{.prefix = 12, .seconds = 2, .arrived = 7}}}}});
  replay.Add({.id = "A", .prompt = 13, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: load A +12", "2: A:9 [4] fin A"));
  EXPECT_EQ(replay.result.scheduler.num_failed_loads, 1);
  EXPECT_EQ(replay.result.scheduler.num_lost, 8);
}

// Or nobody computes it: the request ends, and its blocks are free at once.
TEST(SimulationLoadsTest, AFailedLoadCanEndItsRequest) {
  LoadReplay replay({{0, {.loads = {{.prefix = 12, .seconds = 2, .arrived = 7}}}}}, 5);
  replay.config.scheduler.load_failure_policy = LoadFailurePolicy::kFail;
  replay.Add({.id = "A", .prompt = 13, .output = 1, .session = 1});
  replay.Add({.id = "B", .prompt = 13, .output = 1, .at = 1});
  replay.Add({.id = "C", .prompt = 13, .output = 1, .session = 1, .waits_for = {0}});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: load A +12", HasSubstr("2: B:13 [")));
  EXPECT_THAT(replay.scripted.calls,
              ElementsAre("start A 0+12", "leave A aborted", "leave B finished"));
  EXPECT_EQ(replay.ends["A"], "error");
  EXPECT_EQ(replay.ends["C"], "abort");  // the rest of its session
  EXPECT_EQ(replay.result.num_failed, 1);
  EXPECT_EQ(replay.result.num_done(), 3);
  EXPECT_EQ(replay.result.scheduler.num_lost, 12);
  EXPECT_EQ(replay.free_queue.size(), 4u);
}

// Nothing is left: its blocks are given back, and it is looked up again.
TEST(SimulationLoadsTest, ALoadThatBringsNothingStartsAnew) {
  LoadReplay replay(
      {{0, {.loads = {{.prefix = 8, .seconds = 2, .arrived = 3}, {.prefix = 4, .seconds = 1}}}}});
  replay.Add({.id = "A", .prompt = 9, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines,
              ElementsAre("0: load A +8", "2: load A +4", "3: A:5 [1,3] fin A"));
}

// With a window beside it, the whole prefix is void: the window's blocks lie at its end.
TEST(SimulationLoadsTest, AFailedLoadOfSeveralGroupsIsComputedAsAWhole) {
  LoadReplay replay({{0, {.loads = {{.prefix = 12, .seconds = 2, .arrived = 8}}}}}, 20);
  replay.config.kv_cache.groups.push_back(WindowGroup(4, 4));
  replay.Add({.id = "A", .prompt = 13, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  ASSERT_EQ(replay.lines.size(), 2u);
  EXPECT_THAT(replay.lines[1], HasSubstr("2: A:13 ["));
  EXPECT_EQ(replay.result.scheduler.num_lost, 12);
}

// B overtakes A, whose match is not known before 2; then A goes first again.
TEST(SimulationLoadsTest, WhatIsNotKnownYetIsSetAside) {
  LoadReplay replay({{0, {.ready_at = 2, .loads = {{.prefix = 4, .mode = LoadMode::kSync}}}}});
  replay.config.scheduler.max_num_seqs = 1;
  replay.Add({.id = "A", .prompt = 6, .output = 1});
  replay.Add({.id = "B", .prompt = 4, .output = 2});
  replay.Add({.id = "C", .prompt = 4, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: B:4 [1]", "1: B:1 [2] fin B", "2: A:2+4 [3] fin A",
                                        "4: C:4 [3] fin C"));
}

// What others read of a request that is gone stays theirs until they say so.
TEST(SimulationLoadsTest, FinishedBlocksCanBeHeld) {
  LoadReplay replay({{0, {.loads = {}, .hold = 4}}}, 4);
  replay.Add({.id = "A", .prompt = 8, .output = 1});
  replay.Add({.id = "B", .prompt = 5, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:8 [1,2] fin A", "5: B:5 [3,2] fin B"));
  EXPECT_EQ(replay.free_queue.size(), 3u);
}

// PREEMPTED -> LOADING -> PREEMPTED -> RUNNING. WE-7 with a connector that has what B computed.
TEST(SimulationLoadsTest, APreemptedRequestCanLoadWhatItLost) {
  LoadReplay replay({{1, {.loads = {{.prefix = 1, .seconds = 0},
                                    {.prefix = 12, .seconds = 2}}}}}, 7);
  replay.config.manager.enable_caching = false;
  replay.Add({.id = "A", .prompt = 8, .output = 9});
  replay.Add({.id = "B", .prompt = 8, .output = 9});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines,
              ElementsAre("0: A:8 [1,2] load B +1", "1: A:1 [4], B:7 [5]", "2: A:1 [], B:1 [6]",
                          "3: A:1 [], B:1 []", "4: A:1 [], B:1 []", "5: A:1 [6] preempt B",
                          "6: A:1 []", "7: A:1 []", "8: A:1 [] fin A", "9: load B +12",
                          "11: B:1 []", "12: B:1 [1]", "13: B:1 []", "14: B:1 []",
                          "15: B:1 [] fin B"));
}

// --- Aborts ---

// vllm#46283: the load still writes into the blocks, so nobody may have them before it ends; then
// all are there again.
TEST(SimulationLoadsTest, BlocksOfAnAbortedLoadComeBackWhenItEnds) {
  LoadReplay replay({{0, {.loads = {{.prefix = 8, .seconds = 5}}}}}, 4);
  replay.Add({.id = "A", .prompt = 8, .output = 1, .abort_after = 2});
  replay.Add({.id = "B", .prompt = 5, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: load A +8", "5: B:5 [2,1] fin B"));
  EXPECT_EQ(replay.ends["A"], "abort");
  EXPECT_EQ(replay.free_queue.size(), 3u);
}

TEST(SimulationLoadsTest, ALoadThatNeverEndsIsNamed) {
  LoadReplay replay({{0, {.loads = {{.prefix = 8, .seconds = 5}}}}}, 4);
  replay.scripted.forgets_aborted_loads = true;
  replay.Add({.id = "A", .prompt = 8, .output = 1, .abort_after = 2});
  const absl::Status status = replay.Run();
  EXPECT_TRUE(IsNoProgress(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no progress: 1 loads are under way and 0 holds of blocks last"));
}

// An abort between the load's end and the next step frees at once; one by queue time also reaches
// who loads.
TEST(SimulationLoadsTest, LoadedRequestsCanBeGivenUp) {
  LoadReplay replay({{1, {.loads = {{.prefix = 4, .seconds = 1}}}}}, 4);
  replay.config.scheduler.max_num_seqs = 2;
  replay.config.scheduler.max_num_active_seqs = 1;
  replay.config.max_queue_time = 3 * kSecond;
  replay.Add({.id = "B", .prompt = 5, .output = 1});
  replay.Add({.id = "A", .prompt = 4, .output = 4, .at = 1});
  replay.Add({.id = "C", .prompt = 4, .output = 1, .at = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(replay.ends["C"], "length");
  EXPECT_EQ(replay.free_queue.size(), 3u);
}

// --- Who holds blocks for whom ---

// vllm#57104: seven blocks; A needs four and one for its drafts, B three and one. Were both loaded
// at once, neither would find its last block.
TEST(SimulationLoadsTest, ALoadLeavesWhatAnotherNeedsForItsDrafts) {
  LoadReplay replay({{0, {.loads = {{.prefix = 16, .seconds = 2}}}},
                     {1, {.loads = {{.prefix = 12, .seconds = 2}}}}},
                    8);
  replay.config.scheduler.num_draft_tokens = 1;
  replay.config.scheduler.num_lookahead_tokens = 1;
  replay.Add({.id = "A", .prompt = 16, .output = 1});
  replay.Add({.id = "B", .prompt = 12, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: load A +16", "2: A:2 [5] fin A", "3: load B +12",
                                        "5: B:2 [4] fin B"));
}

// vllm#45387: the head of the queue waits for blocks that loads hold, which have ended behind it.
TEST(SimulationLoadsTest, WhoHoldsBlocksGoesBeforeAHeadThatDoesNotFit) {
  LoadReplay replay({{0, {.loads = {{.prefix = 16, .seconds = 3}}}}}, 8);
  replay.config.scheduler.policy = SchedulingPolicy::kPriority;
  replay.Add({.id = "L", .prompt = 17, .output = 1, .priority = 5});
  replay.Add({.id = "H", .prompt = 20, .output = 1, .at = 1, .priority = 0});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: load L +16", "3: L:1 [5] fin L",
                                        "4: H:20 [5,6,7,4,3] fin H"));
}

// Without the gate on whole sequences the last one let in, more urgent, cannot go on before the
// others have.
TEST(SimulationLoadsTest, OneThatDoesNotFitDoesNotStandInTheWayOfTheOthers) {
  LoadReplay replay({{0, {.loads = {{.prefix = 8, .seconds = 4}}}},
                     {1, {.loads = {{.prefix = 4, .seconds = 1}}}}},
                    8);
  replay.config.scheduler.policy = SchedulingPolicy::kPriority;
  replay.config.scheduler.reserve_full_isl = false;
  replay.Add({.id = "A", .prompt = 16, .output = 1, .priority = 1});
  replay.Add({.id = "B", .prompt = 24, .output = 1, .at = 1, .priority = 0});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: load A +8", "1: load B +4", "4: A:8 [4,5] fin A",
                                        "5: B:20 [6,7,5,4,2] fin B"));
}

// A load that can never leave its reserve is not waited for: the request is computed.
TEST(SimulationLoadsTest, WhoIsAloneComputesWhatHasNoRoomToBeLoaded) {
  LoadReplay replay({{0, {.loads = {{.prefix = 2, .seconds = 1}}}}}, 2);
  replay.config.scheduler.num_draft_tokens = 1;
  replay.Add({.id = "A", .prompt = 2, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:2 [1] fin A"));
}

}  // namespace
}  // namespace kvblocks::sim
