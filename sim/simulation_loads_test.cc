// Replays with KV from elsewhere (SM-4, SM-15, SM-17), worked out by hand, and what went wrong in
// the field (vllm#46283). Loads of all kinds, and who holds blocks for whom: SimulationOracle.

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
  EXPECT_THAT(
      replay.RunAll({{.id = "A", .prompt = 12, .output = 2, .content = Document(12)},
                     {.id = "B", .prompt = 5, .output = 1, .at = 1, .content = Document(5)},
                     {.id = "C", .prompt = 13, .output = 1, .at = 3, .content = Document(12)}}),
      ElementsAre("0: load A +8", "1: B:5 [3,4] fin B", "3: A:4 [4], C:1h12 [5] fin C",
                  "4: A:1 [5] fin A"));
  EXPECT_THAT(replay.scripted.calls, ElementsAre("start A 0+8", "leave B finished",
                                                 "leave C finished", "leave A finished"));
  EXPECT_EQ(replay.result.scheduler.num_external, 8);
  EXPECT_EQ(replay.result.scheduler.num_first_time, 4 + 1 + 5 + 1);
}

// Or nobody computes it: the request ends, and its blocks are free at once.
TEST(SimulationLoadsTest, AFailedLoadCanEndItsRequest) {
  LoadReplay replay({{0, {.loads = {{.prefix = 12, .seconds = 2, .arrived = 7}}}}}, 5);
  replay.config.scheduler.load_failure_policy = LoadFailurePolicy::kFail;
  EXPECT_THAT(
      replay.RunAll({{.id = "A", .prompt = 13, .output = 1, .session = 1},
                     {.id = "B", .prompt = 13, .output = 1, .at = 1},
                     {.id = "C", .prompt = 13, .output = 1, .session = 1, .waits_for = {0}}}),
      ElementsAre("0: load A +12", HasSubstr("2: B:13 [")));
  EXPECT_THAT(replay.scripted.calls,
              ElementsAre("start A 0+12", "leave A aborted", "leave B finished"));
  EXPECT_EQ(replay.ends["A"], "error");
  EXPECT_EQ(replay.ends["C"], "abort");  // the rest of its session
  EXPECT_EQ(replay.result.num_failed, 1);
  EXPECT_EQ(replay.result.num_done(), 3);
  EXPECT_EQ(replay.result.scheduler.num_lost, 12);
  EXPECT_EQ(replay.free_queue.size(), 4u);
}

// With a window beside it, the whole prefix is void: the window's blocks lie at its end.
TEST(SimulationLoadsTest, AFailedLoadOfSeveralGroupsIsComputedAsAWhole) {
  LoadReplay replay({{0, {.loads = {{.prefix = 12, .seconds = 2, .arrived = 8}}}}}, 20);
  replay.config.kv_cache.groups.push_back(WindowGroup(4, 4));
  replay.RunAll({{.id = "A", .prompt = 13, .output = 1}});
  ASSERT_EQ(replay.lines.size(), 2u);
  EXPECT_THAT(replay.lines[1], HasSubstr("2: A:13 ["));
  EXPECT_EQ(replay.result.scheduler.num_lost, 12);
}

// --- Aborts ---

// vllm#46283: the load still writes into the blocks, so nobody may have them before it ends; then
// all are there again.
TEST(SimulationLoadsTest, BlocksOfAnAbortedLoadComeBackWhenItEnds) {
  LoadReplay replay({{0, {.loads = {{.prefix = 8, .seconds = 5}}}}}, 4);
  EXPECT_THAT(replay.RunAll({{.id = "A", .prompt = 8, .output = 1, .abort_after = 2},
                             {.id = "B", .prompt = 5, .output = 1}}),
              ElementsAre("0: load A +8", "5: B:5 [2,1] fin B"));
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
  replay.RunAll({{.id = "B", .prompt = 5, .output = 1},
                 {.id = "A", .prompt = 4, .output = 4, .at = 1},
                 {.id = "C", .prompt = 4, .output = 1, .at = 1}});
  EXPECT_EQ(replay.ends["C"], "length");
  EXPECT_EQ(replay.free_queue.size(), 3u);
}

}  // namespace
}  // namespace kvblocks::sim
