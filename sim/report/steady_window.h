// SteadyWindow: what was done between warm-up and cool-down, for rates that neither the empty cache
// at the start nor the draining queue at the end distorts.
//
// The window opens at the first admission after the warm-up. It closes at the first admission of
// the cool-down; where that is a time before the end, at the last finish before it; and without a
// cool-down with the run. Only first admissions count. Both edges are known at the end only, so the
// sums at admissions and at finishes are logged; long runs keep every 2nd, 4th, ... of them, at
// least 2^15 of each, and edges move to the next entry kept. Cost: O(1) per call, 10 MB at most.

#ifndef KVBLOCKS_SIM_REPORT_STEADY_WINDOW_H_
#define KVBLOCKS_SIM_REPORT_STEADY_WINDOW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/report/hit_rate_metrics.h"

namespace kvblocks::sim {

// Since the start of the run.
struct ThroughputSums {
  SimTime time = 0;
  int64_t admissions = 0;
  int64_t finished = 0;
  int64_t input_tokens = 0;  // of finished requests
  int64_t computed_tokens = 0;
  int64_t output_tokens = 0;
  int64_t steps = 0;
  int64_t scheduled_requests = 0;  // summed over the steps
  SimTime busy = 0;
  SimTime stage_time = 0;  // computing, summed over pipeline stages
};

std::string DescribeWindow(const Warmup& warmup, const Warmup& cooldown);

class SteadyWindow {
 public:
  static constexpr size_t kDefaultMaxEntries = size_t{1} << 16;

  // REQUIRES: max_entries >= 2.
  explicit SteadyWindow(size_t max_entries = kDefaultMaxEntries)
      : admissions_(max_entries), finishes_(max_entries) {}

  // Before the admission is counted, and after the finish is.
  void OnFirstAdmission(const ThroughputSums& sums) { admissions_.Add(sums); }
  void OnFinish(const ThroughputSums& sums) { finishes_.Add(sums); }

  struct Edges {
    ThroughputSums from, to;
  };
  // `from` and `to` are the sums at the first event and at the end. Nothing if the window is empty.
  std::optional<Edges> Find(const Warmup& warmup, const Warmup& cooldown,
                            const ThroughputSums& from, const ThroughputSums& to) const;

 private:
  struct Log {
    explicit Log(size_t max) : max_entries(max) {}
    void Add(const ThroughputSums& sums);

    size_t max_entries;
    size_t stride = 1;
    size_t num_added = 0;
    std::vector<ThroughputSums> entries;
  };

  Log admissions_, finishes_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_STEADY_WINDOW_H_
