// Curves of requests that run one after the other, and the bounds on what any policy and what any
// fixed set of blocks hits: worked examples, and brute force on tiny workloads.

#include "sim/curve/order_curve.h"

#include <algorithm>
#include <bit>
#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sim/curve/belady_bound.h"
#include "sim/curve/hit_curve.h"

namespace kvblocks::sim {
namespace {

// The same numbers everywhere.
struct Lcg {
  uint64_t state;
  uint64_t operator()(uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  }
};

std::string RandomPath(Lcg& draw, uint64_t longest, uint64_t num_letters) {
  std::string path;
  for (uint64_t k = 1 + draw(longest); k > 0; --k) {
    path += static_cast<char>('A' + draw(num_letters));
  }
  return path;
}

// Paths of one-letter blocks, as in SM's worked examples: "ABC" is the path A, AB, ABC.
class Paths {
 public:
  CurveRequest Make(const std::string& path) {
    keys_.clear();
    for (size_t i = 1; i <= path.size(); ++i) {
      keys_.push_back(names_.try_emplace(path.substr(0, i), names_.size() + 1).first->second);
    }
    const auto count = static_cast<int64_t>(keys_.size());
    return {.keys = keys_,
            .num_eligible = count,
            .num_unkeyed = 0,
            .smallest_pool = count,
            .num_prompt_tokens = count,
            .num_prompt_blocks = count};
  }

 private:
  std::map<std::string, uint64_t> names_;
  std::vector<uint64_t> keys_;
};

std::vector<int64_t> Sizes(const OrderCurve& curve) {
  std::vector<int64_t> sizes;
  for (const OrderCurve::FoundRun& run : curve.found()) {
    for (int64_t i = run.begin; i < run.end; ++i) sizes.push_back(run.first_size + i - run.begin);
  }
  return sizes;
}

using Numbers = std::vector<int64_t>;

TEST(OrderCurveTest, WorkedExample28) {
  for (const FreeOrder order : {FreeOrder::kUnhashedFirst, FreeOrder::kAppendAll}) {
    OrderCurve curve({.free_order = order});
    Paths paths;
    std::vector<Numbers> sizes;
    for (const char* path : {"ABC", "AD", "ABE", "F", "ABC"}) {
      curve.Add(paths.Make(path));
      sizes.push_back(Sizes(curve));
    }
    EXPECT_EQ(sizes, (std::vector<Numbers>{{}, {1}, {1, 3}, {}, {2, 3, 6}}));
    // The stack at the end, newest first: A, AB, ABC, F, ABE, AD.
    EXPECT_EQ(curve.sums().num_references, 12);
    EXPECT_EQ(curve.sums().num_distinct, 6);
    EXPECT_EQ(curve.sums().smallest_pool, 3);
    OrderCurve further = curve;
    further.Add(paths.Make("ABC"));
    EXPECT_EQ(Sizes(further), (Numbers{1, 2, 3}));
    further = curve;
    further.Add(paths.Make("F"));
    EXPECT_EQ(Sizes(further), Numbers{4});
    further = curve;
    further.Add(paths.Make("ABE"));
    EXPECT_EQ(Sizes(further), (Numbers{1, 2, 5}));
    further = curve;
    further.Add(paths.Make("AD"));
    EXPECT_EQ(Sizes(further), (Numbers{1, 6}));
    const HitCurve hits = curve.Finish();
    EXPECT_EQ(hits.Hits(3), 5);
    EXPECT_EQ(hits.Hits(4), 5);
    EXPECT_EQ(hits.Hits(5), 5);
    EXPECT_EQ(hits.Hits(6), 6);
    EXPECT_EQ(hits.max_hits(), 6);
    EXPECT_EQ(hits.SmallestPool(5), 3);
    EXPECT_EQ(hits.SmallestPool(6), 6);
    EXPECT_EQ(hits.SmallestPool(7), -1);
  }
}

TEST(OrderCurveTest, BlocksWithoutAKeyStayInTheQueueOnlyWhereTheyGoToItsBack) {
  const auto size_after_two_more = [](FreeOrder order) {
    OrderCurve curve({.free_order = order});
    Paths paths;
    curve.Add(paths.Make("A"));
    for (const char* other : {"B", "C"}) {
      CurveRequest request = paths.Make(other);
      request.num_unkeyed = 1;
      curve.Add(request);
    }
    curve.Add(paths.Make("A"));
    return Sizes(curve);
  };
  // C and a block of its own were taken while B was behind them: three beside A, then two remain.
  EXPECT_EQ(size_after_two_more(FreeOrder::kUnhashedFirst), Numbers{4});
  // Two blocks without a key stand before A beside B and C.
  EXPECT_EQ(size_after_two_more(FreeOrder::kAppendAll), Numbers{5});
}

TEST(OrderCurveTest, LastBlockOfAWholePromptIsCachedTwice) {
  OrderCurve curve({.free_order = FreeOrder::kAppendAll});
  Paths paths;
  const auto add = [&](const std::string& path, int64_t num_eligible) {
    CurveRequest request = paths.Make(path);
    request.num_eligible = num_eligible;
    curve.Add(request);
    return Sizes(curve);
  };
  EXPECT_EQ(add("AB", 1), Numbers{});
  EXPECT_EQ(add("AB", 1), Numbers{1});        // B is computed again: A B' B
  EXPECT_EQ(add("ABC", 3), (Numbers{1, 2}));  // a pool of 3 moves the old B, one of 2 the new one
  EXPECT_EQ(add("X", 1), Numbers{});
  // Order in pools of 3 or more: X A B C B'; others have no B'.
  EXPECT_EQ(add("ABC", 3), (Numbers{2, 3, 4}));
}

TEST(OrderCurveTest, ADropTakesTheLastHit) {
  OrderCurve curve({.free_order = FreeOrder::kAppendAll, .drops_last_hit = true});
  Paths paths;
  curve.Add(paths.Make("ABC"));
  curve.Add(paths.Make("ABC"));
  const HitCurve hits = curve.Finish();
  EXPECT_EQ(hits.Hits(1), 0);
  EXPECT_EQ(hits.Hits(2), 1);
  EXPECT_EQ(hits.max_hits(), 2);
}

// --- Bounds ---

struct Bounds {
  BeladyBound belady;
  StaticBound fixed;
};

// Of paths of one-letter blocks; the last `num_computed` of each are computed anyway.
Bounds BoundsOf(const std::vector<std::string>& paths, int64_t num_unkeyed = 0,
                int64_t num_computed = 0) {
  Bounds bounds;
  OrderCurve curve({});
  Paths names;
  for (const std::string& path : paths) {
    CurveRequest request = names.Make(path);
    request.num_eligible -= num_computed;
    request.num_unkeyed = num_unkeyed;
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

TEST(BeladyBoundTest, NoPolicyHitsMore) {
  Lcg draw{4711};
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> paths;
    for (uint64_t i = 3 + draw(4); i > 0; --i) {
      paths.push_back(RandomPath(draw, 3, 2));
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

TEST(StaticBoundTest, NoFixedSetHitsMore) {
  Lcg draw{42};
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> paths;
    for (uint64_t i = 2 + draw(6); i > 0; --i) {
      paths.push_back(RandomPath(draw, 3, 2));
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

TEST(BeladyBoundTest, BlocksWithoutAKeyTakeRoomWhileTheRequestRuns) {
  EXPECT_EQ(BoundOf({"AB", "C", "AB"}).Hits(3, Bypass::kNo), 2);
  EXPECT_EQ(BoundOf({"AB", "C", "AB"}, /*num_unkeyed=*/1).Hits(3, Bypass::kNo), 1);
}

}  // namespace
}  // namespace kvblocks::sim
