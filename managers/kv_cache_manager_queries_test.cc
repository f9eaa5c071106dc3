// Queries, statistics, events and the invariants' words.

#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/lookup_explanation.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kFarthest = std::numeric_limits<int64_t>::max();

class QueriesTest : public testing::Test {
 protected:
  std::unique_ptr<KvCacheManager> manager_ = Manager(20, {Full(4), Window(4, 5)});
  std::unique_ptr<Request> request_ = NewRequest(*manager_, Tokens(14));
};

TEST_F(QueriesTest, UnknownRequestHoldsNothing) {
  EXPECT_THAT(manager_->GetBlocks(*request_, 0), IsEmpty());
  EXPECT_EQ(manager_->GetBlockIds(*request_), (Lists{{}, {}}));
  EXPECT_EQ(manager_->GetBlockIds(*request_, 8), (Lists{{}, {}}));
  EXPECT_EQ(manager_->GetBlockIdsIfAny(*request_), std::nullopt);
  EXPECT_EQ(manager_->GetUnhashedBlockIds(*request_), (Lists{{}, {}}));
  EXPECT_EQ(manager_->GetNumRegisteredTokens(*request_, 0), 0);
  EXPECT_THAT(manager_->GetNumCommonPrefixBlocks(*request_), ElementsAre(0, 0));
  EXPECT_EQ(manager_->num_requests_holding_blocks(), 0);
}

TEST_F(QueriesTest, TablesShowNullsAndCanBeClipped) {
  ASSERT_TRUE(Step(*manager_, *request_, 12));
  ASSERT_TRUE(Step(*manager_, *request_, 2));
  EXPECT_EQ(manager_->GetBlockIds(*request_), (Lists{{1, 2, 3, 7}, {0, 0, 6, 8}}));
  EXPECT_EQ(manager_->GetBlockIdsIfAny(*request_), (Lists{{1, 2, 3, 7}, {0, 0, 6, 8}}));
  EXPECT_EQ(manager_->GetBlockIds(*request_, 9), (Lists{{1, 2, 3}, {0, 0, 6}}));
  EXPECT_EQ(manager_->GetBlockIds(*request_, 0), (Lists{{}, {}}));
  EXPECT_EQ(manager_->GetBlockIds(*request_, -5), (Lists{{}, {}}));
  EXPECT_EQ(manager_->GetBlockIds(*request_, kFarthest), manager_->GetBlockIds(*request_));
  EXPECT_EQ(manager_->GetUnhashedBlockIds(*request_), (Lists{{7}, {8}}));
  for (const GroupId g : {-1, 2}) EXPECT_EQ(manager_->GetNumRegisteredTokens(*request_, g), 0);
  for (const GroupId g : {0, 1}) EXPECT_EQ(manager_->GetNumRegisteredTokens(*request_, g), 12);
  EXPECT_THAT(manager_->GetBlocks(*request_, -1), IsEmpty());
  EXPECT_THAT(manager_->GetBlocks(*request_, 2), IsEmpty());
}

TEST_F(QueriesTest, MovedTablesKeepTheirEntriesAndGiveAwayTheirMemory) {
  EXPECT_THAT(manager_->MoveBlockTable(*request_, 0), IsEmpty());
  ASSERT_TRUE(Step(*manager_, *request_, 12));
  const BlockId* const shown = manager_->GetBlocks(*request_, 1).data();
  const std::vector<BlockId> kept = manager_->MoveBlockTable(*request_, 1);
  EXPECT_EQ(kept.data(), shown);
  EXPECT_NE(manager_->GetBlocks(*request_, 1).data(), shown);
  EXPECT_THAT(kept, ElementsAre(4, 5, 6));
  EXPECT_EQ(manager_->GetBlockIds(*request_), (Lists{{1, 2, 3}, {4, 5, 6}}));
  ASSERT_TRUE(Step(*manager_, *request_, 2));
  EXPECT_EQ(manager_->GetBlockIds(*request_), (Lists{{1, 2, 3, 7}, {0, 0, 6, 8}}));
  EXPECT_THAT(kept, ElementsAre(4, 5, 6));
  EXPECT_THAT(manager_->MoveBlockTable(*request_, 2), IsEmpty());
  EXPECT_TRUE(manager_->CheckInvariants().ok());
}

TEST_F(QueriesTest, TruncatedHitsCoverTheirTokens) {
  const auto manager = Manager(60, {Full(4), Full(6)});
  const auto donor = NewRequest(*manager, Tokens(37));
  ASSERT_TRUE(Step(*manager, *donor, 37));
  const auto request = NewRequest(*manager, Tokens(37));
  const ComputedBlocks hits = Hits(*manager, *request);
  ASSERT_EQ(hits.num_tokens(), 36);
  const auto cut = manager->TruncateComputedBlocks(hits, 24);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->num_tokens(), 24);
  EXPECT_EQ(cut->blocks(0).size(), 6u);
  EXPECT_EQ(cut->blocks(1).size(), 4u);
  EXPECT_EQ(hits.blocks(0).size(), 9u);
  EXPECT_EQ(manager->pool().block(1).ref_count, 1);
  EXPECT_TRUE(manager->TruncateComputedBlocks(hits, 0)->empty());
  EXPECT_EQ(manager->TruncateComputedBlocks(hits, 36)->num_tokens(), 36);
  ASSERT_TRUE(Step(*manager, *request, 13, {.computed_blocks = &*cut}));
  EXPECT_EQ(manager->pool().block(6).ref_count, 2);

  const auto refusal = [&](const ComputedBlocks& computed, int64_t n) {
    const auto result = manager->TruncateComputedBlocks(computed, n);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_THAT(refusal(hits, 48), HasSubstr("num_tokens is 48, expected 0 to 36"));
  EXPECT_THAT(refusal(hits, -12), HasSubstr("num_tokens is -12, expected 0 to 36"));
  EXPECT_THAT(refusal(hits, 30), HasSubstr("a multiple of group 0's block size 4"));
  EXPECT_THAT(refusal(hits, 28), HasSubstr("a multiple of group 1's block size 6"));
  EXPECT_THAT(refusal(ComputedBlocks({{1}, {2}}, 36), 24),
              HasSubstr("6 blocks for 24 tokens, but group 0 lists 1"));
}

TEST_F(QueriesTest, TruncationOfForeignListsIsRefused) {
  const ComputedBlocks three_groups({{1}, {2}, {3}}, 4);
  const auto result = manager_->TruncateComputedBlocks(three_groups, 4);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("3 groups, expected 2"));
}

// A window's hit is cut below the window: what the next tokens need is null then.
TEST_F(QueriesTest, TruncatedWindowThatLacksItsBlocksIsRefusedAtAllocation) {
  const auto manager = Manager(20, {Window(4, 5)});
  const auto donor = NewRequest(*manager, Tokens(17));
  ASSERT_TRUE(Step(*manager, *donor, 17));
  const auto request = NewRequest(*manager, Tokens(17));
  const auto cut = manager->TruncateComputedBlocks(Hits(*manager, *request), 8);
  ASSERT_TRUE(cut.ok());
  const auto result =
      manager->AllocateSlots(*request, {.num_new_tokens = 1, .computed_blocks = &*cut});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("group 0 has no block at position 1"));
  EXPECT_FALSE(manager->HoldsBlocks(*request));
}

TEST(StatisticsTest, NotCountedWhereNothingIsReadOrLogged) {
  const auto counted = [](const KvCacheManagerOptions& options, bool skip) {
    const auto manager = Manager(20, {Full(4)}, options);
    manager->RecordPrefixCacheStats(*NewRequest(*manager, Tokens(9), "r", skip), 8);
    return manager->MakePrefixCacheStats().requests;
  };
  EXPECT_EQ(counted({}, false), 1);
  EXPECT_EQ(counted({}, true), 0);
  EXPECT_EQ(counted({.enable_caching = false}, false), 0);
  EXPECT_EQ(counted({.log_stats = false}, false), 0);
}

TEST(EventsTest, StoredRunsNameKindAndWindowOfTheirGroup) {
  const auto manager =
      Manager(40,
              {Full(4), Window(4, 9), Chunked(4, 8), Mla(4), Sink(4, 4),
               SlidingWindowMlaSpec::Create({.block_size = 4, .head_size = 64, .sliding_window = 7})
                   .value()},
              {.enable_events = true});
  const auto request = NewRequest(*manager, Tokens(8));
  ASSERT_TRUE(Step(*manager, *request, 8));
  std::vector<std::string> kinds;
  std::vector<std::optional<int64_t>> windows;
  for (const KvEvent& event : manager->TakeEvents()) {
    const auto& stored = std::get<BlockStored>(event);
    EXPECT_EQ(stored.group_idx, static_cast<GroupId>(kinds.size()));
    EXPECT_EQ(stored.token_ids, Tokens(8));
    kinds.emplace_back(stored.kv_cache_spec_kind);
    windows.push_back(stored.kv_cache_spec_sliding_window);
  }
  EXPECT_THAT(kinds, ElementsAre("full_attention", "sliding_window", "chunked_local_attention",
                                 "mla_attention", "sink_full_attention", "sliding_window_mla"));
  EXPECT_THAT(windows, ElementsAre(std::nullopt, 9, std::nullopt, std::nullopt, std::nullopt, 7));
  EXPECT_THAT(manager->TakeEvents(), IsEmpty());
}

// What a bug could do to the books is done by casting.
TEST(CheckInvariantsTest, SaysWhichRequestBlockAndCount) {
  const auto manager = Manager(20, {Full(4), Window(4, 5)});
  const auto request = NewRequest(*manager, Tokens(13), "r1");
  ASSERT_TRUE(Step(*manager, *request, 12));
  ASSERT_TRUE(Step(*manager, *request, 1));  // [1,2,3,7] and [0,0,6,8]
  const auto problem = [&] {
    const absl::Status status = manager->CheckInvariants();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  ASSERT_TRUE(manager->CheckInvariants().ok());

  int32_t& references = const_cast<KvCacheBlock&>(manager->pool().block(3)).ref_count;
  ++references;
  EXPECT_EQ(
      problem(),
      "block 3 counts 2 references, tables and lists hold 1 (request r1, group 0, position 2)");
  --references;

  BlockId* full = const_cast<BlockId*>(manager->GetBlocks(*request, 0).data());
  BlockId* window = const_cast<BlockId*>(manager->GetBlocks(*request, 1).data());
  const auto with = [&](BlockId& entry, BlockId value) {
    const BlockId saved = std::exchange(entry, value);
    const std::string message = problem();
    entry = saved;
    return message;
  };
  EXPECT_EQ(with(full[3], 0), "request r1, group 0, position 3: block 0 but 0 leading nulls");
  EXPECT_EQ(with(window[1], 9), "request r1, group 1, position 1: block 9 but 2 leading nulls");
  EXPECT_EQ(with(full[3], 8), "request r1, group 1, position 3: block 8 is used by group 0, too");
  EXPECT_EQ(with(full[1], 6), "request r1, group 0, position 1: block 6 has a key of group 1");
  EXPECT_EQ(with(full[1], 3),
            "request r1, group 0, position 1: block 3 has the key of another content");
  EXPECT_EQ(with(full[3], 9),
            "block 7 counts 1 references, tables and lists hold 0 (held by nobody); "
            "block 9 counts 0 references, tables and lists hold 1 (request r1, group 0, position "
            "3)");
  EXPECT_TRUE(manager->CheckInvariants().ok());
}

TEST(CheckInvariantsTest, NamesManyLeakedBlocksAndTheirHolders) {
  const auto manager = Manager(60, {Full(4)});
  const auto request = NewRequest(*manager, Tokens(120), "r1");
  const auto sharer = NewRequest(*manager, Tokens(5), "r2");
  ASSERT_TRUE(Step(*manager, *request, 120));
  ASSERT_TRUE(Step(*manager, *sharer, 1));
  ASSERT_TRUE(manager->PinBlocks({1, 1}).ok());
  ASSERT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
  for (BlockId id = 1; id <= 30; ++id) {
    ++const_cast<KvCacheBlock&>(manager->pool().block(id)).ref_count;
  }
  const std::string message(manager->CheckInvariants().message());
  EXPECT_THAT(message, testing::StartsWith(
                           "block 1 counts 5 references, tables and lists hold 4 (request r1, "
                           "group 0, position 0; request r2, group 0, position 0; 2 popped "
                           "or pinned); block 2 counts 2 references"));
  EXPECT_THAT(message, testing::EndsWith("; and 10 more"));
  for (BlockId id = 1; id <= 30; ++id) {
    --const_cast<KvCacheBlock&>(manager->pool().block(id)).ref_count;
  }
}

// What a manager reports besides registrations: reused blocks as events (BM-53, V-62), and the ids
// of fresh blocks (BM-115).

std::unique_ptr<Request> Reporting(const KvCacheManager& manager, std::vector<TokenId> tokens) {
  return manager
      .NewRequest({.id = "reporting",
                   .content = {.token_ids = std::move(tokens), .session_id = "s"},
                   .report_reused_blocks = true})
      .value();
}

KvCacheSpec StatesOf(int64_t block_size) {
  return MambaSpec::Create({.block_size = block_size,
                            .states = {{.shape = {4}}},
                            .cache_mode = MambaCacheMode::kAlign})
      .value();
}

std::vector<BlockStored> TakeStored(KvCacheManager& manager) {
  std::vector<BlockStored> stored;
  for (const KvEvent& event : manager.TakeEvents()) {
    stored.push_back(std::get<BlockStored>(event));
  }
  return stored;
}

TEST(ReusedBlocksTest, AHitIsReportedPerGroupAndRun) {
  const auto manager = Manager(50, {Full(8), Window(4, 9)}, {.enable_events = true});
  ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(33)), 33));
  manager->TakeEvents();
  const auto request = Reporting(*manager, Tokens(40));
  const std::string before = State(*manager);
  const ComputedBlocks hits = Hits(*manager, *request);
  ASSERT_EQ(hits.num_tokens(), 32);
  EXPECT_EQ(State(*manager), before);
  const auto stored = TakeStored(*manager);
  ASSERT_EQ(stored.size(), 2u);
  const auto hashes = request->content().hashes();
  EXPECT_EQ(stored[0].group_idx, 0);
  EXPECT_EQ(stored[0].block_size, 8);
  EXPECT_EQ(stored[0].parent_block_hash, std::nullopt);
  EXPECT_EQ(stored[0].token_ids, Tokens(32));
  EXPECT_THAT(stored[0].block_hashes, ElementsAre(hashes[1], hashes[3], hashes[5], hashes[7]));
  EXPECT_EQ(stored[0].kv_cache_spec_kind, "full_attention");
  EXPECT_EQ(stored[0].session_id, "s");
  // A window has its last blocks only.
  EXPECT_EQ(stored[1].group_idx, 1);
  EXPECT_EQ(stored[1].parent_block_hash, hashes[5]);
  EXPECT_EQ(stored[1].token_ids, Tokens(8, 24));
  EXPECT_THAT(stored[1].block_hashes, ElementsAre(hashes[6], hashes[7]));
  // Each look-up is reported, an explanation is none.
  Hits(*manager, *request);
  EXPECT_EQ(TakeStored(*manager), stored);
  ASSERT_TRUE(ExplainLookup(*manager, *request).ok());
  EXPECT_THAT(manager->TakeEvents(), IsEmpty());
  // The allocation reports what it registers: a block of each group, and the prompt's tail in the
  // full one.
  ASSERT_TRUE(Step(*manager, *request, 8, {.computed_blocks = &hits}));
  EXPECT_EQ(TakeStored(*manager).size(), 3u);
}

TEST(ReusedBlocksTest, NothingIsReportedUnasked) {
  const auto manager = Manager(50, {Full(4)}, {.enable_events = true});
  ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(9)), 9));
  manager->TakeEvents();
  EXPECT_EQ(Hits(*manager, *NewRequest(*manager, Tokens(9))).num_tokens(), 8);
  EXPECT_EQ(Hits(*manager, *Reporting(*manager, Tokens(9, 100))).num_tokens(), 0);
  EXPECT_THAT(manager->TakeEvents(), IsEmpty());
}

// As vLLM has it: one event with the tokens of all positions, whatever there is of them.
TEST(ReusedBlocksTest, OneEventPerGroupWithItsSwitch) {
  KvCacheManagerOptions options{.enable_events = true};
  options.semantics.one_event_per_registration = true;
  options.semantics.retention_interval = std::nullopt;
  const auto manager = Manager(50, {Window(4, 9), Chunked(4, 8)}, options);
  ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(17)), 17));
  manager->TakeEvents();
  const auto request = Reporting(*manager, Tokens(17));
  ASSERT_EQ(ListsOf(Hits(*manager, *request)), (Lists{{0, 0, 3, 4}, {0, 0, 0, 0}}));
  const auto stored = TakeStored(*manager);
  ASSERT_EQ(stored.size(), 2u);
  const auto hashes = request->content().hashes();
  EXPECT_THAT(stored[0].block_hashes, ElementsAre(hashes[0], hashes[1], hashes[2], hashes[3]));
  EXPECT_EQ(stored[0].parent_block_hash, std::nullopt);
  EXPECT_EQ(stored[0].token_ids, Tokens(16));
  EXPECT_EQ(stored[1].block_hashes, stored[0].block_hashes);
  EXPECT_EQ(stored[1].token_ids, Tokens(16));
}

// Over two ranks a block covers twice its tokens; the engine's report counts one rank's (V-62).
TEST(ReusedBlocksTest, OverRanksTheReportCountsOneRanksTokens) {
  KvCacheConfig config = Config(20, {Full(4), Full(4)});
  config.hash_block_size = 4;
  KvCacheManagerOptions options{.enable_events = true, .decode_context_parallel = 2};
  for (const bool exactly : {false, true}) {
    options.semantics.one_event_per_registration = exactly;
    const auto manager = Manager(config, options);
    ASSERT_TRUE(Step(*manager, *NewRequest(*manager, Tokens(17)), 17));
    manager->TakeEvents();
    const auto request = Reporting(*manager, Tokens(17));
    ASSERT_EQ(Hits(*manager, *request).num_tokens(), 16);
    const auto stored = TakeStored(*manager);
    ASSERT_EQ(stored.size(), 2u);
    const auto hashes = request->content().hashes();
    EXPECT_EQ(stored[0].block_size, exactly ? 4 : 8);
    EXPECT_EQ(stored[0].token_ids, Tokens(exactly ? 8 : 16));
    EXPECT_THAT(stored[0].block_hashes,
                ElementsAre(hashes[exactly ? 0 : 1], hashes[exactly ? 1 : 3]));
  }
}

TEST(ReusedBlocksTest, ATailIsReportedAsItIsCached) {
  KvCacheConfig config = Config(20, {Full(4), StatesOf(4)});
  config.hash_block_size = 2;
  const auto manager = Manager(config, {.enable_events = true, .partial_hits = true});
  const auto first = NewRequest(*manager, Tokens(7));
  ASSERT_TRUE(Step(*manager, *first, 6));
  manager->NewStepStarts();
  ASSERT_TRUE(first->AppendOutputTokens({7}).ok());
  manager->TakeEvents();
  const auto request = Reporting(*manager, Tokens(8));
  ASSERT_EQ(Hits(*manager, *request).num_tokens(), 6);
  const auto hashes = request->content().hashes();
  auto stored = TakeStored(*manager);
  ASSERT_EQ(stored.size(), 3u);
  EXPECT_THAT(stored[0].block_hashes, ElementsAre(hashes[1]));
  for (size_t i : {1, 2}) {
    EXPECT_EQ(stored[i].group_idx, static_cast<GroupId>(i) - 1);
    EXPECT_EQ(stored[i].block_size, 2);
    EXPECT_EQ(stored[i].parent_block_hash, hashes[1]);
    EXPECT_EQ(stored[i].token_ids, Tokens(2, 4));
    EXPECT_THAT(stored[i].block_hashes, ElementsAre(hashes[2]));
  }
  // A row block that is registered as a whole in the meantime is the end of its run, unless the
  // tail is a key of it.
  ASSERT_TRUE(Step(*manager, *first, 2));
  manager->TakeEvents();
  ASSERT_EQ(Hits(*manager, *request).num_tokens(), 6);
  stored = TakeStored(*manager);
  ASSERT_EQ(stored.size(), 3u);
  EXPECT_THAT(stored[1].block_hashes, ElementsAre(hashes[2]));
}

TEST(ReusedBlocksTest, RefusedWithoutEvents) {
  const auto manager = Manager(20, {Full(4)});
  EXPECT_THAT(
      std::string(
          manager->NewRequest({.id = "r", .report_reused_blocks = true}).status().message()),
      HasSubstr("NewRequest(r): report_reused_blocks is set, expected enable_events with it"));
}

TEST(NewBlockReportTest, ExternalNewAndCopiedBlocksAreCollected) {
  const auto manager = Manager(50, {Full(4), Window(4, 5)}, {.report_new_blocks = true});
  const auto request = NewRequest(*manager, Tokens(20));
  ASSERT_TRUE(Step(*manager, *request, 4, {.num_external_computed_tokens = 8}));
  EXPECT_EQ(manager->GetBlockIds(*request), (Lists{{1, 2, 4}, {0, 3, 5}}));
  EXPECT_THAT(manager->TakeNewBlockIds(), testing::UnorderedElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(manager->TakeNewBlockIds(), IsEmpty());
  ASSERT_TRUE(Step(*manager, *request, 4));
  ASSERT_TRUE(Step(*manager, *request, 4));
  EXPECT_EQ(manager->TakeNewBlockIds().size(), 4u);
  ASSERT_TRUE(manager->Free(*request).ok());
  EXPECT_THAT(manager->TakeNewBlockIds(), IsEmpty());
  // Hits are not new.
  const auto again = NewRequest(*manager, Tokens(20));
  ASSERT_TRUE(Step(*manager, *again, 4));
  EXPECT_EQ(manager->TakeNewBlockIds(),
            (std::vector<BlockId>{manager->GetBlocks(*again, 0).back(),
                                  manager->GetBlocks(*again, 1).back()}));
}

TEST(NewBlockReportTest, CopiesOfRowsAreNewBlocksOfStatesAreNot) {
  KvCacheConfig config = Config(20, {Full(4), StatesOf(4)});
  config.hash_block_size = 2;
  const auto manager = Manager(config, {.partial_hits = true, .report_new_blocks = true});
  const auto first = NewRequest(*manager, Tokens(7));
  ASSERT_TRUE(Step(*manager, *first, 6));
  EXPECT_THAT(manager->TakeNewBlockIds(), ElementsAre(1, 2));
  manager->NewStepStarts();
  const auto second = NewRequest(*manager, Tokens(8));
  ASSERT_TRUE(Step(*manager, *second, 2));
  const auto copies = manager->TakeBlockCopies();
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_THAT(manager->TakeNewBlockIds(), ElementsAre(copies[0].target));
}

}  // namespace
}  // namespace kvblocks
