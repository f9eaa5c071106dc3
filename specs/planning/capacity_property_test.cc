// Staircases, direct solutions and shared in-flight tokens against slow references.

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "checks/checked_int64.h"
#include "gtest/gtest.h"
#include "kvblocks/plan.h"
#include "kvblocks/request_footprint.h"
#include "rapidcheck/gtest.h"
#include "specs/planning/layer_groups.h"
#include "specs/planning/pool_sizing.h"
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

RC_GTEST_PROP(GroupingPropertyTest, UpstreamGroupSizeFollowsTheRule, ()) {
  std::vector<int64_t> counts;
  for (int64_t t = Number(1, 4); t > 0; --t) counts.push_back(Number(1, 40));
  const int64_t smallest = *std::ranges::min_element(counts);
  const int64_t largest = *std::ranges::max_element(counts);
  const bool close = static_cast<double>(largest) < 1.5 * static_cast<double>(smallest);
  RC_ASSERT(UpstreamGroupSize(counts) == (close ? largest : smallest));
}

RC_GTEST_PROP(GroupingPropertyTest, DealtGroupsDifferByOneLayer, ()) {
  std::vector<int> layers(Number(1, 60));
  std::iota(layers.begin(), layers.end(), 0);
  const int64_t k = Number(1, static_cast<int64_t>(layers.size()));
  std::vector<int> seen;
  size_t smallest = layers.size();
  size_t largest = 0;
  for (const std::vector<int>& group : Distribute(layers, k)) {
    smallest = std::min(smallest, group.size());
    largest = std::max(largest, group.size());
    RC_ASSERT(std::ranges::is_sorted(group));
    seen.insert(seen.end(), group.begin(), group.end());
  }
  RC_ASSERT(largest - smallest <= 1);
  std::ranges::sort(seen);
  RC_ASSERT(seen == layers);
}

RC_GTEST_PROP(GroupingPropertyTest, TupleCountIsTheCheapest, ()) {
  std::vector<int64_t> counts;
  for (int64_t t = Number(1, 4); t > 0; --t) counts.push_back(Number(1, 50));
  const int64_t lowest = Number(1, *std::ranges::max_element(counts));
  const int64_t chosen = ChooseTuplesPerGroup(counts, lowest);
  RC_ASSERT(chosen >= lowest);
  for (int64_t n = lowest; n <= *std::ranges::max_element(counts); ++n) {
    int64_t padding = 0;
    int64_t of_chosen = 0;
    for (const int64_t count : counts) {
      padding += (n - count % n) % n;
      of_chosen += (chosen - count % chosen) % chosen;
    }
    RC_ASSERT(of_chosen <= padding);
    if (of_chosen == padding) RC_ASSERT(n <= chosen);
  }
}

// V-91 once more, for full layers of two page sizes, and windows and rings of one size each.
struct PackedModel {
  int64_t large = 0;   // full layers of 4 heads
  int64_t small = 0;   // full layers of 1 head
  int64_t window = 0;  // of window_heads
  int64_t window_heads = 1;
  int64_t ring = 0;  // of ring_units times the small page
  int64_t ring_units = 1;
};

std::vector<int64_t> ExpectedGroups(const PackedModel& m) {
  const bool mixed = m.large == m.small;
  int64_t per_group = 0;  // tuples
  if (mixed) {
    per_group = ChooseTuplesPerGroup(std::vector<int64_t>{m.large, m.window, m.ring}, m.large);
  }
  int64_t limit = 4 * m.large + m.small;  // in small pages
  int64_t k_window = mixed ? CeilDiv(m.window, per_group) : 1;
  int64_t k_ring = mixed ? CeilDiv(m.ring, per_group) : 1;
  limit = std::max(limit, m.ring_units);
  if (mixed) {
    limit = std::max(limit, CeilDiv(m.window, k_window) * m.window_heads);
  } else {
    limit = std::max(limit, m.window_heads);
    k_window = CeilDiv(m.window, limit / m.window_heads);
  }
  k_ring = std::max(k_ring, CeilDiv(m.ring, limit / m.ring_units));
  std::vector<int64_t> sizes = {m.large + m.small};
  const auto add = [&](int64_t layers, int64_t groups) {
    for (int64_t g = 0; g < groups; ++g) sizes.push_back(CeilDiv(layers - g, groups));
  };
  add(m.window, k_window);
  add(m.ring, k_ring);
  return sizes;
}

RC_GTEST_PROP(GroupingPropertyTest, PackedGroupsFollowTheRule, ()) {
  const PackedModel m = {.large = Number(1, 12),
                         .small = Number(1, 3) == 1 ? Number(1, 12) : 0,
                         .window = Number(1, 30),
                         .window_heads = Number(1, 6),
                         .ring = Number(1, 12),
                         .ring_units = Number(1, 20)};
  PackedModel model = m;
  if (model.small == 0) model.small = model.large;
  const std::vector<LayerCache> caches =
      Caches({{"large", model.large, FullSpec(16, 4, 8)},
              {"small", model.small, FullSpec(16, 1, 8)},
              {"window", model.window, WindowSpec(16, model.window_heads, 8, 64)},
              {"ring", model.ring,
               *RingSpec::Create({.block_size = 1, .head_size = 256 * model.ring_units})}});
  std::vector<int64_t> sizes;
  for (const std::vector<int>& group : PackGroups(caches)) {
    RC_ASSERT(std::ranges::is_sorted(group));
    sizes.push_back(static_cast<int64_t>(group.size()));
  }
  RC_ASSERT(sizes == ExpectedGroups(model));
}

struct SlabCost {
  int64_t bytes;
  int64_t groups;
};

SlabCost CostOf(const std::vector<SlabBucket>& buckets,
                const std::vector<std::vector<std::vector<int>>>& cut) {
  int64_t stride = 0;
  int64_t blocks = 0;
  int64_t groups = 0;
  for (size_t t = 0; t < buckets.size(); ++t) {
    for (const std::vector<int>& group : cut[t]) {
      int64_t bytes = 0;
      for (const int layer : group) {
        const auto at = std::ranges::find(buckets[t].layers, layer) - buckets[t].layers.begin();
        bytes += buckets[t].page_bytes[at];
      }
      stride = std::max(stride, bytes);
      blocks += buckets[t].blocks;
      ++groups;
    }
  }
  return {stride * blocks, groups};
}

// Tries all numbers of groups of all buckets. Layers of equal page, so that how a bucket is
// distributed does not matter for its largest group.
int64_t CheapestByTryingAll(const std::vector<SlabBucket>& buckets, int64_t table_cost) {
  int64_t best = std::numeric_limits<int64_t>::max();
  std::vector<size_t> k(buckets.size(), 1);
  while (true) {
    int64_t stride = 0;
    int64_t blocks = 0;
    int64_t groups = 0;
    for (size_t t = 0; t < buckets.size(); ++t) {
      const auto n = static_cast<int64_t>(buckets[t].layers.size());
      const auto kt = static_cast<int64_t>(k[t]);
      stride = std::max(stride, CeilDiv(n, kt) * buckets[t].page_bytes[0]);
      blocks += kt * buckets[t].blocks;
      groups += kt;
    }
    best = std::min(best, stride * blocks + groups * table_cost);
    size_t t = 0;
    while (t < k.size() && k[t] == buckets[t].layers.size()) k[t++] = 1;
    if (t == k.size()) return best;
    ++k[t];
  }
}

RC_GTEST_PROP(GroupingPropertyTest, SlabGroupsAreTheCheapest, ()) {
  std::vector<SlabBucket> buckets(Number(1, 3));
  int next = 0;
  for (SlabBucket& bucket : buckets) {
    const int64_t page = Number(1, 50);
    for (int64_t n = Number(1, 9); n > 0; --n) {
      bucket.layers.push_back(next++);
      bucket.page_bytes.push_back(page);
    }
    bucket.blocks = Number(1, 100);
  }
  const int64_t table_cost = Number(0, 2000);
  const auto cut = CheapestSlabGroups(buckets, table_cost);
  const SlabCost cost = CostOf(buckets, cut);
  RC_ASSERT(cost.bytes + cost.groups * table_cost == CheapestByTryingAll(buckets, table_cost));
}

RC_GTEST_PROP(GroupingPropertyTest, SlabGroupsHoldEveryLayerOnce, ()) {
  std::vector<SlabBucket> buckets(Number(1, 3));
  int next = 0;
  for (SlabBucket& bucket : buckets) {
    for (int64_t n = Number(1, 12); n > 0; --n) {
      bucket.layers.push_back(next++);
      bucket.page_bytes.push_back(Number(1, 50));
    }
    bucket.blocks = Number(1, 100);
  }
  const auto cut = CheapestSlabGroups(buckets, Number(0, 500));
  RC_ASSERT(cut.size() == buckets.size());
  for (size_t t = 0; t < buckets.size(); ++t) {
    std::vector<int> seen;
    for (const std::vector<int>& group : cut[t]) {
      RC_ASSERT(!group.empty());
      seen.insert(seen.end(), group.begin(), group.end());
    }
    std::ranges::sort(seen);
    RC_ASSERT(seen == buckets[t].layers);
  }
}

RC_GTEST_PROP(GroupingPropertyTest, GroupSizeIsTheCheapest, ()) {
  std::vector<BucketCost> buckets;
  for (int64_t t = Number(1, 3); t > 0; --t) buckets.push_back({Number(1, 30), Number(1, 100)});
  const int64_t page = Number(1, 20);
  const int64_t table_cost = Number(0, 3000);
  const auto cost = [&](int64_t size) {
    int64_t largest = 0;
    int64_t blocks = 0;
    int64_t groups = 0;
    for (const BucketCost& bucket : buckets) {
      const int64_t k = (bucket.layers + size - 1) / size;
      largest = std::max(largest, (bucket.layers + k - 1) / k);
      blocks += k * bucket.blocks;
      groups += k;
    }
    return largest * blocks * page + groups * table_cost;
  };
  const int64_t chosen = CheapestGroupSize(buckets, page, table_cost);
  for (int64_t size = 1; size <= 30; ++size) RC_ASSERT(cost(chosen) <= cost(size));
}

// The reference looks at every number of bytes.
RC_GTEST_PROP(GroupingPropertyTest, ChunkIsTheBestOfAllSizes, ()) {
  std::vector<int64_t> pages;
  for (int64_t c = Number(1, 4); c > 0; --c) pages.push_back(Number(1, 60));
  const int64_t limit = Number(1, 2000);
  const int64_t largest = *std::ranges::max_element(pages);
  double best = 2;
  int64_t best_bytes = 0;
  for (int64_t bytes = largest; bytes <= std::max(limit, largest); ++bytes) {
    int64_t left = 0;
    for (const int64_t page : pages) left = std::max(left, bytes % page);
    const double remainder = static_cast<double>(left) / static_cast<double>(bytes);
    if (remainder < best) {
      best = remainder;
      best_bytes = bytes;
    }
  }
  const std::vector<ChunkSize> chunks = ChunkSizes(pages, limit);
  RC_ASSERT(chunks.front().bytes == largest);
  RC_ASSERT(chunks.back().bytes == best_bytes);
  RC_ASSERT(chunks.back().largest_remainder == best);
  for (size_t i = 0; i < chunks.size(); ++i) {
    for (size_t c = 0; c < pages.size(); ++c) {
      RC_ASSERT(chunks[i].pages[c] >= 1);
      RC_ASSERT(chunks[i].pages[c] == chunks[i].bytes / pages[c]);
    }
    if (i == 0) continue;
    RC_ASSERT(chunks[i].bytes > chunks[i - 1].bytes);
    RC_ASSERT(chunks[i].largest_remainder < chunks[i - 1].largest_remainder);
  }
}

RC_GTEST_PROP(GroupingPropertyTest, P9BlockSizesDivideOneAnother, ()) {
  std::vector<KvCacheSpec> groups;
  for (int64_t g = Number(1, 5); g > 0; --g) groups.push_back(FullSpec(Number(1, 40), 1, 8));
  const int64_t ranks = Number(1, 3);
  std::vector<PlanError> errors;
  const bool hashes = Number(0, 1) == 1;
  const auto sizes = PlanBlockSizes(groups, ranks, hashes, std::nullopt, &errors);
  RC_ASSERT(sizes.has_value());
  RC_ASSERT(sizes->scheduler % sizes->hash == 0);
  for (const KvCacheSpec& spec : groups) {
    RC_ASSERT(sizes->scheduler % (spec.block_size() * ranks) == 0);
    if (hashes) RC_ASSERT((spec.block_size() * ranks) % sizes->hash == 0);
  }
}

}  // namespace
}  // namespace kvblocks
