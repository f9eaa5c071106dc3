// HitReuseSection: the section `hit_reuse` - how near to their eviction hit blocks were, and how long
// ago they were used.
//
// A free block's place in the queue is known by walking it. So admissions are sampled: one whenever as
// many blocks as the pool has were handed out or hit since the last one. That costs one step of a
// walk per block handed out or hit, a few nanoseconds. Which admissions are sampled depends on blocks
// alone, not on what their look-ups find. One that fails is not made up for.

#ifndef KVBLOCKS_SIM_REPORT_HIT_REUSE_H_
#define KVBLOCKS_SIM_REPORT_HIT_REUSE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvblocks/sim/report/distribution.h"
#include "kvblocks/sim/report/report_section.h"

namespace kvblocks::sim {

class HitReuseSection final : public ReportSection {
 public:
  static constexpr int kNumPlaces = 20;

  explicit HitReuseSection(SharedFacts* facts) : facts_(facts) {}

  void OnRunStart(const RunInfo& info) override;
  void OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) override;
  void OnAdmission(const AdmissionRecord& record, SimTime now) override;
  void Fill(const ReplayEnd& end, ::kvblocks::report::v1::Report* out) override;

 private:
  void Sample(const AdmissionRecord& record);

  SharedFacts* const facts_;
  const KvCacheManager* manager_ = nullptr;
  std::optional<GroupId> group_;  // whose hits are looked at
  bool has_places_ = false;       // the queue is in the order of reuse
  int64_t num_hits_ = 0, num_taken_ = 0;  // blocks hit since the last sample; taken up to it
  std::vector<int32_t> places_;           // scratch: from the front of the queue, by block

  // Of the attempt that was sampled, until it succeeds.
  bool is_staged_ = false;
  int64_t staged_in_use_ = 0;
  std::array<int64_t, kNumPlaces> staged_places_ = {};

  int64_t admissions_ = 0, hit_blocks_ = 0, in_use_blocks_ = 0;
  std::array<int64_t, kNumPlaces> blocks_by_place_ = {};
  Distribution distance_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_HIT_REUSE_H_
