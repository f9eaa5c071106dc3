#include "kvblocks/sim/cost/attention_cost.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace kvblocks::sim {
namespace {

// The rows that query `token` (from 0) reads, the newest ones where there is a limit.
std::vector<int64_t> RowsOf(const AttentionReach& reach, int64_t token) {
  std::vector<int64_t> rows;
  for (int64_t row = (token + 1) / reach.ratio - 1; row >= 0; --row) {
    if (static_cast<int64_t>(rows.size()) == reach.limit) break;
    if (reach.chunk > 0 && row / reach.chunk != token / reach.chunk) break;
    rows.push_back(row);
  }
  return rows;
}

AttentionReach AnyReach() {
  switch (*rc::gen::inRange(0, 4)) {
    case 0:
      return {.limit = *rc::gen::inRange<int64_t>(1, 30), .is_window = true};
    case 1:
      return {.chunk = *rc::gen::inRange<int64_t>(1, 30)};
    case 2:
      return {.ratio = *rc::gen::inRange<int64_t>(1, 9),
              .limit = *rc::gen::inRange<int64_t>(1, 30)};
    default:
      return {.ratio = *rc::gen::inRange<int64_t>(1, 9)};
  }
}

RC_GTEST_PROP(AttentionCountsProperty, PairsAreThoseCountedOneByOne, ()) {
  const AttentionReach reach = AnyReach();
  const int64_t context = *rc::gen::inRange<int64_t>(0, 120);
  const int64_t count = *rc::gen::inRange<int64_t>(1, 120);
  size_t pairs = 0;
  for (int64_t i = 0; i < count; ++i) pairs += RowsOf(reach, context + i).size();
  RC_ASSERT(AttendedPairs(reach, context, count) == Wide{static_cast<int64_t>(pairs)});
}

RC_GTEST_PROP(AttentionCountsProperty, RowsOfOneTokenAreThoseItSeesAndWrites, ()) {
  const AttentionReach reach = AnyReach();
  const int64_t context = *rc::gen::inRange<int64_t>(0, 120);
  std::set<int64_t> rows;
  // What the token sees without itself, and its own row if it completes one.
  if (context > 0) {
    for (const int64_t row : RowsOf(reach, context - 1)) rows.insert(row);
  }
  if (reach.chunk > 0 && context % reach.chunk == 0) rows.clear();
  if ((context + 1) % reach.ratio == 0) rows.insert((context + 1) / reach.ratio - 1);
  RC_ASSERT(AttendedRows(reach, context, 1) == static_cast<int64_t>(rows.size()));
}

TEST(AttentionCountsTest, AWindowIsReadOnceByNeighboursAChoiceByEach) {
  EXPECT_EQ(AttendedRows({.limit = 100, .is_window = true}, 1000, 3), 103);
  EXPECT_EQ(AttendedRows({.limit = 100}, 1000, 3), 303);
  EXPECT_EQ(AttendedRows({.limit = 100}, 250, 3), 253);
}

TEST(AttentionCountsTest, CountsBeyond64BitsAreExact) {
  const int64_t large = int64_t{1} << 60;
  EXPECT_TRUE(AttendedPairs({}, large, large) ==
              Wide{large} * large + Wide{large} * (Wide{large} + 1) / 2);
}

}  // namespace
}  // namespace kvblocks::sim
