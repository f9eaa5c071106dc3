#include "kvblocks/sim/engine/waiting_queue.h"

#include <algorithm>

namespace kvblocks::sim {

void WaitingQueue::AddArrived(SimRequest* request) {
  if (policy_ == SchedulingPolicy::kFcfs) {
    in_order_.push_back(request);
  } else {
    by_key_.insert(request);
  }
}

void WaitingQueue::AddPreempted(SimRequest* request) {
  if (policy_ == SchedulingPolicy::kFcfs) {
    in_order_.push_front(request);
  } else {
    by_key_.insert(request);
  }
}

void WaitingQueue::PopFront() {
  if (policy_ == SchedulingPolicy::kFcfs) {
    in_order_.pop_front();
  } else {
    by_key_.erase(by_key_.begin());
  }
}

void WaitingQueue::Remove(SimRequest* request) {
  if (policy_ == SchedulingPolicy::kFcfs) {
    in_order_.erase(std::find(in_order_.begin(), in_order_.end(), request));
  } else {
    by_key_.erase(request);
  }
}

}  // namespace kvblocks::sim
