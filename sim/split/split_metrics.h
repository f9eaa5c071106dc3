// SplitMetrics: what a SplitFleet's requests waited for, phase by phase, as a report and as a table.

#ifndef KVBLOCKS_SIM_SPLIT_SPLIT_METRICS_H_
#define KVBLOCKS_SIM_SPLIT_SPLIT_METRICS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvblocks/sim/report/distribution.h"
#include "kvblocks/sim/report/latency_metrics.h"
#include "kvblocks/sim/report/request_rows.h"
#include "kvblocks/sim/split/split.pb.h"
#include "kvblocks/sim/split/split_fleet.h"

namespace kvblocks::sim {

class SplitMetrics final : public SplitObserver {
 public:
  // `client_rtt` is part of what a client waits for its first token and its last.
  SplitMetrics(std::vector<Objective> objectives, SimTime client_rtt);

  // Takes a row of each request; with RowColumns() behind the others. Not owned.
  void set_rows(RequestRowSink* rows) { rows_ = rows; }
  static std::string RowColumns();

  void OnEnded(const SimRequest& request, const SplitLife& life, SimTime now) override;

  // Everything but outcome and configuration. After the run.
  void Fill(const SplitOptions& options, const SplitResult& result,
            ::kvblocks::split::v1::SplitReport* out);

 private:
  void WriteRow(const SimRequest& request, const SplitLife& life,
                const std::optional<RequestLatency>& latency, SimTime now);

  RequestRowSink* rows_ = nullptr;
  const bool has_objectives_;
  const SimTime client_rtt_;
  GoodputMetrics goodput_;
  Distribution ttft_, tpot_, e2e_, queueing_, prefill_, handover_, transfer_, decode_, link_queue_;
  int64_t num_outputs_ = 0, num_loaded_ = 0, num_bytes_ = 0;
  // In picoseconds.
  __int128 prefill_hold_ = 0, decode_hold_ = 0;
  SimTime first_arrival_ = -1;
  SimTime last_end_ = 0;
};

// The report for people, of 100 columns.
std::string FormatSplit(const ::kvblocks::split::v1::SplitReport& report, bool color);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SPLIT_SPLIT_METRICS_H_
