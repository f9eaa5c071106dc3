// What HazardPolicy learns, seen in the blocks that it evicts.

#include "block_pool/eviction/hazard_policy.h"

#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/eviction.h"

namespace kvblocks {
namespace {

constexpr int64_t kBlockSize = 512;

class Replay {
 public:
  Replay(const char* policy, int64_t num_blocks)
      : pool_(BlockPool::Create({.num_blocks = num_blocks + 1,
                                 .eviction_policy = ParseEvictionPolicy(policy).value()})
                  .value()) {}

  // One request at a time; returns the blocks that it hits.
  int64_t Run(const std::vector<uint64_t>& keys) {
    std::vector<BlockHash> hashes;
    for (const uint64_t key : keys) {
      const uint64_t word = (key + 1) * 0x9e3779b97f4a7c15u;
      hashes.push_back({{word ^ word >> 31, word, key, 0}});
    }
    const auto size = static_cast<int64_t>(keys.size());
    const auto content =
        PrefixContent::FromHashes(size * kBlockSize, std::move(hashes), hashing_).value();
    std::vector<BlockId> table(keys.size());
    const auto hits = static_cast<int64_t>(
        pool_->FindCachedRun(content, 0, 1, /*group=*/0, absl::MakeSpan(table)));
    table.resize(static_cast<size_t>(hits));
    pool_->Touch(table);
    pool_->GetNewBlocks(size - hits, table);
    pool_->CacheFullBlocks(content, table, hits, size, kBlockSize, /*group=*/0);
    pool_->FreeBlocksReversed(table);
    return hits;
  }
  BlockPool& pool() { return *pool_; }

 private:
  std::shared_ptr<const PrefixHashing> hashing_ = std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(HashAlgorithm::kXxh3_128, std::string_view("0")),
                    .hash_block_size = kBlockSize});
  std::unique_ptr<BlockPool> pool_;
};

// Conversations grow by one block and come back after 300 references, when LRU has lost them; long
// prompts in between never come back.
int64_t HitsOfSlowConversations(const char* policy) {
  Replay replay(policy, /*num_blocks=*/200);
  constexpr uint64_t kConversations = 10;
  int64_t hits = 0;
  uint64_t next = uint64_t{1} << 40;
  for (uint64_t turn = 0; turn < 60; ++turn) {
    for (uint64_t c = 0; c < kConversations; ++c) {
      std::vector<uint64_t> keys;
      for (uint64_t i = 0; i < 4 + turn % 6; ++i) keys.push_back((turn / 6 * 64 + c) << 20 | i);
      hits += replay.Run(keys);
      std::vector<uint64_t> once(24);
      for (uint64_t& key : once) key = ++next;
      EXPECT_EQ(replay.Run(once), 0);
    }
  }
  EXPECT_EQ(replay.pool().CheckInvariants(), absl::OkStatus());
  return hits;
}

TEST(HazardPolicyTest, KeepsConversationsThatComeBackLate) {
  const int64_t lru = HitsOfSlowConversations("lru");
  const int64_t hazard = HitsOfSlowConversations("hazard");
  EXPECT_EQ(lru, 0);
  // At most 10 conversations * 10 rounds * (4 + 5 + 6 + 7 + 8) blocks can be hit.
  // 2,700 if nothing were learnt from blocks that were evicted before they came back.
  EXPECT_GT(hazard, 2800);
  EXPECT_LE(hazard, 3000);
}

// Everything comes back soon or never, so that LRU is right, and the policy must not be much worse.
TEST(HazardPolicyTest, FollowsLruWhereThatIsRight) {
  int64_t hits[2] = {};
  for (const bool is_hazard : {false, true}) {
    Replay replay(is_hazard ? "hazard" : "lru", 100);
    uint64_t seed = 1;
    for (uint64_t r = 0; r < 3000; ++r) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const uint64_t prompt = r / 4 + (seed >> 62);  // a moving window of prompts
      std::vector<uint64_t> keys;
      for (uint64_t i = 0; i < 3 + prompt % 5; ++i) keys.push_back(prompt << 8 | i);
      hits[is_hazard] += replay.Run(keys);
    }
  }
  EXPECT_GT(hits[0], 8000);
  EXPECT_GT(hits[1], hits[0] * 97 / 100);
}

TEST(HazardPolicyTest, LearnsOnlyAtFirst) {
  Replay replay("hazard", 10);
  HazardPolicy policy(11, nullptr);
  EXPECT_TRUE(policy.follows_lru());
  for (uint64_t key = 0; key < 40; ++key) {
    policy.Insert(1, key, kBlockSize);
    policy.Remove(1, /*was_evicted=*/false);
  }
  EXPECT_FALSE(policy.follows_lru());
  policy.Clear();
  EXPECT_TRUE(policy.follows_lru());
}

}  // namespace
}  // namespace kvblocks
