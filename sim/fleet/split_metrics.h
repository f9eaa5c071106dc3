// SplitMetrics: what a SplitFleet's requests waited for, phase by phase, in the report of a fleet.

#ifndef KVBLOCKS_SIM_FLEET_SPLIT_METRICS_H_
#define KVBLOCKS_SIM_FLEET_SPLIT_METRICS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/fleet/fleet.pb.h"
#include "sim/fleet/fleet_metrics.h"
#include "sim/fleet/split_fleet.h"
#include "sim/report/distribution.h"
#include "sim/report/latency_metrics.h"
#include "sim/report/request_rows.h"

namespace kvblocks::sim {

class SplitMetrics final : public SplitObserver {
 public:
  // Takes a row of each request, with RowColumns() behind the others; null: none. Not owned. The
  // others as of ClientMetrics.
  SplitMetrics(std::vector<Objective> objectives, SimTime client_rtt, RequestRowSink* rows);
  static std::string RowColumns();

  void OnEnded(const SimRequest& request, const SplitLife& life, SimTime now) override;

  // As FleetMetrics::Fill.
  void Fill(const SplitOptions& options, const SplitResult& result,
            ::kvblocks::fleet::v1::FleetReport* out);

 private:
  void WriteRow(const SimRequest& request, const SplitLife& life,
                const std::optional<RequestLatency>& latency, SimTime now);

  RequestRowSink* const rows_;
  ClientMetrics clients_;
  Distribution prefill_, handover_, transfer_, decode_, link_queue_;
  int64_t num_outputs_ = 0, num_loaded_ = 0, num_bytes_ = 0;
  // In picoseconds.
  __int128 prefill_hold_ = 0, decode_hold_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_SPLIT_METRICS_H_
