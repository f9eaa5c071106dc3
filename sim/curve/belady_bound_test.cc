// The bounds on what any policy and what any fixed set of blocks hits: worked examples, and brute
// force on tiny workloads.

#include "kvblocks/sim/curve/belady_bound.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/sim/curve/order_curve.h"

namespace kvblocks::sim {
namespace {

struct Bounds {
  BeladyBound belady;
  StaticBound fixed;
};

// Of paths of one-letter blocks; the last `num_computed` of each are computed anyway.
Bounds BoundsOf(const std::vector<std::string>& paths, int64_t num_unkeyed = 0,
                int64_t num_computed = 0) {
  Bounds bounds;
  OrderCurve curve({});
  std::map<std::string, uint64_t> names;
  for (const std::string& path : paths) {
    std::vector<uint64_t> keys;
    for (size_t i = 1; i <= path.size(); ++i) {
      keys.push_back(names.try_emplace(path.substr(0, i), names.size() + 1).first->second);
    }
    CurveRequest request{.keys = keys,
                         .num_eligible = static_cast<int64_t>(keys.size()) - num_computed,
                         .num_unkeyed = num_unkeyed};
    curve.Add(request);
    bounds.belady.Add(request, curve.segments());
    bounds.fixed.Add(request, curve.segments());
  }
  bounds.belady.Prepare(curve.TakePaths());
  bounds.fixed.Prepare();
  return bounds;
}

BeladyBound BoundOf(const std::vector<std::string>& paths, int64_t num_unkeyed = 0) {
  return BoundsOf(paths, num_unkeyed).belady;
}

// The most hits of any set of 0, 1, ... `most_blocks` blocks, tried one by one.
std::vector<int64_t> MostOfAnySet(const std::vector<std::string>& paths, size_t most_blocks,
                                  size_t num_computed) {
  std::set<std::string> all;
  for (const std::string& path : paths) {
    for (size_t i = 1; i <= path.size(); ++i) all.insert(path.substr(0, i));
  }
  const std::vector<std::string> blocks(all.begin(), all.end());
  std::vector<int64_t> most(most_blocks + 1, 0);
  for (uint32_t choice = 0; choice < (1u << blocks.size()); ++choice) {
    const auto size = static_cast<size_t>(std::popcount(choice));
    if (size > most_blocks) continue;
    std::set<std::string> kept, seen;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (choice >> i & 1) kept.insert(blocks[i]);
    }
    int64_t hits = 0;
    for (const std::string& path : paths) {
      for (size_t i = 1; i + num_computed <= path.size(); ++i) {
        if (!kept.contains(path.substr(0, i)) || !seen.contains(path.substr(0, i))) break;
        ++hits;
      }
      for (size_t i = 1; i <= path.size(); ++i) seen.insert(path.substr(0, i));
    }
    for (size_t larger = size; larger <= most_blocks; ++larger) {
      most[larger] = std::max(most[larger], hits);
    }
  }
  return most;
}

// The most hits of any policy: all choices of what to keep, at every request.
class BruteForce {
 public:
  BruteForce(const std::vector<std::string>& paths, int64_t size, Bypass bypass)
      : paths_(paths), size_(size), bypass_(bypass) {}
  int64_t Most() { return From(0, {}); }

 private:
  using Blocks = std::set<std::string>;

  int64_t From(size_t at, const Blocks& resident) {
    if (at == paths_.size()) return 0;
    const auto known = known_.find({at, resident});
    if (known != known_.end()) return known->second;
    Blocks path;
    int64_t hits = 0;
    bool is_leading = true;
    for (size_t i = 1; i <= paths_[at].size(); ++i) {
      path.insert(paths_[at].substr(0, i));
      is_leading = is_leading && resident.contains(paths_[at].substr(0, i));
      hits += is_leading ? 1 : 0;
    }
    // What may stay, and what must.
    Blocks all = resident, must;
    all.insert(path.begin(), path.end());
    if (bypass_ == Bypass::kNo) must = path;
    const std::vector<std::string> choices(all.begin(), all.end());
    int64_t most = 0;
    for (uint32_t kept = 0; kept < (1u << choices.size()); ++kept) {
      Blocks next;
      for (size_t i = 0; i < choices.size(); ++i) {
        if (kept >> i & 1) next.insert(choices[i]);
      }
      if (static_cast<int64_t>(next.size()) > size_) continue;
      if (!std::includes(next.begin(), next.end(), must.begin(), must.end())) continue;
      most = std::max(most, From(at + 1, next));
    }
    return known_[{at, resident}] = hits + most;
  }

  const std::vector<std::string> paths_;
  const int64_t size_;
  const Bypass bypass_;
  std::map<std::pair<size_t, Blocks>, int64_t> known_;
};

TEST(BeladyBoundTest, WorkedExample28) {
  const BeladyBound bound = BoundOf({"ABC", "AD", "ABE", "F", "ABC"});
  EXPECT_EQ(bound.Hits(3, Bypass::kNo), 5);
  EXPECT_EQ(bound.Hits(4, Bypass::kNo), 6);
  EXPECT_EQ(bound.Hits(5, Bypass::kNo), 6);
  EXPECT_EQ(bound.Hits(6, Bypass::kNo), 6);
}

TEST(BeladyBoundTest, NoPolicyHitsMore) {
  uint64_t state = 4711;
  const auto draw = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> paths;
    for (uint64_t i = 3 + draw(4); i > 0; --i) {
      std::string path;
      for (uint64_t k = 1 + draw(3); k > 0; --k) path += static_cast<char>('A' + draw(2));
      paths.push_back(path);
    }
    const BeladyBound bound = BoundOf(paths);
    for (int64_t size = 3; size <= 6; ++size) {
      for (const Bypass bypass : {Bypass::kNo, Bypass::kYes}) {
        EXPECT_EQ(bound.Hits(size, bypass), BruteForce(paths, size, bypass).Most())
            << "round " << round << ", " << size << " blocks";
      }
    }
  }
}

// A is hit three times, AB twice, and ABC once.
TEST(StaticBoundTest, KeepsWhatIsUsedMost) {
  const StaticBound bound = BoundsOf({"ABC", "AD", "ABE", "F", "ABC"}).fixed;
  EXPECT_EQ(bound.Hits(0), 0);
  EXPECT_EQ(bound.Hits(1), 3);
  EXPECT_EQ(bound.Hits(2), 5);
  EXPECT_EQ(bound.Hits(3), 6);
  EXPECT_EQ(bound.Hits(100), 6);
}

TEST(StaticBoundTest, NoFixedSetHitsMore) {
  uint64_t state = 42;
  const auto draw = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> paths;
    for (uint64_t i = 2 + draw(6); i > 0; --i) {
      std::string path;
      for (uint64_t k = 1 + draw(3); k > 0; --k) path += static_cast<char>('A' + draw(2));
      paths.push_back(path);
    }
    const auto num_computed = static_cast<int64_t>(draw(2));
    const Bounds bounds = BoundsOf(paths, 0, num_computed);
    const auto most = MostOfAnySet(paths, 5, static_cast<size_t>(num_computed));
    for (int64_t size = 0; size <= 5; ++size) {
      EXPECT_EQ(bounds.fixed.Hits(size), most[static_cast<size_t>(size)])
          << "round " << round << ", " << size << " blocks";
      EXPECT_LE(bounds.fixed.Hits(size), bounds.belady.Hits(size, Bypass::kYes));
    }
  }
}

TEST(BeladyBoundTest, BypassHitsMoreWhereRoomIsShort) {
  // Without bypass the second request must take the room of the first.
  const std::vector<std::string> paths = {"AB", "CD", "AB"};
  EXPECT_EQ(BoundOf(paths).Hits(2, Bypass::kNo), 0);
  EXPECT_EQ(BoundOf(paths).Hits(2, Bypass::kYes), 2);
}

TEST(BeladyBoundTest, BlocksWithoutAKeyTakeRoomWhileTheRequestRuns) {
  EXPECT_EQ(BoundOf({"AB", "C", "AB"}).Hits(3, Bypass::kNo), 2);
  EXPECT_EQ(BoundOf({"AB", "C", "AB"}, /*num_unkeyed=*/1).Hits(3, Bypass::kNo), 1);
}

}  // namespace
}  // namespace kvblocks::sim
