#include "kvblocks/kv_events.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::events {
namespace {

BlockHash Named(uint64_t name) { return {{name, 7, 7, 7}}; }

// Blocks of two tokens behind `parent` (0: none), with tokens of their own.
BlockStored Chain(std::vector<uint64_t> names, uint64_t parent = 0) {
  BlockStored stored{.block_size = 2};
  if (parent != 0) stored.parent_block_hash = Named(parent);
  for (const uint64_t name : names) {
    stored.block_hashes.push_back(Named(name));
    stored.token_ids.insert(stored.token_ids.end(), 2, static_cast<TokenId>(name));
  }
  return stored;
}
BlockRemoved Removed(uint64_t name) { return {.block_hash = Named(name)}; }

class StreamCheckTest : public ::testing::Test {
 protected:
  void Apply(std::vector<KvEvent> events, HolderId stream = 0, double time = 0) {
    check_.Apply(stream, {.timestamp = time, .events = std::move(events)});
  }
  const StreamCheck::Totals& totals(HolderId stream = 0) const { return check_.totals(stream); }

  StreamCheck check_;
  const HolderId a_ = check_.AddStream("a"), b_ = check_.AddStream("b");
};

TEST_F(StreamCheckTest, SaysWhatWouldHaveSavedTheWork) {
  Apply({Chain({1, 2})});
  Apply({Chain({1})});  // side by side
  Apply({Removed(2)});
  Apply({Chain({2}, 1)});      // evicted, and computed again
  Apply({Chain({1, 3})}, b_);  // a has 1
  Apply({Removed(2)});
  Apply({Chain({2}, 1)}, b_);  // lost by a, new to b
  EXPECT_EQ(totals().num_stored, 4);
  EXPECT_EQ(totals().num_first_seen, 2);
  EXPECT_EQ(totals().num_held_here, 1);
  EXPECT_EQ(totals().num_lost_before, 1);
  EXPECT_EQ(totals(b_).num_held_elsewhere, 1);
  EXPECT_EQ(totals(b_).num_first_seen, 2);
  EXPECT_EQ(totals().num_problems() + totals(b_).num_problems(), 0);
  EXPECT_EQ(check_.num_ever_seen(), 3);
}

TEST_F(StreamCheckTest, ARemovalOfNothingIsAProblemUnlessMessagesWereLost) {
  Apply({Removed(1)});
  EXPECT_EQ(totals().num_unknown_removals, 1);
  EXPECT_NE(totals().first_problem.find("had not been stored"), std::string::npos);
  check_.OnLoss(0);
  Apply({Removed(2)});
  EXPECT_EQ(totals().num_unknown_removals, 1);
  EXPECT_EQ(totals().num_removals_after_loss, 1);
  Apply({AllBlocksCleared{}, Removed(3)});  // from here on everything is known again
  EXPECT_EQ(totals().num_unknown_removals, 2);
}

TEST_F(StreamCheckTest, ARestartEmptiesTheCache) {
  Apply({Chain({1})});
  check_.OnRestart(0);
  EXPECT_EQ(check_.index().num_keys(), 0);
  Apply({Removed(1)});
  EXPECT_EQ(totals().num_unknown_removals, 1);
}

TEST_F(StreamCheckTest, AHashHasOneParent) {
  Apply({Chain({1, 2, 3})});
  Apply({Chain({2, 3}, 1)});
  EXPECT_EQ(totals().num_two_parents, 0);
  Apply({Chain({3}, 1)});
  EXPECT_EQ(totals().num_two_parents, 1);
  // With more tokens than its hashes it says of none of them what it continues (V-61).
  BlockStored sparse = Chain({2, 9, 3});
  sparse.block_hashes.erase(sparse.block_hashes.begin() + 1);
  sparse.block_hashes.erase(sparse.block_hashes.begin());
  Apply({sparse});
  EXPECT_EQ(totals().num_two_parents, 1);
  EXPECT_EQ(totals().num_unequal_lists, 0);
}

TEST_F(StreamCheckTest, ListsOfAnEventFitEachOther) {
  BlockStored tokens = Chain({1});
  tokens.token_ids.pop_back();
  Apply({tokens});
  EXPECT_EQ(totals().num_unequal_lists, 1);
  BlockStored keys = Chain({2});
  keys.extra_keys.resize(2);
  keys.lookahead_token_ids = {{{1}, {2}}};
  Apply({keys});
  EXPECT_EQ(totals().num_unequal_lists, 3);
  EXPECT_EQ(totals().first_problem,
            "batch 0 from the first seen: 1 token_ids for 1 hashes of 2 tokens");
}

TEST_F(StreamCheckTest, OddButPossibleThingsAreCountedApart) {
  BlockStored on_cpu = Chain({5});
  on_cpu.medium = "CPU";
  Apply({Chain({2}, 1), on_cpu, BlockRemoved{.block_hash = Named(5), .medium = "CPU"}}, 0, 5);
  Apply({Chain({3})}, 0, 4);
  EXPECT_EQ(totals().num_unknown_parents, 1);
  EXPECT_EQ(totals().num_other_media, 2);
  EXPECT_EQ(totals().num_times_backwards, 1);
  EXPECT_EQ(totals().num_problems(), 0);
  EXPECT_EQ(totals().num_events, 4);
}

}  // namespace
}  // namespace kvblocks::events
