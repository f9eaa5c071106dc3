// Split plans that do not fit the batch they are given with.

#include <string>
#include <utility>
#include <vector>

#include "kvblocks/attention/ops/checks.h"
#include "kvblocks/attention/ops/split_planner.h"
#include "kvblocks/attention/testing/refusals.h"

namespace kvblocks::attention {
namespace {

TEST(PlanChecksTest, PlanOfAnotherBatchIsStale) {
  const auto plan_of = [](const std::vector<int32_t>& lengths, const KvGroupKey& type) {
    SplitPlanInput input;
    input.type = type;
    input.seq_lens = lengths;
    input.policy = SplitPolicy::Fixed(4);
    return input;
  };
  struct Row {
    std::vector<int32_t> lengths;
    KvGroupKey type;
    int64_t window_left;
    const char* says;  // null: fine
  };
  const std::vector<Row> rows = {
      {{6, 3}, {.block_size = 4}, -1, nullptr},
      {{9, 3},
       {.block_size = 4},
       -1,
       "request 0: the plan has 3 tiles of 4 keys, length 6 needs 2"},
      {{6, 3}, {.block_size = 4, .window = 3}, 2, nullptr},
      {{6, 3}, {.block_size = 4}, 2, nullptr},
      {{6, 3, 1}, {.block_size = 4}, -1, "the plan is for 3 requests, the batch has R = 2"},
      {{6, 3}, {.block_size = 2}, -1, "for block size 2, the cache has 4"},
      {{6, 3}, {.block_size = 4, .window = 3}, -1, "for a window of 3 tokens"},
      {{4, 3},
       {.block_size = 4},
       -1,
       "request 0: the plan has 1 tiles of 4 keys, length 6 needs 2"},
  };
  for (const Row& row : rows) {
    SplitPlanner planner(/*max_num_reqs=*/4, /*max_num_parts=*/4);
    ASSERT_EQ(planner.Plan(plan_of(row.lengths, row.type)), absl::OkStatus());
    TensorStore store;
    PagedDecodeArgs args = Valid<PagedDecodeArgs>(store);
    args.params.window_left = row.window_left;
    args.plan = &planner.plan();
    const absl::Status status = Check({}, args);
    if (row.says == nullptr) {
      EXPECT_EQ(status, absl::OkStatus());
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(row.says));
    }
  }
}

// What a kernel would leave out or do twice.
TEST(PlanChecksTest, PlansWithGapsAreRefused) {
  SplitPlanner planner(/*max_num_reqs=*/4, /*max_num_parts=*/4);
  SplitPlanInput input;
  const std::vector<int32_t> lengths = {6, 3};
  input.type = {.block_size = 4};
  input.seq_lens = lengths;
  input.policy = SplitPolicy::Fixed(4);
  ASSERT_EQ(planner.Plan(input), absl::OkStatus());
  TensorStore store;
  PagedDecodeArgs args = Valid<PagedDecodeArgs>(store);
  for (const auto& [begin, end] : {std::pair(2, 2), {0, 2}, {1, 0}}) {
    std::vector<SplitRange> ranges(planner.plan().ranges.begin(), planner.plan().ranges.end());
    ranges[1].begin_tile = begin, ranges[1].end_tile = end;
    SplitPlan plan = planner.plan();
    plan.ranges = ranges;
    args.plan = &plan;
    const absl::Status status = Check({}, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr("in split 1 of request 0, which begins at 1; plan again"));
  }
}

}  // namespace
}  // namespace kvblocks::attention
