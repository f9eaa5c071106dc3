#include "kvblocks/sim/report/latency_metrics.h"

#include <string>

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

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
  EXPECT_EQ(out.requests_good(), 2);
  EXPECT_EQ(out.requests_total(), 4);
  EXPECT_DOUBLE_EQ(out.good_share(), 0.5);
  EXPECT_DOUBLE_EQ(out.good_requests_per_s(), 0.5);
  EXPECT_TRUE(out.met());
  EXPECT_EQ(out.objectives(0).requests_good(), 2);
  EXPECT_EQ(out.objectives(1).requests_good(), 3);
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
  EXPECT_FALSE(out.met());
  EXPECT_DOUBLE_EQ(out.objectives(0).observed_ms(), 3000.0);
}

}  // namespace
}  // namespace kvblocks::sim
