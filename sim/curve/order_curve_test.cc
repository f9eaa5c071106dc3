// Curves of requests that run one after the other.

#include "kvblocks/sim/curve/order_curve.h"

#include <algorithm>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/sim/curve/hit_curve.h"

namespace kvblocks::sim {
namespace {

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
    EXPECT_EQ(curve.num_references(), 12);
    EXPECT_EQ(curve.num_distinct(), 6);
    EXPECT_EQ(curve.smallest_pool(), 3);
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

// What a pool of one size hits, with nothing but a list: the newest first.
class ListPool {
 public:
  explicit ListPool(size_t size) : size_(size) {}
  int64_t Hits(const std::string& path) {
    int64_t hits = 0;
    bool is_leading = true;
    for (size_t i = 1; i <= path.size(); ++i) {
      const std::string block = path.substr(0, i);
      const bool is_here = std::find(list_.begin(), list_.end(), block) != list_.end();
      is_leading = is_leading && is_here;
      hits += is_leading ? 1 : 0;
    }
    for (size_t i = path.size(); i > 0; --i) {
      list_.remove(path.substr(0, i));
      list_.push_front(path.substr(0, i));
    }
    while (list_.size() > size_) list_.pop_back();
    return hits;
  }

 private:
  const size_t size_;
  std::list<std::string> list_;
};

TEST(OrderCurveTest, HitsAreThoseOfAListOfEverySize) {
  uint64_t state = 99;
  const auto draw = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  for (int round = 0; round < 8; ++round) {
    std::vector<std::string> requests;
    for (uint64_t i = 0; i < 40; ++i) {
      std::string path;
      for (uint64_t k = 1 + draw(5); k > 0; --k) path += static_cast<char>('A' + draw(3));
      requests.push_back(path);
    }
    OrderCurve curve({});
    Paths paths;
    for (const std::string& path : requests) curve.Add(paths.Make(path));
    const int64_t smallest = curve.smallest_pool();
    const HitCurve hits = curve.Finish();
    for (int64_t size = smallest; size < 60; ++size) {
      ListPool pool(static_cast<size_t>(size));
      int64_t sum = 0;
      for (const std::string& path : requests) sum += pool.Hits(path);
      ASSERT_EQ(hits.Hits(size), sum) << "round " << round << ", " << size << " blocks";
    }
  }
}

TEST(OrderCurveTest, NothingIsZero) {
  OrderCurve curve({});
  const HitCurve hits = curve.Finish();
  EXPECT_EQ(hits.Hits(100), 0);
  EXPECT_EQ(hits.SmallestPool(0), 0);
  EXPECT_EQ(hits.SmallestPool(1), -1);
}

// --- ReleaseHistory ---

TEST(ReleaseHistoryTest, KeepsTheLargestNumberOfEachBatch) {
  // Against plain arrays, across several sizes of the tree.
  ReleaseHistory history;
  std::vector<int64_t> value, largest;
  uint64_t state = 12345;
  const auto draw = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  const auto add = [&](size_t first, size_t end, int64_t delta) {
    for (size_t i = first; i < end; ++i) {
      value[i] += delta;
      largest[i] = std::max(largest[i], value[i]);
    }
  };
  for (int i = 0; i < 3000; ++i) {
    const int64_t delta = static_cast<int64_t>(draw(7)) - 3;
    if (value.empty() || draw(4) == 0) {
      EXPECT_EQ(history.Push(delta), value.size());
      value.push_back(delta);
      largest.push_back(delta);
    } else if (draw(3) == 0) {
      history.AddToAll(delta);
      add(0, value.size(), delta);
    } else if (draw(9) == 0) {
      const size_t first = draw(value.size());
      const size_t last = first + draw(value.size() - first);
      history.Raise(static_cast<uint32_t>(first), static_cast<uint32_t>(last), 1);
      for (size_t k = first; k <= last; ++k) {
        ++value[k];
        ++largest[k];
      }
    } else {
      const size_t batch = draw(value.size());
      history.AddToNewer(static_cast<uint32_t>(batch), delta);
      add(batch + 1, value.size(), delta);
    }
    const size_t batch = draw(value.size());
    ASSERT_EQ(history.Largest(static_cast<uint32_t>(batch)), largest[batch]) << i;
  }
}

}  // namespace
}  // namespace kvblocks::sim
