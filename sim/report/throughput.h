// ThroughputSection: the sections `throughput` and `steady_throughput` - what was done per second,
// over the whole run and in its steady window.

#ifndef KVBLOCKS_SIM_REPORT_THROUGHPUT_H_
#define KVBLOCKS_SIM_REPORT_THROUGHPUT_H_

#include <string>

#include "kvblocks/sim/report/report_section.h"
#include "kvblocks/sim/report/steady_window.h"

namespace kvblocks::sim {

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

#endif  // KVBLOCKS_SIM_REPORT_THROUGHPUT_H_
