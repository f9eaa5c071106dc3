#include "sim/simulation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
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
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Times = std::vector<double>;
using Seconds = std::map<std::string, double>;
using Texts = std::map<std::string, std::string>;

// --- Rejection and zero output ---

TEST(SimulationTest, EmptyPromptIsRejected) {
  Replay replay;
  replay.RunAll({{.id = "A", .prompt = 0, .output = 3}});
  EXPECT_THAT(replay.rejections["A"], HasSubstr("prompt has 0 tokens"));
  EXPECT_EQ(replay.result.num_rejected, 1);
  EXPECT_THAT(replay.lines, IsEmpty());
}

TEST(SimulationTest, PromptAsLongAsTheLongestSequenceIsRejected) {
  Replay replay;
  replay.config.manager.max_model_len = 10;
  replay.RunAll({{.id = "A", .prompt = 10, .output = 1}, {.id = "B", .prompt = 9, .output = 5}});
  EXPECT_THAT(replay.rejections["A"], HasSubstr("prompt has 10 tokens"));
  EXPECT_THAT(replay.rejections["A"], HasSubstr("max_model_len, which is 10"));
  EXPECT_EQ(replay.token_times["B"], (Times{1}));
}

TEST(SimulationTest, DraftsCountTowardsWhatARequestNeeds) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 5;
  replay.config.scheduler.num_draft_tokens = 2;
  replay.RunAll({{.id = "A", .prompt = 8, .output = 8}});
  EXPECT_THAT(replay.rejections["A"], HasSubstr("need 5 blocks"));
}

TEST(SimulationTest, ZeroOutputProducesOneTokenByDefault) {
  Replay replay;
  replay.RunAll({{.id = "A", .prompt = 5, .output = 0}});
  EXPECT_EQ(replay.token_times["A"], (Times{1}));
}

TEST(SimulationTest, ZeroOutputSkippedIsCounted) {
  Replay replay;
  replay.config.zero_output = ZeroOutput::kSkip;
  replay.RunAll({{.id = "A", .prompt = 5, .output = 0},
                 {.id = "B", .prompt = 5, .output = 1, .at = 3, .waits_for = {0}, .think = 4}});
  EXPECT_EQ(replay.result.num_skipped, 1);
  EXPECT_EQ(replay.result.num_arrived, 1);
  EXPECT_THAT(replay.lines, ElementsAre("4: B:5 [1,2] fin B"));
}

TEST(SimulationTest, ZeroOutputPrefillEndsWithThePrompt) {
  Replay replay;
  replay.config.zero_output = ZeroOutput::kPrefill;
  replay.config.scheduler.max_num_batched_tokens = 4;
  EXPECT_THAT(replay.RunAll({{.id = "A", .prompt = 6, .output = 0}}),
              ElementsAre("0: A:4 [1]", "1: A:2 [2] fin A"));
  EXPECT_EQ(replay.result.scheduler.num_output_tokens, 0);
  EXPECT_EQ(replay.result.scheduler.num_first_time, 6);
}

// --- Closed loop ---

// Whichever is later, also where A, which ends at 3, did so before B's row was read.
TEST(SimulationTest, DependentArrivesAfterFinishAndThinkTimeOrAtItsOwn) {
  struct Row {
    double at, think, start;
  };
  for (const auto& [at, think, start] : {Row{0, 2.5, 5.5}, Row{20, 2, 20}, Row{10, 9, 12}}) {
    Replay replay;
    replay.RunAll(
        {{.id = "A", .prompt = 4, .output = 3},
         {.id = "B", .prompt = 4, .output = 1, .at = at, .waits_for = {0}, .think = think}});
    EXPECT_EQ(replay.first_scheduled["B"], start) << at;
  }
}

TEST(SimulationTest, AllDependenciesMustFinish) {
  Replay replay;
  replay.RunAll({{.id = "A", .prompt = 4, .output = 3},
                 {.id = "B", .prompt = 4, .output = 6},
                 {.id = "C", .prompt = 4, .output = 1, .waits_for = {0, 1}, .has_arrival = false}});
  EXPECT_EQ(replay.first_scheduled["C"], 6);
}

TEST(SimulationTest, DependencyOnARejectedRequestIsMet) {
  Replay replay;
  replay.RunAll({{.id = "A", .prompt = 0, .output = 3},
                 {.id = "B", .prompt = 4, .output = 1, .waits_for = {0}, .think = 1}});
  EXPECT_EQ(replay.first_scheduled["B"], 1);
}

TEST(SimulationTest, ConcurrencyStartsTheNextSessionWhenOneEnds) {
  Replay replay;
  replay.config.concurrency = 2;
  // Requests without a session are sessions of their own; their times do not matter.
  replay.RunAll({{.id = "A", .prompt = 4, .output = 2, .at = 100},
                 {.id = "B", .prompt = 4, .output = 4, .at = 200},
                 {.id = "C", .prompt = 4, .output = 1, .at = 300}});
  EXPECT_EQ(replay.first_scheduled, (Seconds{{"A", 0}, {"B", 0}, {"C", 2}}));
}

TEST(SimulationTest, ConcurrencyCountsASessionUntilItsLastTurn) {
  Replay replay;
  replay.config.concurrency = 1;
  // The turns of two sessions alternate in the trace.
  replay.RunAll({{.id = "A1", .prompt = 4, .output = 2, .session = 1},
                 {.id = "B1", .prompt = 4, .output = 1, .session = 2},
                 {.id = "A2",
                  .prompt = 4,
                  .output = 2,
                  .session = 1,
                  .waits_for = {0},
                  .think = 3,
                  .has_arrival = false},
                 {.id = "B2",
                  .prompt = 4,
                  .output = 1,
                  .session = 2,
                  .waits_for = {1},
                  .has_arrival = false}});
  EXPECT_EQ(replay.first_scheduled, (Seconds{{"A1", 0}, {"A2", 5}, {"B1", 7}, {"B2", 8}}));
}

TEST(SimulationTest, TurnsKeepTheirDistanceToTheFirstUnderConcurrency) {
  Replay replay;
  replay.config.concurrency = 1;
  replay.RunAll({{.id = "A1", .prompt = 4, .output = 1, .at = 50, .session = 1},
                 {.id = "A2", .prompt = 4, .output = 1, .at = 57, .session = 1, .waits_for = {0}}});
  EXPECT_EQ(replay.first_scheduled, (Seconds{{"A1", 0}, {"A2", 7}}));
}

TEST(SimulationTest, ConcurrencyMayStartSessionsOneByOne) {
  Replay replay;
  replay.config.concurrency = 3;
  replay.config.start_jitter = 10 * kSecond;
  replay.config.start_delay = 5 * kSecond;
  replay.RunAll({{.id = "A", .prompt = 4, .output = 2},
                 {.id = "B", .prompt = 4, .output = 1},
                 {.id = "C", .prompt = 4, .output = 1},
                 {.id = "D", .prompt = 4, .output = 1}});
  EXPECT_EQ(replay.first_scheduled["A"], 0);
  EXPECT_NEAR(replay.first_scheduled["B"], 6.18, 0.01);
  EXPECT_NEAR(replay.first_scheduled["C"], 2.36, 0.01);
  // A ended at 2, and the news take 5 s; then B's step runs.
  EXPECT_NEAR(replay.first_scheduled["D"], 7.18, 0.01);
}

// --- Aborts ---

TEST(SimulationTest, GivesUpAfterWaitingTooLong) {
  Replay replay;
  replay.config.scheduler.max_num_seqs = 1;
  replay.config.max_queue_time = 3 * kSecond;
  replay.RunAll({{.id = "A", .prompt = 4, .output = 6},
                 {.id = "B", .prompt = 4, .output = 1},
                 {.id = "C", .prompt = 4, .output = 1, .at = 4}});
  EXPECT_EQ(replay.ends, (Texts{{"A", "length"}, {"B", "abort"}, {"C", "length"}}));
  EXPECT_EQ(replay.result.num_aborted_queue, 1);
}

TEST(SimulationTest, PreemptedRequestDoesNotGiveUp) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 7;
  replay.config.max_queue_time = 2 * kSecond;
  replay.RunAll({{.id = "A", .prompt = 8, .output = 9}, {.id = "B", .prompt = 8, .output = 9}});
  EXPECT_EQ(replay.result.num_finished, 2);
}

TEST(SimulationTest, AbortingASessionAbortsItsUnstartedTurns) {
  Replay replay;
  replay.RunAll({{.id = "A1", .prompt = 4, .output = 9, .abort_after = 3, .session = 1},
                 {.id = "A2", .prompt = 4, .output = 1, .session = 1, .waits_for = {0}},
                 {.id = "A3", .prompt = 4, .output = 1, .at = 30, .session = 1, .waits_for = {1}},
                 {.id = "B1", .prompt = 4, .output = 1, .at = 40, .session = 2}});
  EXPECT_EQ(replay.ends,
            (Texts{{"A1", "abort"}, {"A2", "abort"}, {"A3", "abort"}, {"B1", "length"}}));
  EXPECT_EQ(replay.result.num_aborted_time, 1);
  EXPECT_EQ(replay.result.num_aborted_session, 2);
  EXPECT_EQ(replay.token_times.count("A2"), 0);
}

// --- Clock, trace, progress ---

TEST(SimulationTest, IdleClockJumpsToTheNextArrival) {
  Replay replay;
  EXPECT_THAT(replay.RunAll({{.id = "A", .prompt = 4, .output = 1, .at = 1.5},
                             {.id = "B", .prompt = 4, .output = 1, .at = 86400}}),
              ElementsAre("1.5: A:4 [1] fin A", "86400: B:4 [2] fin B"));
  EXPECT_EQ(replay.result.busy_time, 2 * kSecond);
}

TEST(SimulationTest, EmptyTraceEndsAtOnce) {
  Replay replay;
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(replay.result.end_time, 0);
}

TEST(SimulationTest, TraceIsReadNoFurtherThanTheClock) {
  Replay replay;
  for (int i = 0; i < 50; ++i) {
    replay.Add({.id = std::to_string(i), .prompt = 4, .output = 2, .at = 10.0 * i});
  }
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_LE(replay.peak_read_ahead, 1);
  EXPECT_EQ(replay.result.peak_live_requests, 1);
}

TEST(SimulationTest, ArrivalBeyondTheClockIsAnError) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 4, .output = 1, .at = 9.3e9});
  const absl::Status status = replay.Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("request A (line 1)"));
}

TEST(SimulationTest, ClockOverflowIsAnError) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 4, .output = 100, .at = 9223370.0});
  const absl::Status status = replay.Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("106 days"));
}

TEST(SimulationTest, HostTimeIsAddedToEveryStep) {
  Replay replay;
  replay.config.host_time_per_step = 100 * kMillisecond;
  replay.config.host_time_per_request = 50 * kMillisecond;
  replay.RunAll({{.id = "A", .prompt = 4, .output = 1}, {.id = "B", .prompt = 4, .output = 1}});
  EXPECT_EQ(replay.result.end_time, kSecond + 200 * kMillisecond);
}

TEST(SimulationTest, EmptyStepTakesItsTime) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 7;
  replay.config.scheduler.policy = SchedulingPolicy::kPriority;
  replay.config.scheduler.rules = SchedulerRules::Of(EngineVersion::kVllm025);  // until V-72
  replay.config.empty_step_time = 250 * kMillisecond;
  EXPECT_THAT(replay.RunAll({{.id = "A", .prompt = 8, .output = 6, .at = 0, .priority = 5},
                             {.id = "B", .prompt = 8, .output = 6, .at = 0.5, .priority = 1}}),
              Contains("5.25: B:1 []"));
  EXPECT_EQ(replay.result.scheduler.num_empty_steps, 1);
}

TEST(SimulationTest, BadTraceEndsTheRunWithItsError) {
  TraceInfo info;
  TraceRequest request;
  request.id = "A";
  request.input_length = 4;
  request.output_length = 1;
  VectorTraceReader reader(info, {request, request});
  reader.set_fail_after(1);
  Replay defaults;
  const auto step_time = MakeFixedStepTime(kSecond);
  const auto simulation = Simulation::Create(defaults.config, &reader, step_time->get(), {});
  ASSERT_TRUE(simulation.ok());
  EXPECT_EQ((*simulation)->Run().message(), "trace:7: error: bad row");
}

TEST(SimulationTest, ProgressCallbackCanStopTheRun) {
  TraceRequest request;
  request.input_length = 4;
  request.output_length = 1000;
  VectorTraceReader reader(TraceInfo(), {request});
  Replay defaults;
  defaults.config.progress_interval = 10;
  const auto step_time = MakeFixedStepTime(kSecond);
  const auto simulation = Simulation::Create(defaults.config, &reader, step_time->get(), {});
  ASSERT_TRUE(simulation.ok());
  int calls = 0;
  (*simulation)->set_progress([&](const SimulationProgress& progress) {
    EXPECT_EQ(progress.num_running, 1);
    return ++calls < 3;
  });
  EXPECT_EQ((*simulation)->Run().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ((*simulation)->result().scheduler.num_output_tokens, 29);
}

// --- Observers and scheduling ---

TEST(SimulationTest, HeadThatCannotFitIsNotTriedAgainUntilSomethingChanges) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 9;
  replay.RunAll({{.id = "A", .prompt = 16, .output = 12}, {.id = "B", .prompt = 20, .output = 1}});
  EXPECT_EQ(replay.first_scheduled["B"], 12);
  EXPECT_EQ(replay.admission_attempts, 3);  // A; B in vain; B after A's end
}

TEST(SimulationTest, ChunkedPrefillOffWithALongPromptMakesNoProgress) {
  Replay replay;
  replay.config.scheduler.enable_chunked_prefill = false;
  replay.config.scheduler.max_num_batched_tokens = 8;
  replay.Add({.id = "A", .prompt = 9, .output = 1});
  const absl::Status status = replay.Run();
  EXPECT_TRUE(IsNoProgress(status));
  EXPECT_THAT(status.message(), HasSubstr("request A (line 1"));
  EXPECT_THAT(status.message(), HasSubstr("--max-num-batched-tokens"));
}

TEST(SimulationTest, RequestThatKeepsPreemptingItselfIsStopped) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 4;
  replay.config.scheduler.too_big = TooBigRequest::kRun;
  replay.config.scheduler.reserve_full_isl = false;
  replay.config.scheduler.max_num_batched_tokens = 4;
  replay.config.manager.enable_caching = false;
  replay.Add({.id = "A", .prompt = 14, .output = 1});
  const absl::Status status = replay.Run();
  EXPECT_TRUE(IsNoProgress(status)) << status;
  EXPECT_EQ(replay.result.scheduler.num_preemptions, 2);
}

TEST(SimulationTest, WindowedModelHoldsFewBlocksForALongSequence) {
  Replay replay;
  replay.config.kv_cache.num_blocks = 8;
  replay.config.kv_cache.groups = {WindowGroup(4, 8)};
  replay.config.scheduler.max_num_batched_tokens = 8;
  replay.RunAll({{.id = "A", .prompt = 40, .output = 40}});
  EXPECT_EQ(replay.ends["A"], "length");
  EXPECT_EQ(replay.result.scheduler.num_preemptions, 0);
}

TEST(SimulationTest, KvEventsAreDeliveredOncePerIteration) {
  struct Counter : EngineObserver {
    void OnKvEvents(absl::Span<const KvEvent> events, SimTime now) override {
      batches.push_back({now, events.size()});
    }
    std::vector<std::pair<SimTime, size_t>> batches;
  } counter;
  Replay replay;
  replay.config.manager.enable_events = true;
  replay.further_observers = {&counter};
  replay.RunAll({{.id = "A", .prompt = 8, .output = 6}});
  ASSERT_EQ(counter.batches.size(), 2);  // the prompt's blocks, then the one that output fills
  EXPECT_EQ(counter.batches[0].first, kSecond);
  EXPECT_EQ(counter.batches[1].first, 5 * kSecond);
}

TEST(SimulationTest, NullArgumentsAreRefused) {
  Replay defaults;
  VectorTraceReader reader(TraceInfo(), {});
  const auto step_time = MakeFixedStepTime(kSecond);
  EXPECT_FALSE(Simulation::Create(defaults.config, nullptr, step_time->get(), {}).ok());
  EXPECT_FALSE(Simulation::Create(defaults.config, &reader, nullptr, {}).ok());
  EXPECT_FALSE(Simulation::Create(defaults.config, &reader, step_time->get(), {nullptr}).ok());
}

// --- Asynchronous steps ---

TEST(SimulationTest, HostTimeIsBesideTheStep) {
  for (const SimTime host : {100 * kMillisecond, 3 * kSecond}) {
    Replay replay;
    replay.config.scheduler.async = true;
    replay.config.host_time_per_step = host;
    replay.RunAll({{.id = "A", .prompt = 4, .output = 2}});
    EXPECT_EQ(replay.result.end_time, 2 * std::max(host, kSecond));
  }
}

TEST(SimulationTest, RequestWithoutOutputEndsWithItsPrompt) {
  Replay replay;
  replay.config.scheduler.async = true;
  replay.config.zero_output = ZeroOutput::kPrefill;
  EXPECT_THAT(replay.RunAll({{.id = "A", .prompt = 8, .output = 0}}),
              ElementsAre("0: A:8 [1,2] fin A"));
  EXPECT_EQ(replay.token_times.count("A"), 0);
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

TEST(SimulationTest, SM28OneRequestHasAStepUnderWayAtATime) {
  for (const bool async : {false, true}) {
    PipelineReplay replay(2, async);
    replay.RunAll({{.id = "A", .prompt = 4, .output = 3}});
    EXPECT_EQ(replay.token_times["A"], (Times{2, 4, 6}));
    EXPECT_THAT(replay.device, ElementsAre("0-2", "2-4", "4-6"));
    EXPECT_EQ(replay.result.busy_time, 6 * kSecond);
    EXPECT_EQ(replay.result.stage_time, 6 * kSecond);  // half of what two stages could
    // Asynchronously the second call for it is the one after next (V-78).
    EXPECT_EQ(replay.lines[1], async ? "0: A:1 [2]" : "2: A:1 [2]");
  }
}

TEST(SimulationTest, SM28TwoRequestsFillTwoStages) {
  PipelineReplay replay(2, /*async=*/true);
  replay.config.scheduler.max_num_batched_tokens = 4;
  replay.config.scheduler.max_num_seqs = 4;
  EXPECT_THAT(
      replay.RunAll({{.id = "A", .prompt = 4, .output = 2}, {.id = "B", .prompt = 4, .output = 2}}),
      ElementsAre("0: A:4 [1]", "0: B:4 [2]", "0: A:1 [3] fin A", "2: B:1 [4] fin B"));
  EXPECT_THAT(replay.device, ElementsAre("0-2", "1-3", "2-4", "3-5"));
  EXPECT_EQ(replay.result.busy_time, 5 * kSecond);
  EXPECT_EQ(replay.result.stage_time, 8 * kSecond);
}

TEST(SimulationTest, ClockAndSchedulerMustAgreeOnStages) {
  PipelineReplay replay(2, /*async=*/true);
  replay.config.scheduler.pipeline_stages = 3;
  replay.Add({.id = "A", .prompt = 4, .output = 1});
  const absl::Status status = replay.Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("2 pipeline stages, expected 3"));
}

}  // namespace
}  // namespace kvblocks::sim
