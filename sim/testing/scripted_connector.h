// ScriptedConnector: KV from elsewhere as a script says, in whole seconds; for tests. The script is
// plain data, so that a model of the engine can follow it, too.

#ifndef KVBLOCKS_SIM_TESTING_SCRIPTED_CONNECTOR_H_
#define KVBLOCKS_SIM_TESTING_SCRIPTED_CONNECTOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/engine/kv_connector.h"

namespace kvblocks::sim {

struct ScriptedLoad {
  int64_t prefix = 0;  // of the request's tokens, in all
  LoadMode mode = LoadMode::kAsync;
  int64_t seconds = 1;
  int64_t arrived = -1;  // tokens of the load, at most; -1: all
};

struct ScriptedRequest {
  int64_t ready_at = 0;             // not known before this second
  std::vector<ScriptedLoad> loads;  // first, second, ... load of the request; none after them
  int64_t hold = 0;                 // so long its blocks are kept when it has finished
};

// By TraceRequest::row; nothing for others.
using ConnectorScript = std::map<int64_t, ScriptedRequest>;

class ScriptedConnector final : public KvConnector {
 public:
  explicit ScriptedConnector(ConnectorScript script) : script_(std::move(script)) {}

  ExternalMatch Match(const SimRequest& request, int64_t num_hit_tokens, SimTime now) override;
  void StartLoad(const KvLoad& load, const KvCacheManager& manager, SimTime now) override;
  StepLoadTimes StepLoads(SimTime device_start) override;
  std::optional<SimTime> NextEvent() const override;
  void TakeEvents(SimTime now, ConnectorEvents* events) override;
  bool OnLeave(const SimRequest& request, const KvCacheManager& manager, LeaveCause cause,
               int64_t hold, SimTime now) override;

  // Loads of requests that are aborted never end: what a connector must not do.
  bool forgets_aborted_loads = false;

  std::vector<std::string> calls;  // "start A 0+8", "leave A aborted", ...

 private:
  const ConnectorScript script_;
  std::map<int64_t, size_t> num_loads_;  // started, by row
  std::map<int64_t, int64_t> rows_;      // of loads under way
  std::map<std::pair<SimTime, int64_t>, int64_t> ends_;  // by time, load: tokens
  std::map<std::pair<SimTime, int64_t>, int64_t> holds_;  // by time, hold
  std::map<int64_t, SimTime> pending_;   // by row: when it will be known
  StepLoadTimes step_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TESTING_SCRIPTED_CONNECTOR_H_
