#include "kvblocks/sim/engine/waiting_queue.h"

#include <deque>
#include <string>

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

class WaitingQueueTest : public ::testing::Test {
 protected:
  SimRequest* Make(const std::string& id, int32_t priority, SimTime arrival) {
    SimRequest& request = requests_.emplace_back();
    request.spec.id = id;
    request.spec.row = static_cast<int64_t>(requests_.size()) - 1;
    request.spec.priority = priority;
    request.arrival = arrival;
    return &request;
  }
  static std::string Drain(WaitingQueue& queue) {
    std::string ids;
    while (!queue.empty()) {
      ids += queue.front()->spec.id;
      queue.PopFront();
    }
    return ids;
  }
  std::deque<SimRequest> requests_;
};

TEST_F(WaitingQueueTest, FcfsPutsPreemptedRequestsInFront) {
  WaitingQueue queue(SchedulingPolicy::kFcfs);
  queue.AddArrived(Make("a", 9, 1));
  queue.AddArrived(Make("b", 0, 2));
  queue.AddPreempted(Make("c", 5, 0));
  queue.AddPreempted(Make("d", 5, 0));
  EXPECT_EQ(queue.size(), 4);
  EXPECT_EQ(Drain(queue), "dcab");
}

TEST_F(WaitingQueueTest, PriorityOrdersByPriorityThenArrivalThenSubmission) {
  WaitingQueue queue(SchedulingPolicy::kPriority);
  queue.AddArrived(Make("a", 1, 5));
  queue.AddArrived(Make("b", 0, 7));
  queue.AddPreempted(Make("c", 1, 3));
  SimRequest* e = Make("e", 0, 7);
  queue.AddArrived(Make("d", 0, 7));
  queue.AddArrived(e);
  EXPECT_EQ(Drain(queue), "bedca");
}

TEST_F(WaitingQueueTest, RemovesFromTheMiddle) {
  for (SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
    WaitingQueue queue(policy);
    queue.AddArrived(Make("a", 0, 1));
    SimRequest* b = Make("b", 0, 2);
    queue.AddArrived(b);
    queue.AddArrived(Make("c", 0, 3));
    queue.Remove(b);
    EXPECT_EQ(queue.size(), 2);
    EXPECT_EQ(Drain(queue), "ac");
  }
}

}  // namespace
}  // namespace kvblocks::sim
