// States that a backend exports inside a prefill chunk (V-45).

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

KvCacheSpec States(int64_t num_checkpoint_blocks, int64_t num_speculative_blocks = 0) {
  return MambaSpec::Create({.block_size = 16,
                            .states = {{.shape = {4}}},
                            .cache_mode = MambaCacheMode::kAlign,
                            .num_speculative_blocks = num_speculative_blocks,
                            .num_checkpoint_blocks = num_checkpoint_blocks})
      .value();
}

std::unique_ptr<KvCacheManager> Create(std::vector<KvCacheSpec> specs,
                                       KvCacheManagerOptions options = {},
                                       std::optional<int64_t> retention = 0,
                                       std::optional<int64_t> hash_block_size = std::nullopt) {
  KvCacheConfig config = Config(40, std::move(specs));
  config.hash_block_size = hash_block_size;
  options.max_model_len = 1'000;
  options.semantics.retention_interval = retention;
  return KvCacheManager::Create(config, options).value();
}

// A prompt of 100 tokens in one chunk: without a checkpoint nothing of it can be hit again.
TEST(StateCheckpointTest, AChunkKeepsTheStateThatAResendCanUse) {
  for (int64_t checkpoints : {0, 1}) {
    const auto manager = Create({Full(16), States(checkpoints)});
    const auto first = NewRequest(*manager, Tokens(100));
    const int64_t free = manager->num_free_blocks();
    ASSERT_TRUE(Step(*manager, *first, 100));
    const auto at = manager->GetStateCheckpoint(*first, 1);
    EXPECT_EQ(free - manager->num_free_blocks(), 7 + 1 + checkpoints);
    manager->NewStepStarts();
    EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(100))).num_tokens(),
              checkpoints == 0 ? 0 : 96);
    EXPECT_EQ(at.has_value(), checkpoints > 0);
    if (!at) continue;
    EXPECT_EQ(at->num_tokens, 96);
    EXPECT_EQ(at->block, manager->GetBlocks(*first, 1)[5]);
    EXPECT_THAT(manager->GetBlocks(*first, 1), ElementsAre(0, 0, 0, 0, 0, 8, 9));
    EXPECT_EQ(manager->GetStateCheckpoint(*first, 0), std::nullopt);
    // The next step keeps its own state only.
    ASSERT_TRUE(first->AppendOutputTokens({1}).ok());
    ASSERT_TRUE(Step(*manager, *first, 1));
    EXPECT_THAT(manager->GetBlocks(*first, 1), ElementsAre(0, 0, 0, 0, 0, 0, 9));
    EXPECT_FALSE(manager->GetStateCheckpoint(*first, 1).has_value());
    manager->NewStepStarts();
    EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(100))).num_tokens(), 96);
  }
}

// In later chunks, behind hits, and with scratch blocks, which move along.
TEST(StateCheckpointTest, TheStatesBeforeItAndScratchBlocksStay) {
  const auto manager = Create({Full(16), States(1, /*num_speculative_blocks=*/2)});
  const auto first = NewRequest(*manager, Tokens(70));
  ASSERT_TRUE(Step(*manager, *first, 32));
  manager->NewStepStarts();
  EXPECT_FALSE(manager->GetStateCheckpoint(*first, 1).has_value());
  ASSERT_TRUE(Step(*manager, *first, 38));
  manager->NewStepStarts();
  const auto table = manager->GetBlocks(*first, 1);
  ASSERT_EQ(table.size(), 7u);
  EXPECT_NE(table[1], kNullBlockId);  // of the step before
  EXPECT_EQ(table[2], kNullBlockId);
  EXPECT_EQ(manager->GetStateCheckpoint(*first, 1)->block, table[3]);
  EXPECT_EQ(manager->GetStateCheckpoint(*first, 1)->num_tokens, 64);
  const auto second = NewRequest(*manager, Tokens(64) + Tokens(60, 500));
  ASSERT_EQ(Hits(*manager, *second).num_tokens(), 64);
  ASSERT_TRUE(Step(*manager, *second, 60));
  EXPECT_EQ(manager->GetStateCheckpoint(*second, 1)->num_tokens, 112);
}

// With hits inside blocks the boundary may be one, and the key then is one of a tail.
TEST(StateCheckpointTest, ATailHasOneToo) {
  const auto manager = Create({Full(16), States(1)}, {.partial_hits = true}, 0, 4);
  const auto first = NewRequest(*manager, Tokens(33));  // a resend can use 32
  ASSERT_TRUE(Step(*manager, *first, 33));
  manager->NewStepStarts();
  EXPECT_EQ(manager->GetStateCheckpoint(*first, 1)->num_tokens, 32);
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(33))).num_tokens(), 32);

  // Output that is known already, as of a resumed request, takes the end to the next block.
  const auto second = NewRequest(*manager, Tokens(31, 500));
  ASSERT_TRUE(second->AppendOutputTokens(Tokens(4, 900)).ok());
  ASSERT_TRUE(Step(*manager, *second, 35));
  manager->NewStepStarts();
  ASSERT_TRUE(manager->GetStateCheckpoint(*second, 1).has_value());
  EXPECT_EQ(manager->GetStateCheckpoint(*second, 1)->num_tokens, 28);
  EXPECT_EQ(manager->pool().partial_tokens(manager->GetStateCheckpoint(*second, 1)->block), 28);
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(31, 500))).num_tokens(), 28);
}

// INV-16: what is asked for is what is taken.
TEST(StateCheckpointTest, ItsBlockIsAskedFor) {
  for (int64_t reserved : {30, 31}) {
    const auto manager = Create({Full(16), States(1)});  // 39 blocks, of which 9 are needed
    const auto request = NewRequest(*manager, Tokens(100));
    const auto slots = manager->AllocateSlots(
        *request,
        {.num_new_tokens = 100, .full_sequence_must_fit = true, .reserved_blocks = reserved});
    ASSERT_TRUE(slots.ok());
    EXPECT_EQ(slots->has_value(), reserved == 30);
    EXPECT_TRUE(manager->CheckInvariants().ok());
  }
}

}  // namespace
}  // namespace kvblocks
