// LatencyMetrics: when tokens came out, per request and over all.
//
// With arrival a, first scheduling s, first token f, last token l and k tokens: queueing s - a,
// TTFT f - a, prefill f - s, E2E l - a, TPOT (l - f) / (k - 1) for k > 1 only, normalised E2E / k.
// ITL are the k - 1 gaps between tokens; further tokens of one step come at gap 0. All but ITL are
// counted for requests that reach their length. Cost: about 5 ns per output token, of quiet decodes
// nothing.

#ifndef KVBLOCKS_SIM_REPORT_LATENCY_METRICS_H_
#define KVBLOCKS_SIM_REPORT_LATENCY_METRICS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kvblocks/sim/engine/engine_observer.h"
#include "kvblocks/sim/report/distribution.h"
#include "kvblocks/sim/report/report.pb.h"
#include "kvblocks/sim/report/request_progress.h"

namespace kvblocks::sim {

struct RequestLatency {
  SimTime queueing = 0;
  SimTime ttft = 0;
  SimTime prefill = 0;
  SimTime e2e = 0;
  std::optional<SimTime> tpot;  // rounded down to a picosecond
  SimTime normalized = 0;
};

// REQUIRES: the request emitted a token.
RequestLatency LatencyOf(const SimRequest& request, const RequestProgress& progress,
                         SimTime client_rtt);

class LatencyMetrics {
 public:
  struct Options {
    SimTime client_rtt = 0;
    double stall_factor = 5.0;  // a gap above so many median gaps is a stall
    size_t max_exact_runs = Distribution::kDefaultMaxRuns;
  };
  explicit LatencyMetrics(const Options& options);

  void OnStepFinished(const StepRecord& step, RequestProgressTable& requests);
  void OnQuietDecodes(RequestProgress& progress, int64_t num_steps) const {
    progress.num_outputs += num_steps;
    progress.last_output = last_step_end_;
  }
  void OnFinish(const RequestLatency& latency);

  void Fill(::kvblocks::report::v1::Latency* out);

 private:
  Options options_;
  SimTime last_step_end_ = RequestProgress::kNever;
  std::vector<SimTime> other_gaps_;  // scratch
  Distribution queueing_, ttft_, prefill_, e2e_, tpot_, itl_, normalized_;
};

// Milliseconds of a whole number of picoseconds.
inline double Milliseconds(SimTime time) {
  return static_cast<double>(time) / static_cast<double>(kMillisecond);
}
inline double Seconds(SimTime time) {
  return static_cast<double>(time) / static_cast<double>(kSecond);
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_LATENCY_METRICS_H_
