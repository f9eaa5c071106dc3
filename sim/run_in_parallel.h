// RunInParallel: independent tasks on several threads.

#ifndef KVBLOCKS_SIM_RUN_IN_PARALLEL_H_
#define KVBLOCKS_SIM_RUN_IN_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace kvblocks::sim {

// Runs all tasks on at most `num_threads` threads, the caller's included; each task once, in any
// order. After each of them `on_done` gets the number of tasks done, one call at a time. Cost:
// some 20 us per further thread.
void RunInParallel(int num_threads, const std::vector<std::function<void()>>& tasks,
                   const std::function<void(int64_t num_done)>& on_done = nullptr);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_RUN_IN_PARALLEL_H_
