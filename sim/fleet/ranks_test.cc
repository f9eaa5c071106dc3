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

}  // namespace
}  // namespace kvblocks::sim
