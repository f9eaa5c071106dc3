// Asynchronous scheduling where it differs from synchronous: what is under way when something
// happens.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/cost/pipeline.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using Times = std::vector<double>;

TEST(AsyncSimulationTest, HostTimeIsBesideTheStep) {
  for (const SimTime host : {100 * kMillisecond, 3 * kSecond}) {
    Replay replay;
    replay.config.scheduler.async = true;
    replay.config.host_time_per_step = host;
    replay.Add({.id = "A", .prompt = 4, .output = 2});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(replay.result.end_time, 2 * std::max(host, kSecond));
  }
}

TEST(AsyncSimulationTest, ArrivalDuringAStepIsSeenWhenTheOneBeforeItEnds) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.Add({.id = "A", .prompt = 4, .output = 6});
  replay.Add({.id = "B", .prompt = 4, .output = 1, .at = 1.5});
  ASSERT_TRUE(replay.Run().ok());
  // The steps that run until 2 and until 3 were scheduled before; B has its token at 4.
  EXPECT_EQ(replay.lines[3], "2: A:1 [], B:4 [3] fin B");
  EXPECT_EQ(replay.device[3], "3-4");
}

TEST(AsyncSimulationTest, AbortWastesTheStepUnderWay) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.Add({.id = "A", .prompt = 4, .output = 10, .abort_after = 2});
  replay.Add({.id = "B", .prompt = 4, .output = 1, .at = 2});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines,
              ElementsAre("0: A:4 [1]", "0: A:1 [2]", "1: A:1 []", "2: B:4 [2] fin B"));
  // Gone before the outputs of the step that ends at that moment (V-84).
  EXPECT_EQ(replay.token_times["A"], (Times{1}));
  EXPECT_EQ(replay.token_times["B"], (Times{4}));
  EXPECT_EQ(replay.result.scheduler.num_wasted, 2);
  EXPECT_EQ(replay.result.scheduler.num_computed, 10);
  EXPECT_EQ(replay.free_queue.size(), 999);
}

TEST(AsyncSimulationTest, AbortOfTheLastRequestStillRunsItsStep) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.Add({.id = "A", .prompt = 4, .output = 10, .abort_after = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(replay.ends["A"], "abort");
  EXPECT_EQ(replay.result.end_time, 2 * kSecond);
  EXPECT_EQ(replay.result.scheduler.num_wasted, 5);  // the prompt's step, too (V-84)
}

TEST(AsyncSimulationTest, PreemptedRequestMayEndWithTheTokenThatWasToCome) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.config.kv_cache.num_blocks = 7;
  replay.Add({.id = "A", .prompt = 8, .output = 9});
  replay.Add({.id = "B", .prompt = 8, .output = 5});
  ASSERT_TRUE(replay.Run().ok());
  // B's fifth token is under way when A takes its block.
  EXPECT_THAT(replay.lines, Contains("3: A:1 [], B:1 [] fin B"));
  EXPECT_THAT(replay.lines, Contains("4: A:1 [6] preempt B"));
  EXPECT_EQ(replay.token_times["B"], (Times{1, 2, 3, 4, 5}));
  EXPECT_EQ(replay.result.scheduler.num_preemptions, 1);
  EXPECT_EQ(replay.result.scheduler.num_recomputed, 0);
}

TEST(AsyncSimulationTest, LongestSequenceWastesNothing) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.config.manager.max_model_len = 10;
  replay.Add({.id = "A", .prompt = 8, .output = 100});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:8 [1,2]", "0: A:1 [3] fin A"));
  EXPECT_EQ(replay.result.scheduler.num_wasted, 0);
}

TEST(AsyncSimulationTest, RequestWithoutOutputEndsWithItsPrompt) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.config.zero_output = ZeroOutput::kPrefill;
  replay.Add({.id = "A", .prompt = 8, .output = 0});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:8 [1,2] fin A"));
  EXPECT_EQ(replay.token_times.count("A"), 0);
}

TEST(AsyncSimulationTest, EmptyStepWaitsForTheStepUnderWay) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.config.kv_cache.num_blocks = 7;
  replay.config.scheduler.policy = SchedulingPolicy::kPriority;
  replay.config.scheduler.rules = SchedulerRules::Of(EngineVersion::kVllm025);
  replay.Add({.id = "A", .prompt = 8, .output = 6, .at = 0, .priority = 5});
  replay.Add({.id = "B", .prompt = 8, .output = 6, .at = 0.5, .priority = 1});
  ASSERT_TRUE(replay.Run().ok());
  // As in WE-9 A preempts itself although B could go on.
  EXPECT_THAT(replay.lines, Contains("4: preempt A"));
  EXPECT_THAT(replay.lines, Contains("5: B:1 []"));
  EXPECT_EQ(replay.result.scheduler.num_empty_steps, 1);
  EXPECT_EQ(replay.token_times["A"].size(), 6);
  EXPECT_EQ(replay.token_times["B"].size(), 6);
}

TEST(AsyncSimulationTest, BlockedHeadThatWasPaddedIsTriedAgainWithoutDecodesBesideIt) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.config.scheduler.num_draft_tokens = 4;
  replay.config.scheduler.rules.pads_unless_prompts_run = false;
  replay.config.kv_cache.num_blocks = 9;
  const std::vector<int64_t> shared = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  replay.Add({.id = "C", .prompt = 9, .output = 1, .content = shared});
  replay.Add({.id = "A", .prompt = 9, .output = 3, .at = 2, .accepted = {0, 0}});
  replay.Add({.id = "B", .prompt = 9, .output = 1, .at = 2.5, .content = shared});
  ASSERT_TRUE(replay.Run().ok());
  // Beside A's decode B's one token is filled up with drafts, which need a block too many. At 4 A
  // only waits for its last token.
  EXPECT_THAT(replay.lines, ElementsAre("0: C:9 [1,2,3] fin C", "2: A:9 [3,4,5]", "2: A:5 [6]",
                                        "3: A:5 [7] fin A", "4: B:1h8 [8] fin B"));
}

// --- Pipeline stages ---

// Stages of a second each.
std::unique_ptr<StepTimeModel> SecondsPerStage(int64_t num_stages) {
  std::vector<std::unique_ptr<StepTimeModel>> clocks;
  for (int64_t s = 0; s < num_stages; ++s) clocks.push_back(MakeFixedStepTime(kSecond).value());
  const std::vector<SendTime> sends(static_cast<size_t>(num_stages - 1));
  return MakePipeline(std::move(clocks), sends).value();
}

struct PipelineReplay : Replay {
  explicit PipelineReplay(int64_t num_stages, bool async) : clock(SecondsPerStage(num_stages)) {
    step_time = clock.get();
    config.scheduler.pipeline_stages = num_stages;
    config.scheduler.async = async;
  }
  std::unique_ptr<StepTimeModel> clock;
};

TEST(PipelineSimulationTest, SM28OneRequestHasAStepUnderWayAtATime) {
  for (const bool async : {false, true}) {
    PipelineReplay replay(2, async);
    replay.Add({.id = "A", .prompt = 4, .output = 3});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(replay.token_times["A"], (Times{2, 4, 6}));
    EXPECT_THAT(replay.device, ElementsAre("0-2", "2-4", "4-6"));
    EXPECT_EQ(replay.result.busy_time, 6 * kSecond);
    EXPECT_EQ(replay.result.stage_time, 6 * kSecond);  // half of what two stages could
    // Asynchronously the second call for it is the one after next (V-78).
    EXPECT_EQ(replay.lines[1], async ? "0: A:1 [2]" : "2: A:1 [2]");
  }
}

TEST(PipelineSimulationTest, SM28TwoRequestsFillTwoStages) {
  PipelineReplay replay(2, /*async=*/true);
  replay.config.scheduler.max_num_batched_tokens = 4;
  replay.config.scheduler.max_num_seqs = 4;
  replay.Add({.id = "A", .prompt = 4, .output = 2});
  replay.Add({.id = "B", .prompt = 4, .output = 2});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:4 [1]", "0: B:4 [2]", "0: A:1 [3] fin A",
                                        "2: B:1 [4] fin B"));
  EXPECT_THAT(replay.device, ElementsAre("0-2", "1-3", "2-4", "3-5"));
  EXPECT_EQ(replay.result.busy_time, 5 * kSecond);
  EXPECT_EQ(replay.result.stage_time, 8 * kSecond);
}

TEST(PipelineSimulationTest, SM28PartsOfOnePromptFollowEachOther) {
  PipelineReplay replay(2, /*async=*/false);
  replay.config.scheduler.max_num_batched_tokens = 4;
  replay.config.scheduler.max_num_seqs = 4;
  replay.Add({.id = "A", .prompt = 8, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:4 [1]", "0: A:4 [2] fin A"));
  EXPECT_THAT(replay.device, ElementsAre("0-2", "1-3"));
}

TEST(PipelineSimulationTest, ClockAndSchedulerMustAgreeOnStages) {
  PipelineReplay replay(2, /*async=*/true);
  replay.config.scheduler.pipeline_stages = 3;
  replay.Add({.id = "A", .prompt = 4, .output = 1});
  const absl::Status status = replay.Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("2 pipeline stages, expected 3"));
}

}  // namespace
}  // namespace kvblocks::sim
