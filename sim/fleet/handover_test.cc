// Replicas that compute prompts and replicas that decode (SM-103, SM-104): runs worked out by hand,
// and random ones in which every request ends once and every block comes back.

#include "sim/fleet/fleet.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/draw.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

double InSeconds(SimTime time) {
  return time < 0 ? -1 : static_cast<double>(time) / static_cast<double>(kSecond);
}

// Steps of 1 s, blocks of 4, a byte per token and 4 bytes per second.
struct HandoverReplay : FleetObserver {
  struct Ended {
    HandoverLife life;
    std::string reason;
    double at = 0;
    int64_t num_outputs = 0;
  };

  HandoverReplay() {
    options.groups = {{.block_bytes = 4, .block_size = 4}};
    options.link.bytes_per_second = 4;
    config = lines.config;
    config.kv_cache.num_blocks = 100;
  }

  void OnEnded(const SimRequest& request, const HandoverLife& life, SimTime now) override {
    EXPECT_TRUE(ended.emplace(request.spec.id,
                              Ended{life, std::string(FinishReasonName(request.finish_reason)),
                                    InSeconds(now), request.num_outputs()})
                    .second)
        << request.spec.id;
  }

  absl::Status Run() {
    const auto step_time = MakeFixedStepTime(kSecond);
    EXPECT_TRUE(step_time.ok());
    reader = lines.MakeReader();
    options.num_prefill = num_prefill;
    fleet_options.handover = options;
    std::vector<ReplicaSetup> replicas(
        num_prefill + num_decode,
        {.config = config, .step_time = step_time->get(), .observers = {}});
    replicas[num_prefill].observers = {&lines};
    for (size_t r = num_prefill; r < replicas.size() && decode_blocks > 0; ++r) {
      replicas[r].config.kv_cache.num_blocks = decode_blocks;
    }
    auto fleet = Fleet::Create(fleet_options, replicas, reader.get(), {this});
    if (!fleet.ok()) return fleet.status();
    const absl::Status status = (*fleet)->Run();
    result = (*fleet)->result();
    for (size_t r = 0; r < replicas.size(); ++r) {
      const BlockPool& pool = (*fleet)->replica(r).manager().pool();
      num_blocks_away += pool.num_blocks() - 1 - pool.num_free();
    }
    return status;
  }

  FleetOptions fleet_options = {.router = {.kind = RouterKind::kLeastTokens}};
  HandoverOptions options;
  SimulationConfig config;
  size_t num_prefill = 1, num_decode = 1;
  int64_t decode_blocks = 0;  // 0: as config
  Replay lines;               // of the first decode replica
  std::unique_ptr<VectorTraceReader> reader;
  std::map<std::string, Ended> ended;
  FleetResult result;
  int64_t num_blocks_away = 0;
};

// The prompt takes the step [0,1], 8 bytes [1,3]; the client has the prefill's token at 1.
TEST(HandoverTest, ThePrefillsTokenCanBeTheFirst) {
  HandoverReplay replay;
  replay.lines.Add({.id = "A", .prompt = 8, .output = 3});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines.lines, ElementsAre("1: load A +8", "3: A:1 [3]", "4: A:1 [] fin A"));
  const auto& a = replay.ended.at("A");
  EXPECT_EQ(a.reason, "length");
  EXPECT_EQ(a.at, 5);
  EXPECT_EQ(a.num_outputs, 3);
  EXPECT_EQ(InSeconds(a.life.prefill_end), 1);
  EXPECT_EQ(InSeconds(a.life.first_token), 1);
  EXPECT_EQ(InSeconds(a.life.load_start), 1);
  EXPECT_EQ(InSeconds(a.life.load_end), 3);
  EXPECT_EQ(replay.num_blocks_away, 0);
}

// The decode replica computes the last prompt token again.
TEST(HandoverTest, OrTheDecodeReplicaMakesIt) {
  HandoverReplay replay;
  replay.options.first_token = FirstToken::kDecode;
  replay.lines.Add({.id = "A", .prompt = 8, .output = 3});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines.lines,
              ElementsAre("1: load A +8", "3: A:1 []", "4: A:1 [3]", "5: A:1 [] fin A"));
  EXPECT_EQ(InSeconds(replay.ended.at("A").life.first_token), 4);
  EXPECT_EQ(replay.ended.at("A").num_outputs, 3);
}

// Both are computed in one step; then 8 bytes each, of 4 per second.
TEST(HandoverTest, TransfersShareTheLink) {
  for (const bool fifo : {false, true}) {
    HandoverReplay replay;
    if (fifo) replay.options.link.sharing = LinkSharing::kFifo;
    replay.lines.Add({.id = "A", .prompt = 8, .output = 2});
    replay.lines.Add({.id = "B", .prompt = 8, .output = 2});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(InSeconds(replay.ended.at("A").life.load_end), fifo ? 3 : 5);
    EXPECT_EQ(InSeconds(replay.ended.at("A").life.link_queue), fifo ? 0 : 2);
    EXPECT_EQ(InSeconds(replay.ended.at("B").life.load_end), 5);
    EXPECT_EQ(InSeconds(replay.ended.at("B").life.link_queue), 2);
  }
}

TEST(HandoverTest, EachDecodeReplicaCanHaveItsOwnLink) {
  HandoverReplay replay;
  replay.num_decode = 2;
  replay.options.scope = LinkScope::kPerDecodeReplica;
  replay.lines.Add({.id = "A", .prompt = 8, .output = 2});
  replay.lines.Add({.id = "B", .prompt = 8, .output = 2});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(InSeconds(replay.ended.at("B").life.load_end), 3);
  EXPECT_EQ(replay.result.handover.links.size(), 2u);
}

// B's first 8 tokens are in the decode replica's pool; only the ninth travels, or all of them.
TEST(HandoverTest, WhatTheDestinationHasNeedNotTravel) {
  for (const bool charges : {false, true}) {
    HandoverReplay replay;
    replay.options.charges_hits = charges;
    replay.lines.Add({.id = "A", .prompt = 9, .output = 2, .content = Document(9)});
    replay.lines.Add({.id = "B", .prompt = 9, .output = 2, .at = 20, .content = Document(9)});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_THAT(replay.lines.lines[2], HasSubstr("load B h8+1"));
    EXPECT_EQ(replay.ended.at("B").life.num_bytes, charges ? 9 : 1);
    EXPECT_EQ(replay.ended.at("B").life.load_end - replay.ended.at("B").life.load_start,
              charges ? kSecond * 9 / 4 : kSecond / 4);
  }
}

// Of 12 tokens a window of 5 needs the 4 before the next one: block 2; with 5 of them in it, blocks
// 1 and 2. Its blocks have 8 bytes.
TEST(HandoverTest, OfWindowsTheirBlocksTravel) {
  for (const int64_t window : {5, 6}) {
    HandoverReplay replay;
    replay.config.kv_cache.groups.push_back(WindowGroup(4, window));
    replay.options.groups.push_back({.block_bytes = 8, .block_size = 4, .is_window = true});
    replay.lines.Add({.id = "A", .prompt = 12, .output = 3});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(replay.ended.at("A").life.num_bytes, 12 + (window == 5 ? 8 : 16));
    EXPECT_EQ(replay.ended.at("A").num_outputs, 3);
    EXPECT_EQ(replay.num_blocks_away, 0);
  }
}

// C lacks 4 tokens, B 8.
TEST(HandoverTest, ShortAndWellHitPromptsAreComputedWhereTheyDecode) {
  HandoverReplay replay;
  replay.options.max_local_tokens = 4;
  replay.lines.Add({.id = "A", .prompt = 4, .output = 2});
  replay.lines.Add({.id = "B", .prompt = 8, .output = 2, .at = 1, .content = Document(8)});
  replay.lines.Add({.id = "C", .prompt = 12, .output = 2, .at = 20, .content = Document(12)});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_TRUE(replay.ended.at("A").life.is_local);
  EXPECT_FALSE(replay.ended.at("B").life.is_local);
  EXPECT_TRUE(replay.ended.at("C").life.is_local);
  EXPECT_EQ(replay.result.handover.num_local, 2);
  EXPECT_EQ(InSeconds(replay.ended.at("C").life.first_token), 21);
  EXPECT_EQ(replay.ended.at("C").num_outputs, 2);
}

// One output token, and the prefill has it.
TEST(HandoverTest, WhatIsOverAfterThePromptGoesNowhere) {
  HandoverReplay replay;
  replay.lines.Add({.id = "A", .prompt = 8, .output = 1});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(replay.ended.at("A").at, 1);
  EXPECT_EQ(replay.ended.at("A").num_outputs, 1);
  EXPECT_EQ(replay.result.handover.links.front().num_started, 0);
}

// A's blocks stay on the prefill replica until 3, so B finds no room before.
TEST(HandoverTest, BlocksAreHeldUntilTheyAreFetched) {
  HandoverReplay replay;
  replay.config.kv_cache.num_blocks = 4;
  replay.decode_blocks = 100;
  replay.lines.Add({.id = "A", .prompt = 8, .output = 2});
  replay.lines.Add({.id = "B", .prompt = 8, .output = 2});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(InSeconds(replay.ended.at("B").life.prefill_start), 3);
}

// The decode replica has room for one: B's blocks wait on the prefill replica until A is done at 4.
TEST(HandoverTest, TheTransferWaitsForBlocksAtItsDestination) {
  HandoverReplay replay;
  replay.decode_blocks = 4;
  replay.lines.Add({.id = "A", .prompt = 8, .output = 2});
  replay.lines.Add({.id = "B", .prompt = 8, .output = 2});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines.lines, ElementsAre("1: load A +8", "3: A:1 [3] fin A", "4: load B +8",
                                              "6: B:1 [1] fin B"));
}

TEST(HandoverTest, AbortsAtAnyTimeLeaveNothingBehind) {
  for (double after = 0.25; after < 7; after += 0.5) {
    HandoverReplay replay;
    replay.lines.Add({.id = "A", .prompt = 8, .output = 3, .abort_after = after});
    replay.lines.Add({.id = "B", .prompt = 8, .output = 3, .content = Document(8)});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(replay.ended.size(), 2u);
    EXPECT_EQ(replay.ended.at("B").reason, "length");
    EXPECT_EQ(replay.num_blocks_away, 0) << after;
  }
}

// C has B's document and comes when nothing runs: of two idle replicas the first one is taken,
// unless the router knows where the document is.
TEST(HandoverTest, RoutersOfContentsFindTheirReplica) {
  const auto prefill_of_c = [](RouterKind kind) {
    HandoverReplay replay;
    replay.num_prefill = 2;
    replay.fleet_options.router.kind = kind;
    replay.lines.Add({.id = "A", .prompt = 9, .output = 2});
    replay.lines.Add({.id = "B", .prompt = 9, .output = 2, .content = Document(9)});
    replay.lines.Add({.id = "C", .prompt = 9, .output = 2, .at = 20, .content = Document(9)});
    EXPECT_TRUE(replay.Run().ok());
    EXPECT_EQ(replay.ended.at("A").life.prefill_replica, 0);
    EXPECT_EQ(replay.ended.at("B").life.prefill_replica, 1);
    return replay.ended.at("C").life.prefill_replica;
  };
  EXPECT_EQ(prefill_of_c(RouterKind::kLeastTokens), 0);
  EXPECT_EQ(prefill_of_c(RouterKind::kPrefix), 1);
  EXPECT_EQ(prefill_of_c(RouterKind::kPrefixApproximate), 1);
  EXPECT_EQ(prefill_of_c(RouterKind::kOracle), 1);
}

TEST(HandoverTest, RoutersOfContentsFindTheDecodeReplica) {
  HandoverReplay replay;
  replay.num_decode = 2;
  replay.options.decode_router.kind = RouterKind::kPrefix;
  replay.lines.Add({.id = "A", .prompt = 9, .output = 4});
  replay.lines.Add({.id = "B", .prompt = 9, .output = 4, .content = Document(9)});
  replay.lines.Add({.id = "C", .prompt = 9, .output = 2, .at = 30, .content = Document(9)});
  ASSERT_TRUE(replay.Run().ok());
  ASSERT_NE(replay.ended.at("A").life.decode_replica, replay.ended.at("B").life.decode_replica);
  EXPECT_EQ(replay.ended.at("C").life.decode_replica, replay.ended.at("B").life.decode_replica);
  EXPECT_EQ(replay.ended.at("C").life.num_loaded_tokens, 1);
}

TEST(HandoverTest, BadOptionsAreRefused) {
  HandoverReplay replay;
  replay.fleet_options.router.kind = RouterKind::kOracle;
  replay.config.manager.enable_caching = false;
  EXPECT_THAT(std::string(replay.Run().message()),
              HasSubstr("router oracle compares cached blocks"));
  HandoverReplay windows;
  windows.config.kv_cache.groups.push_back(WindowGroup(4, 8));
  EXPECT_THAT(std::string(windows.Run().message()),
              HasSubstr("prefill replica 0: it has 2 KV-cache groups, expected 1"));
  HandoverReplay states;
  states.config.kv_cache.groups.push_back(StateGroup(4));
  states.options.groups.push_back(states.options.groups.front());
  EXPECT_THAT(std::string(states.Run().message()),
              HasSubstr("prefill replica 0: KV-cache group 1 keeps states"));
  HandoverReplay bytes;
  bytes.options.groups.front().block_bytes = 0;
  EXPECT_THAT(std::string(bytes.Run().message()),
              HasSubstr("handover.groups: got 0 bytes per block of 4 tokens"));
  HandoverReplay one_role;
  one_role.num_prefill = 0;
  EXPECT_THAT(std::string(one_role.Run().message()),
              HasSubstr("handover.num_prefill: got 0 of 1 replicas"));
  HandoverReplay queue;
  queue.fleet_options.queue.max_requests = 1;
  EXPECT_THAT(std::string(queue.Run().message()),
              HasSubstr("handover: set next to a router's queue"));
}

void Fill(HandoverReplay& replay, uint64_t seed) {
  Draw draw(seed);
  replay.num_prefill = static_cast<size_t>(draw(1, 3));
  replay.num_decode = static_cast<size_t>(draw(1, 3));
  replay.config.kv_cache.num_blocks = draw(9, 30);
  replay.decode_blocks = draw(9, 30);
  replay.config.scheduler.async = draw.OneIn(2);
  replay.config.scheduler.max_num_batched_tokens = draw(8, 40);
  replay.config.scheduler.max_num_seqs = draw(1, 6);
  if (draw.OneIn(3)) replay.config.max_queue_time = draw(3, 20) * kSecond;
  HandoverOptions& options = replay.options;
  if (draw.OneIn(2)) options.first_token = FirstToken::kDecode;
  if (draw.OneIn(2)) options.scope = LinkScope::kPerDecodeReplica;
  if (draw.OneIn(2)) options.link.sharing = LinkSharing::kFifo;
  options.link.bytes_per_second = draw(1, 40);
  options.link.latency = draw(0, 2) * kSecond / 4;
  options.charges_hits = draw.OneIn(2);
  if (draw.OneIn(3)) {
    replay.config.kv_cache.groups.push_back(WindowGroup(4, draw(1, 12)));
    options.groups.push_back({.block_bytes = draw(1, 9), .block_size = 4, .is_window = true});
  }
  options.max_local_tokens = draw(0, 1) * draw(1, 8);
  options.decode_router.kind = static_cast<RouterKind>(draw(0, 8));
  replay.fleet_options.router.kind = static_cast<RouterKind>(draw(0, 8));
  for (int64_t i = draw(1, 16); i > 0; --i) {
    const int64_t prompt = draw(1, 24);
    std::vector<int64_t> content;
    if (draw.OneIn(2)) content = Document(prompt);
    replay.lines.Add({.id = std::to_string(i),
                      .prompt = prompt,
                      .output = draw(0, 8),
                      .at = static_cast<double>(draw(0, 24)) / 4,
                      .content = content,
                      .abort_after = draw.OneIn(4) ? static_cast<double>(draw(1, 60)) / 4 : 0,
                      .session = static_cast<uint64_t>(draw(0, 2))});
  }
}

TEST(HandoverTest, RandomRunsEndEachRequestOnceAndReturnAllBlocks) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    HandoverReplay replay, again;
    Fill(replay, seed);
    Fill(again, seed);
    const absl::Status status = replay.Run();
    ASSERT_TRUE(status.ok()) << seed << ": " << status;
    ASSERT_TRUE(again.Run().ok());
    EXPECT_EQ(replay.result, again.result) << seed;
    const HandoverResult& result = replay.result.handover;
    EXPECT_EQ(static_cast<int64_t>(replay.ended.size()), result.num_arrived) << seed;
    EXPECT_EQ(result.num_arrived, result.num_finished + result.num_aborted + result.num_rejected);
    EXPECT_EQ(replay.num_blocks_away, 0) << seed;
    int64_t bytes = 0, moved = 0;
    for (const LinkTotals& link : result.links) {
      EXPECT_EQ(link.num_started, link.num_ended) << seed;
      moved += link.bytes;
    }
    for (const auto& [id, end] : replay.ended) {
      bytes += end.life.num_bytes;
      if (end.reason != "length") continue;
      EXPECT_GE(end.life.first_token, 0) << seed << " " << id;
      EXPECT_LE(end.life.prefill_start, end.life.first_token);
    }
    EXPECT_EQ(bytes, moved) << seed;
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvblocks::sim
