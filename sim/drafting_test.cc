#include "sim/drafting.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/simulation_config.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

struct Expected {
  Drafter drafter;
  const char* name;
  int64_t lookahead_slots, draft_slots, hash_lookahead, prefill_lookahead;
  bool drops;
};

TEST(DraftingTest, WhatFollowsFromADrafterOfThree) {
  // As the table of drafting.h.
  for (const Expected& e : {Expected{Drafter::kNgram, "ngram", 0, 0, 0, 0, false},
                            Expected{Drafter::kEagle, "eagle", 3, 0, 1, 1, false},
                            Expected{Drafter::kParallelEagle, "parallel_eagle", 3, 2, 1, 1, false},
                            Expected{Drafter::kMtp, "mtp", 3, 0, 1, 1, false},
                            Expected{Drafter::kMtpModules, "mtp_modules", 3, 0, 3, 3, false},
                            Expected{Drafter::kDraftModel, "draft_model", 3, 1, 0, 0, false},
                            Expected{Drafter::kParallelDraftModel, "parallel_draft_model", 3, 3, 0,
                                     0, false},
                            Expected{Drafter::kDFlash, "dflash", 4, 0, 0, 1, false},
                            Expected{Drafter::kDSpark, "dspark", 3, 0, 0, 1, false}}) {
    SCOPED_TRACE(e.name);
    EXPECT_EQ(DrafterName(e.drafter), e.name);
    EXPECT_EQ(ParseDrafter(e.name), e.drafter);
    SimulationConfig config;
    ASSERT_TRUE(ApplyDrafts({.drafter = e.drafter, .num_draft_tokens = 3}, &config).ok());
    EXPECT_EQ(config.scheduler.num_draft_tokens, 3);
    EXPECT_EQ(config.scheduler.num_lookahead_tokens, e.lookahead_slots);
    EXPECT_EQ(config.scheduler.num_draft_slots, e.draft_slots);
    EXPECT_EQ(config.manager.num_hash_lookahead_tokens, e.hash_lookahead);
    EXPECT_EQ(config.manager.prefill_lookahead_tokens, e.prefill_lookahead);
    EXPECT_EQ(config.manager.use_eagle, e.drops);
  }
  EXPECT_EQ(ParseDrafter("medium"), std::nullopt);
}

TEST(DraftingTest, WithoutLookaheadHashesABlockIsDropped) {
  const auto of = [](EngineVersion engine, bool lookahead_hashes, bool caching) {
    SimulationConfig config;
    config.engine = engine;
    config.manager.enable_caching = caching;
    EXPECT_TRUE(ApplyDrafts({.drafter = Drafter::kEagle,
                             .num_draft_tokens = 2,
                             .lookahead_hashes = lookahead_hashes},
                            &config)
                    .ok());
    return config;
  };
  EXPECT_FALSE(of(EngineVersion::kVllm033, true, true).manager.use_eagle);
  EXPECT_TRUE(of(EngineVersion::kVllm033, false, true).manager.use_eagle);
  EXPECT_TRUE(of(EngineVersion::kVllm025, true, true).manager.use_eagle);
  EXPECT_EQ(of(EngineVersion::kVllm025, true, true).manager.num_hash_lookahead_tokens, 0);
  EXPECT_EQ(of(EngineVersion::kVllm033, true, false).manager.num_hash_lookahead_tokens, 0);
}

TEST(DraftingTest, WithoutDraftsNothingFollows) {
  SimulationConfig config;
  ASSERT_TRUE(ApplyDrafts({.drafter = Drafter::kEagle}, &config).ok());
  EXPECT_EQ(config.scheduler.num_lookahead_tokens, 0);
  EXPECT_FALSE(config.manager.use_eagle);
  EXPECT_EQ(config.manager.prefill_lookahead_tokens, 0);
}

TEST(DraftingTest, OlderVersionsLackSomeDraftersAndTheSecondBudget) {
  SimulationConfig config;
  config.engine = EngineVersion::kVllm025;
  const absl::Status status =
      ApplyDrafts({.drafter = Drafter::kMtpModules, .num_draft_tokens = 2}, &config);
  EXPECT_THAT(std::string(status.message()), HasSubstr("drafter is mtp_modules"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("vllm-0.25"));
  ASSERT_TRUE(
      ApplyDrafts({.drafter = Drafter::kDraftModel, .num_draft_tokens = 2}, &config).ok());
  EXPECT_EQ(config.scheduler.num_draft_slots, 0);
}

TEST(DraftingTest, V108_EveryDrafterAddsStatesToGroupsOfStates) {
  for (const Drafter drafter : {Drafter::kNgram, Drafter::kDraftModel, Drafter::kMtpModules}) {
    SimulationConfig config;
    config.kv_cache.groups.push_back(
        {.spec = MambaSpec::Create({.block_size = 4,
                                    .states = {{{16}}},
                                    .cache_mode = MambaCacheMode::kAlign})
                     .value(),
         .layer_names = {"states"}});
    ASSERT_TRUE(ApplyDrafts({.drafter = drafter, .num_draft_tokens = 3}, &config).ok());
    EXPECT_EQ(config.kv_cache.groups[0].spec.options().num_speculative_blocks, 3);
  }
}

TEST(DraftingTest, V112_LocalChunksThatWouldDropAreRefused) {
  SimulationConfig config = Replay().config;
  config.kv_cache.groups.push_back(
      {.spec = ChunkedLocalAttentionSpec::Create({.block_size = 4,
                                                  .num_kv_heads = 1,
                                                  .head_size = 8,
                                                  .attention_chunk_size = 8})
                   .value(),
       .layer_names = {"chunks"}});
  const auto is_accepted = [&](Drafter drafter, bool lookahead_hashes) {
    EXPECT_TRUE(ApplyDrafts({.drafter = drafter,
                             .num_draft_tokens = 1,
                             .lookahead_hashes = lookahead_hashes},
                            &config)
                    .ok());
    return Validate(config).ok() && KvCacheManager::Create(config.kv_cache, config.manager).ok();
  };
  EXPECT_FALSE(is_accepted(Drafter::kEagle, /*lookahead_hashes=*/false));
  EXPECT_TRUE(is_accepted(Drafter::kEagle, /*lookahead_hashes=*/true));
  EXPECT_TRUE(is_accepted(Drafter::kNgram, false));
  EXPECT_TRUE(is_accepted(Drafter::kDFlash, false));
  config.kv_cache.groups[0].is_draft = true;
  EXPECT_TRUE(is_accepted(Drafter::kEagle, false));
}

}  // namespace
}  // namespace kvblocks::sim
