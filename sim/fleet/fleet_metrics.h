// FleetMetrics: what a report of several replicas says beside their own - how evenly the router
// spread requests, how good its knowledge was, and the latencies of all requests together; with
// hand-over what requests waited for, phase by phase.
//
//   FleetMetrics metrics(num_replicas, objectives, client_rtt);
//   setups[r].observers.push_back(metrics.of_replica(r)); ...
//   auto fleet = Fleet::Create(options, setups, reader, {&metrics});
//   (*fleet)->Run();
//   metrics.Fill(options, (*fleet)->result(), &report);
//
// Memory: that of five distributions, and per replica 16 bytes for
// each request that was alive at once anywhere. Cost: some 10 ns per record of a step and 100 ns
// per request.

#ifndef KVBLOCKS_SIM_FLEET_FLEET_METRICS_H_
#define KVBLOCKS_SIM_FLEET_FLEET_METRICS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/sim_time.h"
#include "sim/fleet/fleet.h"
#include "sim/report/distribution.h"
#include "sim/report/latency_metrics.h"
#include "sim/report/report.pb.h"
#include "sim/report/request_rows.h"

namespace kvblocks::sim {

// What a router's decisions were worth, over time, on a grid whose tick doubles when a run outgrows
// it. Counts belong to the tick in which they happen; their sums stay exact. Cost: O(1) per
// decision.
class DecisionSeries {
 public:
  static constexpr size_t kMostPoints = 500;

  struct Counts {
    int64_t routed = 0;
    int64_t oracle_more_tokens = 0;
    int64_t missing_tokens = 0;
    int64_t unknown_tokens = 0;
  };

  void Add(SimTime at, const Counts& counts);
  void Fill(::kvblocks::report::v1::DecisionSeries* out) const;

 private:
  SimTime tick_ = kSecond;
  std::vector<Counts> points_;
};

// What clients saw of all requests together, whichever replicas ran them.
class ClientMetrics {
 public:
  // `client_rtt` is added to times to the first token and to the end.
  ClientMetrics(std::vector<Objective> objectives, SimTime client_rtt)
      : has_objectives_(!objectives.empty()),
        client_rtt_(client_rtt),
        goodput_(std::move(objectives)) {}

  // Again for one that was sent again.
  void OnArrival(const SimRequest& request);
  void OnEnd(const SimRequest& request, SimTime now) {
    last_end_ = std::max(last_end_, now);
    if (request.is_completed()) finished_input_ += request.num_prompt;
  }
  void OnFailure() { goodput_.OnFailure(); }
  // Of one that finished `now`.
  RequestLatency Finish(const SimRequest& request, SimTime start, SimTime first_token, SimTime now);
  void Count(const RequestLatency& latency);

  // What arrived, duration, rates, latencies and goodput. REQUIRES: totals have requests and
  // tokens.
  void Fill(::kvblocks::report::v1::Report* out);

 private:
  const bool has_objectives_;
  const SimTime client_rtt_;
  GoodputMetrics goodput_;
  Distribution queueing_, ttft_, tpot_, e2e_;
  SimTime first_arrival_ = -1, last_arrival_ = 0, last_end_ = 0;
  int64_t input_tokens_ = 0, finished_input_ = 0, requested_output_ = 0, encoder_tokens_ = 0;
};

class FleetMetrics final : public FleetObserver {
 public:
  // The others as of ClientMetrics. `rows` takes a row of each request that ended at the router, or
  // that a fleet with hand-over had, with HandoverColumns() behind the others; null: none. Not
  // owned.
  FleetMetrics(size_t num_replicas, std::vector<Objective> objectives, SimTime client_rtt,
               RequestRowSink* rows = nullptr);
  ~FleetMetrics() override;
  static std::string HandoverColumns();

  // To be added to that replica's observers, without hand-over.
  EngineObserver* of_replica(size_t replica);

  void OnRouted(const RoutingRecord& record, SimTime now) override;
  void OnFound(const SimRequest& request, int32_t replica, int64_t routed_claim,
               int64_t num_hit_tokens, SimTime now) override;

  void OnEndedAtRouter(const SimRequest& request, SimTime now) override;
  void OnEnded(const SimRequest& request, const HandoverLife& life, SimTime now) override;

  // All but outcome, configuration, notes and tiers. After the run. REQUIRES: `out` has a replica
  // for each of the result's, with a name and its own report.
  void Fill(const FleetOptions& options, const FleetResult& result,
            ::kvblocks::report::v1::Report* out);

  // So far, for progress displays.
  int64_t num_queried_tokens() const;
  int64_t num_hit_tokens() const { return sum_hit_; }

 private:
  class OfReplica;
  // Of requests that are handed over.
  struct Phases {
    Distribution prefill, handover, transfer, decode, link_queue;
    int64_t num_outputs = 0, num_loaded = 0, num_bytes = 0;
    __int128 prefill_hold = 0, decode_hold = 0;  // in picoseconds
  };
  void WriteRow(const SimRequest& request, const HandoverLife& life,
                const std::optional<RequestLatency>& latency, SimTime now);
  void FillHandover(const HandoverOptions& handover, const RouterOptions& prefill_router,
                    const FleetResult& result, ::kvblocks::report::v1::Report* out);
  static void FillRow(const SimulationResult& result, ::kvblocks::report::v1::Replica* row);

  std::vector<std::unique_ptr<OfReplica>> replicas_;
  ClientMetrics clients_;
  RequestRowSink* const rows_;
  Phases phases_;
  Distribution router_queueing_;
  int64_t sum_hit_ = 0, num_queued_ = 0;
  ::kvblocks::report::v1::Decisions decisions_;
  DecisionSeries series_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_FLEET_METRICS_H_
