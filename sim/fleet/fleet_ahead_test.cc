// Requests that are given to replicas ahead of the clock, and several threads (SM-98).

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/fleet/fleet.h"
#include "kvblocks/sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

// Round robin over two replicas, steps of 1 s.
class FleetAheadTest : public testing::Test, public FleetObserver {
 protected:
  absl::Status Run(size_t count = 2) {
    const auto one_second = MakeFixedStepTime(kSecond);
    std::vector<ReplicaSetup> setups;
    watches_ = std::vector<Replay>(count);
    for (Replay& watch : watches_) {
      setups.push_back({workload_.config, one_second->get(), {&watch}});
    }
    told_.clear();
    const auto reader = workload_.MakeReader();
    auto fleet = Fleet::Create(options_, std::move(setups), reader.get(), {this});
    if (!fleet.ok()) return fleet.status();
    const absl::Status status = (*fleet)->Run();
    result_ = (*fleet)->result();
    return status;
  }

  void OnRouted(const RoutingRecord& record, SimTime now) override {
    told_.push_back(absl::StrCat(now / kSecond, " ", record.request.spec.id, " to ", record.replica));
  }
  void OnFound(const SimRequest& request, int32_t, int64_t, int64_t num_hit_tokens,
               SimTime now) override {
    told_.push_back(absl::StrCat(now / kSecond, " ", request.spec.id, " found ", num_hit_tokens));
  }

  Replay workload_;
  FleetOptions options_;
  std::vector<Replay> watches_;
  FleetResult result_;
  std::vector<std::string> told_;
};

TEST_F(FleetAheadTest, SM98IsToldInOrderOfTime) {
  // One request at a time: B waits for A, and the second replica is done with its own before.
  workload_.config.scheduler.max_num_seqs = 1;
  workload_.Add({.id = "A", .prompt = 4, .output = 5, .at = 1});
  workload_.Add({.id = "X", .prompt = 4, .output = 1, .at = 1});
  workload_.Add({.id = "B", .prompt = 4, .output = 1, .at = 2});
  workload_.Add({.id = "Y", .prompt = 4, .output = 1, .at = 4});
  for (const int num_threads : {1, 2}) {
    options_.num_threads = num_threads;
    ASSERT_TRUE(Run().ok());
    EXPECT_EQ(told_, (std::vector<std::string>{"1 A to 0", "1 X to 1", "1 A found 0", "1 X found 0",
                                               "2 B to 0", "4 Y to 1", "4 Y found 0", "6 B found 0"}));
    EXPECT_EQ(result_.num_sent_ahead, 4);
    EXPECT_EQ(result_.end_time, 7 * kSecond);
  }
}

TEST_F(FleetAheadTest, SM98ABurstIsSentAsOneByOne) {
  // More at one instant than are sent ahead at once; what is left arrives as ever.
  constexpr int64_t kCount = 2500;
  for (int64_t i = 0; i < kCount; ++i) {
    workload_.Add({.id = absl::StrCat(i), .prompt = 4, .output = 1, .at = i < 1500 ? 1.0 : 2.0});
  }
  std::vector<std::string> told;
  for (const int num_threads : {1, 3}) {
    options_.num_threads = num_threads;
    ASSERT_TRUE(Run(3).ok());
    ASSERT_EQ(told_.size(), 2u * kCount);
    for (int64_t i = 0; i < 1500; ++i) {
      ASSERT_EQ(told_[static_cast<size_t>(i)], absl::StrCat("1 ", i, " to ", i % 3));
    }
    if (num_threads == 1) told = told_;
    EXPECT_EQ(told_, told);
    EXPECT_EQ(result_.num_sent_ahead, 2 * 256);
  }
}

TEST_F(FleetAheadTest, SM98WhoWaitsOrMayEndASessionIsNotSentAhead) {
  workload_.Add({.id = "A", .prompt = 4, .output = 2, .at = 1});
  workload_.Add({.id = "B", .prompt = 4, .output = 2, .at = 2});
  workload_.Add({.id = "C", .prompt = 4, .output = 2, .at = 3, .waits_for = {1}});
  workload_.Add({.id = "D", .prompt = 4, .output = 2, .at = 9});
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(result_.num_sent_ahead, 3);

  workload_ = Replay();
  workload_.Add({.id = "A", .prompt = 4, .output = 2, .at = 1, .session = 1});
  workload_.Add({.id = "B", .prompt = 4, .output = 2, .at = 2, .abort_after = 9, .session = 1});
  workload_.Add({.id = "C", .prompt = 4, .output = 2, .at = 3, .session = 2});
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(result_.num_sent_ahead, 1);
}

TEST_F(FleetAheadTest, SM99ASessionRouterLooksForThoseWithoutASession) {
  options_.router = {.kind = RouterKind::kSession, .session_factor = 0};
  options_.num_threads = 2;
  workload_.Add({.id = "A", .prompt = 4, .output = 9, .at = 1, .session = 1});
  workload_.Add({.id = "B", .prompt = 4, .output = 9, .at = 2});
  workload_.Add({.id = "C", .prompt = 4, .output = 9, .at = 3, .session = 1});
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(result_.num_sent_ahead, 2);
  // B goes where A is not.
  const size_t home = watches_[0].ends.contains("A") ? 0 : 1;
  EXPECT_TRUE(watches_[home].ends.contains("C"));
  EXPECT_TRUE(watches_[1 - home].ends.contains("B"));
}

TEST_F(FleetAheadTest, SM98ErrorsAreToldWhateverTheNumberOfThreads) {
  workload_.config.kv_cache.num_blocks = 3;
  workload_.config.scheduler.reserve_full_isl = false;
  workload_.Add({.id = "A", .prompt = 4, .output = 1});
  for (int64_t i = 0; i < 40; ++i) {
    workload_.Add({.id = absl::StrCat(i), .prompt = 4, .output = 1, .at = 2.0 + static_cast<double>(i)});
  }
  const auto reader = workload_.MakeReader();
  reader->set_fail_after(20);
  options_.num_threads = 2;
  const auto one_second = MakeFixedStepTime(kSecond);
  auto fleet = Fleet::Create(
      options_, std::vector<ReplicaSetup>(2, {workload_.config, one_second->get(), {}}), reader.get(), {});
  ASSERT_TRUE(fleet.ok());
  EXPECT_FALSE((*fleet)->Run().ok());
}

TEST_F(FleetAheadTest, ThreadsAreRefusedWhereReplicasAreLookedAt) {
  const auto refused = [&](const std::string& why) {
    options_.num_threads = 2;
    const absl::Status status = Run();
    EXPECT_TRUE(absl::StrContains(status.message(), "num_threads is 2, expected 1")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), why)) << status;
    options_ = FleetOptions();
    workload_.config.concurrency = 0;
  };
  for (const RouterKind kind :
       {RouterKind::kLeastRequests, RouterKind::kLeastTokens, RouterKind::kTwoChoices,
        RouterKind::kSession, RouterKind::kPrefix, RouterKind::kPrefixApproximate,
        RouterKind::kOracle}) {
    options_.router.kind = kind;
    refused("looks at all replicas before each request");
  }
  options_.queue.max_requests = 4;
  refused("waits for any replica");
  options_.scaling.schedule = {{.time = kSecond, .action = ScaleAction::kStop}};
  refused("start and stop");
  options_.router_delay = kSecond;
  refused("on their way");
  workload_.config.concurrency = 2;
  refused("closed loop");
  options_.num_threads = 0;
  EXPECT_FALSE(Run().ok());
}

}  // namespace
}  // namespace kvblocks::sim
