// What a fleet checks and makes before it runs.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/fleet/handover.h"

namespace kvblocks::sim {

absl::Status Fleet::Check(const FleetOptions& options, const std::vector<ReplicaSetup>& replicas) {
  const auto count = static_cast<int32_t>(replicas.size());
  if (replicas.empty() || replicas.size() > kMostReplicas) {
    return absl::InvalidArgumentError(
        absl::StrCat("replicas has ", count, " entries, expected 1 to ", kMostReplicas));
  }
  if (absl::Status status = Validate(options.router); !status.ok()) return status;
  if (absl::Status status = Validate(options.queue); !status.ok()) return status;
  if (options.router_delay < 0 || options.event_delay < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.router_delay < 0 ? "router_delay is " : "event_delay is ",
                     std::min(options.router_delay, options.event_delay),
                     " ps, expected at least 0"));
  }
  if (options.event_loss < 0 || options.event_loss > kMillion) {
    return absl::InvalidArgumentError(absl::StrCat("event_loss is ", options.event_loss,
                                                   " millionths, expected 0 to ", kMillion));
  }
  const int32_t num_live = options.num_live > 0 ? options.num_live : count;
  const auto num_needed = Scaler::NumReplicas(options.scaling, num_live);
  if (!num_needed.ok()) return num_needed.status();
  if (num_live > count || *num_needed > count) {
    return absl::InvalidArgumentError(
        absl::StrCat("replicas has ", count, " entries, but ", num_live,
                     " are live at the beginning and scaling may need ", *num_needed));
  }
  const bool is_any_connected =
      std::any_of(replicas.begin(), replicas.end(),
                  [](const ReplicaSetup& setup) { return setup.connector != nullptr; });
  if (options.scaling.is_used() && is_any_connected) {
    return absl::InvalidArgumentError(
        "scaling of replicas that load KV from elsewhere: expected none with tiers behind them, "
        "whose "
        "loads would go on when a replica is gone");
  }
  if (!options.handover) return absl::OkStatus();
  if (is_any_connected || options.scaling.is_used() || num_live < count || options.queue.is_on() ||
      !options.ranks.empty() ||
      options.router_delay + options.event_delay + options.event_loss > 0) {
    return absl::InvalidArgumentError(
        "handover: set next to a router's queue, delay or loss, scaling, ranks or connectors, "
        "expected "
        "none of them");
  }
  return Handover::Check(*options.handover, replicas.size());
}

void Fleet::MakeRoles(size_t num_replicas) {
  if (!options_.handover) {
    roles_.push_back({.count = num_replicas, .options = options_.router});
    return;
  }
  const size_t num_prefill = options_.handover->num_prefill;
  roles_.push_back({.name = "prefill ", .count = num_prefill, .options = options_.router});
  roles_.push_back({.name = "decode ",
                    .first = num_prefill,
                    .count = num_replicas - num_prefill,
                    .options = options_.handover->decode_router});
  handover_ = std::make_unique<Handover>(this);
}

const Fleet::Role& Fleet::RoleOf(size_t replica) const {
  return replica < roles_.back().first ? roles_.front() : roles_.back();
}

std::string Fleet::NameOf(int32_t replica) const {
  const auto r = static_cast<size_t>(replica);
  const Role& role = RoleOf(r);
  return absl::StrCat(role.name, "replica ", r - role.first);
}

absl::Status Fleet::MakeRouters() {
  const KvCacheManager& manager = set_.replica(0).manager();
  caches_ = manager.hashing() != nullptr;
  group_ = PromptContents::GroupOf(manager);
  for (Role& role : roles_) {
    if (handover_ == nullptr || UsesContent(role.options.kind)) {
      absl::Status status = CheckContents(set_, role.first, role.count, role.options.kind, group_);
      if (!status.ok()) return status;
    }
    role.router =
        MakeRouter(role.options, static_cast<int32_t>(role.count), group_, options_.ranks);
  }
  return absl::OkStatus();
}

absl::Status Fleet::CoupleRanks() {
  int32_t behind = 0;  // the groups so far
  for (const RankGroup& ranks : options_.ranks) {
    if (ranks.first < behind || ranks.count < 2 ||
        ranks.first + ranks.count > static_cast<int32_t>(set_.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ranks has a group of ", ranks.count, " from replica ", ranks.first,
          ", expected at least 2 of ", set_.size(), " replicas, behind the group before it"));
    }
    behind = ranks.first + ranks.count;
    if (options_.scaling.is_used()) {
      return absl::InvalidArgumentError("scaling of replicas that consist of data-parallel ranks: "
                                        "expected none, since ranks start and stop together");
    }
    if (!ranks.is_lockstep) continue;
    LockstepOptions lockstep = options_.lockstep;
    const auto first = static_cast<size_t>(ranks.first);
    lockstep.prefill_interval = set_.replica(first).scheduler().options().prefill_schedule_interval;
    absl::Status status = set_.Couple(first, static_cast<size_t>(ranks.count), lockstep);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
