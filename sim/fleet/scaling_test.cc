// Replicas that come and go, by plan, by rule and by crash (SM-102).

#include "sim/fleet/scaling.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sim/fleet/testing/fleet_fixture.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

// "2 crash 0": seconds, what, replica.
std::string TimelineOf(const std::vector<ScaleRecord>& timeline) {
  std::string text;
  for (const ScaleRecord& record : timeline) {
    absl::StrAppend(&text, text.empty() ? "" : ", ",
                    static_cast<double>(record.time) / static_cast<double>(kSecond), " ",
                    std::string(KindName(record.kind)), " ", record.replica);
  }
  return text;
}

// By count the lowest starts and the highest stops; a change that finds none is counted.
TEST(ScalerTest, ReplicasAreChosenByNumber) {
  ScalingOptions options;
  options.schedule =
      *ParseSchedule("4s:crash@1,1s:stop,2s:start=2,3s:stop@2,5s:start@0,5s:crash@3,6s:stop=3");
  ASSERT_EQ(*Scaler::NumReplicas(options, 2), 4);
  Scaler scaler(options, 2, 4);
  scaler.OnSent(0);
  while (scaler.NextTime() != Scaler::kNever) scaler.Take(scaler.NextTime(), {});
  EXPECT_EQ(
      TimelineOf(scaler.result().timeline),
      "1 stop 1, 1 off 1, 2 start 1, 2 live 1, 2 start 2, 2 live 2, 3 stop 2, 3 off 2, 4 crash 1, "
      "6 stop 0");
  EXPECT_EQ(scaler.result().most_live, 3);
  EXPECT_EQ(scaler.result().num_refused, 4);
  EXPECT_TRUE(scaler.live().empty());
  scaler.OnLeft(0, 9 * kSecond);
  EXPECT_EQ(scaler.result().timeline.back(),
            (ScaleRecord{9 * kSecond, 0, ScaleRecord::Kind::kOff}));
  scaler.Close(10 * kSecond);
  EXPECT_EQ(scaler.result().on_time, (std::vector<SimTime>{9 * kSecond, 3 * kSecond, kSecond, 0}));
}

// A replica that still starts can stop or crash as others do.
TEST(ScalerTest, StartsCanBeTakenBack) {
  ScalingOptions options;
  options.schedule = *ParseSchedule("1s:start=2,2s:stop,3s:crash@1");
  options.start_time = 5 * kSecond;
  Scaler scaler(options, 1, 3);
  while (scaler.NextTime() != Scaler::kNever) scaler.Take(scaler.NextTime(), {});
  EXPECT_EQ(TimelineOf(scaler.result().timeline),
            "1 start 1, 1 start 2, 2 stop 2, 2 off 2, 3 crash 1");
  EXPECT_EQ(scaler.result().most_live, 1);
}

TEST(ScaleTextTest, PlansAndRulesAreRead) {
  const auto plan = ParseSchedule("10s:start=2,1500ms:stop,2min:crash@3");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(*plan, (std::vector<ScaleEntry>{
                       {.time = 10 * kSecond, .action = ScaleAction::kStart, .count = 2},
                       {.time = 1500 * kMillisecond, .action = ScaleAction::kStop},
                       {.time = 120 * kSecond, .action = ScaleAction::kCrash, .replica = 3}}));
  for (const char* bad : {"", "10s", "10:start", "10s:begin", "10s:start=0", "10s:start=",
                          "10s:stop=-1", "10s:crash@4096", "10s:stop,", "10s:start=1.5"}) {
    EXPECT_NE(ParseSchedule(bad).status().message().find("expected TIME:ACTION"), std::string::npos)
        << bad;
  }
  ScaleRule rule;
  ASSERT_TRUE(ParseRule("ttft:2s:0.9:0.99", &rule).ok());
  EXPECT_EQ(rule.low, 900'000);
  EXPECT_EQ(rule.high, 990'000);
  EXPECT_EQ(rule.limit, 2 * kSecond);
  for (const char* bad : {"", "queue", "queue:3:1", "queue:1:2:3", "ttft:2s:0.9", "ttft:0s:0:1",
                          "ttft:2s:0.5:1.5", "load:1:2"}) {
    EXPECT_NE(ParseRule(bad, &rule).message().find("expected queue:LOW:HIGH"), std::string::npos)
        << bad;
  }
  ScalingOptions options;
  options.schedule = {{.count = 4096}};
  EXPECT_NE(Scaler::NumReplicas(options, 1).status().message().find("scaling needs 4097"),
            std::string::npos);
  options.schedule = {};
  options.rule.emplace().most = 3;
  EXPECT_NE(Scaler::NumReplicas(options, 4).status().message().find("rule: from 1 to 3"),
            std::string::npos);
}

class ScalingTest : public FleetTest {
 protected:
  void Plan(const std::string& schedule, int32_t num_live) {
    auto parsed = ParseSchedule(schedule);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    options_.scaling.schedule = *parsed;
    options_.num_live = num_live;
  }
  absl::Status RunScaled() {
    const auto count = Scaler::NumReplicas(options_.scaling, options_.num_live);
    return count.ok() ? Run(static_cast<size_t>(*count)) : count.status();
  }
  std::string Timeline() const { return TimelineOf(result_.scaling.timeline); }
};

// SM-102: two steps are over when replica 0 crashes, with 9 tokens of A computed. A starts again
// behind the step that runs on replica 1.
TEST_F(ScalingTest, CrashSendsRequestsAgain) {
  Plan("2500ms:crash@0", 2);
  Add("A", 0, 8, 5, 1, 0);
  Add("B", 0, 8, 9, 2, 0);
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(Timeline(), "2.5 crash 0");
  EXPECT_EQ(sent_["A"], 1);
  EXPECT_EQ(sent_at_["A"], 2.5);
  EXPECT_EQ(watches_[0].device.back(), "2-2.5");
  EXPECT_EQ(watches_[1].first_scheduled["A"], 3);
  EXPECT_EQ(FinishOf("A"), 8);
  EXPECT_EQ(FinishOf("B"), 9);
  EXPECT_EQ(watches_[1].ends["A"], "length");
  EXPECT_EQ(result_.scaling.num_lost, 1);
  EXPECT_EQ(result_.scaling.num_retried, 1);
  EXPECT_EQ(result_.scaling.num_lost_tokens, 9);
  EXPECT_EQ(result_.scaling.on_time, (std::vector<SimTime>{5 * kSecond / 2, 9 * kSecond}));
  EXPECT_EQ(result_.replicas[0].num_lost, 1);
  EXPECT_EQ(result_.replicas[0].busy_time, 5 * kSecond / 2);
  // One that runs and one that waits for the end of a step are lost alike, and sent in order of
  // arrival.
  Add("C", 2, 8, 1, 3, 0);
  Add("D", 2.2, 8, 1, 3, 0);
  options_.router.kind = RouterKind::kTwoChoices;
  Plan("2500ms:crash=2,4s:start", 2);
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(result_.scaling.num_lost, 4);
  EXPECT_EQ(result_.scaling.num_held, 4);
  EXPECT_EQ(watches_[0].lines.back().substr(0, 3), "12:");
  EXPECT_EQ(watches_[0].ends.size(), 4);
}

TEST_F(ScalingTest, LostRequestsMayFail) {
  Plan("2500ms:crash@0", 2);
  options_.scaling.fails_lost = true;
  Add("A", 0, 8, 5, 1, 0);
  Add("B", 0, 8, 5, 2, 0);
  workload_.Add({.id = "C", .prompt = 4, .output = 1, .waits_for = {0}, .has_arrival = false});
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(watches_[0].ends["A"], "abort");
  EXPECT_EQ(watches_[1].ends.count("A"), 0u);
  EXPECT_EQ(watches_[1].first_scheduled["C"], 3);  // behind A's end
  EXPECT_EQ(result_.scaling.num_failed, 1);
  EXPECT_EQ(result_.scaling.num_retried, 0);
}

// Caches are cold behind a start, which takes its time; until then requests wait at the router.
TEST_F(ScalingTest, StartTakesItsTimeAndBeginsCold) {
  Plan("2500ms:stop@0,4s:start@0", 1);
  options_.scaling.start_time = 2 * kSecond;
  options_.router.kind = RouterKind::kPrefix;
  Add("A", 0, 10, 1, 1, 8);
  Add("B", 2, 10, 2, 2, 8);  // runs until 4, on the replica that drains
  Add("C", 4.5, 10, 1, 2, 8);
  Add("D", 8, 10, 1, 2, 8);
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(Timeline(), "2.5 stop 0, 4 off 0, 4 start 0, 6 live 0");
  EXPECT_EQ(FinishOf("B"), 4);
  EXPECT_EQ(sent_at_["C"], 6);
  EXPECT_EQ(claimed_["C"], 0);
  EXPECT_EQ(found_["C"], 0);
  EXPECT_EQ(claimed_["D"], 8);
  EXPECT_EQ(result_.scaling.num_held, 1);
  EXPECT_EQ(result_.scaling.num_restarts, 1);
  EXPECT_EQ(result_.scaling.on_time[0], 9 * kSecond);
}

// A request that gave up before is not among those that a crash takes, and cached content is not
// lost. Patience for the queue begins anew.
TEST_F(ScalingTest, CrashTakesWhatIsThere) {
  Plan("8500ms:crash@0", 2);
  workload_.config.max_queue_time = 3 * kSecond;
  workload_.config.scheduler.max_num_seqs = 1;
  options_.router.kind = RouterKind::kRoundRobin;
  Add("A", 0, 8, 1, 1, 0);
  Add("B", 0, 8, 10, 2, 0);
  Add("C", 1, 10, 1, 1, 8);
  Add("D", 1.5, 4, 1, 4, 0);  // behind B; gives up
  Add("E", 6, 10, 9, 1, 8);
  Add("F", 7, 4, 1, 4, 0);  // behind B; gives up
  workload_.Add({.id = "G", .prompt = 4, .output = 9, .at = 7.5, .abort_after = 0.7});
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(found_["E"], 0);
  EXPECT_EQ(watches_[0].ends["G"], "abort");
  EXPECT_EQ(result_.scaling.num_lost, 1);
  EXPECT_EQ(result_.scaling.num_lost_tokens, 3);
  EXPECT_EQ(watches_[1].first_scheduled["E"], 10);
  EXPECT_EQ(watches_[1].ends["E"], "length");
}

// Planned changes do not keep a run going, except for requests that wait for them.
TEST_F(ScalingTest, RunsEndWithTheirRequests) {
  Plan("1s:stop,100s:start,200s:stop", 1);
  Add("A", 0, 8, 3, 1, 0);
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(result_.end_time, 3 * kSecond);
  EXPECT_EQ(Timeline(), "1 stop 0, 3 off 0");
  Add("B", 50, 8, 1, 1, 0);
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(result_.end_time, 101 * kSecond);
  Plan("1s:stop", 1);
  const absl::Status status = RunScaled();
  EXPECT_TRUE(IsNoProgress(status)) << status;
  EXPECT_NE(status.message().find("1 requests wait at the router, the first is B"),
            std::string::npos)
      << status;
}

// One request at a time per replica; the rule is checked every 10 s.
TEST_F(ScalingTest, QueuesStartAndStopReplicas) {
  workload_.config.scheduler.max_num_seqs = 1;
  options_.num_live = 1;
  options_.router.kind = RouterKind::kLeastRequests;
  ScaleRule& rule = options_.scaling.rule.emplace();
  ASSERT_TRUE(ParseRule("queue:0.6:1.5", &rule).ok());
  rule.most = 3;
  for (int i = 0; i < 8; ++i) Add(std::to_string(i), 0, 4, 6, 1, 0);
  Add("late", 80, 4, 1, 1, 0);
  ASSERT_TRUE(RunScaled().ok());
  // All go to replica 0, where 6 wait at 10, then 4, 3, 1 and none.
  EXPECT_EQ(
      Timeline(),
      "10 start 1, 10 live 1, 20 start 2, 20 live 2, 40 stop 2, 40 off 2, 50 stop 1, 50 off 1");
  rule.cool_down = 25 * kSecond;
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(Timeline(), "10 start 1, 10 live 1, 40 stop 1, 40 off 1");
  rule.cool_down = 0;
  rule.most = 1;
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(Timeline(), "");
  // Fewer than the least are never left, whatever the queue.
  rule.most = 2;
  rule.least = 1;
  Plan("4s:crash", 1);
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(Timeline().substr(0, 32), "4 crash 0, 10 start 0, 10 live 0");
}

// The share of first tokens within 2 s of the arrival.
TEST_F(ScalingTest, LateFirstTokensStartReplicas) {
  workload_.config.scheduler.max_num_seqs = 1;
  options_.num_live = 1;
  ScaleRule& rule = options_.scaling.rule.emplace();
  ASSERT_TRUE(ParseRule("ttft:2s:0.5:0.9", &rule).ok());
  rule.most = 2;
  // In 10 s one in time and one late, which is no less than half; then both late.
  for (int i = 0; i < 5; ++i) Add(std::to_string(i), 0, 4, 6, 1, 0);
  ASSERT_TRUE(RunScaled().ok());
  EXPECT_EQ(Timeline(), "20 start 1, 20 live 1");
}

}  // namespace
}  // namespace kvblocks::sim
