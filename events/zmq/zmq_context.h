// The ZeroMQ context that all sockets of the process share, so that inproc endpoints meet. It lives
// as long as somebody holds it. Its own threads do not preempt others.

#ifndef KVBLOCKS_EVENTS_ZMQ_ZMQ_CONTEXT_H_
#define KVBLOCKS_EVENTS_ZMQ_ZMQ_CONTEXT_H_

#include <memory>
#include <mutex>
#include <thread>
#include <zmq.hpp>

#include "kvblocks/events/zmq/thread_policy.h"

namespace kvblocks::events {

inline std::shared_ptr<zmq::context_t> SharedContext() {
  static std::mutex mutex;
  static std::weak_ptr<zmq::context_t> shared;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<zmq::context_t> context = shared.lock();
  if (context != nullptr) return context;
  shared = context = std::make_shared<zmq::context_t>();
  // The first socket starts the context's threads, which schedule like the thread that makes it.
  std::thread([&context] {
    DoNotPreemptOthers();
    try {
      const zmq::socket_t first(*context, zmq::socket_type::pair);
    } catch (const zmq::error_t&) {  // who makes the next socket learns of it
    }
  }).join();
  return context;
}

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_ZMQ_ZMQ_CONTEXT_H_
