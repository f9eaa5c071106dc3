#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/report/distribution.h"
#include "sim/report/latency_metrics.h"
#include "sim/report/time_series.h"
#include "sim/report/workload_section.h"
#include "sim/testing/message_fields.h"

namespace kvblocks::sim {
namespace {

// --- Distribution ---

// Small values have buckets of their own: a sketch of them is exact, too.
TEST(DistributionTest, FiguresAreThoseOfASortedList) {
  for (const size_t max_runs : {1000, 4}) {
    Distribution values(max_runs);
    EXPECT_EQ(values.Percentile(5000) + values.mean() + values.max() + values.CountAbove(0), 0);
    EXPECT_TRUE(values.Percentiles().empty());
    std::vector<int64_t> sorted;
    for (int64_t i = 0; i < 40; ++i) {
      const int64_t value = (i * i * 7919) % 500, count = i == 30 ? 99 : 1 + i % 3;
      values.Add(value, count);
      sorted.insert(sorted.end(), static_cast<size_t>(count), value);
      std::sort(sorted.begin(), sorted.end());
      const auto size = static_cast<int64_t>(sorted.size());
      const auto at = [&](int64_t p) {  // nearest rank
        return sorted[static_cast<size_t>((size * p + 9999) / 10000 - 1)];
      };
      for (const int64_t p : {1, 500, 3000, 4000, 4001, 5000, 7143, 9900, 9901, 10000}) {
        ASSERT_EQ(values.Percentile(p), at(p)) << i << ", percentile " << p;
      }
      const std::vector<int64_t> all = values.Percentiles();
      ASSERT_EQ(all.size(), 101u);
      EXPECT_EQ(all[0], sorted.front());
      for (int64_t p = 1; p <= 100; ++p) ASSERT_EQ(all[static_cast<size_t>(p)], at(100 * p)) << p;
      EXPECT_EQ(values.min(), sorted.front());
      EXPECT_EQ(values.max(), sorted.back());
      EXPECT_EQ(values.count(), size);
      EXPECT_EQ(values.mean(), std::accumulate(sorted.begin(), sorted.end(), int64_t{0}) / size);
      EXPECT_EQ(values.CountAbove(value),
                std::ranges::count_if(sorted, [&](int64_t v) { return v > value; }));
    }
    EXPECT_EQ(values.is_exact(), max_runs == 1000);
  }
}

TEST(DistributionTest, SketchIsWithinOneTenthOfAPercent) {
  Distribution exact;
  Distribution sketch(/*max_runs=*/100);
  uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    // All magnitudes from 1 to 2^62.
    const auto value = static_cast<int64_t>((state >> 1) >> ((state >> 58) % 62));
    exact.Add(value);
    sketch.Add(value);
  }
  ASSERT_TRUE(exact.is_exact());
  ASSERT_FALSE(sketch.is_exact());
  EXPECT_STREQ(sketch.method(), Distribution::kSketchName);
  for (int64_t p = 1; p <= 10000; p += 7) {
    const auto want = static_cast<double>(exact.Percentile(p));
    const auto got = static_cast<double>(sketch.Percentile(p));
    ASSERT_LE(std::abs(got - want), 0.001 * want) << "percentile " << p;
  }
  EXPECT_EQ(sketch.mean(), exact.mean());
  EXPECT_EQ(sketch.min(), exact.min());
  EXPECT_EQ(sketch.max(), exact.max());
}

TEST(DistributionTest, SketchDoesNotDependOnTheOrder) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < 5000; ++i) values.push_back((i * 7919) % 100003 + 1'000'000);
  Distribution forward(10), backward(10);
  for (int64_t v : values) forward.Add(v);
  std::reverse(values.begin(), values.end());
  for (int64_t v : values) backward.Add(v);
  for (int64_t p : {100, 2500, 5000, 9000, 9999}) {
    EXPECT_EQ(forward.Percentile(p), backward.Percentile(p));
  }
  EXPECT_EQ(forward.CountAbove(1'050'000), backward.CountAbove(1'050'000));
}

// --- Slo ---

TEST(SloTest, ParsesLimitsAndPercentiles) {
  const auto objectives = ParseObjectives("ttft:2s:p99,tpot:50ms,e2e:1min:p99.9,queueing:1us");
  ASSERT_TRUE(objectives.ok()) << objectives.status();
  ASSERT_EQ(objectives->size(), 4u);
  EXPECT_EQ((*objectives)[0].limit, 2 * kSecond);
  EXPECT_EQ((*objectives)[0].percentile, 9900);
  EXPECT_EQ((*objectives)[1].metric, SloMetric::kTpot);
  EXPECT_EQ((*objectives)[1].percentile, 0);
  EXPECT_EQ((*objectives)[2].percentile, 9990);
}

TEST(SloTest, RefusesWhatItDoesNotUnderstand) {
  for (const char* text :
       {"ttft", "ttft:2", "speed:2s", "ttft:2s:99", "ttft:2s:p0", "ttft:2s:p101", "ttft:2s:p",
        "ttft:0s", "ttft:-1s", ",", "ttft:2s,", "ttft:2s:p99:x", "ttft:2s:p99.999"}) {
    const auto objectives = ParseObjectives(text);
    ASSERT_FALSE(objectives.ok()) << text;
    EXPECT_NE(std::string(objectives.status().message()).find("like ttft:2s:p99"),
              std::string::npos);
  }
}

TEST(SloTest, CountsRequestsThatMeetEveryLimit) {
  GoodputMetrics goodput(*ParseObjectives("ttft:2s:p50,tpot:50ms"));
  RequestLatency latency;
  latency.ttft = 2 * kSecond;
  latency.tpot = 50 * kMillisecond;
  goodput.OnFinish(latency);  // exactly at both limits
  latency.tpot.reset();
  goodput.OnFinish(latency);  // one token: no TPOT
  latency.ttft = 2 * kSecond + 1;
  goodput.OnFinish(latency);
  goodput.OnFailure();
  ::kvblocks::report::v1::Goodput out;
  goodput.Fill(4.0, &out);
  EXPECT_FIELDS(out,
                "requests_good 2, requests_total 4, good_share 0.5, good_requests_per_s 0.5, "
                "met true, objectives[ttft].requests_good 2, objectives[tpot].requests_good 3");
}

TEST(SloTest, APercentileAboveItsLimitIsAMiss) {
  GoodputMetrics goodput(*ParseObjectives("e2e:1s:p99"));
  RequestLatency latency;
  latency.e2e = kSecond;
  for (int i = 0; i < 98; ++i) goodput.OnFinish(latency);
  latency.e2e = 3 * kSecond;
  goodput.OnFinish(latency);
  goodput.OnFinish(latency);
  ::kvblocks::report::v1::Goodput out;
  goodput.Fill(1.0, &out);
  EXPECT_FIELDS(out, "met false, objectives[e2e].observed_ms 3000");
}

// --- Steady window ---

// Request i is admitted at 10 i seconds and finishes 5 s later with one token.
SteadyWindow Regular(int64_t n, size_t max_entries = SteadyWindow::kDefaultMaxEntries) {
  SteadyWindow window(max_entries);
  for (int64_t i = 0; i < n; ++i) {
    window.OnFirstAdmission(
        {.time = 10 * i * kSecond, .admissions = i, .finished = i, .output_tokens = i});
    window.OnFinish({.time = (10 * i + 5) * kSecond,
                     .admissions = i + 1,
                     .finished = i + 1,
                     .output_tokens = i + 1});
  }
  return window;
}

ThroughputSums End(int64_t n) {
  return {.time = (10 * n - 5) * kSecond, .admissions = n, .finished = n, .output_tokens = n};
}

struct Case {
  const char* warmup;
  const char* cooldown;
  int64_t from_s;
  int64_t to_s;
  int64_t finished;
};

TEST(SteadyWindowTest, EdgesOfTenRequests) {
  const SteadyWindow window = Regular(10);
  for (const Case& c : {
           Case{"0", "0", 0, 95, 10}, Case{"0.5", "0", 50, 95, 5}, Case{"0.25", "0.2", 20, 80, 6},
           Case{"3", "4", 30, 60, 3}, Case{"25s", "0", 30, 95, 7}, Case{"30s", "25s", 30, 65, 4},
           Case{"0", "20s", 0, 75, 8}, Case{"0.05", "0.05", 0, 95, 10},  // less than one request
       }) {
    const auto edges = window.Find(*ParseWarmup(c.warmup), *ParseWarmup(c.cooldown, "cooldown"),
                                   ThroughputSums(), End(10));
    ASSERT_TRUE(edges) << c.warmup << " " << c.cooldown;
    EXPECT_EQ(edges->from.time, c.from_s * kSecond) << c.warmup << " " << c.cooldown;
    EXPECT_EQ(edges->to.time, c.to_s * kSecond) << c.warmup << " " << c.cooldown;
    EXPECT_EQ(edges->to.finished - edges->from.finished, c.finished) << c.warmup;
  }
}

TEST(SteadyWindowTest, SaysWhatIsLeftOut) {
  const auto describe = [](const char* warmup, const char* cooldown) {
    return DescribeWindow(*ParseWarmup(warmup), *ParseWarmup(cooldown, "cooldown"));
  };
  EXPECT_EQ(describe("0.5", "0"), "without the first 50 % of the requests");
  EXPECT_EQ(describe("7", "0.1"), "without the first 7 requests and the last 10 %");
  EXPECT_EQ(describe("7", "8"), "without the first 7 requests and the last 8 requests");
}

TEST(SteadyWindowTest, NothingIsLeft) {
  const SteadyWindow window = Regular(10);
  for (const auto& [warmup, cooldown] : std::vector<std::pair<const char*, const char*>>{
           {"1", "0"}, {"10", "0"}, {"0.5", "0.5"}, {"95s", "0"}, {"0", "91s"}, {"5", "9000"}}) {
    EXPECT_FALSE(window.Find(*ParseWarmup(warmup), *ParseWarmup(cooldown, "cooldown"),
                             ThroughputSums(), End(10)))
        << warmup << " " << cooldown;
  }
  EXPECT_FALSE(SteadyWindow().Find(*ParseWarmup("0.5"), *ParseWarmup("0"), {}, {}));
}

TEST(SteadyWindowTest, LongRunsKeepEveryOtherEntry) {
  const SteadyWindow window = Regular(1000, /*max_entries=*/64);
  const auto edges = window.Find(*ParseWarmup("0.5"), *ParseWarmup("0.25"), {}, End(1000));
  ASSERT_TRUE(edges);
  // Every 16th is left: 512 instead of 500, and 752 instead of 750.
  EXPECT_EQ(edges->from.admissions, 512);
  EXPECT_EQ(edges->to.admissions, 752);
  EXPECT_EQ(edges->to.time, 7520 * kSecond);
}

// --- Time series ---

using Series = ::kvblocks::report::v1::Series;

TEST(TimeSeriesTest, GaugesAreWeightedWithTime) {
  TimeSeries series(kSecond);
  // 4 running for half of the first second, then 2 for the next one and a half.
  series.AddInterval(kSecond / 2, kSecond, {.running = 4, .referenced = 10, .is_busy = true});
  series.AddInterval(kSecond, 5 * kSecond / 2, {.running = 2, .waiting = 1});
  Series out;
  series.Fill(5 * kSecond / 2, 20, &out);
  ASSERT_EQ(out.points_size(), 3);
  EXPECT_FIELDS(out.points(0), "running 2, usage 0.25, busy_share 0.5");
  EXPECT_FIELDS(out.points(1), "running 2, waiting 1");
  // The last tick is half a second long.
  EXPECT_FIELDS(out.points(2), "running 2, start_s 2");
}

TEST(TimeSeriesTest, StepTimesAreMeansOfTheStepsThatRan) {
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
  EXPECT_DOUBLE_EQ(out.points(0).step_time_ms(), (250 + 500) / 2.0);
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
  EXPECT_FIELDS(out.points(1), "output_tokens 5, running 0");
}

}  // namespace
}  // namespace kvblocks::sim
