#include "sim/testing/scripted_connector.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {

ExternalMatch ScriptedConnector::Match(const SimRequest& request, int64_t num_hit_tokens,
                                       SimTime now) {
  const auto found = script_.find(request.spec.row);
  if (found == script_.end()) return {};
  const ScriptedRequest& script = found->second;
  pending_.erase(request.spec.row);
  if (now < script.ready_at * kSecond) {
    pending_[request.spec.row] = script.ready_at * kSecond;
    return {.is_pending = true};
  }
  const size_t next = num_loads_[request.spec.row];
  if (next >= script.loads.size()) return {};
  const ScriptedLoad& load = script.loads[next];
  const int64_t prefix = std::min(load.prefix, request.num_known);
  return {.num_tokens = std::max<int64_t>(prefix - num_hit_tokens, 0), .mode = load.mode};
}

void ScriptedConnector::StartLoad(const KvLoad& load, const KvCacheManager&, SimTime now) {
  const int64_t row = load.request->spec.row;
  const ScriptedLoad& script = script_.at(row).loads[num_loads_[row]++];
  calls.push_back(absl::StrCat("start ", load.request->spec.id, " ", load.num_hit_tokens, "+",
                               load.num_tokens));
  switch (load.mode) {
    case LoadMode::kSync:
      step_.sync += script.seconds * kSecond;
      return;
    case LoadMode::kLayerwise:
      step_.layerwise = std::max(step_.layerwise, script.seconds * kSecond);
      return;
    case LoadMode::kAsync:
      rows_[load.load] = row;
      ends_[{now + script.seconds * kSecond, load.load}] =
          script.arrived < 0 ? load.num_tokens : std::min(script.arrived, load.num_tokens);
  }
}

StepLoadTimes ScriptedConnector::StepLoads(SimTime) { return std::exchange(step_, {}); }

std::optional<SimTime> ScriptedConnector::NextEvent() const {
  std::optional<SimTime> next;
  const auto at = [&](SimTime time) { next = next ? std::min(*next, time) : time; };
  if (!ends_.empty()) at(ends_.begin()->first.first);
  if (!holds_.empty()) at(holds_.begin()->first.first);
  for (const auto& [row, time] : pending_) at(time);
  return next;
}

void ScriptedConnector::TakeEvents(SimTime now, ConnectorEvents* events) {
  for (; !ends_.empty() && ends_.begin()->first.first <= now; ends_.erase(ends_.begin())) {
    const int64_t load = ends_.begin()->first.second;
    rows_.erase(load);
    events->loads.push_back({load, ends_.begin()->second});
  }
  for (; !holds_.empty() && holds_.begin()->first.first <= now; holds_.erase(holds_.begin())) {
    events->holds.push_back(holds_.begin()->first.second);
  }
  std::erase_if(pending_, [&](const auto& pending) { return pending.second <= now; });
}

bool ScriptedConnector::OnLeave(const SimRequest& request, const KvCacheManager&, LeaveCause cause,
                                int64_t hold, SimTime now) {
  const char* name = cause == LeaveCause::kFinished  ? "finished"
                     : cause == LeaveCause::kAborted ? "aborted"
                                                     : "preempted";
  calls.push_back(absl::StrCat("leave ", request.spec.id, " ", name));
  if (forgets_aborted_loads && cause == LeaveCause::kAborted) {
    std::erase_if(ends_, [&](const auto& end) {
      return rows_.at(end.first.second) == request.spec.row;
    });
  }
  if (cause == LeaveCause::kAborted) pending_.erase(request.spec.row);
  const auto found = script_.find(request.spec.row);
  if (cause != LeaveCause::kFinished || found == script_.end() || found->second.hold == 0) {
    return false;
  }
  holds_[{now + found->second.hold * kSecond, hold}] = 0;
  return true;
}

}  // namespace kvblocks::sim
