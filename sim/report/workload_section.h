// The sections of a report that say what ran, and how fast: WorkloadSection fills `workload`,
// `setup` and `totals`, PreemptionSection `preemption`, DraftSection `drafts`, ThroughputSection
// `throughput` and `steady_throughput`.

#ifndef KVBLOCKS_SIM_REPORT_WORKLOAD_SECTION_H_
#define KVBLOCKS_SIM_REPORT_WORKLOAD_SECTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost/sim_time.h"
#include "sim/cost/step_time_model.h"
#include "sim/report/hit_rate_metrics.h"
#include "sim/report/report_section.h"

namespace kvblocks::sim {

// What steps took by source, and in how many a count lay beyond the tables.
void FillTally(const StepTally& tally, ::kvblocks::report::v1::Setup* setup);

class WorkloadSection final : public ReportSection {
 public:
  void OnRunStart(const RunInfo& info) override;
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  // Described as the run starts, and counted as it goes.
  ::kvblocks::report::v1::Workload workload_;
  ::kvblocks::report::v1::Setup setup_;
  SimTime last_arrival_ = 0;
  std::string first_rejection_;
};

class PreemptionSection final : public ReportSection {
 public:
  explicit PreemptionSection(SharedFacts* facts) : facts_(facts) {}

  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  SharedFacts* const facts_;
  ::kvblocks::report::v1::Preemption counted_;
  SimTime preempted_time_ = 0;
};

class DraftSection final : public ReportSection {
 public:
  void OnStepFinished(const StepRecord& step) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  ::kvblocks::report::v1::Drafts counted_;
  int64_t verifications_ = 0;
};

// SteadyWindow: what was done between warm-up and cool-down, for rates that neither the empty cache
// at the start nor the draining queue at the end distorts.
//
// The window opens at the first admission after the warm-up. It closes at the first admission of
// the cool-down; where that is a time before the end, at the last finish before it; and without a
// cool-down with the run. Only first admissions count. Both edges are known at the end only, so the
// sums at admissions and at finishes are logged; long runs keep every 2nd, 4th, ... of them, at
// least 2^15 of each, and edges move to the next entry kept. Cost: O(1) per call, 10 MB at most.

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

// ThroughputSection: the sections `throughput` and `steady_throughput` - what was done per second,
// over the whole run and in its steady window.
class ThroughputSection final : public ReportSection {
 public:
  ThroughputSection(const Warmup& warmup, const Warmup& cooldown)
      : warmup_(warmup), cooldown_(cooldown) {}

  void OnRunStart(const RunInfo& info) override;
  void OnInterval(SimTime from, SimTime to) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  void FillOne(const SteadyWindow::Edges& edges, const std::string& window,
               ::kvblocks::report::v1::Throughput* out) const;

  const Warmup warmup_, cooldown_;
  int64_t max_num_batched_tokens_ = 0;
  int64_t num_stages_ = 1;
  int64_t steps_under_way_ = 0;
  ThroughputSums sums_;
  SteadyWindow steady_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_WORKLOAD_SECTION_H_
