#include "kvblocks/sim/report/workload_section.h"

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

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

}  // namespace
}  // namespace kvblocks::sim
