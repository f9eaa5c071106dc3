#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/block_pool/recent_keys.h"

namespace kvblocks {
namespace {

BlockHash Hash(uint64_t n) { return {{n, n * n + 1, 0, 0}}; }

TEST(RecentKeysTest, FindsTheLatestRecordOfAKey) {
  RecentKeys keys(4);
  EXPECT_EQ(keys.Find(Hash(1), 0), nullptr);
  keys.Remember(Hash(1), 0, 10, true);
  keys.Remember(Hash(2), 0, 20, false);
  keys.Remember(Hash(1), 0, 30, false);
  ASSERT_NE(keys.Find(Hash(1), 0), nullptr);
  EXPECT_EQ(keys.Find(Hash(1), 0)->number, 30);
  EXPECT_FALSE(keys.Find(Hash(1), 0)->flag);
  EXPECT_EQ(keys.Find(Hash(2), 0)->number, 20);
  EXPECT_EQ(keys.num_remembered(), 3);
}

TEST(RecentKeysTest, GroupsAreApart) {
  RecentKeys keys(4);
  keys.Remember(Hash(1), 0, 10, false);
  EXPECT_EQ(keys.Find(Hash(1), 1), nullptr);
  keys.Remember(Hash(1), 1, 11, false);
  EXPECT_EQ(keys.Find(Hash(1), 0)->number, 10);
  EXPECT_EQ(keys.Find(Hash(1), 1)->number, 11);
}

TEST(RecentKeysTest, TheOldestIsForgottenFirst) {
  RecentKeys keys(3);
  for (uint64_t n = 0; n < 5; ++n) keys.Remember(Hash(n), 0, static_cast<int64_t>(n), false);
  EXPECT_EQ(keys.Find(Hash(0), 0), nullptr);
  EXPECT_EQ(keys.Find(Hash(1), 0), nullptr);
  for (uint64_t n = 2; n < 5; ++n) {
    ASSERT_NE(keys.Find(Hash(n), 0), nullptr) << n;
    EXPECT_EQ(keys.Find(Hash(n), 0)->number, static_cast<int64_t>(n));
  }
}

TEST(RecentKeysTest, AKeyRememberedAgainOutlivesItsFirstRecord) {
  RecentKeys keys(3);
  keys.Remember(Hash(1), 0, 1, false);
  keys.Remember(Hash(2), 0, 2, false);
  keys.Remember(Hash(1), 0, 3, false);
  keys.Remember(Hash(4), 0, 4, false);  // takes the place of the first record
  ASSERT_NE(keys.Find(Hash(1), 0), nullptr);
  EXPECT_EQ(keys.Find(Hash(1), 0)->number, 3);
  keys.Remember(Hash(5), 0, 5, false);
  keys.Remember(Hash(6), 0, 6, false);
  EXPECT_EQ(keys.Find(Hash(1), 0), nullptr);
}

// Against a list of everything, read from its end.
TEST(RecentKeysTest, AgreesWithAListOfAllEvents) {
  for (const int64_t capacity : {1, 2, 7, 64}) {
    RecentKeys keys(capacity);
    std::vector<std::pair<uint64_t, GroupId>> events;
    uint64_t state = 1;
    for (int64_t i = 0; i < 3000; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t key = (state >> 33) % 100;
      const auto group = static_cast<GroupId>((state >> 45) % 2);
      keys.Remember(Hash(key), group, i, i % 3 == 0);
      events.emplace_back(key, group);
      for (uint64_t k = key; k < key + 5; ++k) {
        std::optional<int64_t> expected;
        const int64_t end = std::max<int64_t>(0, i + 1 - capacity);
        for (int64_t j = i; j >= end && !expected; --j) {
          if (events[static_cast<size_t>(j)] == std::pair(k, group)) expected = j;
        }
        const RecentKeys::Record* found = keys.Find(Hash(k), group);
        ASSERT_EQ(found != nullptr, expected.has_value()) << capacity << " " << i << " " << k;
        if (found == nullptr) continue;
        ASSERT_EQ(found->number, *expected);
        ASSERT_EQ(found->flag, *expected % 3 == 0);
      }
    }
  }
}

TEST(RecentKeysTest, SaysItsMemory) {
  EXPECT_EQ(sizeof(RecentKeys::Record), 32u);
  EXPECT_EQ(RecentKeys::BytesFor(1'000'000), 48'000'000);
}

}  // namespace
}  // namespace kvblocks
