// TimeSeries: the section `series` - a run on a fixed grid of simulated time, in a bounded number
// of points.
//
// Gauges are averaged over a tick, weighted with time and added up in closed form, whatever number
// of ticks an interval covers; counts belong to the tick in which their event happens. When the run
// outgrows max_points, neighbouring ticks are merged and the tick doubles: nothing is sampled, and
// sums stay exact. Cost: O(1) per step.

#ifndef KVBLOCKS_SIM_REPORT_TIME_SERIES_H_
#define KVBLOCKS_SIM_REPORT_TIME_SERIES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "sim/cost/sim_time.h"
#include "sim/report/pool_metrics.h"
#include "sim/report/report_section.h"

namespace kvblocks::sim {

class TimeSeries {
 public:
  static constexpr size_t kDefaultMaxPoints = 1000;

  struct Gauges {
    int64_t running = 0;
    int64_t waiting = 0;
    int64_t referenced = 0;  // blocks
    int64_t resident = 0;
    bool is_busy = false;
    SimTime step_time = 0;  // of the step that ran, while busy
  };
  struct Counts {
    int64_t prefill_tokens = 0;
    int64_t decode_tokens = 0;
    int64_t output_tokens = 0;
    int64_t queried_tokens = 0;
    int64_t hit_tokens = 0;
    int64_t evictions = 0;
    int64_t preemptions = 0;
    int64_t steps = 0;
    int64_t first_tokens = 0;
    __int128 ttft = 0;  // sum over them
    // Full blocks of first admissions, by place in kClassifiedReasons.
    std::array<int64_t, std::size(kClassifiedReasons)> missed_blocks = {};
  };

  // REQUIRES: tick >= 1, max_points >= 2.
  explicit TimeSeries(SimTime tick, size_t max_points = kDefaultMaxPoints)
      : tick_(tick), max_points_(max_points) {}

  // `gauges` held during [from, to).
  void AddInterval(SimTime from, SimTime to, const Gauges& gauges);
  void AddCounts(SimTime at, const Counts& counts);

  SimTime tick() const { return tick_; }
  size_t num_points() const { return points_.size(); }
  // `end` is the run's; the last tick is averaged up to it only.
  void Fill(SimTime end, int64_t usable_blocks, ::kvblocks::report::v1::Series* out) const;

 private:
  using Integral = __int128;
  static constexpr int64_t kOneStep = int64_t{1} << 60;
  struct Point {
    enum { kRunning, kWaiting, kReferenced, kResident, kBusy, kStepsRun, kNumIntegrals };
    // Over time; kStepsRun: steps that ran, one that ran partly in the tick by its part, in units
    // of 2^-60.
    std::array<Integral, kNumIntegrals> integrals = {};
    Counts counts;
  };

  Point& PointAt(SimTime time);
  static void Add(const Counts& counts, Counts& sum);

  SimTime tick_;
  size_t max_points_;
  std::vector<Point> points_;
};

// The observer that feeds one.
class SeriesSection final : public ReportSection {
 public:
  // `pool` is of the section called after this one, so that its gauges are still those of the time
  // before an event.
  // `count_attempts` counts tokens of every attempt to admit, as HitRateMetrics' legacy counters
  // do. RequestProgress::num_outputs is that of the section called before this one.
  SeriesSection(SimTime tick, size_t max_points, bool count_attempts, SimTime client_rtt,
                const PoolMetrics* pool, SharedFacts* facts)
      : series_(tick, max_points),
        count_attempts_(count_attempts),
        client_rtt_(client_rtt),
        pool_(pool),
        facts_(facts) {}

  void OnInterval(SimTime from, SimTime to) override;
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

  // Before the interval that ends with the step: the device was at it.
  void SetStepTime(const StepRecord& step) { gauges_.step_time = step.end - step.device_start; }

 private:
  void CountTokens(const AdmissionRecord& record);

  TimeSeries series_;
  const bool count_attempts_;
  const SimTime client_rtt_;
  const PoolMetrics* const pool_;
  SharedFacts* const facts_;
  int64_t steps_under_way_ = 0;
  TimeSeries::Gauges gauges_;
  TimeSeries::Counts counts_;  // since the last step
  int64_t evictions_seen_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_TIME_SERIES_H_
