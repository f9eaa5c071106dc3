#include "sim/engine/waiting_queue.h"

#include <xxhash.h>

#include <algorithm>


namespace kvblocks::sim {
namespace {

bool HasKeys(SchedulingPolicy policy) {
  return policy != SchedulingPolicy::kFcfs && policy != SchedulingPolicy::kNoEvict;
}

int64_t KeyOf(const SimRequest& request, SchedulingPolicy policy, uint64_t seed) {
  switch (policy) {
    case SchedulingPolicy::kPriority:
      return request.spec.priority;
    case SchedulingPolicy::kShortestPrompt:
      return request.num_prompt;
    case SchedulingPolicy::kLongestOutput:
      return -request.max_output;
    case SchedulingPolicy::kRandom:
      return RandomQueueKey(request.spec.row, seed);
    case SchedulingPolicy::kFcfs:
    case SchedulingPolicy::kNoEvict:
    case SchedulingPolicy::kLongestPrefix:
    case SchedulingPolicy::kPrefixTree:
      break;
  }
  return 0;
}

}  // namespace

int64_t RandomQueueKey(int64_t row, uint64_t seed) {
  return static_cast<int64_t>(XXH3_64bits_withSeed(&row, sizeof row, seed) >> 1);
}

WaitingQueue::WaitingQueue(SchedulingPolicy policy, uint64_t seed)
    : policy_(policy), seed_(seed), has_keys_(HasKeys(policy)) {}

void WaitingQueue::AddByKey(SimRequest* request) {
  request->queue_key = KeyOf(*request, policy_, seed_);
  by_key_.insert(request);
}

void WaitingQueue::AddArrived(SimRequest* request) {
  if (has_keys_) return AddByKey(request);
  in_order_.push_back(request);
}

void WaitingQueue::AddPreempted(SimRequest* request) {
  if (has_keys_) return AddByKey(request);
  in_order_.push_front(request);
}

void WaitingQueue::PopFront() {
  if (has_keys_) {
    by_key_.erase(by_key_.begin());
  } else {
    in_order_.pop_front();
  }
}

void WaitingQueue::Remove(SimRequest* request) {
  if (has_keys_) {
    by_key_.erase(request);
  } else {
    in_order_.erase(std::find(in_order_.begin(), in_order_.end(), request));
  }
}

}  // namespace kvblocks::sim
