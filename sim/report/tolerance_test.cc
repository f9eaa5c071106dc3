#include "kvblocks/sim/report/report_comparison.h"

#include <cmath>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tolerance Parsed(const std::string& text) {
  const auto tolerance = Tolerance::Parse(text);
  EXPECT_TRUE(tolerance.ok()) << tolerance.status();
  return *tolerance;
}

MetricNumber Whole(int64_t value) { return __int128{value}; }

bool Allows(const std::string& text, int64_t a, int64_t b) {
  return Parsed(text).Allows(Whole(a), Whole(b));
}
bool AllowsReal(const std::string& text, double a, double b) {
  return Parsed(text).Allows(MetricNumber(a), MetricNumber(b));
}

TEST(ToleranceTest, RelativeChange) {
  EXPECT_TRUE(Allows("0.01", 1000, 1010));
  EXPECT_FALSE(Allows("0.01", 1000, 1011));
  EXPECT_TRUE(Allows("1%", 1000, 990));
  EXPECT_FALSE(Allows("1%", 1000, 989));
  EXPECT_TRUE(Allows("1/3", 3, 4));
  EXPECT_TRUE(Allows("0", 7, 7));
  EXPECT_FALSE(Allows("0", 7, 8));
  EXPECT_TRUE(Allows("0.5", -10, -15));
  EXPECT_FALSE(Allows("0.5", -10, -16));
  EXPECT_FALSE(Allows("1000", 0, 1)) << "no share of nothing";
  EXPECT_TRUE(Allows("1000", 0, 0));
  EXPECT_TRUE(AllowsReal("0.01", 1.0, 1.005));
  EXPECT_FALSE(AllowsReal("0.01", 1.0, 1.02));
}

TEST(ToleranceTest, AbsoluteChange) {
  EXPECT_TRUE(Allows("x:abs:5", 0, 5));
  EXPECT_FALSE(Allows("x:abs:5", 0, 6));
  EXPECT_TRUE(Allows("abs:5", 10, 5));
  EXPECT_FALSE(AllowsReal("abs:0.5", 1.0, 1.6));
  EXPECT_TRUE(AllowsReal("abs:0.5", 1.0, 0.6));
}

TEST(ToleranceTest, WholeNumbersAreComparedExactly) {
  constexpr int64_t kLarge = (int64_t{1} << 53) + 1;
  EXPECT_FALSE(Allows("0", kLarge, kLarge - 1)) << "equal as doubles";
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(Allows("2", kMin, kMax));
  EXPECT_FALSE(Allows("2", kMax, kMin));
  EXPECT_TRUE(Allows("1000000000000000000", kMax, kMin));
  EXPECT_FALSE(Allows("0.000000000000000001", kMax, kMax - 10));
  EXPECT_TRUE(Allows("0.000000000000000001", kMax, kMax - 9));
}

TEST(ToleranceTest, OddNumbersAreOnlyEqualToThemselves) {
  const double nan = std::nan(""), inf = INFINITY;
  EXPECT_TRUE(AllowsReal("0", nan, nan));
  EXPECT_FALSE(AllowsReal("1000", nan, 1));
  EXPECT_FALSE(AllowsReal("1000", 1, nan));
  EXPECT_TRUE(AllowsReal("0", inf, inf));
  EXPECT_FALSE(AllowsReal("1000", inf, -inf));
  EXPECT_FALSE(AllowsReal("1000", 1, inf));
  EXPECT_TRUE(AllowsReal("inf", 1, nan));
  EXPECT_TRUE(AllowsReal("0", 0.0, -0.0));
}

TEST(ToleranceTest, NamesHaveParts) {
  EXPECT_THAT(SplitMetricName("a.b[c.d].e"), ElementsAre("a", "b[c.d]", "e"));
  EXPECT_THAT(SplitMetricName("a[b[c].d].e]."), ElementsAre("a[b[c].d]", "e]", ""));
  const auto matches = [](const std::string& name, const std::string& metric) {
    return Parsed(name + ":0").Matches(SplitMetricName(metric));
  };
  EXPECT_TRUE(matches("token_hit_rate", "whole_run.token_hit_rate.value"));
  EXPECT_TRUE(matches("whole_run.token_hit_rate", "whole_run.token_hit_rate.value"));
  EXPECT_FALSE(matches("whole_run.value", "whole_run.token_hit_rate.value"));
  EXPECT_FALSE(matches("hit_rate", "whole_run.token_hit_rate.value"));
  EXPECT_TRUE(matches("causes", "misses.causes[evicted].tokens"));
  EXPECT_TRUE(matches("causes.tokens", "misses.causes[evicted].tokens"));
  EXPECT_TRUE(matches("causes[evicted]", "misses.causes[evicted].tokens"));
  EXPECT_FALSE(matches("causes[first use]", "misses.causes[evicted].tokens"));
  EXPECT_TRUE(matches("tenants[a.b:c]", "tenants[a.b:c].requests"));
  EXPECT_TRUE(Parsed("0").Matches({"anything"}));
  EXPECT_TRUE(matches("points", "series.points[].usage"));
}

TEST(ToleranceTest, TheMostSpecificOneCountsAndOfSeveralTheLast) {
  const auto set = ToleranceSet::Parse(
      {"0.01", "latency:0.1", "latency.ttft:0.2", "0.02", "latency.tpot:0.3", "latency.tpot:0.4"});
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(set->Find("counters.hits")->text(), "0.02");
  EXPECT_EQ(set->Find("latency.e2e.p50_ms")->text(), "latency:0.1");
  EXPECT_EQ(set->Find("latency.ttft.p50_ms")->text(), "latency.ttft:0.2");
  EXPECT_EQ(set->Find("latency.tpot.p50_ms")->text(), "latency.tpot:0.4");
  EXPECT_EQ(ToleranceSet::Parse({"x:1"})->Find("y"), nullptr);
  EXPECT_EQ(ToleranceSet().Find("y"), nullptr);
}

TEST(ToleranceTest, TextsThatMakeNoSenseAreErrors) {
  for (const char* text : {"",
                           ":",
                           "x",
                           "x:",
                           ":5",
                           "x:abs:",
                           ":abs:5",
                           "-1",
                           "x:-1",
                           "5%%",
                           "%",
                           "nan",
                           "1e400",
                           "x:abs:5%",
                           "a..b:1",
                           ".a:1",
                           "a.:1",
                           "0x10",
                           "1,5",
                           "x:infinity",
                           "1/0",
                           "0.00000000000000000001",
                           "0.000000000000000001%"}) {
    const auto tolerance = Tolerance::Parse(text);
    EXPECT_FALSE(tolerance.ok()) << text;
    if (tolerance.ok()) continue;
    EXPECT_THAT(std::string(tolerance.status().message()),
                HasSubstr("--tolerance: got \"" + std::string(text) + "\", expected"));
  }
}

}  // namespace
}  // namespace kvblocks::sim
