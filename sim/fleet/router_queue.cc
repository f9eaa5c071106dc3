#include "sim/fleet/router_queue.h"

#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {

absl::Status Validate(const RouterQueueOptions& options) {
  for (const auto& [field, value] :
       {std::pair<const char*, int64_t>("max_requests", options.max_requests),
        {"max_tokens", options.max_tokens},
        {"max_waiting", options.max_waiting}}) {
    if (value >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", expected at least 0"));
  }
  return absl::OkStatus();
}

bool HasRoom(const RouterQueueOptions& options, const ReplicaLoad& load, int64_t num_prompt) {
  if (load.num_requests == 0) return true;
  if (options.max_requests > 0 && load.num_requests >= options.max_requests) return false;
  return options.max_tokens == 0 || load.num_tokens + num_prompt <= options.max_tokens;
}

void RouterQueue::Push(SimRequest* request, std::optional<SimTime> deadline) {
  const Place place = {options_.by_priority ? request->spec.priority : 0, num_pushed_++};
  const bool is_new = places_.try_emplace(request->spec.row, Known{place, deadline}).second;
  KVBLOCKS_CHECK(is_new, absl::StrCat("row ", request->spec.row, " waits already"));
  order_.insert({place, request});
  if (deadline) deadlines_.insert({*deadline, place, request});
}

void RouterQueue::Remove(const SimRequest& request) {
  const auto known = places_.find(request.spec.row);
  KVBLOCKS_CHECK(known != places_.end(), absl::StrCat("row ", request.spec.row, " does not wait"));
  const auto place = order_.lower_bound({known->second.place, nullptr});
  if (known->second.deadline) {
    deadlines_.erase({*known->second.deadline, known->second.place, place->second});
  }
  order_.erase(place);
  places_.erase(known);
}

std::optional<SimTime> RouterQueue::NextDeadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return std::get<0>(*deadlines_.begin());
}

SimRequest* RouterQueue::FirstExpired(SimTime now) const {
  if (deadlines_.empty() || std::get<0>(*deadlines_.begin()) > now) return nullptr;
  return std::get<2>(*deadlines_.begin());
}

}  // namespace kvblocks::sim
