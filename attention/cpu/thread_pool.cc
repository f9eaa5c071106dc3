#include "kvblocks/attention_cpu.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace kvblocks::attention {
namespace {

struct Job {
  int64_t num_items;
  absl::FunctionRef<void(int64_t, int)> work;
  std::atomic<int64_t> next{0};

  void Run(int thread) {
    for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < num_items;) {
      work(item, thread);
    }
  }
};

}  // namespace

struct ThreadPool::State {
  std::mutex turn;  // of the caller whose job it is; taken before `mutex`
  std::mutex mutex;
  std::condition_variable start, done;
  Job* job = nullptr;  // guarded by mutex, as what follows
  uint64_t generation = 0;
  int active = 0;  // workers inside the job
  bool stopping = false;
  std::vector<std::thread> workers;

  void Work(int thread) {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      start.wait(lock, [&] { return stopping || (job != nullptr && generation != seen); });
      if (stopping) return;
      seen = generation;
      Job& taken = *job;
      ++active;
      lock.unlock();
      taken.Run(thread);
      lock.lock();
      if (--active == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads > 0
                       ? num_threads
                       : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      state_(std::make_unique<State>()) {
  for (int thread = 1; thread < num_threads_; ++thread) {
    state_->workers.emplace_back([this, thread] { state_->Work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
  }
  state_->start.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::ParallelFor(int64_t num_items, absl::FunctionRef<void(int64_t, int)> work) {
  Job job{num_items, work};
  if (num_threads_ == 1 || num_items <= 1) return job.Run(0);
  State& state = *state_;
  const std::lock_guard<std::mutex> turn(state.turn);
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    state.job = &job;
    ++state.generation;
  }
  state.start.notify_all();
  job.Run(0);
  // No worker may enter the job once it is withdrawn; those inside have their last items to finish.
  std::unique_lock<std::mutex> lock(state.mutex);
  state.job = nullptr;
  state.done.wait(lock, [&] { return state.active == 0; });
}

void ParallelFor(ThreadPool* pool, int64_t num_items, absl::FunctionRef<void(int64_t, int)> work) {
  if (pool != nullptr) return pool->ParallelFor(num_items, work);
  for (int64_t item = 0; item < num_items; ++item) work(item, 0);
}

}  // namespace kvblocks::attention
