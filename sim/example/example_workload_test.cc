#include "sim/example/example_workload.h"

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/trace_facts.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

constexpr char kExample[] = "sim/example/mixed.jsonl.gz";

TEST(ExampleWorkloadTest, ShippedFileIsWhatTheGeneratorMakes) {
  auto source = OpenByteSource(kExample);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_LT((*source)->bytes_total(), 300000);
  std::string content;
  std::string chunk(65536, '\0');
  while (true) {
    auto n = (*source)->Read(chunk.data(), chunk.size());
    ASSERT_TRUE(n.ok()) << n.status();
    if (*n == 0) break;
    content.append(chunk, 0, *n);
  }
  EXPECT_TRUE(content == MakeExampleWorkload()) << "run //sim/example:make_example";
}

TEST(ExampleWorkloadTest, FactsArePinned) {
  const auto reader = MustOpen(kExample);
  auto facts = ComputeTraceFacts(*reader, {16, 64});
  ASSERT_TRUE(facts.ok()) << facts.status();
  SCOPED_TRACE(FormatTraceFacts(*facts));
  EXPECT_TRUE(reader->warnings().empty());
  EXPECT_EQ(facts->requests, 396);
  EXPECT_EQ(facts->input.total, 608668);
  EXPECT_EQ(facts->input.median, 1370);
  EXPECT_EQ(facts->input.p99, 3554);
  EXPECT_EQ(facts->input.max, 3579);
  EXPECT_EQ(facts->output.total, 68944);
  EXPECT_EQ(facts->output.max, 320);
  EXPECT_EQ(facts->last_arrival_ns - facts->first_arrival_ns, 590363000000);
  EXPECT_EQ(facts->sessions, 68);
  EXPECT_EQ(facts->closed_loop_requests, 226);
  EXPECT_EQ(facts->block_refs, 38231);
  EXPECT_EQ(facts->distinct_paths, 7326);
  EXPECT_EQ(facts->prefix_hits, 30905);
  EXPECT_EQ(facts->shared_tokens, 492735);
  EXPECT_EQ(facts->engine[0].hit_tokens, 491104);
  EXPECT_EQ(facts->engine[1].hit_tokens, 483200);
  EXPECT_EQ(facts->requests_with_hit, 392);
}

// Hit blocks of an LRU list of `capacity` blocks that serves one request after the other.
int64_t LruHits(const std::vector<TraceRequest>& requests, size_t capacity) {
  std::list<int64_t> order;
  std::unordered_map<int64_t, std::list<int64_t>::iterator> where;
  int64_t hits = 0;
  for (const TraceRequest& request : requests) {
    bool leading = true;
    for (const int64_t id : request.content_ids) {
      const auto found = where.find(id);
      leading = leading && found != where.end();
      if (leading) ++hits;
      if (found != where.end()) order.erase(found->second);
      order.push_front(id);
      where[id] = order.begin();
      if (order.size() <= capacity) continue;
      where.erase(order.back());
      order.pop_back();
    }
  }
  return hits;
}

TEST(ExampleWorkloadTest, HitRateDependsOnThePoolSize) {
  const auto reader = MustOpen(kExample);
  const auto requests = AllRequests(*reader);
  ASSERT_TRUE(requests.ok());
  EXPECT_EQ(LruHits(*requests, 500), 9344);
  EXPECT_EQ(LruHits(*requests, 1000), 15078);
  EXPECT_EQ(LruHits(*requests, 2000), 26995);
  EXPECT_EQ(LruHits(*requests, 4000), 30743);
  EXPECT_EQ(LruHits(*requests, 8000), 30905);
}

}  // namespace
}  // namespace kvblocks::sim
