// WaitingQueue: requests that wait for admission, in the order in which the policy admits them.
//
// FCFS: new ones at the back, preempted ones at the front. Priority: by (priority, arrival,
// submission index), wherever they come from. Cost: FCFS O(1), Remove O(length); priority
// O(log length).

#ifndef KVBLOCKS_SIM_ENGINE_WAITING_QUEUE_H_
#define KVBLOCKS_SIM_ENGINE_WAITING_QUEUE_H_

#include <cstdint>
#include <deque>
#include <set>

#include "kvblocks/sim/engine/scheduler_options.h"
#include "kvblocks/sim/engine/sim_request.h"

namespace kvblocks::sim {

// True if a is more urgent than b: the order of the priority policy, total.
struct MoreUrgent {
  bool operator()(const SimRequest* a, const SimRequest* b) const {
    if (a->spec.priority != b->spec.priority) return a->spec.priority < b->spec.priority;
    if (a->arrival != b->arrival) return a->arrival < b->arrival;
    return a->spec.row < b->spec.row;
  }
};

class WaitingQueue {
 public:
  explicit WaitingQueue(SchedulingPolicy policy) : policy_(policy) {}

  void AddArrived(SimRequest* request);
  void AddPreempted(SimRequest* request);

  bool empty() const { return size() == 0; }
  size_t size() const {
    return policy_ == SchedulingPolicy::kFcfs ? in_order_.size() : by_key_.size();
  }
  // REQUIRES: not empty.
  SimRequest* front() const {
    return policy_ == SchedulingPolicy::kFcfs ? in_order_.front() : *by_key_.begin();
  }
  void PopFront();

  // REQUIRES: the request is in the queue.
  void Remove(SimRequest* request);

  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    for (SimRequest* request : in_order_) visit(*request);
    for (SimRequest* request : by_key_) visit(*request);
  }

 private:
  SchedulingPolicy policy_;
  std::deque<SimRequest*> in_order_;          // FCFS
  std::set<SimRequest*, MoreUrgent> by_key_;  // priority
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_WAITING_QUEUE_H_
