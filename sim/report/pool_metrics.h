// PoolMetrics: the section `pool` - how full the block pool was, weighted with time.
//
// In the native layout both gauges are shares of the memory, scaled to the number of block ids, and
// the resident share is that of the chunks lent to a class.
//
// Usage counts referenced blocks only, as serving engines' gauge does, and falls to 0 when all
// requests end; the resident share also counts unreferenced blocks that a look-up can still find.
// Fragmentation is the share of the slots in requests' block tables that hold no computed token, in
// the first group that keeps all tokens; a block that two requests share counts for both. Gauges
// hold from one event to the next. Cost: O(1) per step and per block table that grew.

#ifndef KVBLOCKS_SIM_REPORT_POOL_METRICS_H_
#define KVBLOCKS_SIM_REPORT_POOL_METRICS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kvblocks/eviction.h"
#include "sim/report/report_section.h"

namespace kvblocks::sim {

// How full a pool is, in blocks. In the native layout, where pages differ in size, these are shares
// of the memory, scaled to the number of block ids.
struct PoolBlocks {
  int64_t usable = 0;
  int64_t referenced = 0;
  int64_t resident = 0;  // referenced or keyed

  bool operator==(const PoolBlocks&) const = default;
};
PoolBlocks CountPoolBlocks(const BlockPool& pool);

// What holds between two events.
struct PoolGauges {
  int64_t referenced = 0;  // blocks
  int64_t resident = 0;    // referenced or keyed
  int64_t duplicates = 0;
  int64_t slots = 0;     // in block tables
  int64_t computed = 0;  // tokens of running requests
};

class PoolMetrics final : public ReportSection {
 public:
  explicit PoolMetrics(SharedFacts* facts) : facts_(facts) {}

  void OnRunStart(const RunInfo& info) override;
  void OnInterval(SimTime from, SimTime to) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void OnPreemption(const PreemptionRecord& record, SimTime now) override;
  void OnStepScheduled(const StepRecord& step) override;
  void OnStepFinished(const StepRecord& step) override;
  void OnFinish(const SimRequest& request, SimTime now) override;

  const PoolGauges& gauges() const { return gauges_; }
  int64_t usable_blocks() const { return usable_; }
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* report) override;

 private:
  using Integral = __int128;

  void ReadPool();
  void SetSlots(const SimRequest& request, int64_t slots);
  void ReadSlots(const SimRequest& request);  // of the block table

  SharedFacts* const facts_;
  const KvCacheManager* manager_ = nullptr;
  std::optional<GroupId> full_group_;
  int64_t usable_ = 0;
  PoolGauges gauges_;
  int64_t evictions_ = 0;
  std::optional<RetentionTotals> retention_;  // where blocks can be retained
  int64_t retention_cap_ = 0;

  SimTime total_time_ = 0;
  SimTime time_above_90_ = 0;
  Integral referenced_time_ = 0, resident_time_ = 0, duplicate_time_ = 0;
  Integral slot_time_ = 0, unused_slot_time_ = 0;
  int64_t peak_referenced_ = 0, peak_resident_ = 0, peak_duplicates_ = 0;
  double peak_fragmentation_ = 0;
};

// GroupSection: the section `groups` - what each KV-cache group hit, skipped, took and vetoed, and
// how many blocks it had in use and cached over time.
//
// Blocks in use and cached are counted by walking pool and block tables whenever a quarter of the
// pool was handed out since the last count, and at the start; a count holds until the next one. So
// a mean is that of a sample, while it costs O(1) per block handed out (block tables of windowed
// groups, which are mostly null, are walked from their end). The peak is that of the sample, too.
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

#endif  // KVBLOCKS_SIM_REPORT_POOL_METRICS_H_
