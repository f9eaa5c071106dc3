// Plans and rules by hand: which replicas start, stop and crash (SM-102).

#include "kvblocks/sim/fleet/scaling.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

// "2 crash 0": seconds, what, replica.
std::string TimelineOf(Scaler& scaler) {
  std::string text;
  for (const ScaleRecord& record : scaler.result().timeline) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", record.time / kSecond, " ",
                    std::string(KindName(record.kind)), " ", record.replica);
  }
  return text;
}

// By count the lowest starts and the highest stops; a change that finds none is counted.
TEST(ScalerTest, ReplicasAreChosenByNumber) {
  ScalingOptions options;
  options.schedule = *ParseSchedule("4s:crash@1,1s:stop,2s:start=2,3s:stop@2,5s:start@0,5s:crash@3,6s:stop=3");
  ASSERT_EQ(*Scaler::NumReplicas(options, 2), 4);
  Scaler scaler(options, 2, 4);
  scaler.OnSent(0);
  while (scaler.NextTime() != Scaler::kNever) scaler.Take(scaler.NextTime(), {});
  EXPECT_EQ(TimelineOf(scaler),
            "1 stop 1, 1 off 1, 2 start 1, 2 live 1, 2 start 2, 2 live 2, 3 stop 2, 3 off 2, 4 crash 1, "
            "6 stop 0");
  EXPECT_EQ(scaler.result().most_live, 3);
  EXPECT_EQ(scaler.result().num_refused, 4);
  EXPECT_TRUE(scaler.live().empty());
  scaler.OnLeft(0, 9 * kSecond);
  EXPECT_EQ(scaler.result().timeline.back(), (ScaleRecord{9 * kSecond, 0, ScaleRecord::Kind::kOff}));
  scaler.Close(10 * kSecond);
  EXPECT_EQ(scaler.result().on_time, (std::vector<SimTime>{9 * kSecond, 3 * kSecond, kSecond, 0}));
}

// Who still starts stops or crashes as others do.
TEST(ScalerTest, StartsCanBeTakenBack) {
  ScalingOptions options;
  options.schedule = *ParseSchedule("1s:start=2,2s:stop,3s:crash@1");
  options.start_time = 5 * kSecond;
  Scaler scaler(options, 1, 3);
  while (scaler.NextTime() != Scaler::kNever) scaler.Take(scaler.NextTime(), {});
  EXPECT_EQ(TimelineOf(scaler), "1 start 1, 1 start 2, 2 stop 2, 2 off 2, 3 crash 1");
  EXPECT_EQ(scaler.result().most_live, 1);
}

TEST(ScaleTextTest, PlansAndRulesAreRead) {
  const auto plan = ParseSchedule("10s:start=2,1500ms:stop,2min:crash@3");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(*plan, (std::vector<ScaleEntry>{
                       {.time = 10 * kSecond, .action = ScaleAction::kStart, .count = 2},
                       {.time = 1500 * kMillisecond, .action = ScaleAction::kStop},
                       {.time = 120 * kSecond, .action = ScaleAction::kCrash, .replica = 3}}));
  for (const char* bad : {"", "10s", "10:start", "10s:begin", "10s:start=0", "10s:start=", "10s:stop=-1",
                          "10s:crash@4096", "10s:stop,", "10s:start=1.5"}) {
    EXPECT_NE(ParseSchedule(bad).status().message().find("expected TIME:ACTION"), std::string::npos) << bad;
  }
  ScaleRule rule;
  ASSERT_TRUE(ParseRule("ttft:2s:0.9:0.99", &rule).ok());
  EXPECT_EQ(rule.low, 900'000);
  EXPECT_EQ(rule.high, 990'000);
  EXPECT_EQ(rule.limit, 2 * kSecond);
  for (const char* bad : {"", "queue", "queue:3:1", "queue:1:2:3", "ttft:2s:0.9", "ttft:0s:0:1",
                          "ttft:2s:0.5:1.5", "load:1:2"}) {
    EXPECT_NE(ParseRule(bad, &rule).message().find("expected queue:LOW:HIGH"), std::string::npos) << bad;
  }
  ScalingOptions options;
  options.schedule = {{.count = 4096}};
  EXPECT_NE(Scaler::NumReplicas(options, 1).status().message().find("scaling needs 4097"), std::string::npos);
  options.schedule = {};
  options.rule.emplace().most = 3;
  EXPECT_NE(Scaler::NumReplicas(options, 4).status().message().find("rule: from 1 to 3"), std::string::npos);
}

}  // namespace
}  // namespace kvblocks::sim
