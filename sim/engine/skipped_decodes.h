// SkippedDecodes: running requests whose next steps are no-ops (see Request::noop_slots), kept so
// that a step need not visit them.
//
// A member decodes one token in every step until it is due; nothing else of it changes. What a step
// must know of all members together - how many they are, the sum of their computed tokens - is kept
// up to date, and each is handed back at the step in which something may happen to it. Steps are
// numbered as in StepRecord.
//
// Cost: Add, Remove and handing back O(1) (Remove: members due at the same step), Advance O(1),
// TakeAll O(kHorizon + members). Nothing is allocated in steady state.

#ifndef KVBLOCKS_SIM_ENGINE_SKIPPED_DECODES_H_
#define KVBLOCKS_SIM_ENGINE_SKIPPED_DECODES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "sim/engine/sim_request.h"

namespace kvblocks::sim {

class SkippedDecodes {
 public:
  // A member is due at most so many steps after it was added.
  static constexpr int64_t kHorizon = 1024;

  int64_t size() const { return size_; }
  // Of all members, before the next step.
  int64_t sum_computed() const { return sum_computed_; }
  // No member was admitted after this one; it need not be a member any more.
  int64_t latest_admission() const { return size_ == 0 ? -1 : latest_admission_; }

  // `request` was scheduled explicitly in `step` and is due in `due`. Sets its skipped_since and
  // due. REQUIRES: step + 2 <= due <= step + kHorizon; not a member.
  void Add(SimRequest& request, int64_t step, int64_t due);

  // Before step `next` a member has computed so many tokens.
  static int64_t NumComputed(const SimRequest& request, int64_t next) {
    return request.num_computed + (next - 1 - request.skipped_since);
  }

  // Takes out one member, those due in step `next`, or all. Their counters are as they were when
  // they were added. In no particular order, but always in the same.
  void Remove(SimRequest& request, int64_t next);
  void TakeDue(int64_t next, std::vector<SimRequest*>* out);
  void TakeAll(int64_t next, std::vector<SimRequest*>* out);

  // A step was scheduled in which every member decodes.
  void Advance() { sum_computed_ += size_; }

  template <typename Visitor>
  void ForEach(Visitor&& visit) const {
    if (size_ == 0) return;
    for (const auto& bucket : buckets_) {
      for (SimRequest* request : bucket) visit(*request);
    }
  }

 private:
  std::vector<SimRequest*>& BucketOf(int64_t due) {
    return buckets_[static_cast<size_t>(due % kHorizon)];
  }
  void Forget(SimRequest& request, int64_t next);

  std::array<std::vector<SimRequest*>, kHorizon> buckets_;  // by due
  int64_t size_ = 0;
  int64_t sum_computed_ = 0;
  int64_t latest_admission_ = -1;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_SKIPPED_DECODES_H_
