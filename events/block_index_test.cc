#include "kvblocks/kv_events.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::events {
namespace {

using Matches = std::vector<BlockIndex::PrefixMatch>;

BlockHash Named(uint64_t name) { return {{name, 0, 0, 0}}; }

KvEvent Stored(std::vector<uint64_t> names, GroupId group = 0) {
  BlockStored stored{.block_size = 16, .group_idx = group};
  for (const uint64_t name : names) stored.block_hashes.push_back(Named(name));
  return stored;
}
KvEvent Removed(uint64_t name, GroupId group = 0) {
  return BlockRemoved{.block_hash = Named(name), .group_idx = group};
}
std::vector<BlockHash> Chain(std::vector<uint64_t> names) {
  std::vector<BlockHash> hashes;
  for (const uint64_t name : names) hashes.push_back(Named(name));
  return hashes;
}

TEST(BlockIndexTest, FindsWhoHoldsMostOfAPrefix) {
  BlockIndex index;
  const HolderId a = index.AddHolder("a"), b = index.AddHolder("b"), c = index.AddHolder("c");
  index.Apply(a, {Stored({1, 2})});
  index.Apply(b, {Stored({1, 2, 3, 4})});
  index.Apply(c, {Stored({2, 3})});  // not the first block
  EXPECT_EQ(index.FindLongestPrefix(Chain({1, 2, 3, 9})), (Matches{{b, 3}, {a, 2}}));
  EXPECT_EQ(index.FindLongestPrefix(Chain({1})), (Matches{{a, 1}, {b, 1}}));
  EXPECT_EQ(index.FindLongestPrefix(Chain({2, 3})), (Matches{{b, 2}, {c, 2}, {a, 1}}));
  EXPECT_TRUE(index.FindLongestPrefix(Chain({9, 1})).empty());
  EXPECT_TRUE(index.FindLongestPrefix({}).empty());
  EXPECT_TRUE(index.FindLongestPrefix(Chain({1}), /*group=*/1).empty());
  EXPECT_EQ(index.num_keys(), 4);
}

TEST(BlockIndexTest, ClearingAndForgettingConcernOneHolder) {  // BM-51
  BlockIndex index;
  const HolderId a = index.AddHolder("a"), b = index.AddHolder("b");
  index.Apply(a, {Stored({1, 2})});
  index.Apply(b, {Stored({2, 3})});
  index.Apply(a, {AllBlocksCleared{}});
  EXPECT_EQ(index.num_keys(), 2);
  EXPECT_EQ(index.holder(a).num_cleared, 1);
  EXPECT_EQ(index.FindLongestPrefix(Chain({2})), (Matches{{b, 1}}));
  index.Forget(b);
  EXPECT_EQ(index.num_keys(), 0);
  EXPECT_EQ(index.holder(b).num_keys, 0);
}

TEST(BlockIndexTest, OtherMediaDoNotCount) {
  BlockIndex index, all({.medium = ""});
  BlockStored on_cpu{.block_hashes = {Named(1)}, .block_size = 16, .medium = "CPU"};
  index.Apply(index.AddHolder("a"), {KvEvent(on_cpu)});
  all.Apply(all.AddHolder("a"), {KvEvent(on_cpu)});
  EXPECT_EQ(index.num_keys(), 0);
  EXPECT_EQ(index.holder(0).num_other_media, 1);
  EXPECT_EQ(all.num_keys(), 1);
}

// Against plain maps, over random events of several holders.
TEST(BlockIndexTest, AgreesWithCountingByHand) {
  std::mt19937_64 random(5);
  BlockIndex index;
  for (const char* name : {"a", "b", "c", "d"}) index.AddHolder(name);
  std::map<std::pair<uint64_t, GroupId>, std::map<HolderId, int32_t>> counts;
  for (int step = 0; step < 20'000; ++step) {
    const auto holder = static_cast<HolderId>(random() % 4);
    const uint64_t name = random() % 60;
    const auto group = static_cast<GroupId>(random() % 2);
    const uint64_t what = random() % 1000;
    auto& held = counts[{name, group}];
    if (what == 0) {
      index.Apply(holder, {AllBlocksCleared{}});
      for (auto& [key, of_key] : counts) of_key.erase(holder);
    } else if (what < 500) {
      index.Apply(holder, {Stored({name}, group)});
      ++held[holder];
    } else {
      index.Apply(holder, {Removed(name, group)});
      if (held.count(holder) != 0 && --held[holder] == 0) held.erase(holder);
    }
    const auto holdings = index.Holders({Named(name), group});
    ASSERT_EQ(holdings.size(), held.size());
    auto expected = held.begin();
    for (const auto& holding : holdings) {
      ASSERT_EQ(holding.holder, expected->first);
      ASSERT_EQ(holding.num_blocks, (expected++)->second);
    }
  }
  int64_t num_keys = 0, num_blocks = 0;
  for (const auto& [key, held] : counts) {
    num_keys += !held.empty();
    for (const auto& [holder, count] : held) num_blocks += count;
  }
  EXPECT_EQ(index.num_keys(), num_keys);
  int64_t indexed = 0;
  for (HolderId id = 0; id < 4; ++id) indexed += index.holder(id).num_blocks;
  EXPECT_EQ(indexed, num_blocks);
}

TEST(EventLogTest, ComesBackFromPiecesOfAnySize) {
  const std::vector<LoggedMessage> messages = {{"tcp://a:1", "kv", 0, std::string(300, 'x')},
                                               {"tcp://a:1", "", LoggedMessage::kRestart, ""},
                                               {"", "t", int64_t{1} << 40, "\x93"}};
  std::string log;
  AppendLogHead(&log);
  for (const LoggedMessage& message : messages) AppendToLog(message, &log);
  for (const size_t piece : {size_t{1}, size_t{7}, log.size()}) {
    EventLogReader reader;
    std::vector<LoggedMessage> got;
    for (size_t at = 0; at < log.size(); at += piece) {
      reader.Feed(std::string_view(log).substr(at, piece));
      while (true) {
        const auto message = reader.Next();
        ASSERT_TRUE(message.ok()) << message.status();
        if (!*message) break;
        got.push_back(**message);
      }
    }
    EXPECT_EQ(got, messages);
    EXPECT_TRUE(reader.is_complete());
  }
}

TEST(EventLogTest, SaysWhatIsNoLog) {
  EventLogReader reader;
  reader.Feed("{\"a\": 1}");
  EXPECT_EQ(reader.Next().status().message(),
            "KV event log: byte 0: got no log of KV events, expected one that kvsim events "
            "--record wrote");
  std::string log;
  AppendLogHead(&log);
  EventLogReader cut;
  cut.Feed(log + "\x94\xa1");
  const auto message = cut.Next();
  ASSERT_TRUE(message.ok());
  EXPECT_FALSE(message->has_value());
  EXPECT_FALSE(cut.is_complete());
  EventLogReader wrong;
  wrong.Feed(log + "\x94\xa1x\xa1y\xa1z\xc4");
  EXPECT_EQ(wrong.Next().status().message(),
            "KV event log: byte 18: item 2 of a message is a text, expected source, topic, "
            "sequence and payload");
}

// Blocks of two tokens behind `parent` (0: none), with tokens of their own.
BlockStored BlocksOf(std::vector<uint64_t> names, uint64_t parent = 0) {
  BlockStored stored{.block_size = 2};
  if (parent != 0) stored.parent_block_hash = Named(parent);
  for (const uint64_t name : names) {
    stored.block_hashes.push_back(Named(name));
    stored.token_ids.insert(stored.token_ids.end(), 2, static_cast<TokenId>(name));
  }
  return stored;
}

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
  Apply({BlocksOf({1, 2})});
  Apply({BlocksOf({1})});  // side by side
  Apply({Removed(2)});
  Apply({BlocksOf({2}, 1)});      // evicted, and computed again
  Apply({BlocksOf({1, 3})}, b_);  // a has 1
  Apply({Removed(2)});
  Apply({BlocksOf({2}, 1)}, b_);  // lost by a, new to b
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
  Apply({BlocksOf({1})});
  check_.OnRestart(0);
  EXPECT_EQ(check_.index().num_keys(), 0);
  Apply({Removed(1)});
  EXPECT_EQ(totals().num_unknown_removals, 1);
}

TEST_F(StreamCheckTest, AHashHasOneParent) {
  Apply({BlocksOf({1, 2, 3})});
  Apply({BlocksOf({2, 3}, 1)});
  EXPECT_EQ(totals().num_two_parents, 0);
  Apply({BlocksOf({3}, 1)});
  EXPECT_EQ(totals().num_two_parents, 1);
  // With more tokens than its hashes it says of none of them what it continues (V-61).
  BlockStored sparse = BlocksOf({2, 9, 3});
  sparse.block_hashes.erase(sparse.block_hashes.begin() + 1);
  sparse.block_hashes.erase(sparse.block_hashes.begin());
  Apply({sparse});
  EXPECT_EQ(totals().num_two_parents, 1);
  EXPECT_EQ(totals().num_unequal_lists, 0);
}

TEST_F(StreamCheckTest, ListsOfAnEventFitEachOther) {
  BlockStored tokens = BlocksOf({1});
  tokens.token_ids.pop_back();
  Apply({tokens});
  EXPECT_EQ(totals().num_unequal_lists, 1);
  BlockStored keys = BlocksOf({2});
  keys.extra_keys.resize(2);
  keys.lookahead_token_ids = {{{1}, {2}}};
  Apply({keys});
  EXPECT_EQ(totals().num_unequal_lists, 3);
  EXPECT_EQ(totals().first_problem,
            "batch 0 from the first seen: 1 token_ids for 1 hashes of 2 tokens");
}

TEST_F(StreamCheckTest, OddButPossibleThingsAreCountedApart) {
  BlockStored on_cpu = BlocksOf({5});
  on_cpu.medium = "CPU";
  Apply({BlocksOf({2}, 1), on_cpu, BlockRemoved{.block_hash = Named(5), .medium = "CPU"}}, 0, 5);
  Apply({BlocksOf({3})}, 0, 4);
  EXPECT_EQ(totals().num_unknown_parents, 1);
  EXPECT_EQ(totals().num_other_media, 2);
  EXPECT_EQ(totals().num_times_backwards, 1);
  EXPECT_EQ(totals().num_problems(), 0);
  EXPECT_EQ(totals().num_events, 4);
}

}  // namespace
}  // namespace kvblocks::events
