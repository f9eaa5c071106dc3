#include "kvblocks/attention_cpu.h"

#include <algorithm>
#include <atomic>

namespace kvblocks::attention {

struct ThreadPool::Job {
  int64_t num_items;
  absl::FunctionRef<void(int64_t, int)> work;
  std::atomic<int64_t> next{0};
};

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads <= 0) {
    num_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] {
      uint64_t seen = 0;
      std::unique_lock<std::mutex> lock(mutex_);
      while (true) {
        start_.wait(lock, [&] { return stopping_ || (job_ != nullptr && generation_ != seen); });
        if (stopping_) return;
        seen = generation_;
        Job& job = *job_;
        ++active_;
        lock.unlock();
        Run(job, thread);
        lock.lock();
        if (--active_ == 0) done_.notify_one();
      }
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(Job& job, int thread) {
  for (int64_t item; (item = job.next.fetch_add(1, std::memory_order_relaxed)) < job.num_items;) {
    job.work(item, thread);
  }
}

void ThreadPool::ParallelFor(int64_t num_items, absl::FunctionRef<void(int64_t, int)> work) {
  Job job{num_items, work};
  if (workers_.empty() || num_items <= 1) return Run(job, 0);
  const std::lock_guard<std::mutex> turn(turn_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    job_ = &job;
    ++generation_;
  }
  start_.notify_all();
  Run(job, 0);
  // No worker may enter the job once it is withdrawn; those inside have their last items to finish.
  std::unique_lock<std::mutex> lock(mutex_);
  job_ = nullptr;
  done_.wait(lock, [&] { return active_ == 0; });
}

void ParallelFor(ThreadPool* pool, int64_t num_items, absl::FunctionRef<void(int64_t, int)> work) {
  if (pool != nullptr) return pool->ParallelFor(num_items, work);
  for (int64_t item = 0; item < num_items; ++item) work(item, 0);
}

}  // namespace kvblocks::attention
