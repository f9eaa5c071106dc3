// Draw: random settings from one seed; for tests. Shrinking a seed says little, but a failing seed
// repeats the case.

#ifndef KVBLOCKS_SIM_TESTING_DRAW_H_
#define KVBLOCKS_SIM_TESTING_DRAW_H_

#include <cstdint>
#include <random>

#include "sim/engine/scheduler_options.h"

namespace kvblocks::sim {

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  // In [low, high].
  int64_t operator()(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int64_t n) { return (*this)(1, n) == 1; }

 private:
  std::mt19937_64 engine_;
};

// Rules and limits that any schedule may have. REQUIRES: max_num_batched_tokens, max_num_seqs and
// enable_chunked_prefill are drawn already, with at least 5 tokens in a step.
inline void DrawRules(Draw& draw, SchedulerOptions& scheduler) {
  scheduler.reserve_full_isl = !draw.OneIn(3);
  if (draw.OneIn(3)) scheduler.rules = SchedulerRules::Of(EngineVersion::kVllm025);
  scheduler.adaptive_prefill_threshold = draw.OneIn(3);
  if (draw.OneIn(5)) scheduler.max_num_active_seqs = draw(1, scheduler.max_num_seqs);
  if (draw.OneIn(5)) scheduler.prefill_schedule_interval = draw(2, 6);
  if (draw.OneIn(5) && scheduler.enable_chunked_prefill) {
    scheduler.max_num_scheduled_tokens = draw(5, scheduler.max_num_batched_tokens);
  }
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TESTING_DRAW_H_
