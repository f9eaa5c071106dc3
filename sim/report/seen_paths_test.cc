#include "kvblocks/sim/report/miss_classifier.h"

#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

// The key of a block is a hash of all content up to it.
std::vector<uint64_t> Keys(const std::vector<int>& content) {
  std::vector<uint64_t> keys;
  uint64_t key = 1;
  for (int id : content) {
    key = (key + static_cast<uint64_t>(id)) * 0x9e3779b97f4a7c15u;
    keys.push_back(key ^= key >> 29);
  }
  return keys;
}

struct Cursor {
  SeenPaths& paths;
  std::vector<uint64_t> keys;
  SeenPaths::Path path = {};

  int64_t size() const { return static_cast<int64_t>(keys.size()); }
  auto key_of() {
    return [this](int64_t i) { return keys[static_cast<size_t>(i)]; };
  }
  int64_t Follow(int64_t n) {
    paths.Follow(n, key_of(), &path);
    return path.num_blocks();
  }
  void Append(int64_t n) { paths.Append(n, key_of(), &path); }
};

TEST(SeenPathsTest, FollowsWhatOthersLaidDown) {
  SeenPaths paths;
  Cursor a{paths, Keys({1, 2, 3, 4})};
  EXPECT_EQ(a.Follow(4), 0);
  a.Append(4);
  Cursor b{paths, Keys({1, 2, 5, 6})};
  EXPECT_EQ(b.Follow(4), 2);
  b.Append(4);
  EXPECT_EQ(b.path.num_blocks(), 4);
  // Through both, and on where a path that was longer ended.
  Cursor c{paths, Keys({1, 2, 5, 6, 7})};
  EXPECT_EQ(c.Follow(3), 3);
  EXPECT_EQ(c.Follow(5), 4);
  Cursor d{paths, Keys({2, 1})};
  EXPECT_EQ(d.Follow(2), 0);
}

TEST(SeenPathsTest, EntriesAreSharedByPathsThatBeginAlike) {
  SeenPaths paths;
  Cursor a{paths, Keys({1, 2, 3})};
  a.Append(3);
  paths.ForEach(a.path, 0, 3, [](int64_t block, SeenPaths::Entry& entry) {
    EXPECT_EQ(entry.owner, SeenPaths::kNone);
    entry.owner = static_cast<uint32_t>(block);
  });
  Cursor b{paths, Keys({1, 2, 9})};
  b.Follow(3);
  b.Append(3);
  std::vector<uint32_t> owners;
  paths.ForEach(b.path, 1, 3,
                [&](int64_t, const SeenPaths::Entry& entry) { owners.push_back(entry.owner); });
  EXPECT_EQ(owners, (std::vector<uint32_t>{1, SeenPaths::kNone}));
}

TEST(SeenPathsTest, RandomPathsAreAsInAMap) {
  std::mt19937_64 engine(7);
  for (int round = 0; round < 200; ++round) {
    SeenPaths paths;
    std::map<uint64_t, uint32_t> owners;  // by key
    for (uint32_t request = 0; request < 30; ++request) {
      std::vector<int> content;
      for (uint64_t i = engine() % 12; i > 0; --i)
        content.push_back(static_cast<int>(engine() % 2));
      Cursor cursor{paths, Keys(content)};
      int64_t seen = 0;
      while (seen < cursor.size() && owners.count(cursor.keys[static_cast<size_t>(seen)]) > 0) {
        ++seen;
      }
      // In two parts, as a request whose output grows.
      const auto half = static_cast<int64_t>(engine() % (content.size() + 1));
      EXPECT_EQ(cursor.Follow(half), std::min(half, seen));
      cursor.Append(half);
      EXPECT_EQ(cursor.Follow(cursor.size()), std::max(half, seen));
      cursor.Append(cursor.size());
      paths.ForEach(cursor.path, 0, cursor.size(), [&](int64_t block, SeenPaths::Entry& entry) {
        const uint64_t key = cursor.keys[static_cast<size_t>(block)];
        if (block < seen) {
          EXPECT_EQ(entry.owner, owners.at(key));
        } else {
          EXPECT_EQ(entry.owner, SeenPaths::kNone);
          entry.owner = owners[key] = request;
        }
      });
    }
  }
}

}  // namespace
}  // namespace kvblocks::sim
