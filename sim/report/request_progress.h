// RequestProgress: what metrics remember of a live request, by its slot.
//
// A row is reset when the request arrives and is good until its OnFinish or OnRejection.

#ifndef KVBLOCKS_SIM_REPORT_REQUEST_PROGRESS_H_
#define KVBLOCKS_SIM_REPORT_REQUEST_PROGRESS_H_

#include <cstdint>
#include <vector>

#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/engine/sim_request.h"

namespace kvblocks::sim {

struct RequestProgress {
  static constexpr SimTime kNever = -1;

  int64_t row = -1;  // the request's submission index: says whose row this is
  SimTime first_scheduled = kNever;
  SimTime first_output = kNever;
  SimTime last_output = kNever;
  int64_t num_outputs = 0;
  // Of the first admission.
  int64_t num_queried_tokens = 0;
  int64_t num_hit_tokens = 0;
  int64_t num_possible_tokens = 0;
  SimTime preempted_at = kNever;
  SimTime preempted_time = 0;  // sum of the times until it was resumed
  int64_t num_resume_hit_tokens = 0;
  int64_t num_recomputed_tokens = 0;
  int64_t num_slots = 0;  // of the first group that keeps all tokens
  int64_t ordinal = -1;   // counts first admissions
  bool is_running = false;
};

class RequestProgressTable {
 public:
  RequestProgress& Reset(const SimRequest& request) {
    const auto slot = static_cast<size_t>(request.slot);
    if (slot >= rows_.size()) rows_.resize(slot + 1);
    rows_[slot] = RequestProgress();
    rows_[slot].row = request.spec.row;
    return rows_[slot];
  }
  RequestProgress& operator[](const SimRequest& request) {
    return rows_[static_cast<size_t>(request.slot)];
  }
  // Whether the request's arrival was seen; one that is given up before it arrived has no row.
  bool Has(const SimRequest& request) const {
    return request.slot >= 0 && static_cast<size_t>(request.slot) < rows_.size() &&
           rows_[static_cast<size_t>(request.slot)].row == request.spec.row;
  }

 private:
  std::vector<RequestProgress> rows_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_REQUEST_PROGRESS_H_
