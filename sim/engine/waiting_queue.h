// WaitingQueue: requests that wait for admission, in the order in which the policy admits them.
//
// FCFS and kNoEvict: new ones at the back, preempted ones at the front. Others: by (queue_key,
// arrival, submission index), wherever they come from. Cost: FCFS O(1), Remove O(length); others
// O(log length).

#ifndef KVBLOCKS_SIM_ENGINE_WAITING_QUEUE_H_
#define KVBLOCKS_SIM_ENGINE_WAITING_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "sim/engine/scheduler_options.h"
#include "sim/engine/sim_request.h"

namespace kvblocks::sim {

struct ArrivedBefore {
  bool operator()(const SimRequest* a, const SimRequest* b) const {
    return a->arrival != b->arrival ? a->arrival < b->arrival : a->spec.row < b->spec.row;
  }
};

// The order of all policies that have keys, total.
struct MoreUrgent {
  bool operator()(const SimRequest* a, const SimRequest* b) const {
    return a->queue_key != b->queue_key ? a->queue_key < b->queue_key : ArrivedBefore()(a, b);
  }
};

// Of a request in the random policy, at least 0.
int64_t RandomQueueKey(int64_t row, uint64_t seed);

class WaitingQueue {
 public:
  // `seed` is of kRandom.
  explicit WaitingQueue(SchedulingPolicy policy, uint64_t seed = 0);

  // Both set the request's queue_key; policies that look at prefixes set it in Reorder.
  void AddArrived(SimRequest* request);
  void AddPreempted(SimRequest* request);

  bool empty() const { return size() == 0; }
  size_t size() const { return has_keys_ ? by_key_.size() : in_order_.size(); }
  // REQUIRES: not empty.
  SimRequest* front() const { return has_keys_ ? *by_key_.begin() : in_order_.front(); }
  void PopFront();

  // REQUIRES: the request is in the queue.
  void Remove(SimRequest* request);

  // Calls set_keys(requests) with all of them by arrival, and sorts them by the keys that it gave
  // them. REQUIRES: a policy with keys.
  template <typename SetKeys>
  void Reorder(SetKeys&& set_keys);

  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    for (SimRequest* request : in_order_) visit(*request);
    for (SimRequest* request : by_key_) visit(*request);
  }

 private:
  using ByKey = std::set<SimRequest*, MoreUrgent>;

  void AddByKey(SimRequest* request);

  const SchedulingPolicy policy_;
  const uint64_t seed_;
  const bool has_keys_;
  std::deque<SimRequest*> in_order_;
  ByKey by_key_;
  // Scratch of Reorder.
  std::vector<ByKey::node_type> nodes_;
  std::vector<SimRequest*> requests_;
};

template <typename SetKeys>
void WaitingQueue::Reorder(SetKeys&& set_keys) {
  // Out of the set while the keys change, which order it.
  while (!by_key_.empty()) nodes_.push_back(by_key_.extract(by_key_.begin()));
  std::sort(nodes_.begin(), nodes_.end(), [](const auto& a, const auto& b) {
    return ArrivedBefore()(a.value(), b.value());
  });
  requests_.clear();
  for (const ByKey::node_type& node : nodes_) requests_.push_back(node.value());
  set_keys(requests_);
  for (ByKey::node_type& node : nodes_) by_key_.insert(std::move(node));
  nodes_.clear();
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_WAITING_QUEUE_H_
