#include "kvblocks/sim/report/time_series.h"

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using Series = ::kvblocks::report::v1::Series;

TEST(TimeSeriesTest, GaugesAreWeightedWithTime) {
  TimeSeries series(kSecond);
  // 4 running for half of the first second, then 2 for the next one and a half.
  series.AddInterval(kSecond / 2, kSecond, {.running = 4, .referenced = 10, .is_busy = true});
  series.AddInterval(kSecond, 5 * kSecond / 2, {.running = 2, .waiting = 1});
  Series out;
  series.Fill(5 * kSecond / 2, 20, &out);
  ASSERT_EQ(out.points_size(), 3);
  EXPECT_DOUBLE_EQ(out.points(0).running(), 2.0);
  EXPECT_DOUBLE_EQ(out.points(0).usage(), 0.25);
  EXPECT_DOUBLE_EQ(out.points(0).busy_share(), 0.5);
  EXPECT_DOUBLE_EQ(out.points(1).running(), 2.0);
  EXPECT_DOUBLE_EQ(out.points(1).waiting(), 1.0);
  // The last tick is half a second long.
  EXPECT_DOUBLE_EQ(out.points(2).running(), 2.0);
  EXPECT_DOUBLE_EQ(out.points(2).start_s(), 2.0);
}

TEST(TimeSeriesTest, StepTimesAreWeightedWithTheirTime) {
  TimeSeries series(kSecond);
  // Steps of 0.25 s and 0.5 s, idle until 1 s, then a step of 1.5 s.
  series.AddInterval(0, kSecond / 4, {.is_busy = true, .step_time = kSecond / 4});
  series.AddInterval(kSecond / 4, 3 * kSecond / 4, {.is_busy = true, .step_time = kSecond / 2});
  series.AddInterval(3 * kSecond / 4, kSecond, {.step_time = 7 * kSecond});
  series.AddInterval(kSecond, 5 * kSecond / 2, {.is_busy = true, .step_time = 3 * kSecond / 2});
  series.AddInterval(5 * kSecond / 2, 4 * kSecond, {});
  Series out;
  series.Fill(4 * kSecond, 1, &out);
  ASSERT_EQ(out.points_size(), 4);
  EXPECT_DOUBLE_EQ(out.points(0).step_time_ms(), (0.25 * 250 + 0.5 * 500) / 0.75);
  EXPECT_DOUBLE_EQ(out.points(1).step_time_ms(), 1500.0);
  EXPECT_DOUBLE_EQ(out.points(2).step_time_ms(), 1500.0);
  EXPECT_DOUBLE_EQ(out.points(3).step_time_ms(), 0.0);
}

TEST(TimeSeriesTest, LongRunsDoubleTheTickAndKeepTheSums) {
  TimeSeries series(kSecond, /*max_points=*/10);
  for (int64_t s = 0; s < 100; ++s) {
    series.AddInterval(s * kSecond, (s + 1) * kSecond, {.running = s});
    series.AddCounts(s * kSecond, {.prefill_tokens = s, .steps = 1});
  }
  Series out;
  series.Fill(100 * kSecond, 1, &out);
  EXPECT_DOUBLE_EQ(out.tick_s(), 16.0);
  ASSERT_EQ(out.points_size(), 7);
  double running = 0;
  int64_t tokens = 0, steps = 0;
  for (int i = 0; i < out.points_size(); ++i) {
    const double length = i < 6 ? 16.0 : 4.0;
    running += out.points(i).running() * length;
    tokens += out.points(i).prefill_tokens();
    steps += out.points(i).steps();
  }
  EXPECT_DOUBLE_EQ(running, 4950.0);
  EXPECT_EQ(tokens, 4950);
  EXPECT_EQ(steps, 100);
}

TEST(TimeSeriesTest, OneIntervalMayCoverTheWholeClock) {
  TimeSeries series(1, /*max_points=*/4);
  series.AddInterval(0, kMaxSimTime, {.running = 3});
  Series out;
  series.Fill(kMaxSimTime, 1, &out);
  ASSERT_GE(out.points_size(), 1);
  ASSERT_LE(out.points_size(), 4);
  for (const auto& point : out.points()) EXPECT_NEAR(point.running(), 3.0, 1e-9);
}

TEST(TimeSeriesTest, EventsAtTheEndHaveAPointOfTheirOwn) {
  TimeSeries series(kSecond);
  series.AddInterval(0, kSecond, {.running = 1});
  series.AddCounts(kSecond, {.output_tokens = 5});
  Series out;
  series.Fill(kSecond, 1, &out);
  ASSERT_EQ(out.points_size(), 2);
  EXPECT_EQ(out.points(1).output_tokens(), 5);
  EXPECT_DOUBLE_EQ(out.points(1).running(), 0.0);
}

}  // namespace
}  // namespace kvblocks::sim
