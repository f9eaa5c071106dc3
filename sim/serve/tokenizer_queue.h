// TokenizerQueue: a tokenizer for the I/O thread. One that is slow works on a thread of its own, so
// that the connections of others go on meanwhile; one that is not is called at once.

#ifndef KVBLOCKS_SIM_SERVE_TOKENIZER_QUEUE_H_
#define KVBLOCKS_SIM_SERVE_TOKENIZER_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "kvblocks/sim/serve/http.h"
#include "kvblocks/sim/serve/tokenizer.h"

namespace kvblocks::sim {

class TokenizerQueue {
 public:
  TokenizerQueue(std::unique_ptr<Tokenizer> tokenizer, EventLoop* loop)
      : tokenizer_(std::move(tokenizer)), loop_(loop) {
    if (tokenizer_->is_slow()) thread_ = std::thread([this] { Loop(); });
  }
  ~TokenizerQueue() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  TokenizerQueue(const TokenizerQueue&) = delete;
  TokenizerQueue& operator=(const TokenizerQueue&) = delete;

  // `work` has the tokenizer for itself; then `done` is called on the I/O thread.
  void Run(std::function<void(Tokenizer&)> work, std::function<void()> done) {
    if (!thread_.joinable()) {
      work(*tokenizer_);
      done();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      tasks_.emplace_back(std::move(work), std::move(done));
    }
    changed_.notify_one();
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return is_ending_ || !tasks_.empty(); });
      if (is_ending_) return;
      auto [work, done] = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      work(*tokenizer_);
      work = nullptr;  // what it holds may end on the I/O thread alone, where `done` ends
      loop_->Post(std::move(done));
      lock.lock();
    }
  }

  const std::unique_ptr<Tokenizer> tokenizer_;
  EventLoop* const loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::function<void(Tokenizer&)>, std::function<void()>>> tasks_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SERVE_TOKENIZER_QUEUE_H_
