// Tiers behind the replicas of a fleet (SM-105): of each its own, or shared.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/fleet/fleet.h"
#include "sim/testing/draw.h"
#include "sim/testing/replay.h"
#include "sim/tiers/tier_connector.h"

namespace kvblocks::sim {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// Round robin over replicas with blocks of 4 tokens and 128 bytes, steps of 1 s.
struct FleetWithTiers {
  absl::Status Run(const std::string& text, size_t count, LoadMode mode = LoadMode::kAsync,
                   double load_failures = 0) {
    const auto clock = MakeFixedStepTime(kSecond);
    std::vector<ReplicaSetup> setups;
    watches = std::vector<Replay>(count);
    const std::vector<SimTier> parsed = ParseTiers(text).value();
    for (size_t r = 0; r < count; ++r) {
      auto made = TierConnector::Create({.tiers = parsed,
                                         .mode = mode,
                                         .group_block_bytes = {128},
                                         .step_time = clock->get(),
                                         .load_failures = load_failures,
                                         .seed = r},
                                        r == 0 ? nullptr : tiers.front().get());
      if (!made.ok()) return made.status();
      tiers.push_back(*std::move(made));
      workload.config.manager.enable_events = tiers.back()->NeedsEvents();
      setups.push_back({.config = workload.config,
                        .step_time = clock->get(),
                        .observers = {tiers.back().get(), &watches[r]},
                        .connector = tiers.back().get()});
    }
    reader = workload.MakeReader();
    auto made = Fleet::Create({.router = {.kind = RouterKind::kRoundRobin}}, std::move(setups),
                              reader.get(), {});
    if (!made.ok()) return made.status();
    fleet = *std::move(made);
    for (size_t r = 0; r < count; ++r) {
      absl::Status status = tiers[r]->Attach(fleet->replica(r).manager());
      if (!status.ok()) return status;
    }
    return fleet->Run();
  }
  // Each slot of a shared tier is read and written by tickets of somebody.
  void ExpectConsistent() const {
    for (const auto& one : tiers) {
      const absl::Status status = one->CheckInvariants();
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  Replay workload;
  std::unique_ptr<VectorTraceReader> reader;
  std::vector<std::unique_ptr<TierConnector>> tiers;
  std::vector<Replay> watches;
  std::unique_ptr<Fleet> fleet;
};

// B has A's prompt, on the other replica.
TEST(FleetTiersTest, WhatOneReplicaStoredAnotherLoads) {
  for (const bool is_shared : {false, true}) {
    FleetWithTiers run;
    run.workload.Add({.id = "A", .prompt = 9, .output = 1, .content = Document(9)});
    run.workload.Add({.id = "B", .prompt = 9, .output = 1, .at = 10, .content = Document(9)});
    ASSERT_TRUE(
        run.Run(is_shared ? "store:8chunks:read=128B/s:shared" : "store:8chunks:read=128B/s", 2)
            .ok());
    if (is_shared) {
      EXPECT_THAT(run.watches[1].lines, Contains("10: load B +8"));
      EXPECT_THAT(run.watches[1].lines, Contains(HasSubstr("12: B:1 ")));
    } else {
      EXPECT_THAT(run.watches[1].lines, Contains(HasSubstr("10: B:9 ")));
    }
    EXPECT_EQ(run.tiers[1]->load_totals().num_loaded_tokens, is_shared ? 8 : 0);
    // B's blocks are there already. Nobody looks at the first replica's own tier any more.
    EXPECT_EQ(run.tiers[0]->offload().tier_stats(0).num_written, is_shared ? 2 : 0);
    run.ExpectConsistent();
  }
}

// C and D load at the same time over one link of 128 bytes a second: both chunks of both take 4 s,
// and neither waits for the other's load, which fills another device.
TEST(FleetTiersTest, ReplicasShareTheLink) {
  for (const bool is_shared : {false, true}) {
    FleetWithTiers run;
    for (const char* id : {"A", "B"}) {
      run.workload.Add({.id = id, .prompt = 9, .output = 1, .content = Document(9)});
    }
    for (const char* id : {"E", "F"}) {  // takes the pool
      run.workload.Add(
          {.id = id, .prompt = 13, .output = 1, .at = 10, .content = Document(13, 100)});
    }
    for (const char* id : {"C", "D"}) {
      run.workload.Add({.id = id, .prompt = 9, .output = 1, .at = 40, .content = Document(9)});
    }
    run.workload.config.kv_cache.num_blocks = 5;
    ASSERT_TRUE(
        run.Run(is_shared ? "store:8chunks:read=128B/s:shared" : "store:8chunks:read=128B/s", 2)
            .ok());
    const std::string at = is_shared ? "44: " : "42: ";
    EXPECT_THAT(run.watches[0].lines, Contains("40: load C +8"));
    EXPECT_THAT(run.watches[1].lines, Contains("40: load D +8"));
    EXPECT_THAT(run.watches[0].lines, Contains(HasSubstr(at + "C:1 ")));
    EXPECT_THAT(run.watches[1].lines, Contains(HasSubstr(at + "D:1 ")));
    run.ExpectConsistent();
  }
}

std::vector<ReplayRequest> RandomRequests(Draw& draw) {
  std::vector<ReplayRequest> requests;
  double at = 0;
  for (int i = 0; i < 40; ++i) {
    at += static_cast<double>(draw(0, 3));
    const int64_t prompt = 1 + draw(0, 27);
    requests.push_back(
        {.id = std::to_string(i),
         .prompt = prompt,
         .output = 1 + draw(0, 5),
         .at = at,
         .content = Document(prompt, 100 * draw(0, 3)),
         .abort_after = draw(0, 5) == 0 ? 1.0 + static_cast<double>(draw(0, 4)) : 0});
  }
  return requests;
}

// With tiers of its own, a replica of a round robin is a simulation of its part of the trace.
TEST(FleetTiersTest, OwnTiersKnowNothingOfEachOther) {
  Draw draw(5);
  int64_t num_loads = 0;
  for (int round = 0; round < 30; ++round) {
    const char* text = round % 2 == 0
                           ? "host:12chunks:read=300B/s"
                           : "host:4chunks:read=free,disk:20chunks:read=100B/s:store=on-evict";
    const std::vector<ReplayRequest> requests = RandomRequests(draw);
    FleetWithTiers run;
    run.workload.config.kv_cache.num_blocks = 12;
    for (const ReplayRequest& request : requests) run.workload.Add(request);
    ASSERT_TRUE(run.Run(text, 2).ok());
    run.ExpectConsistent();
    for (size_t r = 0; r < 2; ++r) {
      const auto clock = MakeFixedStepTime(kSecond);
      auto tiers = TierConnector::Create({.tiers = ParseTiers(text).value(),
                                          .group_block_bytes = {128},
                                          .step_time = clock->get()})
                       .value();
      Replay alone;
      alone.config = run.workload.config;
      alone.connector = tiers.get();
      alone.further_observers = {tiers.get()};
      for (size_t i = r; i < requests.size(); i += 2) alone.Add(requests[i]);
      ASSERT_TRUE(alone.Run().ok());
      ASSERT_EQ(run.watches[r].lines, alone.lines) << round;
      ASSERT_EQ(run.tiers[r]->load_totals().num_loaded_tokens,
                tiers->load_totals().num_loaded_tokens);
      num_loads += tiers->load_totals().num_loads;
    }
  }
  EXPECT_GT(num_loads, 100);
}

// Whatever comes together, every request ends once, nothing stays behind, and a second run is the
// same.
TEST(FleetTiersTest, RandomFleetsOverSharedTiersEndAndLeaveNothing) {
  constexpr const char* kTiers[] = {
      "store:12chunks:read=300B/s:shared",
      "host:4chunks:read=free,store:20chunks:read=100B/s:store=on-evict:shared",
      "store:6chunks:read=900B/s:exclusive:shared,far:30chunks:read=200B/s:chunk=2:fifo:shared",
      "store:12chunks:read=500B/s:latency=500ms:store=on-evict:shared"};
  Draw draw(11);
  int64_t num_loads = 0, num_of_others = 0;
  for (int round = 0; round < 60; ++round) {
    const std::vector<ReplayRequest> requests = RandomRequests(draw);
    const auto mode = static_cast<LoadMode>(round % 3);
    const size_t count = 1 + static_cast<size_t>(round % 4);
    std::vector<std::vector<std::string>> first_lines;
    for (int again = 0; again < 2; ++again) {
      FleetWithTiers run;
      run.workload.config.kv_cache.num_blocks = 12;
      for (const ReplayRequest& request : requests) run.workload.Add(request);
      const absl::Status status =
          run.Run(kTiers[round % 4], count, mode, mode == LoadMode::kAsync ? 0.2 : 0);
      ASSERT_TRUE(status.ok()) << status << " in round " << round;
      run.ExpectConsistent();
      size_t num_ended = 0;
      std::vector<std::vector<std::string>> lines;
      for (size_t r = 0; r < count; ++r) {
        num_ended += run.watches[r].ends.size() + run.watches[r].rejections.size();
        lines.push_back(run.watches[r].lines);
        ASSERT_EQ(run.fleet->replica(r).manager().pool().num_free(), 11);
        num_loads += run.tiers[r]->load_totals().num_loads;
      }
      ASSERT_EQ(num_ended, requests.size());
      if (again == 0) first_lines = lines;
      ASSERT_EQ(lines, first_lines) << round;
      num_of_others += count > 1 && run.tiers[1]->load_totals().num_loads > 0;
    }
  }
  EXPECT_GT(num_loads, 300);
  EXPECT_GT(num_of_others, 20);
}

}  // namespace
}  // namespace kvblocks::sim
