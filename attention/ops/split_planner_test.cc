#include "kvblocks/split_planner.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void ExpectPlanned(SplitPlanner& planner, const SplitPlanInput& input) {
  EXPECT_EQ(planner.Plan(input), absl::OkStatus());
}

TEST(SplitPlannerTest, Ex23Planner) {
  SplitPlanner planner(8, 8);
  const std::vector<int32_t> lens = {4096, 640, 64};
  ExpectPlanned(planner, {.seq_lens = lens, .num_parts = 4});
  const SplitPlan& plan = planner.plan();
  EXPECT_EQ(plan.payload, 28);
  EXPECT_THAT(plan.ranges,
              ElementsAre(SplitRange{0, 0, 23}, SplitRange{0, 23, 46}, SplitRange{0, 46, 64},
                          SplitRange{1, 0, 10}, SplitRange{2, 0, 1}));
  EXPECT_THAT(plan.split_offsets, ElementsAre(0, 3, 4, 5));
  EXPECT_THAT(plan.parts, ElementsAre(SplitPart{0, 0, 0, 0, 23, 1, 1, 0, 1},   //
                                      SplitPart{0, 23, 1, 0, 46, 1, 1, 1, 2},  //
                                      SplitPart{0, 46, 2, 0, 64, 1, 1, 2, 3},  //
                                      SplitPart{1, 0, 0, 2, 1, 0, 0, 3, 5}));

  const std::vector<int32_t> with_empty = {0, 128};
  ExpectPlanned(planner, {.seq_lens = with_empty, .num_parts = 2});
  EXPECT_EQ(plan.payload, 12);
  EXPECT_THAT(plan.ranges,
              ElementsAre(SplitRange{0, 0, 1}, SplitRange{1, 0, 1}, SplitRange{1, 1, 2}));
  EXPECT_THAT(plan.parts, ElementsAre(SplitPart{0, 0, 0, 1, 1, 0, 1, 0, 2},
                                      SplitPart{1, 1, 1, 1, 2, 1, 1, 2, 3}));
  EXPECT_THAT(plan.split_offsets, ElementsAre(0, 1, 3));

  const std::vector<int32_t> few = {64, 64};
  ExpectPlanned(planner, {.seq_lens = few, .num_parts = 4});
  EXPECT_EQ(std::count_if(plan.parts.begin(), plan.parts.end(),
                          [](const SplitPart& part) { return part.idle(); }),
            2);
}

TEST(SplitPlannerTest, PartsFillTheDevice) {
  EXPECT_EQ(NumParts(132, 8, 8, 64), 16);
  EXPECT_EQ(NumParts(132, 8, 65, 64), 8);
  EXPECT_EQ(NumParts(78, 1, 128, 64), 39);
  EXPECT_EQ(NumParts(10, 64, 1, 64), 1);
}

TEST(SplitPlannerTest, FixedCutsAtMultiplesWhateverTheBatch) {
  SplitPlanner planner(4, 4);
  const std::vector<int32_t> lens = {1100, 0, 512};
  ExpectPlanned(planner, {.type = {.block_size = 16},
                          .seq_lens = lens,
                          .policy = SplitPolicy::Fixed(512),
                          .num_parts = 3});
  EXPECT_EQ(planner.plan().tile, 512);
  EXPECT_THAT(planner.plan().ranges,
              ElementsAre(SplitRange{0, 0, 1}, SplitRange{0, 1, 2}, SplitRange{0, 2, 3},
                          SplitRange{1, 0, 1}, SplitRange{2, 0, 1}));
  EXPECT_THAT(planner.plan().split_offsets, ElementsAre(0, 3, 4, 5));
  EXPECT_EQ(planner.plan().num_splits(0), 3);
  EXPECT_EQ(planner.plan().parts.size(), 5u);
}

TEST(SplitPlannerTest, CountCutsIntoEqualPiecesOfWholeBlocks) {
  SplitPlanner planner(4, 4);
  const std::vector<int32_t> lens = {100, 16, 0};
  ExpectPlanned(planner,
                {.type = {.block_size = 16}, .seq_lens = lens, .policy = SplitPolicy::Count(3)});
  EXPECT_EQ(planner.plan().tile, 16);
  EXPECT_THAT(planner.plan().ranges,
              ElementsAre(SplitRange{0, 0, 3}, SplitRange{0, 3, 6}, SplitRange{0, 6, 7},
                          SplitRange{1, 0, 1}, SplitRange{2, 0, 1}));
}

TEST(SplitPlannerTest, NoneLeavesRequestsWhole) {
  SplitPlanner planner(4, 4);
  const std::vector<int32_t> lens = {4096, 1};
  ExpectPlanned(planner, {.seq_lens = lens, .policy = SplitPolicy::None(), .num_parts = 8});
  EXPECT_THAT(planner.plan().ranges, ElementsAre(SplitRange{0, 0, 64}, SplitRange{1, 0, 1}));
  EXPECT_EQ(planner.plan().parts[0].first_is_cut, 0);
}

TEST(SplitPlannerTest, WindowsPlanTheBlocksTheyTouch) {
  const KvGroupKey window = {.block_size = 16, .window = 100};
  EXPECT_EQ(FirstKey(1000, window), 896);
  EXPECT_EQ(FirstKey(100, window), 0);
  EXPECT_EQ(FirstKey(1000, {.block_size = 16}), 0);
  SplitPlanner planner(4, 4);
  const std::vector<int32_t> lens = {1000};
  ExpectPlanned(planner, {.type = window, .seq_lens = lens, .policy = SplitPolicy::Fixed(32)});
  EXPECT_EQ(planner.plan().num_splits(0), 4);  // keys 896 to 999
  std::vector<int64_t> cuts = {7};
  AppendCuts(planner.plan(), 0, 1000, cuts);
  EXPECT_THAT(cuts, ElementsAre(7, 928, 960, 992));
}

TEST(SplitPlannerTest, ASecondListBeginsATileOfItsOwn) {
  SplitPlanner planner(4, 4);
  const std::vector<int32_t> main = {65, 0}, extra = {1, 130};
  ExpectPlanned(planner, {.seq_lens = main, .extra_lens = extra, .num_parts = 1});
  EXPECT_THAT(planner.plan().ranges, ElementsAre(SplitRange{0, 0, 3}, SplitRange{1, 0, 3}));
}

TEST(SplitPlannerTest, BadInputLeavesTheLastPlan) {
  SplitPlanner planner(4, 4);
  const std::vector<int32_t> lens = {10, 20}, negative = {10, -1}, three = {1, 2, 3};
  ExpectPlanned(planner, {.seq_lens = lens});
  const auto refuse = [&](const SplitPlanInput& input, const std::string& words) {
    const absl::Status status = planner.Plan(input);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.ToString(), HasSubstr(words));
    EXPECT_EQ(planner.plan().num_requests(), 2);
  };
  refuse({.seq_lens = negative}, "request 1 has length -1");
  refuse({.seq_lens = lens, .extra_lens = three}, "extra_lens has 3 entries, seq_lens 2");
  refuse({.seq_lens = lens, .tile = 0}, "tile is 0");
  refuse({.seq_lens = lens, .overhead = -1}, "overhead -1");
  refuse({.seq_lens = lens, .num_parts = 0}, "num_parts 0");
  refuse({.type = {.block_size = -1}, .seq_lens = lens}, "block_size=-1");
  refuse({.type = {.block_size = 16}, .seq_lens = lens, .policy = SplitPolicy::Fixed(24)},
         "Fixed(24)");
  refuse({.seq_lens = lens, .policy = SplitPolicy::Fixed(0)}, "Fixed(0)");
  refuse({.seq_lens = lens, .policy = SplitPolicy::Count(0)}, "Count(0)");
  const std::vector<int32_t> longest(2, std::numeric_limits<int32_t>::max());
  refuse({.seq_lens = lens, .num_parts = std::numeric_limits<int32_t>::max()},
         "up to 2147483649 pieces");
  refuse({.seq_lens = longest, .policy = SplitPolicy::Fixed(1)}, "up to 4294967294 pieces");
  refuse({.type = {.block_size = 1},
          .seq_lens = longest,
          .policy = SplitPolicy::Count(int64_t{1} << 40)},
         "up to 4294967294 pieces");
  refuse({.seq_lens = longest, .extra_lens = longest, .tile = 1}, "request 0 has 4294967294 tiles");
}

TEST(SplitPlannerTest, APlanForOthersIsRecognised) {
  SplitPlanner planner(4, 4);
  const KvGroupKey type = {.block_size = 16};
  const std::vector<int32_t> lens = {100, 200}, grown = {100, 300}, shrunk = {100, 192},
                             one = {100};
  ExpectPlanned(planner, {.type = type, .seq_lens = lens});
  const SplitPlan& plan = planner.plan();
  EXPECT_TRUE(CheckPlanFits("PagedDecode", plan, type, lens).ok());
  const auto refuse = [&](const KvGroupKey& key, absl::Span<const int32_t> of,
                          const std::string& words) {
    const absl::Status status = CheckPlanFits("PagedDecode", plan, key, of);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.ToString(), HasSubstr("PagedDecode: " + words));
  };
  refuse({.block_size = 32}, lens, "the plan was made for layers of {block_size=16");
  refuse({.block_size = 16, .window = 64}, lens, "the plan was made for");
  refuse(type, grown, "request 1: the plan has 4 tiles of 64 keys, length 300 needs 5");
  refuse(type, shrunk, "request 1: the plan has 4 tiles of 64 keys, length 192 needs 3");
  refuse(type, one, "the plan has 2 requests, the batch 1");
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckPlanFits("PagedDecode", SplitPlan(), {}, one)));
}

// --- T-17 ---

// Assigns single tiles: slow, and follows nothing but the rule.
std::vector<SplitRange> AssignTiles(const std::vector<int64_t>& tiles, int64_t overhead,
                                    int64_t num_parts, std::vector<size_t>& range_ends) {
  int64_t work = 0;
  for (const int64_t n : tiles) work += n + overhead;
  const int64_t payload = (work + num_parts - 1) / num_parts + overhead;
  std::vector<SplitRange> ranges;
  size_t b = 0;
  int64_t next = 0;
  for (int64_t part = 0; part < num_parts; ++part) {
    int64_t load = 0;
    bool is_full = false;
    while (b < tiles.size() && !is_full) {
      if (load + overhead + 1 > payload) break;  // not even one tile
      load += overhead;
      ranges.push_back(
          {static_cast<int32_t>(b), static_cast<int32_t>(next), static_cast<int32_t>(next)});
      while (next < tiles[b] && load < payload) {
        ++load;
        ranges.back().end_tile = static_cast<int32_t>(++next);
      }
      is_full = next < tiles[b];
      if (!is_full) {
        ++b;
        next = 0;
      }
    }
    range_ends.push_back(ranges.size());
  }
  return ranges;
}

TEST(SplitPlannerTest, T17PlansTileEveryRequestOnceInEqualParts) {
  std::mt19937_64 random(17);
  const auto number = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  SplitPlanner planner(16, 16);
  int64_t num_cut = 0, num_idle = 0;
  for (int i = 0; i < 100'000; ++i) {
    SplitPlanInput input;
    input.tile = number(1, 4);
    input.overhead = number(0, 6);
    input.num_parts = static_cast<int32_t>(number(1, 12));
    const int64_t longest = int64_t{1} << number(0, 7);
    std::vector<int32_t> lens(static_cast<size_t>(number(0, 9)));
    for (int32_t& length : lens) length = static_cast<int32_t>(number(0, longest));
    input.seq_lens = lens;
    ASSERT_TRUE(planner.Plan(input).ok());
    const SplitPlan& plan = planner.plan();

    std::vector<int64_t> tiles;
    for (const int32_t length : lens) {
      tiles.push_back(std::max<int64_t>(1, (length + input.tile - 1) / input.tile));
    }
    // Every tile once, in order, of as many splits as the offsets say.
    ASSERT_EQ(plan.num_requests(), static_cast<int32_t>(lens.size()));
    ASSERT_EQ(plan.split_offsets[lens.size()], static_cast<int32_t>(plan.ranges.size()));
    for (size_t b = 0; b < lens.size(); ++b) {
      ASSERT_GE(plan.num_splits(static_cast<int64_t>(b)), 1);
      int64_t next = 0;
      for (int32_t s = plan.split_offsets[b]; s < plan.split_offsets[b + 1]; ++s) {
        const SplitRange& range = plan.ranges[static_cast<size_t>(s)];
        ASSERT_EQ(range.request, static_cast<int32_t>(b));
        ASSERT_EQ(range.begin_tile, next);
        ASSERT_GT(range.end_tile, range.begin_tile);
        next = range.end_tile;
      }
      ASSERT_EQ(next, tiles[b]);
    }
    ASSERT_LE(plan.ranges.size(), lens.size() + static_cast<size_t>(input.num_parts));
    // Parts follow each other, carry at most the payload, and say what they hold.
    ASSERT_EQ(plan.parts.size(), static_cast<size_t>(input.num_parts));
    int32_t next_range = 0;
    for (const SplitPart& part : plan.parts) {
      ASSERT_EQ(part.begin_range, next_range);
      next_range = part.end_range;
      int64_t load = 0;
      for (int32_t s = part.begin_range; s < part.end_range; ++s) {
        const SplitRange& range = plan.ranges[static_cast<size_t>(s)];
        load += range.end_tile - range.begin_tile + input.overhead;
      }
      ASSERT_LE(load, plan.payload);
      num_idle += part.idle();
      if (part.idle()) continue;
      const SplitRange& first = plan.ranges[static_cast<size_t>(part.begin_range)];
      const SplitRange& last = plan.ranges[static_cast<size_t>(part.end_range - 1)];
      ASSERT_EQ(part.first_request, first.request);
      ASSERT_EQ(part.first_tile, first.begin_tile);
      ASSERT_EQ(part.last_request, last.request);
      ASSERT_EQ(part.last_end_tile, last.end_tile);
      const int64_t of_first = tiles[static_cast<size_t>(first.request)];
      const int64_t of_last = tiles[static_cast<size_t>(last.request)];
      ASSERT_EQ(part.first_is_cut != 0, first.begin_tile > 0 || first.end_tile < of_first);
      ASSERT_EQ(part.last_is_cut != 0, last.begin_tile > 0 || last.end_tile < of_last);
      ASSERT_EQ(part.first_split > 0, first.begin_tile > 0);
      num_cut += part.last_is_cut;
    }
    ASSERT_EQ(next_range, static_cast<int32_t>(plan.ranges.size()));
    // And the whole is what assigning tiles one by one gives.
    std::vector<size_t> range_ends;
    const std::vector<SplitRange> naive =
        AssignTiles(tiles, input.overhead, input.num_parts, range_ends);
    ASSERT_EQ(naive, std::vector<SplitRange>(plan.ranges.begin(), plan.ranges.end()));
    for (size_t p = 0; p < range_ends.size(); ++p) {
      ASSERT_EQ(plan.parts[p].end_range, static_cast<int32_t>(range_ends[p]));
    }
  }
  EXPECT_GT(num_cut, 10'000);
  EXPECT_GT(num_idle, 10'000);
}

}  // namespace
}  // namespace kvblocks::attention
