// The sections of a report that say what ran: WorkloadSection fills `workload`, `setup` and
// `totals`, PreemptionSection `preemption`, DraftSection `drafts`.

#ifndef KVBLOCKS_SIM_REPORT_WORKLOAD_SECTION_H_
#define KVBLOCKS_SIM_REPORT_WORKLOAD_SECTION_H_

#include <string>

#include "kvblocks/sim/report/report_section.h"

namespace kvblocks::sim {

class WorkloadSection final : public ReportSection {
 public:
  void OnRunStart(const RunInfo& info) override;
  void OnArrival(const SimRequest& request, SimTime now) override;
  void OnRejection(const SimRequest& request, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  TraceInfo trace_;
  std::string time_source_;
  int64_t num_blocks_ = 0, usable_blocks_ = 0;
  int64_t block_tokens_ = 0, hit_unit_tokens_ = 0, first_group_block_tokens_ = 0;
  SimTime last_arrival_ = 0;
  int64_t input_tokens_ = 0, requested_output_ = 0, encoder_tokens_ = 0;
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
  int64_t requests_affected_ = 0;
  int64_t resume_hit_tokens_ = 0;
  SimTime preempted_time_ = 0;
  std::string worst_request_;
  int64_t worst_preemptions_ = 0;
};

class DraftSection final : public ReportSection {
 public:
  void OnStepFinished(const StepRecord& step) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  int64_t verified_ = 0, accepted_ = 0, rejected_ = 0;
  int64_t verifications_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_WORKLOAD_SECTION_H_
