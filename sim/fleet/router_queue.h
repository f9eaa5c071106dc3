// RouterQueue: the requests that wait at a router because no replica has room for the first of them.
//
//   RouterQueue queue(options);
//   queue.Push(request, deadline);             // by arrival
//   while (SimRequest* expired = queue.FirstExpired(now)) { queue.Remove(*expired); ... }
//   while (!queue.empty() && some replica HasRoom(options, load, queue.first()->num_prompt)) ...
//   if (queue.is_too_long()) { reject queue.last(); queue.Remove(*queue.last()); }
//
// Order: as they came, or by the trace's priority and then as they came, smaller numbers first. Nobody
// overtakes: while the first does not fit anywhere, all wait, so that a long prompt comes to its turn.
//
// Always: a request is in it once. Cost: O(log n) for each operation. Nothing is owned.

#ifndef KVBLOCKS_SIM_FLEET_ROUTER_QUEUE_H_
#define KVBLOCKS_SIM_FLEET_ROUTER_QUEUE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "sim/engine/sim_request.h"
#include "sim/fleet/router.h"

namespace kvblocks::sim {

struct RouterQueueOptions {
  // Of the requests that were sent to a replica and are not over; 0: no limit. Without any limit no
  // request ever waits.
  int64_t max_requests = 0;
  int64_t max_tokens = 0;  // their prompts and the output so far
  // Requests that may wait; of more the last is rejected.
  int64_t max_waiting = std::numeric_limits<int64_t>::max();
  bool by_priority = false;

  bool is_on() const { return max_requests > 0 || max_tokens > 0; }
};

// InvalidArgument names field, value and limit.
absl::Status Validate(const RouterQueueOptions& options);

// Whether a replica may be sent such a prompt. One without requests has room for any.
bool HasRoom(const RouterQueueOptions& options, const ReplicaLoad& load, int64_t num_prompt);

class RouterQueue {
 public:
  explicit RouterQueue(const RouterQueueOptions& options) : options_(options) {}

  // `deadline`: when it gives up, if it still waits. REQUIRES: not in the queue.
  void Push(SimRequest* request, std::optional<SimTime> deadline);
  void Remove(const SimRequest& request);  // REQUIRES: Has
  bool Has(const SimRequest& request) const { return places_.contains(request.spec.row); }

  bool empty() const { return order_.empty(); }
  int64_t size() const { return static_cast<int64_t>(order_.size()); }
  bool is_too_long() const { return size() > options_.max_waiting; }
  // REQUIRES: not empty.
  SimRequest* first() const { return order_.begin()->second; }
  SimRequest* last() const { return order_.rbegin()->second; }

  std::optional<SimTime> NextDeadline() const;
  // Whose deadline has come, the earliest first; null: nobody's.
  SimRequest* FirstExpired(SimTime now) const;

 private:
  using Place = std::pair<int32_t, int64_t>;  // class, and place among all that ever came
  struct Known {
    Place place;
    std::optional<SimTime> deadline;
  };

  const RouterQueueOptions options_;
  int64_t num_pushed_ = 0;
  std::set<std::pair<Place, SimRequest*>> order_;
  std::set<std::tuple<SimTime, Place, SimRequest*>> deadlines_;
  absl::flat_hash_map<int64_t, Known> places_;  // by row
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_ROUTER_QUEUE_H_
