// Fleets by hand: worked examples of the specification, and what routers know.

#include "sim/fleet/fleet.h"

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sim/fleet/fleet_metrics.h"
#include "sim/fleet/testing/fleet_fixture.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

// WE-29
TEST_F(FleetTest, WorkedExampleOfRouters) {
  Add("R0", 0, 10, 2, 1, 8);
  Add("R1", 1, 10, 2, 2, 8);
  Add("R2", 5, 10, 2, 2, 8);
  Add("R3", 6, 10, 2, 1, 8);
  const std::map<std::string, int32_t> in_turn = {{"R0", 0}, {"R1", 1}, {"R2", 0}, {"R3", 1}};
  const std::map<std::string, int32_t> by_prefix = {{"R0", 0}, {"R1", 1}, {"R2", 1}, {"R3", 0}};
  for (const RouterKind kind :
       {RouterKind::kRoundRobin, RouterKind::kLeastRequests, RouterKind::kLeastTokens,
        RouterKind::kPrefix, RouterKind::kPrefixApproximate, RouterKind::kOracle}) {
    options_.router.kind = kind;
    ASSERT_TRUE(Run().ok());
    EXPECT_EQ(sent_, UsesContent(kind) ? by_prefix : in_turn) << RouterName(kind);
    EXPECT_EQ(HitTokens(), UsesContent(kind) ? 16 : 0) << RouterName(kind);
    EXPECT_EQ(FinishOf("R0"), 2);
    EXPECT_EQ(FinishOf("R1"), 3);
    EXPECT_EQ(FinishOf("R2"), 7);
    EXPECT_EQ(FinishOf("R3"), 8);
  }
  // First step :2 of the prompt, behind 8 tokens hit.
  EXPECT_NE(watches_[1].lines[2].find("R2:2h8"), std::string::npos) << watches_[1].lines[2];
}

// SM-100
TEST_F(FleetTest, LostEventsAreUnknownForGood) {
  options_.router.kind = RouterKind::kPrefix;
  options_.event_loss = kMillion;
  Add("A", 0, 10, 2, 1, 8);
  Add("B", 5, 10, 2, 1, 8);
  ASSERT_TRUE(Run().ok());
  EXPECT_GT(result_.num_event_batches, 0);
  EXPECT_EQ(result_.num_lost_batches, result_.num_event_batches);
  EXPECT_EQ(claimed_["B"], 0);
  EXPECT_EQ(found_["B"], 8);  // by luck: the tie goes to where A went
  options_.event_loss = 0;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(result_.num_lost_batches, 0);
  EXPECT_EQ(claimed_["B"], 8);
}

// SM-99: with a temperature the best replica is only likely.
TEST_F(FleetTest, TemperatureDrawsByScore) {
  options_.router.kind = RouterKind::kOracle;
  for (int i = 0; i < 200; ++i) Add(std::to_string(i), 10 * i, 9, 1, 1, 8);
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(result_.replicas[0].num_arrived, 200);
  // Once both hold it, the scores are equal.
  options_.router.temperature = 500'000;
  ASSERT_TRUE(Run().ok());
  EXPECT_GT(result_.replicas[0].num_arrived, 70);
  EXPECT_GT(result_.replicas[1].num_arrived, 70);
  const FleetResult first = result_;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(result_, first);
  options_.router.seed = 1;
  ASSERT_TRUE(Run().ok());
  EXPECT_NE(result_, first);
}

// SM-101: patience counts at the router, too, and who gives up at an instant is not sent at it.
TEST_F(FleetTest, RequestsGiveUpAtTheRouter) {
  options_.queue.max_requests = 1;
  workload_.config.max_queue_time = 4 * kSecond;
  Add("A", 0, 4, 5, 1, 0);
  Add("B", 0, 4, 6, 2, 0);
  Add("C", 1, 4, 1, 3, 0);
  Add("D", 2, 4, 1, 3, 0);
  workload_.Add({.id = "E", .prompt = 4, .output = 1, .at = 2, .abort_after = 1});
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(ended_at_router_["C"], "queue_time 5") << "A ends at 5";
  EXPECT_EQ(ended_at_router_["E"], "abort_time 3");
  EXPECT_EQ(sent_at_["D"], 5);
  EXPECT_EQ(result_.num_aborted, 2);
  EXPECT_EQ(result_.replicas[0].num_aborted_queue + result_.replicas[1].num_aborted_queue, 0);
}

// SM-101: a session whose turn gives up at the router ends everywhere, and one that waits there
// ends with it.
TEST_F(FleetTest, SessionsEndAtTheRouterToo) {
  options_.queue.max_requests = 2;
  workload_.config.scheduler.max_num_seqs = 1;
  workload_.Add({.id = "A", .prompt = 4, .output = 9, .at = 0});
  workload_.Add({.id = "B", .prompt = 4, .output = 5, .at = 0, .session = 1});  // waits for A
  workload_.Add({.id = "C", .prompt = 4, .output = 5, .at = 0, .abort_after = 2.5, .session = 1});
  workload_.Add({.id = "D", .prompt = 4, .output = 5, .at = 1, .session = 1});
  ASSERT_TRUE(Run(1).ok());
  EXPECT_EQ(ended_at_router_["C"], "abort_time 2");
  EXPECT_EQ(watches_[0].ends["B"], "abort");
  EXPECT_EQ(ended_.seconds["B"], 3) << "the boundary of its replica's iterations";
  EXPECT_EQ(ended_.seconds["D"], 2.5) << "of no replica yet";
  EXPECT_EQ(watches_[0].ends["D"], "abort");
  EXPECT_EQ(watches_[0].ends["A"], "length");
  EXPECT_EQ(sent_.count("D"), 0);
}

// A session ends on all replicas.
TEST_F(FleetTest, SessionsEndEverywhere) {
  workload_.config.scheduler.max_num_seqs = 1;
  workload_.Add({.id = "A", .prompt = 4, .output = 50, .at = 0, .abort_after = 3.5, .session = 1});
  workload_.Add({.id = "X", .prompt = 4, .output = 10, .at = 0});
  workload_.Add({.id = "Y", .prompt = 4, .output = 1, .at = 0});
  workload_.Add({.id = "B", .prompt = 4, .output = 5, .at = 1, .session = 1});  // waits for X
  workload_.Add({.id = "C", .prompt = 4, .output = 5, .at = 2, .session = 1, .waits_for = {0}});
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(sent_["B"], sent_["X"]);
  EXPECT_NE(sent_["B"], sent_["A"]);
  EXPECT_EQ(watches_[0].ends["A"], "abort");
  EXPECT_EQ(watches_[1].ends["B"], "abort");
  EXPECT_EQ(watches_[0].ends["C"], "abort");
  EXPECT_EQ(watches_[1].ends["X"], "length");
  EXPECT_EQ(FinishOf("Y"), 5);
  EXPECT_EQ(result_.replicas[1].num_aborted_session, 1);
}

// However far other replicas could run before the next arrival.
TEST_F(FleetTest, SessionsEndBeforeOthersRunOn) {
  workload_.config.scheduler.max_num_seqs = 1;
  workload_.Add({.id = "X", .prompt = 4, .output = 10, .at = 0});
  workload_.Add({.id = "A", .prompt = 4, .output = 50, .at = 0, .abort_after = 3.5, .session = 1});
  workload_.Add({.id = "B", .prompt = 4, .output = 5, .at = 1, .session = 1});  // waits for X
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(watches_[0].ends["B"], "abort");
  EXPECT_EQ(watches_[1].ends["A"], "abort");
}

// Also a turn that is read when nothing else is left.
TEST(SimulationTest, TurnsOfASessionGivenUpEndBehindTheLastArrival) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 4, .output = 50, .abort_after = 2, .session = 1});
  replay.Add({.id = "B", .prompt = 4, .output = 5, .at = 1000, .session = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(replay.ends["A"], "abort");
  EXPECT_EQ(replay.ends["B"], "abort");
}

TEST_F(FleetTest, NoProgressNamesTheReplica) {
  workload_.config.kv_cache.num_blocks = 4;
  workload_.config.scheduler.too_big = TooBigRequest::kRun;
  Add("A", 0, 4, 1, 1, 0);
  Add("B", 0, 40, 1, 1, 0);
  const absl::Status status = Run();
  EXPECT_TRUE(IsNoProgress(status)) << status;
  EXPECT_NE(status.message().find("replica 1: no progress: request B"), std::string::npos)
      << status;
}

TEST_F(FleetTest, BadOptionsAreNamed) {
  const std::pair<std::function<void(FleetOptions&)>, const char*> bad[] = {
      {[](FleetOptions& o) { o.event_loss = kMillion + 1; }, "event_loss is 1000001"},
      {[](FleetOptions& o) { o.router_delay = -1; }, "router_delay is -1"},
      {[](FleetOptions& o) { o.router.tree_blocks = 0; }, "tree_blocks is 0"},
      {[](FleetOptions& o) { o.router.session_factor = 1; }, "session_factor is 1"},
      {[](FleetOptions& o) { o.queue.max_tokens = -1; }, "max_tokens is -1, expected at least 0"},
      {[](FleetOptions& o) {
         o.num_live = 2;
         o.scaling.schedule = {{.time = kSecond}};
       },
       "scaling may need 3"}};
  for (const auto& [spoil, expected] : bad) {
    options_ = FleetOptions();
    spoil(options_);
    EXPECT_NE(Run().message().find(expected), std::string::npos) << expected;
  }
  options_ = FleetOptions();
  options_.router.kind = RouterKind::kPrefix;
  workload_.config.manager.enable_caching = false;
  EXPECT_NE(Run().message().find("prefix caching is off"), std::string::npos);
  EXPECT_NE(Run(0).message().find("replicas has 0 entries"), std::string::npos);
  EXPECT_NE(ParseRouter("best").status().message().find("least-requests"), std::string::npos);
  for (int kind = 0; kind < 9; ++kind) {
    const auto parsed = ParseRouter(RouterName(static_cast<RouterKind>(kind)));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(static_cast<int>(*parsed), kind);
  }
}

TEST(DecisionSeriesTest, SumsStayExactWhenTheTickDoubles) {
  DecisionSeries series;
  series.Add(0, {.routed = 1, .oracle_more_tokens = 7});
  series.Add(499 * kSecond, {.routed = 1});
  series.Add(3, {.missing_tokens = 2});  // replicas report one after the other
  series.Add(1500 * kSecond, {.routed = 1, .unknown_tokens = 5});
  ::kvblocks::report::v1::DecisionSeries out;
  series.Fill(&out);
  EXPECT_EQ(out.tick_s(), 4);
  int64_t routed = 0;
  for (const auto& point : out.points()) routed += point.routed();
  EXPECT_EQ(routed, 3);
  EXPECT_EQ(out.points(0).oracle_more_tokens(), 7);
  EXPECT_EQ(out.points(0).missing_tokens(), 2);
  EXPECT_EQ(out.points(124).routed(), 1);
  EXPECT_EQ(out.points(375).unknown_tokens(), 5);
  EXPECT_EQ(out.points(375).start_s(), 1500);
}

}  // namespace
}  // namespace kvblocks::sim
