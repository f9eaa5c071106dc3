// Staircases, direct solutions and shared in-flight tokens against slow references.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "checks/checked_int64.h"
#include "gtest/gtest.h"
#include "kvblocks/plan.h"
#include "kvblocks/request_footprint.h"
#include "rapidcheck/gtest.h"
#include "specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

constexpr auto kExact = BlockCountFormula::kExact;
constexpr auto kUpstream = BlockCountFormula::kUpstream;

// Any of them from the first case on; RapidCheck by itself begins with small ranges.
int64_t Number(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}

KvCacheSpec AnySpec() {
  const int64_t block = Number(1, 20);
  switch (Number(0, 6)) {
    case 0:
      return FullSpec(block, 1, 8);
    case 1:
      return WindowSpec(block, 1, 8, Number(1, 60));
    case 2:
      return ChunkedSpec(block, 1, 8, block * Number(1, 5));
    case 3:
      return StateSpec(block, 2, 2, MambaCacheMode::kAll);
    case 4:
      return StateSpec(block, 2, 2, MambaCacheMode::kAlign);
    case 5:
      return *RingSpec::Create({.block_size = block, .head_size = 8});
    default:
      return *SinkFullAttentionSpec::Create({.block_size = block,
                                             .num_kv_heads = 1,
                                             .head_size = 8,
                                             .sink_length = block * Number(1, 3)});
  }
}

PoolCapacity AnyCapacity(bool may_have_chunks) {
  PoolCapacity capacity;
  const RequestLimits limits = {.max_in_flight_tokens = Number(1, 40)};
  const bool exact = Number(0, 1) == 1;
  capacity.shared_transient = exact;
  if (may_have_chunks) {
    capacity.pages_per_unit.clear();
    for (int64_t c = Number(1, 3); c > 0; --c) capacity.pages_per_unit.push_back(Number(1, 6));
  }
  for (int64_t g = Number(1, 5); g > 0; --g) {
    GroupDemand demand = DemandOf(AnySpec(), limits, exact ? kExact : kUpstream);
    demand.page_class =
        static_cast<int32_t>(Number(0, static_cast<int64_t>(capacity.pages_per_unit.size()) - 1));
    capacity.groups.push_back(demand);
  }
  capacity.units = Number(0, 300);
  return capacity;
}

// By halving, knowing nothing of the formula but that it does not decrease.
int64_t LongestByBisection(const PoolCapacity& capacity, int64_t units, int64_t limit) {
  int64_t low = 0;
  while (low < limit) {
    const int64_t middle = (low + limit + 1) / 2;
    if (capacity.UnitsNeeded(1, middle) <= units) {
      low = middle;
    } else {
      limit = middle - 1;
    }
  }
  return low;
}

// Every request somewhere, the tokens in flight split among them in any way.
RC_GTEST_PROP(CapacityPropertyTest, SharedReserveCoversEverySplit, ()) {
  const int64_t block = Number(1, 6);
  const int64_t length = Number(1, 60);
  const int64_t budget = Number(1, 24);
  const bool chunked = Number(0, 1) == 1;
  const int64_t span = chunked ? block * Number(1, 4) : Number(1, 20);
  const KvCacheSpec spec = chunked ? ChunkedSpec(block, 1, 8, span) : WindowSpec(block, 1, 8, span);
  PoolCapacity capacity;
  capacity.groups = {DemandOf(spec, {.max_in_flight_tokens = budget}, kExact)};
  int64_t left = budget;
  int64_t held = 0;
  const int64_t requests = Number(1, 5);
  for (int64_t i = 0; i < requests; ++i) {
    const int64_t settled = Number(0, length - 1);
    const int64_t mine = std::min(i + 1 == requests ? left : Number(0, left), length - settled);
    left -= mine;
    const int64_t first =
        chunked ? settled / span * span : std::max(settled - (span - 1), int64_t{0});
    const int64_t end = settled + mine;
    if (end > first) held += (end - 1) / block - first / block + 1;
  }
  RC_ASSERT(held <= capacity.UnitsNeeded(requests, length));
}

RC_GTEST_PROP(CapacityPropertyTest, P2NeedNeverDecreases, ()) {
  const PoolCapacity capacity = AnyCapacity(/*may_have_chunks=*/true);
  const int64_t length = Number(1, 1000);
  const int64_t requests = Number(0, 20);
  const int64_t needed = capacity.UnitsNeeded(requests, length);
  RC_ASSERT(needed <= capacity.UnitsNeeded(requests, length + 1));
  RC_ASSERT(needed <= capacity.UnitsNeeded(requests + 1, length));
}

RC_GTEST_PROP(CapacityPropertyTest, P2LongestLengthIsTheLastThatFits, ()) {
  const PoolCapacity capacity = AnyCapacity(/*may_have_chunks=*/true);
  const int64_t limit = *rc::gen::element<int64_t>(1, 37, 1000, int64_t{1} << 40);
  const int64_t longest = capacity.LongestLength(capacity.units, limit);
  RC_ASSERT(longest == LongestByBisection(capacity, capacity.units, limit));
  if (longest > 0) RC_ASSERT(capacity.UnitsNeeded(1, longest) <= capacity.units);
  if (longest < limit) RC_ASSERT(capacity.UnitsNeeded(1, longest + 1) > capacity.units);
}

// Large blocks and pools, where the line between caps is long.
RC_GTEST_PROP(CapacityPropertyTest, P2LongestLengthOfLargePools, ()) {
  PoolCapacity capacity;
  for (int64_t g = Number(1, 6); g > 0; --g) {
    BlockStaircase stairs = {.step = Number(1, 100000), .added = Number(0, 3)};
    if (Number(0, 1) == 1) stairs.cap = Number(0, 1000000);
    capacity.groups.push_back({.alone = stairs, .steady = stairs});
  }
  capacity.units = Number(0, 2000000000);
  const int64_t limit = int64_t{1} << 40;
  RC_ASSERT(capacity.LongestLength(capacity.units, limit) ==
            LongestByBisection(capacity, capacity.units, limit));
}

RC_GTEST_PROP(CapacityPropertyTest, MaxRequestsIsTheLastThatFits, ()) {
  const PoolCapacity capacity = AnyCapacity(/*may_have_chunks=*/true);
  const int64_t length = Number(1, 300);
  const int64_t most = capacity.MaxRequests(length);
  const double concurrency = capacity.Concurrency(length);
  if (capacity.UnitsNeeded(0, length) > capacity.units) {
    RC_ASSERT(most == 0 && concurrency == 0);
    return;
  }
  RC_ASSERT(capacity.UnitsNeeded(most, length) <= capacity.units);
  RC_ASSERT(capacity.UnitsNeeded(most + 1, length) > capacity.units);
  RC_ASSERT(static_cast<double>(most) <= concurrency);
  RC_ASSERT(concurrency < static_cast<double>(most) + 1);
}

TEST(CapacityTest, NothingToHoldMeansNoLimit) {
  const PoolCapacity capacity = {.units = 1};
  EXPECT_EQ(capacity.MaxRequests(1000), kNoCap);
  EXPECT_EQ(capacity.Concurrency(1000), std::numeric_limits<double>::infinity());
  EXPECT_EQ(capacity.LongestLength(1, 1000), 1000);
}

TEST(CapacityTest, HugeDemandsSaturate) {
  PoolCapacity capacity;
  capacity.groups = {{.alone = {.step = 1}, .steady = {.step = 1}},
                     {.alone = {.step = 1}, .steady = {.step = 1}}};
  EXPECT_EQ(capacity.TotalBlocksPerRequest(kNoCap), kNoCap);
  EXPECT_EQ(capacity.UnitsNeeded(kNoCap, kNoCap), kNoCap);
}

}  // namespace
}  // namespace kvblocks
