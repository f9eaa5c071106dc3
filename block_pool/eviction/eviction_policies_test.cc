// Names of eviction policies, what a pool accepts of them, and small cases whose answer is clear. A
// policy that the test brings, Fifo, shows what the pool does under any.

#include "kvblocks/eviction.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "block_pool/eviction/block_heap.h"
#include "block_pool/eviction/evicted_keys.h"
#include "block_pool/eviction/eviction_index.h"
#include "block_pool/testing/pool_testing.h"
#include "gtest/gtest.h"
#include "kvblocks/block_pool.h"

namespace kvblocks {
namespace {

using Ids = std::vector<BlockId>;

EvictionPolicyFactory Named(const char* name) { return ParseEvictionPolicy(name).value(); }

TEST(EvictionPolicyTest, NamesAreReadAsTheyArePrinted) {
  EXPECT_EQ(EvictionPolicyNames(), "arc|hazard|lru|priority|ttl");
  EXPECT_EQ(EvictionPolicyNames(/*with_retention=*/false), "arc|hazard|lru");
  for (const std::string& name :
       std::vector<std::string>(absl::StrSplit(EvictionPolicyNames(), '|'))) {
    const auto policy = ParseEvictionPolicy(name);
    ASSERT_TRUE(policy.ok()) << name;
    EXPECT_EQ(policy->name, name);
    EXPECT_EQ(policy->make == nullptr, name == "lru");
    EXPECT_NE(policy->make_order, nullptr);
  }
}

TEST(EvictionPolicyTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_EQ(ParseEvictionPolicy("sieve").status().message(),
            "eviction_policy is \"sieve\", expected arc|hazard|lru|priority|ttl");
}

TEST(EvictionPolicyTest, PoolsRefuseWhatDoesNotGoTogether) {
  const auto without_caching = BlockPool::Create(
      {.num_blocks = 5, .enable_caching = false, .eviction_policy = Named("arc")});
  EXPECT_EQ(without_caching.status().message(),
            "eviction_policy is \"arc\", expected \"lru\" without caching");
  const auto append_all = BlockPool::Create({.num_blocks = 5,
                                             .free_order = FreeOrder::kAppendAll,
                                             .eviction_policy = Named("hazard")});
  EXPECT_EQ(append_all.status().message(),
            "eviction_policy is \"hazard\", expected \"lru\" with free_order kAppendAll");
  const auto chunks = BlockPool::Create(
      {.num_blocks = 5,
       .eviction_policy = Fifo(),
       .chunks = {.num_chunks = 2, .pages_per_chunk = {2}, .class_of_group = {0}}});
  EXPECT_EQ(chunks.status().message(),
            "eviction_policy is \"fifo\", expected \"lru\" with page classes in chunks");
}

TEST(BlockHeapTest, GivesBlocksInTheOrderOfTheirRanks) {
  BlockHeap heap(10);
  for (const BlockId id : {3, 7, 1, 9, 4}) heap.Add(id, {.first = id % 3, .second = id});
  heap.Remove(7);
  heap.Remove(8);  // is not there
  Ids order;
  while (!heap.empty()) {
    EXPECT_TRUE(heap.IsConsistent());
    order.push_back(heap.top());
    heap.Remove(heap.top());
  }
  EXPECT_EQ(order, (Ids{3, 9, 1, 4}));
}

TEST(EvictedKeysTest, ForgetsTheOldest) {
  EvictedKeys keys(2);
  keys.Add(1);
  keys.Add(2);
  keys.Add(1);  // now the latest
  keys.Add(3);
  EXPECT_EQ(keys.size(), 2);
  EXPECT_FALSE(keys.Take(2));
  EXPECT_TRUE(keys.Take(1));
  EXPECT_FALSE(keys.Take(1));
  EXPECT_TRUE(keys.Take(3));
}

// Takes, registers and frees one prompt after the other.
class EvictionTest : public ::testing::Test {
 protected:
  void Start(const EvictionPolicyFactory& policy, int64_t num_blocks,
             std::vector<uint8_t> is_chained_group = {}) {
    pool_ = BlockPool::Create({.num_blocks = num_blocks + 1,
                               .eviction_policy = policy,
                               .is_chained_group = std::move(is_chained_group)})
                .value();
  }
  void StartRetaining(int64_t num_blocks, int64_t most, const char* policy = "lru") {
    pool_ = BlockPool::Create({.num_blocks = num_blocks + 1,
                               .eviction_policy = Named(policy),
                               .max_retained_blocks = most})
                .value();
  }
  Ids Cache(const std::vector<uint64_t>& keys, bool frees = true) {
    std::vector<BlockHash> hashes;
    for (const uint64_t key : keys) hashes.push_back({{key, ~key, 0, 0}});
    const auto size = static_cast<int64_t>(keys.size());
    const auto content = PrefixContent::FromHashes(16 * size, std::move(hashes),
                                                   std::make_shared<const PrefixHashing>())
                             .value();
    Ids table(keys.size());
    table.resize(pool_->FindCachedRun(content, 0, 1, 0, absl::MakeSpan(table)));
    const auto hits = static_cast<int64_t>(table.size());
    pool_->Touch(table);
    pool_->GetNewBlocks(size - hits, table);
    pool_->CacheFullBlocks(content, table, hits, size, 16, /*group=*/0);
    if (frees) pool_->FreeBlocksReversed(table);
    EXPECT_EQ(pool_->CheckInvariants(), absl::OkStatus());
    return table;
  }
  // Takes all free blocks.
  Ids Drain() { return GetNewBlocks(*pool_, pool_->num_free()).value(); }

  std::unique_ptr<BlockPool> pool_;
};

TEST_F(EvictionTest, InGroupsWithoutAChainEachBlockStandsAlone) {
  Start(Fifo(), 4, /*is_chained_group=*/{0});
  const Ids prompt = Cache({1, 2, 3, 4});
  EXPECT_EQ(Drain(), prompt);
}

// A block whose parent lost its key, and the parent's id came to hold something else.
TEST_F(EvictionTest, AParentsNextLifeHasItsOwnChildren) {
  Start(Fifo(), 3);
  const Ids prompt = Cache({1, 2});
  ASSERT_TRUE(pool_->EvictBlocks({&prompt[0], 1}).ok());
  const Ids other = Cache({3});
  ASSERT_EQ(other[0], prompt[0]);
  ASSERT_TRUE(pool_->EvictBlocks({&prompt[1], 1}).ok());
  EXPECT_EQ(pool_->CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(pool_->eviction_order()->NumChildren(other[0]), 0);
}

TEST(EvictionPolicyTest, PoolsRefuseRetentionWhereNothingCanBeRanked) {
  const auto message = [](const BlockPool::Options& options) {
    return std::string(BlockPool::Create(options).status().message());
  };
  EXPECT_EQ(message({.num_blocks = 5, .max_retained_blocks = 5}),
            "max_retained_blocks is 5, expected 0 to 4, one less than num_blocks");
  EXPECT_EQ(message({.num_blocks = 5, .max_retained_blocks = -1}),
            "max_retained_blocks is -1, expected 0 to 4, one less than num_blocks");
  EXPECT_EQ(message({.num_blocks = 5, .enable_caching = false, .max_retained_blocks = 2}),
            "max_retained_blocks is 2, expected 0 without caching");
  EXPECT_EQ(message({.num_blocks = 5, .eviction_policy = Named("ttl")}),
            "eviction_policy is \"ttl\", which ranks retained blocks, but none may be retained: "
            "expected max_retained_blocks above 0");
  EXPECT_EQ(message({.num_blocks = 5, .max_retained_blocks = 2}),
            "max_retained_blocks is 2, expected 0 without an eviction_policy that retains: "
            "ParseEvictionPolicy(\"lru\") for one");
  EvictionPolicyFactory bare = Fifo();
  bare.make_order = nullptr;
  EXPECT_EQ(message({.num_blocks = 5, .eviction_policy = bare}),
            "eviction_policy is \"fifo\" without what ParseEvictionPolicy and CustomEvictionPolicy "
            "add");
}

TEST_F(EvictionTest, ARenewedRetentionKeepsTheHigherPriorityAndTheLaterEnd) {
  StartRetaining(3, 3);
  const Ids a = Cache({1});
  pool_->Retain(a, 70, 10);
  EXPECT_EQ(pool_->Retain(a, 20, 20), (RetainOutcome{.num_retained = 1, .num_renewed = 1}));
  EXPECT_EQ(pool_->retention()->item(a[0]).priority, 70);
  EXPECT_EQ(pool_->retention()->item(a[0]).expires_at, 20);
}

// The head of the prefix gets what the cap leaves; a block of no more than this priority gives
// way.
TEST_F(EvictionTest, TheCapTakesFromLowerAndOlderRetentionsAndRefusesTheRest) {
  StartRetaining(8, 3);
  const Ids high = Cache({1}), low = Cache({2, 3}), prompt = Cache({11, 12, 13});
  pool_->Retain(high, 90, kNeverExpires);
  pool_->Retain(low, 50, kNeverExpires);
  EXPECT_EQ(pool_->Retain(prompt, 50, kNeverExpires),
            (RetainOutcome{.num_retained = 2, .num_refused = 1, .num_displaced = 2}));
  EXPECT_TRUE(pool_->retention()->contains(high[0]));
  EXPECT_TRUE(pool_->retention()->contains(prompt[0]));
  EXPECT_FALSE(pool_->retention()->contains(prompt[2]));
  EXPECT_EQ(pool_->Retain(low, 40, kNeverExpires), (RetainOutcome{.num_refused = 2}));
  EXPECT_EQ(pool_->CheckInvariants(), absl::OkStatus());
}

}  // namespace
}  // namespace kvblocks
