#include "sim/run_in_parallel.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <thread>

namespace kvblocks::sim {

void RunInParallel(int num_threads, const std::vector<std::function<void()>>& tasks,
                   const std::function<void(int64_t num_done)>& on_done) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  int64_t num_done = 0;
  const auto work = [&] {
    for (size_t task = next++; task < tasks.size(); task = next++) {
      tasks[task]();
      if (on_done == nullptr) continue;
      const std::lock_guard lock(mutex);
      on_done(++num_done);
    }
  };
  std::vector<std::thread> threads;
  const size_t wanted = std::min(static_cast<size_t>(std::max(num_threads, 1)), tasks.size());
  for (size_t i = 1; i < wanted; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvblocks::sim
