// LockstepGroup: engines that step together because they share the experts of one model (D-6).
//
// Each has its own scheduler, pool and requests. In every layer they exchange tokens with the
// experts, so all of them run each pass through the model together. A pass begins when the devices
// have finished the last one, and takes as long as the slowest engine needs. An engine that has
// nothing to schedule runs a pass without requests.
//
// As in vLLM 0.33: engines schedule in rounds, one pass each, and with asynchronous scheduling one
// pass earlier. Up to the size of captured graphs each computes as many tokens as the one with
// most. After the first pass since they were idle, and after every `sync_interval`-th, they check
// whether any engine has work left; until then they run passes without requests. With a
// prefill_schedule_interval all engines compute prompts in the first pass since they were idle and
// in every prefill_schedule_interval-th after it.
//
//   LockstepGroup group({...}, {&a, &b});
//   if (group.wants_round()) status = group.Round(now);     // behind the aborts of this instant
//
// Between rounds engines are called like others, except for Schedule. Cost: some 10 ns per engine
// and pass beside theirs; nothing is allocated. Not owned; single-threaded.

#ifndef KVBLOCKS_SIM_LOCKSTEP_GROUP_H_
#define KVBLOCKS_SIM_LOCKSTEP_GROUP_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "sim/replica.h"

namespace kvblocks::sim {

struct LockstepOptions {
  int64_t sync_interval = 16;  // passes
  int64_t prefill_interval = 1;  // passes from one with prompts to the next
  // Steps of so many tokens run in captured graphs.
  int64_t graph_tokens = 512;
};

// Of one engine of a group.
struct LockstepTotals {
  int64_t num_steps = 0;    // passes with requests of its own
  int64_t num_dummies = 0;  // without, while another had some
  int64_t num_idle = 0;     // without, as all others
  SimTime own_time = 0;     // in which it computed its steps
  SimTime lost_time = 0;    // in which it waited in them for a slower one
  SimTime dummy_time = 0;   // passes in which another had requests
  SimTime idle_time = 0;

  friend bool operator==(const LockstepTotals&, const LockstepTotals&) = default;
};

class LockstepGroup {
 public:
  // REQUIRES: two engines or more, without connector and stages, all synchronous or none.
  LockstepGroup(const LockstepOptions& options, std::vector<Replica*> engines);

  // Whether something may be scheduled: none of them is in a pass, and one was called.
  bool wants_round() const;
  // Schedules each of them and begins the pass. Errors are Replica::Schedule's; failed() had it.
  absl::Status Round(SimTime now);
  size_t failed() const { return failed_; }

  const std::vector<Replica*>& engines() const { return engines_; }
  const std::vector<LockstepTotals>& totals() const { return totals_; }

 private:
  absl::Status BeginPass(SimTime now);
  bool GoesOn() const;
  bool IsStepUnderWay() const;
  void BecomeIdle();

  const LockstepOptions options_;
  const std::vector<Replica*> engines_;
  const size_t depth_;
  std::vector<LockstepTotals> totals_;
  std::vector<SimTime> ends_;  // of passes under way, the oldest first
  SimTime device_free_ = 0;
  int64_t num_passes_ = 0;   // since they were idle
  bool is_over_ = false;     // nobody had work left; what is under way is waited for
  std::vector<SimTime> own_;  // scratch
  size_t failed_ = 0;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_LOCKSTEP_GROUP_H_
