// ReportSection: an observer that measures one section of a replay's report and fills it.
//
// ReplayMetrics composes the sections of a report. Each sees every event, in the order in which
// they stand there, and before the event the time that passed since the last one. What several of
// them need is in SharedFacts, which RequestTracker keeps up to date before any section is called.

#ifndef KVBLOCKS_SIM_REPORT_REPORT_SECTION_H_
#define KVBLOCKS_SIM_REPORT_REPORT_SECTION_H_

#include <cstdint>
#include <optional>

#include "sim/engine/engine_observer.h"
#include "sim/report/miss_classifier.h"
#include "sim/report/report.pb.h"
#include "sim/report/request_rows.h"
#include "sim/simulation.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {

struct SharedFacts {
  RequestProgressTable requests;
  AdmissionMisses misses;               // of the admission that is reported
  std::optional<uint64_t> first_block;  // key of its first full block, as MissClassifier has it
  // Of the admission that is reported: from which hit block on misses.hit_uses are wanted.
  int64_t first_hit_use = INT64_MAX;
  // Of the request that ends; empty if it emitted no token.
  std::optional<RequestLatency> latency;

  // Null for a request that was given up before it arrived.
  RequestProgress* Find(const SimRequest& request) {
    return requests.Has(request) ? &requests[request] : nullptr;
  }
};

// How a replay went; the events are the first and the last one of its time line.
struct ReplayEnd {
  const SimulationResult& result;
  SimTime first_event = 0;
  SimTime last_event = 0;
};

class ReportSection : public EngineObserver {
 public:
  bool NeedsEveryRecord() const override { return false; }

  // What held at `from` held until `to`, when the next event comes. At the first event both are its
  // time.
  virtual void OnInterval(SimTime from, SimTime to) { (void)from, (void)to; }

  virtual void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) = 0;
};

inline double Milliseconds(SimTime time) {
  return static_cast<double>(time) / static_cast<double>(kMillisecond);
}
// "1234.5": exact.
inline std::string MillisecondsText(SimTime time) {
  return FormatScaledDecimal(time, /*exponent=*/9);
}
inline double Seconds(SimTime time) {
  return static_cast<double>(time) / static_cast<double>(kSecond);
}
// 0 where there is nothing.
inline double Ratio(__int128 part, __int128 whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REPORT_SECTION_H_
