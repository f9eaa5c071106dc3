// Fleet: requests whose replica is chosen ahead of the clock, so that replicas can run by themselves.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/fleet/fleet.h"

namespace kvblocks::sim {

absl::Status CheckRunsAhead(const FleetOptions& options, int64_t concurrency,
                            bool shares_connectors) {
  const auto because = [](absl::string_view what) { return absl::InvalidArgumentError(what); };
  if (LooksAtReplicas(options.router)) {
    const bool may_stick = options.router.kind == RouterKind::kSession;
    return because(absl::StrCat("router ", std::string(RouterName(options.router.kind)),
                                may_stick ? " with a session factor above 0" : "",
                                " looks at all replicas before each request"));
  }
  if (options.queue.is_on()) return because("who waits at the router waits for any replica's ends");
  if (std::any_of(options.ranks.begin(), options.ranks.end(),
                  [](const RankGroup& ranks) { return ranks.is_lockstep; })) {
    return because("data-parallel ranks step together");
  }
  if (options.scaling.is_used()) return because("replicas start and stop");
  if (options.router_delay > 0) return because("requests are on their way to the router for a while");
  if (concurrency > 0) return because("in a closed loop each session waits for another's end");
  if (shares_connectors) return because("replicas share a tier");
  return absl::OkStatus();
}

bool Fleet::IsPlaceKnown(const SimRequest& request) const {
  return runs_ahead_ && !LooksAtReplicas(options_.router, request);
}

int32_t Fleet::SendAhead(size_t index, SimRequest* request) {
  if (index >= contents_ahead_.size()) contents_ahead_.resize(index + 1);
  loads_now_.assign(set_.size(), ReplicaLoad());  // which nobody looks at
  return router_
      ->Route({.request = *request, .loads = loads_now_, .live = scaler_->live()})
      .replica;
}

void Fleet::OnApart() {
  looks_.resize(set_.size());
  for (Looks& looks : looks_) looks.at_sends.clear();
  for (FleetObserver* observer : observers_) observer->OnApart();
}

void Fleet::PrepareAhead(size_t index, const SimRequest& request) {
  if (!caches_) return;
  contents_ahead_[index].Hash(reader_->info(), request, set_.replica(0).manager(), group_);
}

void Fleet::LookAhead(size_t index, int32_t replica, const ReplicaLoad& load) {
  Looks& looks = looks_[static_cast<size_t>(replica)];
  const KvCacheManager& manager = set_.replica(static_cast<size_t>(replica)).manager();
  looks.at_sends.push_back(
      {.load = load, .held = caches_ ? contents_ahead_[index].HeldBy(manager, &looks.found) : 0});
}

void Fleet::OnSentAhead(size_t index, const SimRequest& request, int32_t replica) {
  loads_now_.clear();
  held_.clear();
  for (const Looks& looks : looks_) {
    loads_now_.push_back(looks.at_sends[index].load);
    if (caches_) held_.push_back(looks.at_sends[index].held);
  }
  const auto slot = static_cast<size_t>(request.slot);
  if (slot >= routed_.size()) routed_.resize(slot + 1);
  routed_[slot] = Routed();
  const RoutingRecord record = {.request = request,
                                .replica = replica,
                                .loads = loads_now_,
                                .claimed_tokens = {},
                                .scores = {},
                                .held_tokens = held_};
  for (FleetObserver* observer : observers_) observer->OnRouted(record, set_.now());
  scaler_->OnSent(replica);
}

void Fleet::OnTogether() {
  for (FleetObserver* observer : observers_) observer->OnTogether();
}

}  // namespace kvblocks::sim
