#include "kvblocks/prefix_hash_table.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

BlockHash HashOfWord(uint64_t n) { return {{n, ~n, n * 3, n * 7}}; }

std::string Problem(const PrefixHashTable& table) {
  return std::string(table.CheckInvariants().message());
}

TEST(PrefixHashTableDeathTest, SecondKeyOfABlockStopsTheProcess) {
  BlockRecords records(4);
  PrefixHashTable table(&records);
  ASSERT_TRUE(table.Insert(HashOfWord(1), 0, 1));
  EXPECT_DEATH(table.Insert(HashOfWord(2), 0, 1), "block 1 already has the key");
}

// Buckets that just hold all blocks, so that most keys stand far from home and every bucket has
// passed keys on; and the usual number.
std::vector<size_t> BucketCounts(int32_t num_blocks) {
  const auto blocks = static_cast<size_t>(num_blocks);
  return {(blocks + 11) / 12, blocks / 6 + 1};
}

TEST(PrefixHashTableTest, FullTableCanBeTakenApartInAnyOrder) {
  std::mt19937_64 random(2);
  for (int32_t num_blocks : {2, 5, 11, 12, 13, 24, 40, 1'000}) {
    for (size_t num_buckets : BucketCounts(num_blocks)) {
      const int rounds = num_blocks < 100 ? 200 : 3;
      for (int round = 0; round < rounds; ++round) {
        BlockRecords records(num_blocks);
        PrefixHashTable table(&records, num_buckets);  // a new secret, so other homes
        std::vector<std::pair<BlockHash, BlockId>> keys;
        for (BlockId id = 1; id < num_blocks; ++id) {
          keys.push_back({HashOfWord(random()), id});
          ASSERT_TRUE(table.Insert(keys.back().first, 0, id));
        }
        ASSERT_EQ(Problem(table), "");
        for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[random() % i]);
        while (!keys.empty()) {
          ASSERT_TRUE(table.Erase(keys.back().first, 0, keys.back().second));
          ASSERT_EQ(table.Find(keys.back().first, 0), kNullBlockId);
          keys.pop_back();
          for (const auto& [hash, id] : keys) ASSERT_EQ(table.Find(hash, 0), id);
        }
        ASSERT_EQ(Problem(table), "");
      }
    }
  }
}

void RandomOperationsMatchAMultimap(int32_t num_blocks, size_t num_buckets) {
  std::mt19937_64 random(static_cast<uint64_t>(num_blocks));
  BlockRecords records(num_blocks);
  PrefixHashTable table(&records, num_buckets);
  using Key = std::pair<uint64_t, GroupId>;
  std::multimap<Key, BlockId> expected;  // keeps equal keys in order of insertion
  std::vector<Key> key_of(static_cast<size_t>(num_blocks));
  const uint64_t num_contents = static_cast<uint64_t>(num_blocks) / 2 + 1;
  for (int step = 0; step < 40'000; ++step) {
    const BlockId id = static_cast<BlockId>(1 + random() % static_cast<uint64_t>(num_blocks - 1));
    const Key key = {random() % num_contents, static_cast<GroupId>(random() % 3)};
    if (!records[id].has_key()) {
      ASSERT_TRUE(table.Insert(HashOfWord(key.first), key.second, id));
      expected.emplace(key, id);
      key_of[static_cast<size_t>(id)] = key;
    } else {
      const Key held = key_of[static_cast<size_t>(id)];
      ASSERT_EQ(table.Erase(HashOfWord(key.first), key.second, id), key == held);
      if (!(key == held)) table.Erase(id);
      const auto [begin, end] = expected.equal_range(held);
      expected.erase(std::find_if(begin, end, [&](const auto& e) { return e.second == id; }));
    }
    ASSERT_EQ(table.num_blocks(), static_cast<int32_t>(expected.size()));
    const auto [begin, end] = expected.equal_range(key);
    std::vector<BlockId> holders;
    for (auto it = begin; it != end; ++it) holders.push_back(it->second);
    ASSERT_EQ(table.FindAll(HashOfWord(key.first), key.second), holders);
    ASSERT_EQ(table.Find(HashOfWord(key.first), key.second),
              holders.empty() ? kNullBlockId : holders.front());
    if (step % 64 == 0) {
      ASSERT_EQ(Problem(table), "") << step;
    }
    if (step % 10'000 == 9'999) {
      table.Clear();
      expected.clear();
    }
  }
}

TEST(PrefixHashTableTest, RandomOperationsMatchAMultimap) {
  for (int32_t num_blocks : {3, 12, 30, 200}) {
    for (size_t num_buckets : BucketCounts(num_blocks)) {
      RandomOperationsMatchAMultimap(num_blocks, num_buckets);
    }
  }
}

// Runs of all lengths, ended by an absent key anywhere, in tables of one group and of several.
TEST(PrefixHashTableTest, FindRunIsARowOfFinds) {
  std::mt19937_64 random(3);
  constexpr int32_t kBlocks = 200;
  for (GroupId num_groups : {1, 2}) {
    for (size_t num_buckets : BucketCounts(kBlocks)) {
      for (int round = 0; round < 400; ++round) {
        BlockRecords records(kBlocks);
        PrefixHashTable table(&records, num_buckets);
        const size_t stride = 1 + random() % 3;
        const size_t count = random() % 130;
        std::vector<BlockHash> hashes(count * stride);
        for (BlockHash& hash : hashes) hash = HashOfWord(random());
        BlockId next = 1;
        for (size_t i = 0; i < count; ++i) {
          for (GroupId g = 0; g < num_groups && next < kBlocks; ++g) {
            if (random() % 100 != 0) table.Insert(hashes[(i + 1) * stride - 1], g, next++);
          }
        }
        for (GroupId g = 0; g <= num_groups; ++g) {
          std::vector<BlockId> found(count, -7);
          const size_t n = table.FindRun(hashes, stride, g, absl::MakeSpan(found));
          for (size_t i = 0; i < n; ++i) {
            ASSERT_NE(found[i], kNullBlockId);
            ASSERT_EQ(found[i], table.Find(hashes[(i + 1) * stride - 1], g));
          }
          if (n < count) {
            ASSERT_EQ(table.Find(hashes[(n + 1) * stride - 1], g), kNullBlockId);
          }
        }
      }
    }
  }
}

TEST(PrefixHashTableDeathTest, TooFewBucketsStopTheProcess) {
  BlockRecords records(13);
  EXPECT_DEATH(PrefixHashTable(&records, 1), "1 buckets for 13 blocks");
}

TEST(PrefixHashTableTest, BrokenBooksAreNamed) {
  BlockRecords records(6);
  PrefixHashTable table(&records);
  ASSERT_TRUE(table.Insert(HashOfWord(1), 0, 1));
  ASSERT_TRUE(table.Insert(HashOfWord(1), 0, 2));
  ASSERT_TRUE(table.Insert(HashOfWord(3), 0, 3));
  ASSERT_EQ(Problem(table), "");

  records[3].has_duplicates = true;
  EXPECT_THAT(Problem(table), HasSubstr("block 3: mark and ring of duplicates disagree"));
  records[3].has_duplicates = false;

  // The table's secret decides where a hash belongs, so another one may happen to be found there.
  const auto is_noticed = testing::HasSubstr("block 3 has a key of group 0 but a look-up");
  int num_noticed = 0;
  for (uint64_t bit = 1; bit < 256; bit <<= 1) {
    records.hash(3).words[0] ^= bit;
    num_noticed += testing::Matches(is_noticed)(Problem(table));
    records.hash(3).words[0] ^= bit;
  }
  EXPECT_GT(num_noticed, 0);

  records[4].key_group = 0;
  records.hash(4) = HashOfWord(4);
  EXPECT_THAT(Problem(table), HasSubstr("block 4 has a key of group 0 but a look-up"));
  records[4].key_group = -1;

  records[2].key_group = -1;
  EXPECT_THAT(Problem(table), HasSubstr("block 2 has duplicates but no key"));
  records[2].key_group = 0;

  records[3].key_group = -1;
  EXPECT_THAT(Problem(table), HasSubstr("maps a key to block 3, which has none"));
  records[3].key_group = 0;
  EXPECT_EQ(Problem(table), "");
}

}  // namespace
}  // namespace kvblocks
