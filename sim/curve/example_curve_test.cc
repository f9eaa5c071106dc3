// The curve of the workload that ships with kvsim, so that a change of it never goes unseen.

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "sim/curve/order_curve.h"
#include "sim/example/example_workload.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

struct Row {
  int64_t num_blocks;
  int64_t hits;
  int64_t bound;
};

TEST(ExampleCurveTest, IsWhatItWas) {
  auto reader = OpenTraceString(MakeExampleWorkload(), "example", {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  OrderRunOptions options;
  options.with_bound = true;
  const auto run = RunOrder((*reader)->info(), FeedFrom(reader->get()), options);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->num_requests, 396);
  EXPECT_EQ(run->num_references, 42'139);
  EXPECT_EQ(run->num_distinct, 11'445);
  EXPECT_EQ(run->smallest_pool, 233);
  EXPECT_EQ(run->curve.max_hits(), 30'694);
  EXPECT_EQ(run->curve.SmallestPool(30'694), 5'637);
  for (const Row& row : {Row{233, 5'731, 8'624}, Row{241, 5'866, 9'082}, Row{257, 6'095, 9'904}}) {
    EXPECT_EQ(run->curve.Hits(row.num_blocks), row.hits);
    EXPECT_EQ(run->bound->Hits(row.num_blocks, Bypass::kNo), row.bound);
  }
}

TEST(ShuffledFeedTest, KeepsTheTurnsOfASessionInOrder) {
  std::vector<TraceRequest> requests;
  for (int64_t i = 0; i < 60; ++i) {
    TraceRequest& request = requests.emplace_back();
    request.row = i;
    request.session = static_cast<uint64_t>(i % 3);  // 0: none
  }
  auto shuffled = ReadAll(ShuffledFeedFrom(&requests, 1));
  ASSERT_TRUE(shuffled.ok());
  ASSERT_EQ(shuffled->size(), 60u);
  std::vector<int64_t> rows, last(3, -1);
  for (const TraceRequest& request : *shuffled) {
    rows.push_back(request.row);
    if (request.session == 0) continue;
    EXPECT_GT(request.row, last[request.session]);
    last[request.session] = request.row;
  }
  EXPECT_FALSE(std::is_sorted(rows.begin(), rows.end()));
  std::sort(rows.begin(), rows.end());
  for (int64_t i = 0; i < 60; ++i) EXPECT_EQ(rows[static_cast<size_t>(i)], i);
}

TEST(LossByRoundingTest, CountsWhatWholeBlocksLeave) {
  TraceInfo info;
  info.block_tokens = 4;
  std::vector<TraceRequest> requests(3);
  requests[0].content_ids = {1, 2, 3};
  requests[0].input_length = 12;
  requests[1].content_ids = {1, 2, 9};  // shares 8 tokens: one block of 6
  requests[1].input_length = 12;
  requests[2].content_ids = {1, 7};  // shares 4: none
  requests[2].input_length = 8;
  for (TraceRequest& request : requests) request.output_length = 1;
  const RoundingLoss loss = LossByRounding(info, requests, 6);
  EXPECT_EQ(loss.shared_tokens, 12);
  EXPECT_EQ(loss.lost_tokens, 6);
  EXPECT_EQ(loss.short_tokens, 4);
  EXPECT_EQ(loss.short_requests, 1);
}

}  // namespace
}  // namespace kvblocks::sim
