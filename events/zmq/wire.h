// What publisher and subscriber share: how sockets attach, and the frames of a message (V-64), which
// are topic, number in 8 bytes big-endian, and payload. All of this throws zmq::error_t and stays
// inside this folder.

#ifndef KVBLOCKS_EVENTS_ZMQ_WIRE_H_
#define KVBLOCKS_EVENTS_ZMQ_WIRE_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <zmq.hpp>

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

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_ZMQ_WIRE_H_
