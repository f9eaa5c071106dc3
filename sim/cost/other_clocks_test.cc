// SM-58: recorded steps, pipelines, and steps with drafts (SM-66).

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/cost/pipeline.h"
#include "sim/cost/recorded_steps.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

SequenceWork DecodeAt(int64_t context) {
  return {.num_context = context, .num_new = 1, .num_sampled = 1};
}

TEST(RecordedStepsTest, TakesOneEntryAfterTheOther) {
  const auto clock = ParseRecordedSteps("# measured\n12.5ms\n\n3us\n", "FILE");
  ASSERT_TRUE(clock.ok()) << clock.status();
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 12'500 * kMicrosecond);
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 3 * kMicrosecond);
  const auto third = (*clock)->StepTime({DecodeAt(1)});
  EXPECT_EQ(third.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(third.status().message(), HasSubstr("FILE has 2 steps, and the replay needs more"));
}

TEST(RecordedStepsTest, ReadsTheRowsOfAReplay) {
  // The second step was scheduled while the first one ran.
  const auto clock =
      ParseRecordedSteps("step,start_ms,end_ms,tokens\n0,1,3.5,7\n1,1,4,1\n2,10,10.25,1\n", "FILE");
  ASSERT_TRUE(clock.ok()) << clock.status();
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 2500 * kMicrosecond);
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 500 * kMicrosecond);
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 250 * kMicrosecond);
}

TEST(RecordedStepsTest, BadLinesAreNamed) {
  struct {
    const char* text;
    const char* message;
  } const cases[] = {
      {"", "FILE: no steps"},
      {"1ms\nsoon\n", "FILE:2: got \"soon\", expected a duration like 12.5ms"},
      {"step,end_ms\n0,1\n", "FILE:1: got \"step,end_ms\", expected a column start_ms"},
      {"start_ms,end_ms\n1\n", "FILE:2: got \"1\", expected as many columns"},
      {"start_ms,end_ms\n1,x\n", "FILE:2: got \"1,x\", expected times in ms"},
      {"start_ms,end_ms\n1,5\n2,5\n", "FILE:3: got \"2,5\", expected an end after"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ParseRecordedSteps(c.text, "FILE").status().message(), HasSubstr(c.message));
  }
  EXPECT_THAT(LoadRecordedSteps("/nonexistent").status().message(),
              HasSubstr("--step-times: /nonexistent: cannot be opened"));
}

std::unique_ptr<StepTimeModel> Fixed(SimTime time) { return *MakeFixedStepTime(time); }

TEST(DraftedStepTimeTest, SM66FurtherPassesSeeTheSequencesThatDrewATokenOnly) {
  const auto clock = MakeDraftedStepTime(Fixed(100), Fixed(7), 3, "one layer");
  EXPECT_EQ(*clock->StepTime({DecodeAt(5)}), 100 + 3 * 7);
  // Nobody draws a token in a chunk: the drafter fills its cache, and drafts nothing.
  EXPECT_EQ(*clock->StepTime({SequenceWork{.num_context = 0, .num_new = 64}}), 100 + 7);
  EXPECT_EQ(*clock->StepTime({}, {.num_sequences = 4, .sum_context = 9}), 100 + 3 * 7);
  EXPECT_EQ(clock->source(), "fixed");
  ASSERT_EQ(clock->parts().size(), 1);
  EXPECT_EQ(clock->parts()[0].source, "one layer, fixed, 3 passes per step");
}

TEST(PipelineTest, SM28WholeStepsAreDividedByLayers) {
  auto whole = MakeFixedStepTime(100);
  const auto clock = MakeDividedClock(*std::move(whole), {0, 11, 22, 32});
  ASSERT_TRUE(clock.ok()) << clock.status();
  EXPECT_EQ((*clock)->num_stages(), 3);
  std::vector<SimTime> stages(3);
  SimTime send = 7;
  ASSERT_TRUE((*clock)->StageTimes({DecodeAt(1), DecodeAt(2)}, {}, absl::MakeSpan(stages), &send).ok());
  EXPECT_EQ(stages, (std::vector<SimTime>{34, 34, 32}));  // of 34.375, 68.75 and 100
  EXPECT_EQ(send, 0);
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1), DecodeAt(2)}), 100);
}

TEST(PipelineTest, SM28StagesHaveClocksOfTheirOwn) {
  std::vector<std::unique_ptr<StepTimeModel>> clocks;
  clocks.push_back(MakeFixedStepTime(10).value());
  clocks.push_back(MakeFixedStepTime(30).value());
  // 4,096 values of two bytes, two tensors, over 4 ranks of 100 GB/s: 40.96 ns.
  const auto send = MakeSendTime(4096, 4, 100, 7);
  ASSERT_TRUE(send.ok());
  EXPECT_EQ(send->per_token, 40'960);
  const auto clock = MakePipeline(std::move(clocks), *send);
  ASSERT_TRUE(clock.ok()) << clock.status();
  EXPECT_EQ(*(*clock)->StepTime({DecodeAt(1)}), 40'960 + 7 + 40);
  EXPECT_FALSE(MakeSendTime(4096, 4, 0, 7).ok());
  EXPECT_FALSE(MakePipeline({}, *send).ok());
}

}  // namespace
}  // namespace kvblocks::sim
