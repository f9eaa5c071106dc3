// Parts of a fleet by themselves: the queue of a router, and what is counted of its decisions.

#include <deque>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sim/fleet/fleet_metrics.h"
#include "sim/fleet/router.h"

namespace kvblocks::sim {
namespace {

class RouterQueueTest : public testing::Test {
 protected:
  SimRequest* Make(const std::string& id, int32_t priority = 0) {
    SimRequest& request = requests_.emplace_back();
    request.spec.id = id;
    request.spec.row = static_cast<int64_t>(requests_.size());
    request.spec.priority = priority;
    return &request;
  }
  // Ids in the order in which they would be sent.
  static std::string Drain(RouterQueue& queue) {
    std::string ids;
    while (!queue.empty()) {
      SimRequest* first = queue.first();
      ids += first->spec.id;
      queue.Remove(*first);
      EXPECT_FALSE(queue.Has(*first));
    }
    return ids;
  }

  std::deque<SimRequest> requests_;
};

// SM-101
TEST_F(RouterQueueTest, KeepsTheOrderOfArrival) {
  RouterQueue queue({.max_requests = 1});
  for (const char* id : {"a", "b", "c"}) queue.Push(Make(id, id[0] == 'b' ? -5 : 0), std::nullopt);
  EXPECT_EQ(queue.size(), 3);
  EXPECT_EQ(queue.last()->spec.id, "c");
  EXPECT_EQ(Drain(queue), "abc");
}

// SM-101: smaller numbers are more urgent, as in the engine; the last is the least urgent newest
// one.
TEST_F(RouterQueueTest, PutsClassesBeforeArrival) {
  RouterQueue queue({.max_requests = 1, .by_priority = true});
  queue.Push(Make("a", 1), std::nullopt);
  queue.Push(Make("b", 0), std::nullopt);
  queue.Push(Make("c", 1), std::nullopt);
  queue.Push(Make("d", -1), std::nullopt);
  queue.Push(Make("e", 0), std::nullopt);
  EXPECT_EQ(queue.last()->spec.id, "c");
  EXPECT_EQ(Drain(queue), "dbeac");
}

TEST_F(RouterQueueTest, KnowsWhoGivesUpNext) {
  RouterQueue queue({.max_requests = 1});
  SimRequest* a = Make("a");
  SimRequest* b = Make("b");
  queue.Push(a, 50);
  queue.Push(b, 20);
  queue.Push(Make("c"), std::nullopt);
  EXPECT_EQ(queue.NextDeadline(), 20);
  EXPECT_EQ(queue.FirstExpired(19), nullptr);
  EXPECT_EQ(queue.FirstExpired(60), b);
  queue.Remove(*b);
  EXPECT_EQ(queue.FirstExpired(60), a);
  // One that is sent gives up no more.
  queue.Remove(*a);
  EXPECT_EQ(queue.NextDeadline(), std::nullopt);
  EXPECT_EQ(Drain(queue), "c");
}

TEST_F(RouterQueueTest, IsTooLongAboveItsLimit) {
  RouterQueue queue({.max_requests = 1, .max_waiting = 1});
  queue.Push(Make("a"), std::nullopt);
  EXPECT_FALSE(queue.is_too_long());
  queue.Push(Make("b"), std::nullopt);
  EXPECT_TRUE(queue.is_too_long());
}

TEST(HasRoomTest, CountsRequestsAndTokens) {
  const RouterQueueOptions requests = {.max_requests = 2};
  EXPECT_TRUE(HasRoom(requests, {.num_requests = 1, .num_tokens = 1000}, 1000));
  EXPECT_FALSE(HasRoom(requests, {.num_requests = 2}, 1));
  const RouterQueueOptions tokens = {.max_tokens = 100};
  EXPECT_TRUE(HasRoom(tokens, {.num_requests = 50, .num_tokens = 60}, 40));
  EXPECT_FALSE(HasRoom(tokens, {.num_requests = 50, .num_tokens = 60}, 41));
  // Nothing else will make room for it.
  EXPECT_TRUE(HasRoom(tokens, {}, 101));
  const RouterQueueOptions both = {.max_requests = 2, .max_tokens = 100};
  EXPECT_FALSE(HasRoom(both, {.num_requests = 2, .num_tokens = 0}, 1));
  EXPECT_FALSE(HasRoom(both, {.num_requests = 1, .num_tokens = 100}, 1));
  EXPECT_FALSE(both.max_requests == 0 || !both.is_on());
  EXPECT_FALSE(RouterQueueOptions().is_on());
}

TEST(HasRoomTest, BadLimitsAreNamed) {
  EXPECT_EQ(Validate(RouterQueueOptions{.max_tokens = -1}).message(),
            "max_tokens is -1, expected at least 0");
  EXPECT_TRUE(Validate(RouterQueueOptions{.max_waiting = 0}).ok());
}

// SM-101: a replica without room is passed over, and the next turn goes on behind the chosen one.
TEST_F(RouterQueueTest, RoutersChooseAmongThoseWithRoom) {
  const SimRequest& request = *Make("a");
  const std::vector<ReplicaLoad> loads = {
      {.num_requests = 5}, {.num_requests = 1}, {.num_requests = 3}};
  const std::vector<uint8_t> room = {1, 0, 1};
  const auto route = [&](Router& router, absl::Span<const uint8_t> has_room) {
    return router.Route({.request = request, .loads = loads, .has_room = has_room}).replica;
  };
  const auto round_robin = MakeRouter({.kind = RouterKind::kRoundRobin}, 3, /*group=*/0);
  EXPECT_EQ(route(*round_robin, {}), 0);
  EXPECT_EQ(route(*round_robin, room), 2);
  EXPECT_EQ(route(*round_robin, {}), 0);
  EXPECT_EQ(route(*round_robin, {}), 1);
  const auto least = MakeRouter({.kind = RouterKind::kLeastRequests}, 3, /*group=*/0);
  EXPECT_EQ(route(*least, {}), 1);
  EXPECT_EQ(route(*least, room), 2);
}

TEST(DecisionSeriesTest, SumsStayExactWhenTheTickDoubles) {
  DecisionSeries series;
  series.Add(0, {.routed = 1, .oracle_more_tokens = 7});
  series.Add(499 * kSecond, {.routed = 1});
  series.Add(3, {.missing_tokens = 2});  // replicas report one after the other
  series.Add(1500 * kSecond, {.routed = 1, .unknown_tokens = 5});
  ::kvblocks::report::v1::DecisionSeries out;
  series.Fill(&out);
  EXPECT_EQ(out.tick_s(), 4);
  int64_t routed = 0;
  for (const auto& point : out.points()) routed += point.routed();
  EXPECT_EQ(routed, 3);
  EXPECT_EQ(out.points(0).oracle_more_tokens(), 7);
  EXPECT_EQ(out.points(0).missing_tokens(), 2);
  EXPECT_EQ(out.points(124).routed(), 1);
  EXPECT_EQ(out.points(375).unknown_tokens(), 5);
  EXPECT_EQ(out.points(375).start_s(), 1500);
}

}  // namespace
}  // namespace kvblocks::sim
