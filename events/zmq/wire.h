// What publisher and subscriber share: how sockets attach, the frames of a message (V-64), which
// are topic, number in 8 bytes big-endian, and payload, endpoints (V-65), threads and the context.
// What touches sockets throws zmq::error_t and stays inside this folder.

#ifndef KVBLOCKS_EVENTS_ZMQ_WIRE_H_
#define KVBLOCKS_EVENTS_ZMQ_WIRE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "absl/status/statusor.h"

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace kvblocks::events {

// Binds or connects. The endpoint that came of it: with the port that the system chose for port 0.
inline std::string Attach(zmq::socket_t& socket, const std::string& endpoint, bool bind) {
  if (endpoint.find("::") != endpoint.npos) socket.set(zmq::sockopt::ipv6, true);
  if (!bind) {
    socket.connect(endpoint);
    return endpoint;
  }
  socket.bind(endpoint);
  return socket.get(zmq::sockopt::last_endpoint);
}

inline constexpr int64_t kEndOfReplay = -1;

inline uint64_t BigEndian(uint64_t value) { return __builtin_bswap64(value); }

inline std::optional<int64_t> ReadSequence(const zmq::message_t& frame) {
  if (frame.size() != sizeof(uint64_t)) return std::nullopt;
  uint64_t bits;
  std::memcpy(&bits, frame.data(), sizeof(bits));
  return static_cast<int64_t>(BigEndian(bits));
}

inline void SendFrames(zmq::socket_t& socket, std::string_view topic, int64_t sequence,
                       zmq::message_t payload) {
  const uint64_t bits = BigEndian(static_cast<uint64_t>(sequence));
  socket.send(zmq::const_buffer(topic.data(), topic.size()), zmq::send_flags::sndmore);
  socket.send(zmq::const_buffer(&bits, sizeof(bits)), zmq::send_flags::sndmore);
  socket.send(std::move(payload), zmq::send_flags::none);
}

// All frames of the next message, if one is there; at most kMostFrames are kept.
inline bool ReceiveFrames(zmq::socket_t& socket, std::vector<zmq::message_t>* frames) {
  constexpr size_t kMostFrames = 8;
  frames->clear();
  bool more = true;
  while (more) {
    zmq::message_t frame;
    if (!socket.recv(frame, zmq::recv_flags::dontwait)) return false;
    more = frame.more();
    if (frames->size() < kMostFrames) frames->push_back(std::move(frame));
  }
  return true;
}

inline std::string_view TextOf(const zmq::message_t& frame) {
  return {frame.data<char>(), frame.size()};
}

// Whether a publisher binds it (wildcards, "::", ipc, inproc), else it connects to it.
bool IsBoundByPublisher(std::string_view endpoint);
// A subscriber binds wildcards, for publishers that connect; it connects to everything else.
bool IsBoundBySubscriber(std::string_view endpoint);

// Of one data-parallel rank: the port plus the rank, for inproc the suffix "_dpRANK". A port of 0
// is left to the system. InvalidArgument: no transport "tcp://", "ipc://" or "inproc://", a port
// beyond 65,535, or ipc with a rank above 0.
absl::StatusOr<std::string> EndpointOfRank(std::string_view endpoint, int64_t rank);

// How the kernel schedules the threads that send events.
//
// They wake every millisecond and then work for up to some hundred microseconds. On a machine whose
// cores are all busy the kernel would put a thread aside for one that wakes: perhaps the
// scheduler's. A thread of the batch policy gets its share of the processor without that right.
//
// For the calling thread. Nothing changes where the system has no such policy or refuses it.
inline void DoNotPreemptOthers() {
#ifdef __linux__
  const sched_param parameters{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameters);
#endif
}

// The ZeroMQ context that all sockets of the process share, so that inproc endpoints meet. It lives
// as long as it is held. Its own threads do not preempt others.
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
    } catch (const zmq::error_t&) {  // the next socket reports it
    }
  }).join();
  return context;
}

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_ZMQ_WIRE_H_
