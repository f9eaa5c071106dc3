// What versions of engines do in look-ups, windows and registration: next to drafters (V-3, V-10 to
// V-14), at the ends of prompts (V-20) and where we deviate from them (V-30, V-36, V-41, V-42).

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/lookup_explanation.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;

std::string Missed(const KvCacheManager& manager, const std::vector<TokenId>& tokens) {
  std::string text;
  const auto request = NewRequest(manager, tokens);
  const LookupExplanation why = ExplainLookup(manager, *request).value();
  for (const MissedRun& run : why.missed) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", std::string(MissReasonName(run.reason)), " ",
                    run.first_token, "+", run.num_tokens);
  }
  return text;
}

KvCacheConfig FullAndDraftWindow(int64_t full_size, int64_t window_size, int64_t window) {
  KvCacheConfig config = Config(60, {Full(full_size), Window(window_size, window)});
  config.groups[1].is_draft = true;
  return config;
}

// V-100, BM-114: a window keeps two tokens more for a drafter that may compute them again, which no
// look-up returns; the hit is none the less what the next token needs.
TEST(VersionRulesTest, HitsOfWindowsThatKeepMoreAreTaken) {
  const auto manager =
      Manager(60, {Window(4, 9, 2)}, {.use_eagle = true, .prefill_lookahead_tokens = 3});
  const auto first = NewRequest(*manager, Tokens(24));
  ASSERT_TRUE(Step(*manager, *first, 24));
  const auto second = NewRequest(*manager, Tokens(24));
  const ComputedBlocks hits = Hits(*manager, *second);
  ASSERT_EQ(hits.num_tokens(), 16);
  ASSERT_THAT(hits.blocks(0), ElementsAre(0, 0, 3, 4));
  const auto slots =
      manager->AllocateSlots(*second, {.num_new_tokens = 8, .computed_blocks = &hits});
  ASSERT_TRUE(slots.ok()) << slots.status();
  EXPECT_THAT(manager->GetBlocks(*second, 0), ElementsAre(0, 0, 3, 4, 7, 8));
  EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
  // Behind 20 tokens, positions from token 20 - 9 + 1 - 2 on are kept.
  ASSERT_TRUE(manager->RemoveSkippedBlocks(*second, 20).ok());
  EXPECT_THAT(manager->GetBlocks(*second, 0), ElementsAre(0, 0, 3, 4, 7, 8));
  ASSERT_TRUE(manager->RemoveSkippedBlocks(*second, 22).ok());
  EXPECT_THAT(manager->GetBlocks(*second, 0), ElementsAre(0, 0, 0, 4, 7, 8));
}

// V-101: tokens that a drafter may compute again are left out with lookahead hashes, too, which
// need not be. What a window keeps is its spec's (V-100).
TEST(VersionRulesTest, ReplaysBehindLookaheadHashes) {
  KvCacheManagerOptions options{.num_hash_lookahead_tokens = 2, .prefill_lookahead_tokens = 3};
  options.semantics.retention_interval = std::nullopt;
  const auto manager = Manager(60, {Window(4, 9, 2)}, options);
  const auto request = NewRequest(*manager, Tokens(40));
  ASSERT_TRUE(Step(*manager, *request, 20));
  // Of 20 tokens two may come again, so only four blocks are final.
  EXPECT_EQ(manager->pool().num_keyed_blocks(), 4);
  ASSERT_TRUE(manager->RemoveSkippedBlocks(*request, 20).ok());
  EXPECT_EQ(manager->GetBlocks(*request, 0)[2], 3);
}

// V-14: 17 tokens reach the first boundary, 16; of them 15 are final, which fill one block of 8.
TEST(VersionRulesTest, AllTokensDecideWhetherAFinalOneIsRegistered) {
  const auto manager =
      Manager(FullAndDraftWindow(16, 8, 9), {.use_eagle = true, .prefill_lookahead_tokens = 3});
  const auto request = NewRequest(*manager, Tokens(17));
  ASSERT_TRUE(Step(*manager, *request, 17));
  EXPECT_EQ(manager->pool().num_keyed_blocks(), 2) << "the full group's one and a window's";
  const auto shorter = NewRequest(*manager, Tokens(15, 500));
  ASSERT_TRUE(Step(*manager, *shorter, 15));
  EXPECT_EQ(manager->pool().num_keyed_blocks(), 2) << "no boundary is reached";
}

// V-10: a block whose hash waits for tokens is no part of a look-up, and a reason of its own.
TEST(VersionRulesTest, BlocksWithoutTheirLookaheadTokensAreExplained) {
  const auto manager = Manager(60, {Full(4), Window(4, 5)}, {.num_hash_lookahead_tokens = 3});
  const auto request = NewRequest(*manager, Tokens(16));
  ASSERT_TRUE(Step(*manager, *request, 16));
  EXPECT_EQ(Hits(*manager, *request).num_tokens(), 12);
  EXPECT_EQ(Missed(*manager, Tokens(16)), "look-ahead 12+4");
  EXPECT_EQ(Missed(*manager, Tokens(18)), "look-ahead 12+4, partial block 16+2");
  EXPECT_EQ(Missed(*manager, Tokens(19)), "not cached 12+4, partial block 16+3");
  EXPECT_EQ(Missed(*manager, Tokens(5)), "look-ahead 0+4, partial block 4+1");
  EXPECT_EQ(Missed(*manager, Tokens(3)), "shorter than a block 0+3");
  // The tokens behind a block are part of what it holds.
  EXPECT_EQ(Missed(*manager, Tokens(13) + Tokens(6, 700)), "not cached 8+8, partial block 16+3");
}

// V-12: in a hybrid model the block that is dropped may be the last full one, and the group alone
// would reach as far.
TEST(VersionRulesTest, AGroupAloneReachesAsFarAsTheHit) {
  const auto manager = Manager(FullAndDraftWindow(4, 4, 5), {.use_eagle = true});
  const auto request = NewRequest(*manager, Tokens(16));
  ASSERT_TRUE(Step(*manager, *request, 16));
  const LookupExplanation why = ExplainLookup(*manager, *request).value();
  EXPECT_EQ(why.num_hit_tokens, 12);
  EXPECT_EQ(why.groups[1].num_hit_tokens, 12);
  EXPECT_EQ(Missed(*manager, Tokens(16)), "last token 12+4");
}

KvCacheConfig FullAndStates(int64_t full_size) {
  KvCacheConfig config = Config(40, {Full(full_size)});
  config.groups.push_back(
      {.spec = MambaSpec::Create(
                   {.block_size = 4, .states = {{{16}}}, .cache_mode = MambaCacheMode::kAlign})
                   .value()});
  config.hash_block_size = 2;
  return config;
}

void StepWithCopies(KvCacheManager& manager, Request& request, int64_t n) {
  manager.NewStepStarts();
  ASSERT_TRUE(Step(manager, request, n).has_value());
  ASSERT_TRUE(manager.ReleaseBlockCopies(manager.TakeBlockCopies()).ok());
}

// V-20: a block that is full by now is still hit up to the end of the prompt, and the hit is good
// as long as the block has that key, whatever else was removed in between.
TEST(VersionRulesTest, AHitWithAFurtherKeyStaysGood) {
  const auto manager = Manager(FullAndStates(4), {.partial_hits = true});
  const auto donor = NewRequest(*manager, Tokens(7), "donor");
  StepWithCopies(*manager, *donor, 6);  // where the prompt's tail is
  StepWithCopies(*manager, *donor, 1);
  ASSERT_TRUE(donor->AppendOutputTokens({900}).ok());
  StepWithCopies(*manager, *donor, 1);
  const BlockId full_block = manager->GetBlocks(*donor, 0)[1];
  ASSERT_EQ(manager->pool().further_keys(full_block).size(), 1u);
  const auto unrelated = NewRequest(*manager, Tokens(4, 300), "unrelated");
  StepWithCopies(*manager, *unrelated, 4);

  const auto request = NewRequest(*manager, Tokens(6) + Tokens(3, 500));
  const ComputedBlocks hits = Hits(*manager, *request);
  ASSERT_EQ(hits.num_tokens(), 6);
  ASSERT_EQ(hits.blocks(0)[1], full_block);
  const BlockId gone[] = {manager->GetBlocks(*unrelated, 0)[0]};
  ASSERT_TRUE(manager->EvictBlocks(gone).ok());
  manager->NewStepStarts();
  const auto slots =
      manager->AllocateSlots(*request, {.num_new_tokens = 3, .computed_blocks = &hits});
  EXPECT_TRUE(slots.ok()) << slots.status();
  ASSERT_TRUE(manager->ReleaseBlockCopies(manager->TakeBlockCopies()).ok());
  // Without that key it is stale.
  const auto late = NewRequest(*manager, Tokens(6) + Tokens(3, 600), "late");
  const ComputedBlocks stale = Hits(*manager, *late);
  const BlockId tail[] = {full_block};
  ASSERT_TRUE(manager->EvictBlocks(tail).ok());
  EXPECT_FALSE(
      manager->AllocateSlots(*late, {.num_new_tokens = 3, .computed_blocks = &stale}).ok());
}

// BM-120: the end of a prompt inside a block is no block of a prompt that goes on differently
// there.
TEST(VersionRulesTest, TheEndOfAShorterPromptServesNoLongerOne) {
  const auto manager = Manager(FullAndStates(8), {.partial_hits = true});
  const auto donor = NewRequest(*manager, Tokens(5));
  StepWithCopies(*manager, *donor, 4);
  StepWithCopies(*manager, *donor, 1);
  const std::vector<TokenId> tokens = Tokens(4) + Tokens(5, 500);
  const LookupExplanation why = ExplainLookup(*manager, *NewRequest(*manager, tokens)).value();
  EXPECT_EQ(why.num_hit_tokens, 4);
  EXPECT_EQ(why.groups[0].num_hit_tokens, 4);
  EXPECT_EQ(why.groups[0].stop_block, 0);
  EXPECT_EQ(Missed(*manager, tokens), "not cached 4+4, partial block 8+1");
}

// BM-121: copies come before what the step writes, so rows that it writes are not copied in it,
// even if the state behind them is there. The engine copies them all the same.
TEST(VersionRulesTest, RowsAreNotCopiedInTheStepThatWritesThem) {
  for (const bool as_engine : {false, true}) {
    KvCacheManagerOptions options{.partial_hits = true};
    options.semantics.retention_interval = std::nullopt;
    options.semantics.trusts_hits = as_engine;
    const auto manager = Manager(FullAndStates(4), options);
    const auto donor = NewRequest(*manager, Tokens(7), "donor");
    StepWithCopies(*manager, *donor, 6);
    const BlockId tail = manager->GetBlocks(*donor, 0)[1];
    ASSERT_TRUE(manager->EvictBlocks({tail}).ok());
    // A step that runs over the tail registers the rows there, and no state.
    const auto writer = NewRequest(*manager, Tokens(7), "writer", /*skip_reading=*/true);
    StepWithCopies(*manager, *writer, 7);
    const auto request = NewRequest(*manager, Tokens(6) + Tokens(3, 500));
    const ComputedBlocks hits = Hits(*manager, *request);
    ASSERT_EQ(hits.num_tokens(), 6);
    ASSERT_EQ(hits.blocks(0)[1], manager->GetBlocks(*writer, 0)[1]);
    ASSERT_EQ(hits.blocks(1)[1], manager->GetBlocks(*donor, 1)[1]);
    EXPECT_EQ(Step(*manager, *request, 3).has_value(), as_engine);
    if (!as_engine) StepWithCopies(*manager, *request, 3);
  }
}

// V-118: a state that moves is copied before the step computes anything, so no hit ends there in
// it.
TEST(VersionRulesTest, AStateThatMovedIsNotHitInTheSameStep) {
  KvCacheManagerOptions options{.partial_hits = true};
  options.semantics.trusts_hits = true;  // the rows in the group beside are no reason to wait
  const auto manager = Manager(FullAndStates(4), options);
  const auto donor = NewRequest(*manager, Tokens(7), "donor");
  StepWithCopies(*manager, *donor, 6);
  const BlockId state = manager->GetBlocks(*donor, 1)[1];
  manager->NewStepStarts();
  ASSERT_TRUE(Step(*manager, *donor, 1).has_value());
  const std::vector<BlockCopy> copies = manager->TakeBlockCopies();
  ASSERT_EQ(copies.size(), 1u);
  ASSERT_EQ(copies[0].source, state);

  const auto request = NewRequest(*manager, Tokens(6) + Tokens(3, 500));
  const ComputedBlocks hits = Hits(*manager, *request);
  ASSERT_EQ(hits.num_tokens(), 6);
  ASSERT_EQ(hits.blocks(1)[1], copies[0].target);
  EXPECT_FALSE(Step(*manager, *request, 3).has_value());
  ASSERT_TRUE(manager->ReleaseBlockCopies(copies).ok());
  StepWithCopies(*manager, *request, 3);
}

// BM-116: the gate asks for the prompt and the most that the window holds, not for all tokens.
TEST(VersionRulesTest, GateKnowsTheCapOfAWindowOfTheOutput) {
  const KvCacheSpec spec =
      FullAttentionSpec::Create(
          {.block_size = 4, .num_kv_heads = 1, .head_size = 8, .output_window = 6})
          .value();
  // Window, tokens in flight and those that a drafter may compute again touch at most
  // cdiv(6 + 4 - 1, 4) + 1 = 4 blocks, or cdiv(6 + 4 + 4 - 1, 4) + 1 = 5.
  for (const int64_t prefill_lookahead : {0, 5}) {
    const int64_t enough = prefill_lookahead == 0 ? 7 : 8;
    for (const int64_t num_free : {enough - 1, enough}) {
      const auto manager = Manager(1 + num_free, {spec},
                                   {.max_in_flight_tokens = 4,
                                    .prefill_lookahead_tokens = prefill_lookahead});
      const auto request = NewRequest(*manager, Tokens(10), "r", /*skip_reading=*/true);
      ASSERT_TRUE(request->AppendOutputTokens(Tokens(40, 100)).ok());
      const auto admitted =
          manager->AllocateSlots(*request, {.num_new_tokens = 4, .full_sequence_must_fit = true});
      ASSERT_TRUE(admitted.ok());
      EXPECT_EQ(admitted->has_value(), num_free == enough) << prefill_lookahead;
      if (!admitted->has_value()) continue;
      // And a request that computes it all in such steps finds them.
      request->set_num_computed_tokens(4);
      for (int64_t computed = 4; computed < 48; computed += 4) {
        const auto slots =
            manager->AllocateSlots(*request, {.num_new_tokens = 4, .full_sequence_must_fit = true});
        ASSERT_TRUE(slots.ok() && slots->has_value()) << computed;
        EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
        request->set_num_computed_tokens(computed + 4);
      }
    }
  }
}

// V-115, BM-122: where groups drop, what is registered of states is not rounded, so a step may end
// where a resend can use its state although no hit ends inside a block there (the window's blocks
// are too large for that). The engine registers it all the same, and moves it to a block of its
// own.
TEST(VersionRulesTest, StatesInsideBlocksThatNoHitEndsInAreKeptAndMove) {
  for (const bool as_engine : {false, true}) {
    KvCacheConfig config = Config(60, {Full(4), Window(8, 16)});
    config.groups.push_back(
        {.spec = MambaSpec::Create(
                     {.block_size = 8, .states = {{{16}}}, .cache_mode = MambaCacheMode::kAlign})
                     .value()});
    KvCacheManagerOptions options{.use_eagle = true};
    options.semantics.retention_interval = std::nullopt;
    options.semantics.registers_unusable_tails = as_engine;
    ASSERT_FALSE(SupportsPartialHits(config, options));
    const auto manager = Manager(config, options);
    const auto request = NewRequest(*manager, Tokens(17));
    ASSERT_EQ(Step(*manager, *request, 12), (Lists{{1, 2, 3}, {4, 5}, {0, 6}}));
    EXPECT_EQ(manager->pool().block(6).has_key(), as_engine);
    const Lists second = {{7, 8}, {9}, {as_engine ? 11 : 10}};
    EXPECT_EQ(Step(*manager, *request, 5), second);
    const std::vector<BlockCopy> copies = manager->TakeBlockCopies();
    ASSERT_EQ(copies.size(), as_engine ? 1u : 0u);
    if (as_engine) {
      EXPECT_EQ(copies[0], (BlockCopy{.group = 2, .source = 6, .target = 10}));
    }
    EXPECT_TRUE(manager->ReleaseBlockCopies(copies).ok());
    EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
  }
}

// V-3: of a prefix that others share a draft group keeps the block that a hit up to its end drops,
// and what a hit needs that ends one block earlier because it drops its own last one.
TEST(VersionRulesTest, ADraftGroupKeepsTwoHitsAtASharedPrefix) {
  const auto manager =
      KvCacheManager::Create(FullAndDraftWindow(16, 16, 16),
                             {.max_model_len = 1024, .use_eagle = true, .hash_seed = "seed"})
          .value();
  const auto request = NewRequest(*manager, Tokens(200));
  request->set_shared_prefix_boundary(112);
  ASSERT_TRUE(Step(*manager, *request, 200));
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < 12; ++i) {
    const BlockId id = manager->GetBlocks(*request, 1)[static_cast<size_t>(i)];
    if (manager->pool().block(id).has_key()) kept.push_back(i);
  }
  EXPECT_THAT(kept, ElementsAre(5, 6, 7, 10, 11));
}

// V-41: tokens beyond the longest sequence are cut off, and get no slots. With 0.25 they are
// refused.
TEST(VersionRulesTest, ExternalTokensBeyondTheLongestSequence) {
  for (const Semantics& semantics : {Semantics::Vllm033(), Semantics::Vllm025()}) {
    const auto manager =
        Manager(20, {Full(4)}, {.max_model_len = 16, .semantics = semantics});
    const auto request = NewRequest(*manager, Tokens(30));
    const std::string before = State(*manager);
    const auto slots = manager->AllocateSlots(
        *request, {.num_new_tokens = 1, .num_external_computed_tokens = 20});
    EXPECT_EQ(slots.ok(), !semantics.is_025) << slots.status();
    if (slots.ok()) {
      EXPECT_THAT(manager->GetBlocks(*request, 0), ElementsAre(1, 2, 3, 4));
    } else {
      EXPECT_THAT(std::string(slots.status().message()),
                  ::testing::HasSubstr("exceed max_model_len 16"));
      EXPECT_EQ(State(*manager), before);
    }
    EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
  }
}

// V-42, WE-19: behind a hit the gate asks for 2 blocks, not for the 5 that come beside the two of
// the hit. The step itself needs 6 with the hit.
TEST(VersionRulesTest, TheGateBehindAHit) {
  KvCacheManagerOptions options{.max_model_len = 400, .max_in_flight_tokens = 16};
  options.semantics.retention_interval = std::nullopt;
  const auto manager = Manager(100, {Window(4, 8)}, options);
  const auto a = NewRequest(*manager, Tokens(80), "a");
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(Step(*manager, *a, 16));
  ASSERT_TRUE(manager->Free(*a).ok());
  const auto other = NewRequest(*manager, Tokens(372, 1000), "other", /*skip_reading=*/true);
  ASSERT_TRUE(Step(*manager, *other, 372));
  ASSERT_EQ(manager->num_free_blocks(), 6);
  const auto b = NewRequest(*manager, Tokens(80) + Tokens(80, 500), "b");
  const ComputedBlocks hits = Hits(*manager, *b);
  ASSERT_EQ(hits.num_tokens(), 80);
  EXPECT_EQ(manager->group(0).NumBlocksNeeded(nullptr, {.num_slots = 160, .num_main = 160},
                                              hits.blocks(0), 80, /*apply_cap=*/true),
            2);
  EXPECT_TRUE(Step(*manager, *b, 16, {.full_sequence_must_fit = true}));
}

// BM-102, SM-14: a request that loses its part of a step hits unwritten blocks, unless those of
// that part lose their keys first.
TEST(VersionRulesTest, APartThatIsTakenBackGivesUpItsKeysByEvictBlocks) {
  for (const bool gives_up : {false, true}) {
    const auto manager = Manager(20, {Full(4), Window(4, 5)});
    const auto request = NewRequest(*manager, Tokens(20));
    ASSERT_TRUE(Step(*manager, *request, 8));
    const int64_t processed = request->num_computed_tokens();
    ASSERT_TRUE(Step(*manager, *request, 8));  // in a step that never runs
    for (GroupId g = 0; g < manager->num_groups() && gives_up; ++g) {
      const auto table = manager->GetBlocks(*request, g);
      const size_t begin = static_cast<size_t>(processed / manager->group(g).block_size());
      ASSERT_TRUE(manager->EvictBlocks(table.subspan(begin)).ok());
    }
    ASSERT_TRUE(manager->Free(*request).ok());
    request->MarkPreempted();
    EXPECT_EQ(Hits(*manager, *request).num_tokens(), gives_up ? processed : 16);
    EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
  }
}

// V-36: even where stale hits are adopted, a page of another size never is.
TEST(VersionRulesTest, StaleHitsOfAnotherPageSizeAreRefused) {
  KvCacheConfig config = Config(0, {Full(4), Window(4, 8)});
  config.native =
      NativeLayout{.num_chunks = 3, .pages_per_chunk = {2, 3}, .class_of_group = {0, 1}};
  config.num_blocks = 1 + 3 * config.native->ids_per_chunk();
  KvCacheManagerOptions options;
  options.semantics.trusts_hits = true;
  const auto manager = Manager(config, options);
  const auto request = NewRequest(*manager, Tokens(9));
  ASSERT_TRUE(Step(*manager, *request, 9));
  const auto table = [&](GroupId g) {
    const auto blocks = manager->GetBlocks(*request, g);
    return std::vector<BlockId>(blocks.begin(), blocks.end());
  };
  const auto refusal = [&](std::vector<BlockId> full, std::vector<BlockId> window) {
    const ComputedBlocks hits({std::move(full), std::move(window)}, 4);
    const auto other = NewRequest(*manager, Tokens(9, 300));
    return std::string(
        manager->AllocateSlots(*other, {.num_new_tokens = 1, .computed_blocks = &hits})
            .status()
            .message());
  };
  EXPECT_THAT(refusal({table(1)[0]}, {table(1)[0]}),
              ::testing::HasSubstr("no longer is a page of that group's size"));
  EXPECT_EQ(refusal({table(0)[0]}, {table(1)[0]}), "");
}

}  // namespace
}  // namespace kvblocks
