// SM-63: the clock of steps that an engine took.

#include "kvblocks/sim/cost/whole_steps.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

// 3 ms, 20 us per token above 256, 0.05 us per token of context, 11 us per sequence.
SimTime TrueTime(const StepCounts& counts) {
  return 3 * kMillisecond + 20 * kMicrosecond * std::max<int64_t>(0, counts[0] - 256) +
         kMicrosecond / 20 * counts[1] + 11 * kMicrosecond * counts[2];
}

std::vector<MeasuredStep> Steps(int count, int64_t noise_percent) {
  std::vector<MeasuredStep> steps;
  uint64_t state = 1;
  const auto draw = [&](int64_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(n));
  };
  for (int i = 0; i < count; ++i) {
    const int64_t sequences = 1 + draw(200);
    const StepCounts counts = {sequences + (draw(3) == 0 ? draw(4000) : 0),
                               sequences * draw(3000), sequences};
    const int64_t noise = draw(2 * noise_percent + 1) - noise_percent;
    steps.push_back({.counts = counts, .time = TrueTime(counts) / 100 * (100 + noise)});
  }
  return steps;
}

double ErrorOf(const WholeStepTable& table, const StepCounts& counts) {
  bool outside = false;
  const auto time = static_cast<double>(table.At(counts, &outside));
  return std::abs(time / static_cast<double>(TrueTime(counts)) - 1);
}

TEST(WholeStepsTest, SM63FindsTheConstantsOfStepsThatHaveThem) {
  const std::vector<MeasuredStep> steps = Steps(4000, 0);
  const WholeStepTable table = FitWholeSteps(steps);
  for (const MeasuredStep& step : steps) ASSERT_LT(ErrorOf(table, step.counts), 1e-6);
  const auto per_unit_us = [&](size_t part, int64_t from, int64_t to) {
    StepCounts low = {1, 0, 1}, high = low;
    low[part] = from;
    high[part] = to;
    bool outside = false;
    return static_cast<double>(table.At(high, &outside) - table.At(low, &outside)) / 1e6 /
           static_cast<double>(to - from);
  };
  EXPECT_NEAR(per_unit_us(0, 1, 256), 0, 1e-3);
  EXPECT_NEAR(per_unit_us(0, 256, 512), 20, 1e-3);
  EXPECT_NEAR(per_unit_us(0, 512, 4000), 20, 1e-3);
  EXPECT_NEAR(per_unit_us(1, 1024, 300'000), 0.05, 1e-5);
  EXPECT_NEAR(per_unit_us(2, 4, 190), 11, 1e-3);
}

TEST(WholeStepsTest, SM63AveragesNoiseAway) {
  const WholeStepTable table = FitWholeSteps(Steps(4000, 10));
  double worst = 0, sum = 0;
  // Others than those that were fitted.
  const std::vector<MeasuredStep> judged = Steps(5000, 0);
  for (size_t i = 4000; i < judged.size(); ++i) {
    const double error = ErrorOf(table, judged[i].counts);
    worst = std::max(worst, error);
    sum += error;
  }
  EXPECT_LT(sum / 1000, 0.01);
  EXPECT_LT(worst, 0.06);
  for (const auto& knots : table.parts) {
    for (size_t k = 1; k < knots.size(); ++k) {
      EXPECT_GT(knots[k].first, knots[k - 1].first);
      EXPECT_GE(knots[k].second, knots[k - 1].second);
    }
  }
}

// No step says anything between 8 and 1,024 tokens: a straight line, not a jump somewhere.
TEST(WholeStepsTest, SM63IsStraightWhereNothingWasMeasured) {
  std::vector<MeasuredStep> steps;
  for (int64_t tokens = 1; tokens <= 8; ++tokens) {
    steps.push_back({{tokens, 0, 1}, kMillisecond});
    steps.push_back({{1016 + tokens, 0, 1}, 2 * kMillisecond});
  }
  const WholeStepTable table = FitWholeSteps(steps);
  bool outside = false;
  EXPECT_NEAR(static_cast<double>(table.At({512, 0, 1}, &outside)), 1.5e9, 1e7);
  EXPECT_FALSE(outside);
}

TEST(WholeStepsTest, SM63FallingTimesBecomeFlat) {
  // More tokens in less time: no part may fall, so the mean by relative error holds.
  const WholeStepTable table =
      FitWholeSteps({{{1, 0, 1}, 2 * kMillisecond}, {{100, 0, 1}, kMillisecond}});
  bool outside = false;
  EXPECT_EQ(table.At({1, 0, 1}, &outside), table.At({100, 0, 1}, &outside));
  EXPECT_NEAR(static_cast<double>(table.At({1, 0, 1}, &outside)), 1.2e9, 1e6);
}

TEST(WholeStepsTest, SM63ATableIsReadAsItWasWritten) {
  const WholeStepTable table = FitWholeSteps(Steps(300, 5));
  const auto read = ParseWholeSteps(FormatWholeSteps(table), "t.csv");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->base, table.base);
  EXPECT_EQ(read->parts, table.parts);
}

TEST(WholeStepsTest, SM63TheClockAddsPartsUpAndCountsWhatLiesOutside) {
  auto table = ParseWholeSteps(
      "part,count,time_us\nbase,0,100\ntokens,1,0\ntokens,101,50\ncontext,0,0\ncontext,1000,10\n"
      "sequences,1,1\nsequences,3,5\n",
      "t.csv");
  ASSERT_TRUE(table.ok()) << table.status();
  const auto clock = MakeWholeStepClock(*table, "t.csv", {});
  // 51 tokens 25 us, 500 of context 5 us, 2 sequences 3 us.
  const SequenceWork chunk{.num_context = 400, .num_new = 50};
  const SequenceWork decode{.num_context = 100, .num_new = 1, .num_sampled = 1};
  EXPECT_EQ(*clock->StepTime({chunk, decode}), 133 * kMicrosecond);
  EXPECT_EQ(*clock->StepTime({chunk}, {.num_sequences = 1, .sum_context = 100}),
            133 * kMicrosecond);
  EXPECT_EQ(clock->num_outside(), 0);
  // The last slopes go on: 201 tokens 100 us; no context; one sequence.
  EXPECT_EQ(*clock->StepTime({{.num_context = 0, .num_new = 201}}), 201 * kMicrosecond);
  EXPECT_EQ(clock->num_outside(), 1);
  const auto more = MakeWholeStepClock(*table, "t.csv",
                                       {.num_layers = 10,
                                        .fixed_time = kMicrosecond,
                                        .time_per_layer = kMicrosecond,
                                        .time_per_sequence = 2 * kMicrosecond});
  EXPECT_EQ(*more->StepTime({chunk, decode}), (133 + 11 + 4) * kMicrosecond);
}

TEST(WholeStepsTest, SM63BadTablesAreNamed) {
  const auto problem = [](const std::string& text) {
    return std::string(ParseWholeSteps("part,count,time_us\n" + text, "t.csv").status().message());
  };
  EXPECT_THAT(problem("layers,1,2\n"), HasSubstr("t.csv:2: got part layers, expected base"));
  EXPECT_THAT(problem("tokens,5,2\ntokens,5,3\n"), HasSubstr("t.csv:3: got tokens at 5, expected counts that grow"));
  EXPECT_THAT(problem("tokens,5,2\ntokens,6,1\n"), HasSubstr("times that do not fall"));
  EXPECT_THAT(problem("tokens,5,x\n"), HasSubstr("t.csv:2: got \"x\""));
  EXPECT_THAT(std::string(ParseMeasuredSteps("tokens,context,sequences,time_us\n1,2,1,0\n", "s.csv")
                              .status()
                              .message()),
              HasSubstr("s.csv:2: got time_us 0"));
}

}  // namespace
}  // namespace kvblocks::sim
