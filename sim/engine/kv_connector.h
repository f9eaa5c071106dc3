// KvConnector: where a scheduler gets KV from that its own pool does not hold - offload tiers,
// prefill replicas - and who may read a request's blocks after its end.
//
// The calls are those of vLLM's connectors, on the scheduler's side. Nothing here is on the path of
// decodes: a scheduler without a connector does what it does without this header.
//
//   Match        at each look-up of a waiting request: how many tokens come from elsewhere, and how
//   StartLoad    blocks are taken for them: the transfer begins
//   NextEvent    when the connector's next event is due; the owner of the clock needs it
//   TakeEvents   what happened until now: loads that ended, holds that are over
//   StepLoads    before a step starts: for how long it waits for its loads
//   OnLeave      a request's blocks are about to be given back; they can be held for longer
//
// Three kinds of loads. Synchronous: the request runs at once, and its step is as much longer
// as the load takes. Layerwise: layers are computed as they come in, so the step takes the longer
// of the two. Asynchronous: the request holds its blocks in state LOADING (SM-4), nothing of it is
// computed or registered in the prefix table. Once TakeEvents reports the end of the load, the
// request is scheduled before requests that wait without blocks.
//
// Every asynchronous load has exactly one LoadEnd after its StartLoad, even if its request is
// aborted. The blocks of an aborted request stay until then, because the transfer still writes into
// them. A scheduler that would wait for a LoadEnd for ever says so
// (DescribeNoProgress).
//
// Spans and requests are valid during the call. Deterministic: answers may depend on the calls made
// so far, and on nothing else.

#ifndef KVBLOCKS_SIM_ENGINE_KV_CONNECTOR_H_
#define KVBLOCKS_SIM_ENGINE_KV_CONNECTOR_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kvblocks/kv_cache_manager.h"
#include "sim/cost/sim_time.h"
#include "sim/engine/sim_request.h"

namespace kvblocks::sim {

enum class LoadMode : uint8_t { kSync, kLayerwise, kAsync };

// What can be had from elsewhere for a request.
struct ExternalMatch {
  // Behind the tokens hit in the pool. At most those that the request knows in all; the last one is
  // computed in any case, so synchronous loads bring one less. 0: nothing.
  int64_t num_tokens = 0;
  LoadMode mode = LoadMode::kAsync;
  // Not known yet: the request is set aside for this step, others may overtake it, and it is asked
  // again in the next one. NextEvent must then have an event.
  bool is_pending = false;
};

// A load for which blocks were taken.
struct KvLoad {
  int64_t load = 0;  // its number, one per load of a scheduler
  const SimRequest* request = nullptr;
  int64_t num_hit_tokens = 0;  // found in the pool
  int64_t num_tokens = 0;      // to be loaded, behind them
  LoadMode mode = LoadMode::kAsync;
};

struct LoadEnd {
  int64_t load = 0;
  // Tokens that arrived, from the load's first on; fewer than asked for if it failed. The rest is
  // computed: from the first block that is not whole on, or everything in models with several
  // KV-cache groups, where what is missing of one group spoils the others.
  int64_t num_tokens = 0;
};

struct ConnectorEvents {
  std::vector<LoadEnd> loads;   // asynchronous ones, in the order in which they ended
  std::vector<int64_t> holds;   // that are over, see OnLeave
  void clear() { loads.clear(), holds.clear(); }
};

// For how long a step waits.
struct StepLoadTimes {
  SimTime sync = 0;       // before it computes anything
  SimTime layerwise = 0;  // beside it: the step takes at least so long
};

// Aborted: also if a failed load ended it.
enum class LeaveCause : uint8_t { kFinished, kPreempted, kAborted };

class KvConnector {
 public:
  virtual ~KvConnector() = default;

  // For `request`, of which the first num_hit_tokens are in the pool. Asked at every attempt to
  // admit it, also where blocks then run short; must promise what StartLoad can keep at the same
  // instant. The tokens' hashes are in request.kv->content().
  virtual ExternalMatch Match(const SimRequest& request, int64_t num_hit_tokens, SimTime now) = 0;

  // The request holds blocks for hits and load: manager.GetBlocks(*request.kv, group).
  virtual void StartLoad(const KvLoad& load, const KvCacheManager& manager, SimTime now) = 0;

  // Of all synchronous and layerwise loads started since the last call; the step starts at
  // `device_start`, which is not before the last StartLoad.
  virtual StepLoadTimes StepLoads(SimTime device_start) = 0;

  // The earliest time at which TakeEvents may have something or a pending Match may be answered;
  // empty: never, unless it is called first.
  virtual std::optional<SimTime> NextEvent() const = 0;

  // Adds what happened up to `now` and was not taken yet. Times do not go back from call to call.
  virtual void TakeEvents(SimTime now, ConnectorEvents* events) = 0;

  // The request still holds its blocks, of which request.num_settled tokens are computed or loaded
  // (while it is LOADING: will be). True: they stay held, out of the request, under the number
  // `hold`, until TakeEvents says that it is over. The answer does not matter for a preempted
  // request, whose blocks are needed, nor while it is LOADING, whose blocks are held until its
  // LoadEnd in any case.
  virtual bool OnLeave(const SimRequest& request, const KvCacheManager& manager, LeaveCause cause,
                       int64_t hold, SimTime now) {
    (void)request, (void)manager, (void)cause, (void)hold, (void)now;
    return false;
  }
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_KV_CONNECTOR_H_
