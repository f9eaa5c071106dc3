// GroupSection: the section `groups` - what each KV-cache group hit, skipped, took and vetoed, and
// how many blocks it had in use and cached over time.
//
// Blocks in use and cached are counted by walking pool and block tables whenever a quarter of the
// pool was handed out since the last count, and at the start; a count holds until the next one. So
// a mean is that of a sample, while it costs O(1) per block handed out (block tables of windowed
// groups, which are mostly null, are walked from their end). The peak is that of the sample, too.

#ifndef KVBLOCKS_SIM_REPORT_GROUP_SECTION_H_
#define KVBLOCKS_SIM_REPORT_GROUP_SECTION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kvblocks/sim/report/report_section.h"

namespace kvblocks::sim {

class GroupSection final : public ReportSection {
 public:
  explicit GroupSection(const SharedFacts* facts) : facts_(facts) {}

  void OnRunStart(const RunInfo& info) override;
  void OnRejection(const SimRequest& request, SimTime) override { Release(request); }
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime) override { Release(*record.request); }
  void OnStepScheduled(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime) override { Release(request); }
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  struct Group {
    int64_t hit_blocks = 0, skipped_blocks = 0, resume_hit_blocks = 0, new_blocks = 0;
    int64_t vetoed_tokens = 0, vetoed_requests = 0;
    // As of the last count.
    int64_t live = 0, cached = 0;
    int64_t peak_live = 0, peak_cached = 0;
    __int128 live_time = 0, cached_time = 0;
  };

  void Release(const SimRequest& request);
  void Count();
  void KeepSample(SimTime now);

  const SharedFacts* const facts_;
  const KvCacheManager* manager_ = nullptr;
  std::vector<::kvblocks::report::v1::Group> described_;  // what is fixed for the run
  std::vector<Group> groups_;
  std::vector<const SimRequest*> holders_;  // of blocks, by slot; null: holds nothing
  std::vector<bool> seen_;                  // scratch, by block
  // Counts that are kept: every sample_stride_-th, which doubles whenever there are too many.
  std::vector<::kvblocks::report::v1::GroupOccupancy> samples_;
  int64_t num_counts_ = 0, sample_stride_ = 1;
  std::optional<SimTime> first_count_;
  SimTime last_count_ = 0;
  int64_t taken_at_last_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_GROUP_SECTION_H_
