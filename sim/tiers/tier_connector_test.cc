// Tiers behind the device (SM-105, SM-106): replays worked out by hand, random ones, and what SM-97
// promises of a tier that keeps all.

#include "sim/tiers/tier_connector.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  const auto tiers = ParseTiers(text);
  EXPECT_FALSE(tiers.ok()) << text;
  return std::string(tiers.status().message());
}

TEST(TierTextTest, ATotalIsDividedByTheDevices) {
  const auto tiers = ParseTiers("host:512GiB:read=400GB/s:total,disk:100chunks:read=free:total", 8);
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  EXPECT_EQ((*tiers)[0].options.capacity_bytes, int64_t{64} << 30);
  EXPECT_EQ((*tiers)[0].read->bytes_per_second, 50'000'000'000);
  EXPECT_EQ((*tiers)[0].write->bytes_per_second, 50'000'000'000);
  EXPECT_EQ((*tiers)[1].options.capacity_slots, 100) << "each has a part of every chunk";
}

TEST(TierTextTest, ATierIsItsNameItsSizeAndSettings) {
  const auto tiers = ParseTiers(
      "host:1.5GiB:read=50GB/s:write=40GB/"
      "s:latency=10us:policy=arc:store=on-second-use:prompt-only,"
      "disk:1000chunks:read=5GB/s:fifo:chunk=4:exclusive:layout=all-groups,far:1TB:read=free");
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  ASSERT_EQ(tiers->size(), 3u);
  const SimTier& host = (*tiers)[0];
  EXPECT_EQ(host.options.name, "host");
  EXPECT_EQ(host.options.capacity_bytes, 3 << 29);
  EXPECT_EQ(host.options.policy.name, "arc");
  EXPECT_EQ(host.options.write_policy, offload::WritePolicy::kOnSecondUse);
  EXPECT_TRUE(host.options.prompt_only);
  EXPECT_EQ(host.read->bytes_per_second, 50'000'000'000);
  EXPECT_EQ(host.write->bytes_per_second, 40'000'000'000);
  EXPECT_EQ(host.read->latency, 10 * kMicrosecond);
  const SimTier& disk = (*tiers)[1];
  EXPECT_EQ(disk.options.capacity_slots, 1000);
  EXPECT_EQ(disk.options.blocks_per_chunk, 4);
  EXPECT_TRUE(disk.options.exclusive);
  EXPECT_EQ(disk.options.layout, offload::SlotLayout::kAllGroups);
  EXPECT_EQ(disk.write->bytes_per_second, 5'000'000'000);
  EXPECT_EQ(disk.write->sharing, LinkSharing::kFifo);
  EXPECT_FALSE((*tiers)[2].read.has_value());
  EXPECT_TRUE(ParseTiers("")->empty());
}

TEST(TierTextTest, ErrorsQuoteTheTierAndSayWhatIsExpected) {
  EXPECT_THAT(ErrorOf("host"), HasSubstr("got \"host\", expected NAME:SIZE:read=SPEED"));
  EXPECT_THAT(ErrorOf("host:1GiB"), HasSubstr("read=SPEED in it"));
  EXPECT_THAT(ErrorOf("host:1:read=free"), HasSubstr("a size as 64GiB"));
  EXPECT_THAT(ErrorOf("host:0.1B:read=free"), HasSubstr("a size as 64GiB"));
  EXPECT_THAT(ErrorOf("host:0chunks:read=free"), HasSubstr("1 to 134217728 chunks"));
  EXPECT_THAT(ErrorOf("host:1GiB:read=50"), HasSubstr("read=SPEED as 50GB/s"));
  EXPECT_THAT(ErrorOf("host:1GiB:read=free:latency=2h"), HasSubstr("latency=TIME of at most 1h"));
  EXPECT_THAT(ErrorOf("host:1GiB:read=free:chunk=0"), HasSubstr("chunk=1 to"));
  // Only policies that a tier takes are offered.
  for (const char* policy : {"x", "ttl", "priority"}) {
    EXPECT_THAT(ErrorOf(std::string("host:1GiB:read=free:policy=") + policy),
                HasSubstr(std::string("policy is \"") + policy +
                          "\", expected arc|hazard|lru"));
  }
  EXPECT_THAT(ErrorOf("host:1GiB:read=free:store=x"), HasSubstr("write-through|on-evict"));
  EXPECT_THAT(ErrorOf("host:1GiB:read=free:layout=x"), HasSubstr("packed|"));
  EXPECT_THAT(ErrorOf("host:1GiB:read=free:quick"), HasSubstr("instead of \"quick\""));
  EXPECT_THAT(ErrorOf("a:1GiB:read=free:shared,b:1GiB:read=free"),
              HasSubstr("shared in it, as \"a\" before it is"));
}

struct Failures {
  double share = 0;
  uint64_t seed = 0;
};

// Blocks of 4 tokens and 128 bytes, steps of 1 s.
struct TierReplay : Replay {
  explicit TierReplay(std::string_view text, int64_t num_blocks = 5,
                      LoadMode mode = LoadMode::kAsync, bool load_if_faster = false,
                      Failures failures = {}, bool has_window = false)
      : clock(MakeFixedStepTime(kSecond).value()) {
    config.kv_cache.num_blocks = num_blocks;
    if (has_window) config.kv_cache.groups.push_back(WindowGroup(4, 6));
    tiers = TierConnector::Create({.tiers = ParseTiers(text).value(),
                                   .mode = mode,
                                   .load_if_faster = load_if_faster,
                                   .group_block_bytes = std::vector<int64_t>(
                                       config.kv_cache.groups.size(), 128),
                                   .step_time = clock.get(),
                                   .load_failures = failures.share,
                                   .seed = failures.seed})
                .value();
    config.manager.enable_events = tiers->NeedsEvents();
    connector = tiers.get();
    further_observers = {tiers.get()};
  }
  // Prompts of 9 and 13 tokens that share nothing, so the second one takes the whole pool.
  void AddAThenC(double c_at) {
    Add({.id = "A", .prompt = 9, .output = 1, .content = Document(9)});
    Add({.id = "C", .prompt = 13, .output = 1, .at = c_at, .content = Document(13, 100)});
  }
  std::unique_ptr<StepTimeModel> clock;
  std::unique_ptr<TierConnector> tiers;
};

// A's two full blocks are written at 128 bytes a second from 1 to 3 and read from 10 to 12.
TEST(TierConnectorTest, WhatTheDeviceLostIsLoaded) {
  TierReplay replay("host:8chunks:read=128B/s");
  replay.AddAThenC(3);
  replay.Add({.id = "D", .prompt = 9, .output = 1, .at = 10, .content = Document(9)});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:9 [1,2,3] fin A", "3: C:13 [3,4,2,1] fin C",
                                        "10: load D +8", "12: D:1 [4] fin D"));
  EXPECT_EQ(replay.tiers->load_totals().num_loaded_tokens, 8);
  EXPECT_EQ(replay.tiers->load_totals().num_bytes, 256);
  EXPECT_EQ(replay.tiers->load_totals().load_time, 2 * kSecond);
  EXPECT_EQ(replay.tiers->tier_totals(0).num_hit_tokens, 8);
  // A and C miss 8 and 12 tokens that nobody had stored.
  EXPECT_THAT(replay.tiers->tier_totals(0).missed_tokens, ElementsAre(20, 0, 0, 0));
  EXPECT_EQ(replay.tiers->offload().tier_stats(0).num_useful, 2);
  EXPECT_EQ(replay.tiers->write_totals(0)->bytes, 5 * 128);
  EXPECT_TRUE(replay.tiers->CheckInvariants().ok());
}

// C's blocks are written from 2 on, and A's write gets half of the link: it ends at 4.
TEST(TierConnectorTest, ARequestWaitsForWhatIsBeingWritten) {
  TierReplay replay("host:8chunks:read=128B/s");
  replay.AddAThenC(1);
  replay.Add({.id = "D", .prompt = 9, .output = 1, .at = 2, .content = Document(9)});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, Contains("4: load D +8"));
  EXPECT_THAT(replay.lines, Contains(HasSubstr("6: D:1 ")));
}

// Waiting for the store would take 2 s, and the load 2 s more.
TEST(TierConnectorTest, WhoLoadsOnlyWhatIsFasterDoesNotWaitForStores) {
  TierReplay replay("host:8chunks:read=128B/s", 5, LoadMode::kAsync, true);
  replay.AddAThenC(1);
  replay.Add({.id = "D", .prompt = 9, .output = 1, .at = 2, .content = Document(9)});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, Contains(HasSubstr("2: D:9 ")));
}

// E finds on the device what D loads, once it has come.
TEST(TierConnectorTest, NoTwoRequestsLoadTheSame) {
  TierReplay replay("host:8chunks:read=128B/s", 7);
  replay.AddAThenC(3);
  replay.Add({.id = "F", .prompt = 9, .output = 1, .at = 5, .content = Document(9, 300)});
  for (const char* id : {"D", "E"}) {
    replay.Add(
        {.id = id, .prompt = 9, .output = 1, .at = 20, .content = Document(9)});
  }
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(replay.tiers->load_totals().num_loads, 1);
  EXPECT_THAT(replay.lines, Contains("20: load D +8"));
  EXPECT_THAT(replay.lines, Contains(HasSubstr("E:1h8")));
}

TEST(TierConnectorTest, StepsWaitForSynchronousAndLayerwiseLoads) {
  for (const auto& [mode, span] :
       {std::pair(LoadMode::kSync, "10-13"), std::pair(LoadMode::kLayerwise, "10-12")}) {
    TierReplay replay("host:8chunks:read=128B/s", 5, mode);
    replay.AddAThenC(3);
    replay.Add(
        {.id = "D", .prompt = 9, .output = 1, .at = 10, .content = Document(9)});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_THAT(replay.device, ElementsAre("0-1", "3-4", span));
  }
}

// Computing takes 1 s: with 256 bytes per second so does loading.
TEST(TierConnectorTest, LoadIfFasterComputesWhereLoadingTakesAsLong) {
  for (const auto& [speed, num_loads] : {std::pair("256B/s", 0), std::pair("257B/s", 1)}) {
    TierReplay replay(std::string("host:8chunks:write=128B/s:read=") + speed, 5, LoadMode::kAsync,
                      true);
    replay.AddAThenC(3);
    replay.Add(
        {.id = "D", .prompt = 9, .output = 1, .at = 10, .content = Document(9)});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(replay.tiers->load_totals().num_loads, num_loads) << speed;
    EXPECT_EQ(replay.tiers->load_totals().num_not_worth_it, 1 - num_loads) << speed;
    EXPECT_EQ(replay.tiers->tier_totals(0).missed_tokens[3], 8 * (1 - num_loads)) << speed;
  }
}

// The host has room for C's three chunks or A's two: what goes moves to the disk, C's last two when
// D's come back to the host.
TEST(TierConnectorTest, WhatTheHostEvictsIsReadFromTheDisk) {
  TierReplay replay("host:3chunks:read=128B/s,disk:9chunks:read=64B/s:store=on-evict");
  replay.AddAThenC(3);
  replay.Add({.id = "D", .prompt = 9, .output = 1, .at = 20, .content = Document(9)});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, Contains("20: load D +8"));
  EXPECT_THAT(replay.lines, Contains(HasSubstr("24: D:1 ")));  // two blocks at 64 bytes a second
  EXPECT_EQ(replay.tiers->tier_totals(1).num_hit_tokens, 8);
  EXPECT_EQ(replay.tiers->offload().tier_stats(0).num_moved_down, 2 + 2);
}

TEST(TierConnectorTest, WhatTheDeviceEvictsEntersATierThatTakesIt) {
  TierReplay replay("host:8chunks:read=128B/s:store=on-evict");
  replay.AddAThenC(3);
  replay.Add({.id = "D", .prompt = 9, .output = 1, .at = 20, .content = Document(9)});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, Contains("20: load D +8"));
  // A's two, and C's last one, whose block D's load took.
  EXPECT_EQ(replay.tiers->offload().tier_stats(0).num_written, 2 + 1);
}

TEST(TierConnectorTest, EvictedChunksAreMissesOfTheirOwn) {
  TierReplay replay("host:3chunks:read=free");
  replay.AddAThenC(3);
  replay.Add({.id = "D", .prompt = 9, .output = 1, .at = 10, .content = Document(9)});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.tiers->tier_totals(0).missed_tokens, ElementsAre(20, 8, 0, 0));
  EXPECT_EQ(replay.tiers->tier_totals(0).num_distinct, 5);
  EXPECT_EQ(replay.tiers->offload().tier_stats(0).num_written, 7);
}

// vllm#46283: blocks of an aborted load are free when the transfer ends, and not before.
TEST(TierConnectorTest, AnAbortedLoadEndsAndLeavesNothing) {
  TierReplay replay("host:8chunks:read=128B/s");
  replay.AddAThenC(3);
  replay.Add({.id = "D",
              .prompt = 9,
              .output = 1,
              .at = 10,
              .content = Document(9),
              .abort_after = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(replay.ends["D"], "abort");
  EXPECT_EQ(replay.free_queue.size(), 4u);
  EXPECT_EQ(replay.tiers->offload().num_open_tickets(), 0);
  EXPECT_TRUE(replay.tiers->CheckInvariants().ok());
}

// --- Loads that fail ---

// Every load does: D's second chunk is bad, and it computes that block and its last token; or its
// first one is, and nothing is left to load.
TEST(TierConnectorTest, WhatCannotBeReadLeavesItsTierAndIsComputed) {
  bool first_was_bad = false, second_was_bad = false;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    TierReplay replay("host:8chunks:read=128B/s:write=1kB/s", 5, LoadMode::kAsync, false,
                      {1, seed});
    replay.AddAThenC(3);
    replay.Add({.id = "D", .prompt = 9, .output = 1, .at = 10, .content = Document(9)});
    ASSERT_TRUE(replay.Run().ok());
    const bool is_second = replay.lines.back().substr(0, 7) == "12: D:5";
    (is_second ? second_was_bad : first_was_bad) = true;
    EXPECT_THAT(replay.lines.back(), HasSubstr(is_second ? "12: D:5 " : "12: D:9 "));
    EXPECT_EQ(replay.ends["D"], "length");
    const LoadTotals& totals = replay.tiers->load_totals();
    EXPECT_EQ(totals.num_failed, 1);
    EXPECT_EQ(totals.num_lost_tokens, is_second ? 4 : 8);
    EXPECT_EQ(totals.num_loaded_tokens, is_second ? 4 : 0);
    EXPECT_EQ(replay.result.scheduler.num_lost, totals.num_lost_tokens);
    // Being written anew when D has computed it.
    EXPECT_EQ(replay.tiers->offload().tier_stats(0).num_written, 5);
    EXPECT_EQ(replay.tiers->offload().tier(0).num_found(), 5);
    EXPECT_TRUE(replay.tiers->CheckInvariants().ok());
  }
  EXPECT_TRUE(first_was_bad && second_was_bad);
}

TEST(TierConnectorTest, ARequestCanEndByAFailedLoad) {
  TierReplay replay("host:8chunks:read=128B/s", 5, LoadMode::kAsync, false, {1});
  replay.config.scheduler.load_failure_policy = LoadFailurePolicy::kFail;
  replay.AddAThenC(3);
  replay.Add({.id = "D", .prompt = 9, .output = 1, .at = 10, .content = Document(9)});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(replay.ends["D"], "error");
  EXPECT_EQ(replay.result.num_failed, 1);
  EXPECT_EQ(replay.tiers->load_totals().num_loaded_tokens, 0);
  EXPECT_EQ(replay.tiers->load_totals().num_lost_tokens, 8);
  EXPECT_EQ(replay.free_queue.size(), 4u);
}

// B runs when D's load has ended, so D waits with what came of it, and is given up. What did not
// come must not be stored as if it had.
TEST(TierConnectorTest, WhatDidNotArriveIsNotStored) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    TierReplay replay("host:40chunks:read=128B/s:write=1kB/s", 9, LoadMode::kAsync, false,
                      {1, seed});
    replay.config.scheduler.max_num_active_seqs = 1;
    replay.AddAThenC(3);
    replay.Add({.id = "F", .prompt = 29, .output = 1, .at = 5, .content = Document(29, 300)});
    replay.Add({.id = "D",
                .prompt = 9,
                .output = 1,
                .at = 20,
                .content = Document(9),
                .abort_after = 4});
    replay.Add({.id = "B", .prompt = 5, .output = 12, .at = 21, .content = Document(5, 500)});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(replay.ends["D"], "abort");
    EXPECT_EQ(replay.tiers->load_totals().num_failed, 1);
    // A's 2, C's 3, F's 7, and B's 1 of its prompt.
    EXPECT_EQ(replay.tiers->offload().tier_stats(0).num_written, 2 + 3 + 7 + 1);
  }
}

// Whatever comes together - aborts, preemptions, loads of three kinds, some of which fail, windows
// beside full attention - every request ends and no block or slot stays behind.
TEST(TierConnectorTest, RandomReplaysEndAndLeaveNothing) {
  std::mt19937_64 random(1);
  const auto draw = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  constexpr const char* kTiers[] = {
      "host:9chunks:read=300B/s",
      "host:4chunks:read=free,disk:20chunks:read=100B/s:store=on-evict",
      "host:12chunks:read=500B/s:latency=500ms:store=on-evict",
      "host:6chunks:read=900B/s:exclusive,disk:30chunks:read=200B/s:chunk=2:fifo",
      "host:10chunks:read=2kB/s:store=on-second-use:prompt-only:policy=arc"};
  int64_t num_loads = 0, num_preemptions = 0, num_aborted = 0, num_lost = 0, num_failed = 0;
  for (int round = 0; round < 200; ++round) {
    const auto mode = static_cast<LoadMode>(draw(3));
    const bool has_window = draw(3) == 0;
    TierReplay replay(kTiers[round % 5], (has_window ? 20 : 10) + draw(12), mode, draw(3) == 0,
                      {mode == LoadMode::kAsync ? 0.4 : 0, static_cast<uint64_t>(round)},
                      has_window);
    if (draw(3) == 0) replay.config.scheduler.load_failure_policy = LoadFailurePolicy::kFail;
    if (draw(2) == 0) replay.config.scheduler.policy = SchedulingPolicy::kPriority;
    replay.config.scheduler.async = draw(2) == 0;
    replay.config.scheduler.max_num_batched_tokens = 8 + draw(40);
    for (int i = 0; i < 25; ++i) {
      replay.Add({.id = std::to_string(i),
                  .prompt = 1 + draw(28),
                  .output = 1 + draw(10),
                  .at = static_cast<double>(draw(60)),
                  .priority = static_cast<int32_t>(draw(3)),
                  .content = Document(28, draw(4) * 100),
                  .abort_after = draw(5) == 0 ? 1.0 + static_cast<double>(draw(5)) : 0});
    }
    const absl::Status status = replay.Run();
    ASSERT_TRUE(status.ok()) << status << " in round " << round;
    ASSERT_TRUE(replay.tiers->CheckInvariants().ok()) << replay.tiers->CheckInvariants();
    ASSERT_EQ(static_cast<int64_t>(replay.free_queue.size()),
              replay.config.kv_cache.num_blocks - 1);
    ASSERT_EQ(replay.ends.size() + replay.rejections.size(), 25u);
    num_loads += replay.tiers->load_totals().num_loads;
    num_preemptions += replay.result.scheduler.num_preemptions;
    num_aborted += replay.result.num_aborted_time;
    num_failed += replay.result.num_failed;
    // The connector counts as the scheduler does, but for loads of requests that are gone.
    num_lost += replay.result.scheduler.num_lost;
    ASSERT_LE(replay.result.scheduler.num_lost, replay.tiers->load_totals().num_lost_tokens);
    ASSERT_GE(replay.tiers->load_totals().num_loaded_tokens, 0);
  }
  EXPECT_GT(num_lost, 500);
  EXPECT_GT(num_failed, 10);
  EXPECT_GT(num_loads, 200);
  EXPECT_GT(num_preemptions, 50);
  EXPECT_GT(num_aborted, 50);
}

// SM-97: everything is written through, transfers are free, and each request is alone. Then the
// pool hits what it hits without a tier, and both together what a pool of the tier's size hits,
// which has one block more: that of a prompt's end, which nobody can hit.
TEST(TierConnectorTest, AnInclusiveTierHitsWhatAPoolOfItsSizeHits) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    const int64_t first = 9 + static_cast<int64_t>(random() % 10);
    const int64_t second = first + static_cast<int64_t>(random() % 30);
    std::vector<ReplayRequest> requests;
    for (int i = 0; i < 60; ++i) {
      ReplayRequest request{.id = std::to_string(i),
                            .prompt = 1 + 4 * static_cast<int64_t>(random() % 8),
                            .output = 1,
                            .at = i * 10.0};
      int64_t path = static_cast<int64_t>(random() % 2);
      for (int64_t t = 0; t < request.prompt; ++t) {
        if (t % 4 == 0) path = 3 * path + static_cast<int64_t>(random() % 2);
        request.content.push_back(100 * path + t % 4);
      }
      requests.push_back(request);
    }
    const auto hits_of_pool = [&](int64_t num_blocks) {
      Replay replay;
      replay.config.kv_cache.num_blocks = num_blocks + 1;
      for (const ReplayRequest& request : requests) replay.Add(request);
      EXPECT_TRUE(replay.Run().ok());
      return replay.result.prefix_cache.hits;
    };
    TierReplay replay("host:" + std::to_string(second) + "chunks:read=free",
                      first + 2, round % 2 == 0 ? LoadMode::kSync : LoadMode::kAsync);
    for (const ReplayRequest& request : requests) replay.Add(request);
    ASSERT_TRUE(replay.Run().ok());
    const LoadTotals& totals = replay.tiers->load_totals();
    ASSERT_EQ(totals.num_device_tokens, hits_of_pool(first + 1)) << round;
    ASSERT_EQ(totals.num_device_tokens + totals.num_loaded_tokens, hits_of_pool(second + 1))
        << round;
  }
}

}  // namespace
}  // namespace kvblocks::sim
