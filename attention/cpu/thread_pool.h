// ThreadPool: runs independent work items of an operation on a fixed set of threads.
//
// Items are handed out by an atomic counter, so who runs which is not fixed: items must not share
// results, and then the outcome does not depend on the number of threads. The calling thread takes
// part. Thread-safe: concurrent calls take turns. No allocation per call.

#ifndef KVBLOCKS_ATTENTION_CPU_THREAD_POOL_H_
#define KVBLOCKS_ATTENTION_CPU_THREAD_POOL_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace kvblocks::attention {

class ThreadPool {
 public:
  // `num_threads` >= 1 in all, the caller included; 0 means one per processor.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls work(item, thread) once for each item in [0, num_items), thread in [0, num_threads()),
  // and returns when all are done. `work` must not throw or call ParallelFor.
  void ParallelFor(int64_t num_items, absl::FunctionRef<void(int64_t item, int thread)> work);

 private:
  struct Job;
  void Run(Job& job, int thread);

  std::mutex turn_;  // of the caller whose job it is; taken before mutex_
  std::mutex mutex_;
  std::condition_variable start_, done_;
  Job* job_ = nullptr;        // guarded by mutex_
  uint64_t generation_ = 0;   // guarded by mutex_
  int active_ = 0;            // workers inside the job; guarded by mutex_
  bool stopping_ = false;     // guarded by mutex_
  std::vector<std::thread> workers_;
};

// On `pool`, or one item after another on the calling thread if it is null.
void ParallelFor(ThreadPool* pool, int64_t num_items,
                 absl::FunctionRef<void(int64_t item, int thread)> work);
inline int NumThreads(const ThreadPool* pool) { return pool == nullptr ? 1 : pool->num_threads(); }

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_THREAD_POOL_H_
