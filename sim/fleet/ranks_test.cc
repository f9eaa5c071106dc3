// Data-parallel ranks by hand: what they wait for, who chooses among them, and what is refused.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/fleet/fleet.h"
#include "sim/fleet/router.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A second for each token, of padding too.
class PerToken final : public StepTimeModel {
 public:
  absl::StatusOr<SimTime> StepTime(absl::Span<const SequenceWork> work,
                                   const Decodes& decodes) const override {
    return StepTimeAmong(work, decodes, {});
  }
  absl::StatusOr<SimTime> StepTimeAmong(absl::Span<const SequenceWork> work, const Decodes& decodes,
                                        const StepPeers& peers) const override {
    int64_t tokens = decodes.num_sequences;
    for (const SequenceWork& sequence : work) tokens += sequence.num_new;
    return std::max(tokens, peers.padded_tokens) * kSecond;
  }
  void Tally(absl::Span<const SequenceWork> work, const Decodes& decodes, const StepPeers& peers,
             StepTally* tally) const override {
    tally->measured += *StepTimeAmong(work, decodes, peers);
    ++tally->num_outside;
  }
  bool adds_up_decodes() const override { return true; }
  std::string_view source() const override { return "test"; }
};

// Two synchronous ranks that get requests in turn.
class RanksTest : public testing::Test {
 protected:
  RanksTest() {
    workload_.config.scheduler.async = false;
    options_.ranks = {{.first = 0, .count = 2, .is_lockstep = true}};
    options_.lockstep.graph_tokens = 0;
  }

  absl::Status Run(size_t count = 2) {
    const PerToken clock;
    std::vector<ReplicaSetup> setups;
    watches_ = std::vector<Replay>(count);
    for (Replay& watch : watches_) setups.push_back({workload_.config, &clock, {&watch}});
    const auto reader = workload_.MakeReader();
    auto fleet = Fleet::Create(options_, std::move(setups), reader.get(), {});
    if (!fleet.ok()) return fleet.status();
    const absl::Status status = (*fleet)->Run();
    result_ = (*fleet)->result();
    return status;
  }
  const std::vector<double>& TokensOf(const std::string& id) {
    for (Replay& watch : watches_) {
      if (watch.token_times.count(id) > 0) return watch.token_times[id];
    }
    static const std::vector<double> none;
    return none;
  }

  FleetOptions options_;
  Replay workload_;
  std::vector<Replay> watches_;
  FleetResult result_;
};

// D-6
TEST_F(RanksTest, AStepLastsAsLongAsTheSlowestRank) {
  workload_.Add({.id = "long", .prompt = 10, .output = 2, .at = 0});
  workload_.Add({.id = "short", .prompt = 2, .output = 3, .at = 0});
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(TokensOf("long"), ElementsAre(10, 11));
  EXPECT_THAT(TokensOf("short"), ElementsAre(10, 11, 12));
  const LockstepTotals& of_long = result_.lockstep[0];
  EXPECT_EQ(of_long.num_steps, 2);
  EXPECT_EQ(of_long.num_dummies, 1);  // while the other has its last token to make
  EXPECT_EQ(of_long.dummy_time, kSecond);
  EXPECT_EQ(of_long.lost_time, 0);
  EXPECT_EQ(result_.lockstep[1].num_steps, 3);
  EXPECT_EQ(result_.lockstep[1].own_time, 4 * kSecond);
  EXPECT_EQ(result_.lockstep[1].lost_time, 8 * kSecond);
}

// All share a clock, and each gets what its own steps took.
TEST_F(RanksTest, StepsAreTalliedByRank) {
  for (const bool is_lockstep : {true, false}) {
    options_.ranks[0].is_lockstep = is_lockstep;
    workload_ = Replay();
    workload_.config.scheduler.async = false;
    workload_.Add({.id = "long", .prompt = 10, .output = 2, .at = 0});
    workload_.Add({.id = "short", .prompt = 2, .output = 3, .at = 0});
    ASSERT_TRUE(Run().ok());
    EXPECT_EQ(result_.replicas[0].step_tally,
              (StepTally{.measured = 11 * kSecond, .num_outside = 2}));
    EXPECT_EQ(result_.replicas[1].step_tally,
              (StepTally{.measured = 4 * kSecond, .num_outside = 3}));
  }
}

// D-6: alone, each takes as long as it takes.
TEST_F(RanksTest, RanksWithoutExpertsDoNotWait) {
  options_.ranks[0].is_lockstep = false;
  workload_.Add({.id = "long", .prompt = 10, .output = 2, .at = 0});
  workload_.Add({.id = "short", .prompt = 2, .output = 3, .at = 0});
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(TokensOf("short"), ElementsAre(2, 3, 4));
  EXPECT_TRUE(result_.lockstep.empty());
}

// D-6: who comes to an idle rank waits for the step that others compute.
TEST_F(RanksTest, ARequestWaitsForTheStepOfOthers) {
  workload_.Add({.id = "first", .prompt = 10, .output = 1, .at = 0});
  workload_.Add({.id = "second", .prompt = 2, .output = 1, .at = 3});
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(TokensOf("second"), ElementsAre(12));
}

// D-6: all compute as many tokens as the one with most, where that is a captured graph.
TEST_F(RanksTest, StepsArePaddedUpToTheLargestGraph) {
  options_.lockstep.graph_tokens = 10;
  workload_.Add({.id = "long", .prompt = 10, .output = 1, .at = 0});
  workload_.Add({.id = "short", .prompt = 2, .output = 1, .at = 0});
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(result_.lockstep[1].lost_time, 0);
  options_.lockstep.graph_tokens = 9;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(result_.lockstep[1].lost_time, 8 * kSecond);
}

// D-6: behind the first step it is asked whether anybody has work left, then behind every fourth.
TEST_F(RanksTest, RanksGoOnUntilTheyAsk) {
  options_.lockstep.sync_interval = 4;
  workload_.Add({.id = "a", .prompt = 1, .output = 1, .at = 0});
  workload_.Add({.id = "b", .prompt = 1, .output = 2, .at = 10});
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(TokensOf("b"), ElementsAre(11, 12));
  EXPECT_EQ(result_.lockstep[0].num_idle, 2);  // the third and the fourth since they were idle
  workload_.Add({.id = "c", .prompt = 1, .output = 1, .at = 12.5});
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(TokensOf("c"), ElementsAre(14));
}

// D-6: prompts of more than a token are computed in every third step of all ranks while something
// decodes.
TEST_F(RanksTest, PromptsComeInStepsOfAllRanks) {
  workload_.config.scheduler.prefill_schedule_interval = 3;
  workload_.Add({.id = "a", .prompt = 1, .output = 9, .at = 0});
  workload_.Add({.id = "b", .prompt = 1, .output = 9, .at = 0});
  workload_.Add({.id = "c", .prompt = 2, .output = 1, .at = 0.5});
  workload_.Add({.id = "d", .prompt = 2, .output = 1, .at = 1.5});
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(TokensOf("c"), TokensOf("d"));
  EXPECT_THAT(TokensOf("a")[2], 3);  // the fourth step is the first one with a prompt
  EXPECT_THAT(TokensOf("c"), ElementsAre(6));  // a step of three tokens
}

// D-6
TEST_F(RanksTest, GroupsThatCannotBeAreRefused) {
  workload_.Add({.id = "a", .prompt = 1, .output = 1, .at = 0});
  options_.ranks[0].count = 3;
  EXPECT_THAT(Run().message(), HasSubstr("ranks has a group of 3 from replica 0"));
  options_.ranks = {{.first = 0, .count = 2}, {.first = 1, .count = 2}};
  EXPECT_THAT(Run(3).message(), HasSubstr("a group of 2 from replica 1"));
  options_.ranks = {{.first = 0, .count = 2}};
  options_.scaling.schedule = {{.time = kSecond, .action = ScaleAction::kCrash}};
  EXPECT_THAT(Run().message(), HasSubstr("data-parallel ranks"));
}

// --- The balancer ---

class RankRouterTest : public testing::Test {
 protected:
  explicit RankRouterTest(SimTime interval = 100 * kMillisecond)
      : router_(MakeRouter({.kind = RouterKind::kDataParallel, .stats_interval = interval}, 3,
                           /*group=*/0, {{.first = 0, .count = 3}})),
        loads_(3) {}

  int32_t Route(SimTime now) {
    const SimRequest request{};
    const int32_t chosen =
        router_->Route({.request = request, .loads = loads_, .now = now}).replica;
    ++loads_[static_cast<size_t>(chosen)].num_requests;
    return chosen;
  }

  std::unique_ptr<Router> router_;
  std::vector<ReplicaLoad> loads_;
};

TEST_F(RankRouterTest, ABurstGoesInTurn) {
  std::vector<int32_t> chosen;
  for (int i = 0; i < 6; ++i) chosen.push_back(Route(0));
  EXPECT_THAT(chosen, ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST_F(RankRouterTest, TheBeginningMovesOnWithEveryRequest) {
  EXPECT_EQ(Route(0), 0);
  loads_.assign(3, {});
  // Rank 0 is thought to have one that waits.
  EXPECT_EQ(Route(0), 1);
  router_->OnCounts(0, {.num_running = 1, .num_blocks = 10}, kSecond);
  router_->OnCounts(0, {.num_running = 0, .num_blocks = 10}, 2 * kSecond);
  loads_.assign(3, {});
  EXPECT_EQ(Route(3 * kSecond), 2);
}

TEST_F(RankRouterTest, WaitingRequestsCountMoreWhereThePoolIsFull) {
  // 4 + 2 x 6 x (0.75 - 0.5) = 7 against 6 of running ones, and 8 with an empty pool.
  router_->OnCounts(
      0, {.num_waiting = 2, .num_running = 2, .num_blocks_used = 75, .num_blocks = 100}, 0);
  router_->OnCounts(1, {.num_waiting = 8, .num_blocks_used = 50, .num_blocks = 100}, 0);
  router_->OnCounts(2, {.num_running = 6, .num_blocks_used = 100, .num_blocks = 100}, 0);
  EXPECT_EQ(Route(0), 2);
  // Rank 2 has one more that waits, and its pool is full: 7 + 6 x 0.5 = 10.
  EXPECT_EQ(Route(0), 0);
}

TEST_F(RankRouterTest, LearnsAtMostOnceInAnInterval) {
  router_->OnCounts(0, {.num_running = 5, .num_blocks = 10}, 0);
  EXPECT_EQ(Route(0), 1);
  router_->OnCounts(0, {.num_running = 0, .num_blocks = 10}, 10 * kMillisecond);
  EXPECT_EQ(Route(99 * kMillisecond), 2);  // not yet
  router_->OnCounts(2, {.num_running = 9, .num_blocks = 10}, 100 * kMillisecond + 1);
  EXPECT_EQ(Route(101 * kMillisecond), 0);
  // What rank 2 reported behind that is not in it.
  loads_[0].num_requests = loads_[1].num_requests = 8;
  EXPECT_EQ(Route(150 * kMillisecond), 2);
}

}  // namespace
}  // namespace kvblocks::sim
