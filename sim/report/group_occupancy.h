// GroupOccupancy: how many blocks each KV-cache group had in use and cached over time.
//
// Counted by walking pool and block tables whenever a quarter of the pool was handed out since the
// last count, and at the start; a count holds until the next one. So a mean is that of a sample,
// while it costs O(1) per block handed out (block tables of windowed groups, which are mostly null,
// are walked from their end). The peak is that of the sample, too.

#ifndef KVBLOCKS_SIM_REPORT_GROUP_OCCUPANCY_H_
#define KVBLOCKS_SIM_REPORT_GROUP_OCCUPANCY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kvblocks/sim/engine/engine_observer.h"
#include "kvblocks/sim/report/report.pb.h"

namespace kvblocks::sim {

class GroupOccupancy {
 public:
  void OnRunStart(const RunInfo& info);
  // Requests that hold blocks.
  void OnAdmission(const SimRequest& request);
  void OnRelease(const SimRequest& request);  // its blocks are given back
  // After the step was scheduled.
  void OnStepScheduled(SimTime now);

  // live_blocks and cached_blocks of one group, until `now`.
  void Fill(GroupId group, SimTime now, ::kvblocks::report::v1::Group* out) const;

 private:
  struct Counted {
    int64_t live = 0, cached = 0;
    int64_t peak_live = 0, peak_cached = 0;
    __int128 live_time = 0, cached_time = 0;  // up to the last count
  };

  void Count();

  const KvCacheManager* manager_ = nullptr;
  std::vector<const SimRequest*> holders_;  // by slot; null: holds nothing
  std::vector<Counted> groups_;
  std::vector<bool> seen_;  // scratch, by block
  std::optional<SimTime> first_;
  SimTime last_ = 0;
  int64_t taken_at_last_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_GROUP_OCCUPANCY_H_
