// FleetMetrics: what a fleet's report says beside its replicas' own - how evenly the router spread
// requests, how good its knowledge was, and the latencies of all requests together.
//
//   FleetMetrics metrics(num_replicas);
//   setups[r].observers.push_back(metrics.of_replica(r)); ...
//   auto fleet = Fleet::Create(options, setups, reader, {&metrics});
//   (*fleet)->Run();
//   metrics.Fill(options, (*fleet)->result(), &report);
//
// Memory: that of five distributions, and per replica 16 bytes for
// each request that was alive at once anywhere. Cost: some 10 ns per record of a step and 100 ns per request.

#ifndef KVBLOCKS_SIM_FLEET_FLEET_METRICS_H_
#define KVBLOCKS_SIM_FLEET_FLEET_METRICS_H_

#include <memory>
#include <optional>
#include <vector>

#include "kvblocks/sim/fleet/decision_series.h"
#include "kvblocks/sim/fleet/fleet.h"
#include "kvblocks/sim/fleet/fleet.pb.h"
#include "kvblocks/sim/report/distribution.h"
#include "kvblocks/sim/report/latency_metrics.h"

namespace kvblocks::sim {

class FleetMetrics final : public FleetObserver {
 public:
  struct Options {
    SimTime client_rtt = 0;  // added to times to the first token and to the end
    std::vector<Objective> objectives = {};
  };
  explicit FleetMetrics(size_t num_replicas) : FleetMetrics(num_replicas, Options()) {}
  FleetMetrics(size_t num_replicas, const Options& options);
  ~FleetMetrics() override;

  // To be added to that replica's observers.
  EngineObserver* of_replica(size_t replica);

  void OnRouted(const RoutingRecord& record, SimTime now) override;
  void OnFound(const SimRequest& request, int32_t replica, int64_t routed_claim,
               int64_t num_hit_tokens, SimTime now) override;

  void OnEndedAtRouter(const SimRequest& request, SimTime now) override;

  // All but outcome, configuration, notes and the replicas' own reports. After the run.
  void Fill(const FleetOptions& options, const FleetResult& result,
            ::kvblocks::fleet::v1::FleetReport* out);

  // So far, for progress displays.
  int64_t num_queried_tokens() const;
  int64_t num_hit_tokens() const { return sum_hit_; }

 private:
  class OfReplica;
  // Of a request that is over: nothing if it was not served.
  using Outcome = std::optional<RequestLatency>;
  void Take(const Outcome& outcome);

  std::vector<std::unique_ptr<OfReplica>> replicas_;
  const Options options_;
  GoodputMetrics goodput_;
  Distribution queueing_, ttft_, tpot_, e2e_, router_queueing_;
  int64_t sum_hit_ = 0, num_queued_ = 0;
  SimTime first_arrival_ = -1, last_end_ = 0;  // at the router
  ::kvblocks::fleet::v1::Decisions decisions_;
  DecisionSeries series_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_FLEET_METRICS_H_
