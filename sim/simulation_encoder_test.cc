// Replays with cross attention: blocks of encoders' inputs in admission, preemption and memory.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A decoder's group and that of its encoder, blocks of 4 tokens.
void UseEncoder(Replay* replay, int64_t num_blocks, int64_t max_encoder_tokens) {
  replay->config.kv_cache.groups = {FullGroup(4), CrossGroup(4)};
  replay->config.kv_cache.num_blocks = num_blocks;
  replay->config.manager.enable_caching = false;
  replay->config.manager.max_encoder_tokens = max_encoder_tokens;
}

// WE-47, step by step.
TEST(SimulationEncoderTest, ARequestTakesTheBlocksOfItsInputWhenItEnters) {
  Replay replay;
  UseEncoder(&replay, 20, 12);
  replay.Add({.id = "A", .prompt = 6, .output = 4, .encoder = 10});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:6 [1,2,3,4,5]", "1: A:1 []", "2: A:1 []",
                                        "3: A:1 [6] fin A"));
  const std::vector<BlockId> front(replay.free_queue.begin(), replay.free_queue.begin() + 8);
  EXPECT_THAT(front, ElementsAre(5, 4, 3, 6, 2, 1, 7, 8));
  EXPECT_EQ(replay.result.scheduler.num_encoder_tokens, 10);
}

TEST(SimulationEncoderTest, WhoDoesNotSayHasAnInputOfTheUsualLength) {
  Replay replay;
  UseEncoder(&replay, 20, 12);
  replay.config.scheduler.num_encoder_tokens = 5;
  replay.Add({.id = "A", .prompt = 2, .output = 1});
  replay.Add({.id = "B", .prompt = 2, .output = 1, .encoder = 0});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:2 [1,2,3], B:2 [4] fin A fin B"));
  EXPECT_EQ(replay.result.scheduler.num_encoder_tokens, 5);
}

// A trace's inputs are none of a model's that has no encoder.
TEST(SimulationEncoderTest, WithoutCrossAttentionInputsTakeNothing) {
  Replay replay;
  replay.Add({.id = "A", .prompt = 2, .output = 1, .encoder = 1500});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_THAT(replay.lines, ElementsAre("0: A:2 [1] fin A"));
  EXPECT_EQ(replay.result.scheduler.num_encoder_tokens, 0);
}

TEST(SimulationEncoderTest, APreemptedRequestTakesItsInputAgain) {
  Replay replay;
  UseEncoder(&replay, 6, 4);
  replay.Add({.id = "A", .prompt = 4, .output = 4, .encoder = 4});
  replay.Add({.id = "B", .prompt = 4, .output = 4, .encoder = 3});
  ASSERT_TRUE(replay.Run().ok());
  // B would need a third block at 1, and three to come back.
  EXPECT_THAT(replay.lines,
              ElementsAre("0: A:4 [1,2], B:4 [3,4]", "1: A:1 [5] preempt B", "2: A:1 []",
                          "3: A:1 [] fin A", "4: B:5 [2,5,1]", "5: B:1 []", "6: B:1 [] fin B"));
  EXPECT_EQ(replay.result.scheduler.num_preemptions, 1);
  EXPECT_EQ(replay.result.scheduler.num_encoder_tokens, 4 + 2 * 3);
}

// Its prompt alone would fit.
TEST(SimulationEncoderTest, AdmissionCountsTheInput) {
  for (const bool gate : {false, true}) {
    Replay replay;
    UseEncoder(&replay, 7, 12);
    replay.config.scheduler.reserve_full_isl = gate;
    replay.Add({.id = "A", .prompt = 4, .output = 3, .encoder = 8});
    replay.Add({.id = "B", .prompt = 4, .output = 1, .encoder = 12});
    ASSERT_TRUE(replay.Run().ok());
    EXPECT_EQ(replay.first_scheduled["A"], 0);
    EXPECT_EQ(replay.first_scheduled["B"], 3) << gate;
  }
}

// The encoder computes as many tokens per step as the decoder may, and whole inputs.
TEST(SimulationEncoderTest, AStepTakesInAsManyInputsAsTheEncoderComputes) {
  Replay replay;
  UseEncoder(&replay, 50, 8);
  replay.config.scheduler.max_num_batched_tokens = 10;
  replay.Add({.id = "A", .prompt = 1, .output = 1, .encoder = 8});
  replay.Add({.id = "B", .prompt = 1, .output = 1, .encoder = 8});
  replay.Add({.id = "C", .prompt = 1, .output = 1, .encoder = 2});
  replay.Add({.id = "D", .prompt = 1, .output = 1, .encoder = 1});
  ASSERT_TRUE(replay.Run().ok());
  // C overtakes B; what D lacks is one token.
  EXPECT_EQ(replay.first_scheduled["A"], 0);
  EXPECT_EQ(replay.first_scheduled["B"], 1);
  EXPECT_EQ(replay.first_scheduled["C"], 0);
  EXPECT_EQ(replay.first_scheduled["D"], 1);
  // One that is longer than a step of the decoder enters alone.
  Replay other;
  UseEncoder(&other, 50, 40);
  other.config.scheduler.max_num_batched_tokens = 10;
  other.Add({.id = "A", .prompt = 1, .output = 1, .encoder = 40});
  other.Add({.id = "B", .prompt = 1, .output = 1, .encoder = 40});
  ASSERT_TRUE(other.Run().ok());
  EXPECT_EQ(other.first_scheduled["A"], 0);
  EXPECT_EQ(other.first_scheduled["B"], 1);
}

TEST(SimulationEncoderTest, InputsThatCannotBeServedAreRejected) {
  Replay replay;
  UseEncoder(&replay, 4, 12);
  replay.Add({.id = "long", .prompt = 1, .output = 1, .encoder = 13});
  replay.Add({.id = "big", .prompt = 1, .output = 1, .encoder = 12});
  replay.Add({.id = "good", .prompt = 1, .output = 1, .encoder = 8});
  ASSERT_TRUE(replay.Run().ok());
  EXPECT_EQ(replay.rejections.size(), 2u);
  EXPECT_EQ(replay.rejections["long"],
            "the encoder's input has 13 tokens, expected 0 to max_encoder_tokens, which is 12");
  EXPECT_THAT(
      replay.rejections["big"],
      HasSubstr("prompt 1 + output 1 tokens and 12 of the encoder's input need 4 blocks, but "
                "the pool has 3"));
  EXPECT_EQ(replay.ends["good"], "length");
  EXPECT_EQ(replay.result.scheduler.num_blocks_for_too_big, 5);
}

TEST(SimulationEncoderTest, ConfigurationsThatMakeNoSenseAreRefused) {
  const auto refusal = [](bool has_cross, bool caching, int64_t tokens) {
    Replay replay;
    UseEncoder(&replay, 20, 12);
    if (!has_cross) replay.config.kv_cache.groups.pop_back();
    replay.config.manager.enable_caching = caching;
    replay.config.scheduler.num_encoder_tokens = tokens;
    replay.Add({.id = "A", .prompt = 1, .output = 1});
    const absl::Status status = replay.Run();
    EXPECT_TRUE(replay.lines.empty() || status.ok());
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(true, false, 12), "");
  EXPECT_EQ(refusal(false, true, 0), "");
  EXPECT_EQ(refusal(true, false, 13), "scheduler.num_encoder_tokens is 13, expected 0 to 12");
  EXPECT_EQ(refusal(true, false, -1), "scheduler.num_encoder_tokens is -1, expected 0 to 12");
  EXPECT_THAT(refusal(false, false, 3),
              HasSubstr("scheduler.num_encoder_tokens is 3, expected 0: no KV-cache group"));
  EXPECT_THAT(refusal(true, true, 12),
              HasSubstr("manager.enable_caching is true, expected false with cross attention"));
}

}  // namespace
}  // namespace kvblocks::sim
