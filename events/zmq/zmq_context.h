// The ZeroMQ context that all sockets of the process share, so that inproc endpoints meet. It lives
// as long as somebody holds it.

#ifndef KVBLOCKS_EVENTS_ZMQ_ZMQ_CONTEXT_H_
#define KVBLOCKS_EVENTS_ZMQ_ZMQ_CONTEXT_H_

#include <memory>
#include <mutex>
#include <zmq.hpp>

namespace kvblocks::events {

inline std::shared_ptr<zmq::context_t> SharedContext() {
  static std::mutex mutex;
  static std::weak_ptr<zmq::context_t> shared;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<zmq::context_t> context = shared.lock();
  if (context == nullptr) shared = context = std::make_shared<zmq::context_t>();
  return context;
}

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_ZMQ_ZMQ_CONTEXT_H_
