// EventPublisher: sends the KV events of an engine to routers, as vLLM's ZeroMQ publisher does (V-64,
// V-65).
//
//   auto publisher = EventPublisher::Create({.endpoint = "tcp://*:5557",
//                                            .replay_endpoint = "tcp://*:5558"});
//   ... after each step, on the scheduler's thread:
//   (*publisher)->Publish(manager->TakeEvents());
//
// Publish hands the events over to a thread that encodes and sends them, through a queue of fixed
// size without locks. The scheduler's thread never waits, for no subscriber and for no socket: it
// pays 50 to 100 ns for a step with events and nothing for a step without.
//
// When the queue is full, the batch is dropped and counted. It keeps its number, so subscribers see
// the gap, and as no replay fills it they know that they lost something. With kWait Publish waits
// instead, as vLLM's does. When a subscriber is slower than its socket's high-water mark, ZeroMQ
// drops messages for that subscriber alone; it sees a gap and can ask for them.
//
// The replay socket answers [empty, first number] with the batches from there on that are still
// buffered, each [empty, topic, number, payload], and an end mark with number -1. It is sent in
// parts of 256 batches, between those that are published meanwhile, and ends with the last batch
// that was buffered when it was asked for. 64 clients are served in turn; further ones wait.
//
// Always: the messages of one publisher are numbered from 0 in the order of Publish.
// Threads: Publish from one thread at a time; the other functions from any.

#ifndef KVBLOCKS_EVENTS_ZMQ_EVENT_PUBLISHER_H_
#define KVBLOCKS_EVENTS_ZMQ_EVENT_PUBLISHER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/events/event_batch.h"

namespace kvblocks::events {

class EventPublisher {
 public:
  enum class WhenFull { kDrop, kWait };

  struct Options {
    // Bound if it has a "*" or "::", or is ipc or inproc; else connected to. A port of 0 is chosen by
    // the system; endpoint() tells it.
    std::string endpoint = "tcp://*:5557";
    std::string replay_endpoint = {};  // always bound; empty: no replay
    std::string topic = {};
    // Added to the ports of tcp endpoints; sent in each batch.
    int64_t data_parallel_rank = 0;
    int64_t buffer_batches = 10'000;    // for replay; 0 to 10,000,000
    // Bytes of payloads that are kept for replay; the oldest go first. The latest batch always stays.
    int64_t buffer_bytes = int64_t{64} << 20;  // 0 to 2^40
    int64_t high_water_mark = 100'000;  // messages per subscriber; 1 to 10,000,000
    int64_t queue_batches = 100'000;    // 40 bytes each; 1 to 10,000,000
    WhenFull when_full = WhenFull::kDrop;
    HashForm hash_form = {};
    bool join_removals = false;  // see EncodeOptions
    // How often the thread looks for work when it has none; also the longest that a batch waits.
    std::chrono::milliseconds poll_interval{1};  // 1 to 1,000
    // How long the destructor waits for messages that are not sent yet.
    std::chrono::milliseconds linger{1000};
  };

  struct Stats {
    int64_t num_batches = 0;  // given to the socket
    int64_t num_events = 0;
    int64_t num_bytes = 0;  // payloads
    int64_t num_dropped_batches = 0;
    int64_t num_dropped_events = 0;
    int64_t num_queued_batches = 0;  // now
    int64_t num_failed_sends = 0;
    int64_t num_replay_requests = 0;
    int64_t num_bad_requests = 0;
    int64_t num_replayed_batches = 0;
    int64_t num_subscribers = 0;  // subscriptions now
  };

  // InvalidArgument for options out of range; Unavailable if an endpoint cannot be bound.
  static absl::StatusOr<std::unique_ptr<EventPublisher>> Create(const Options& options);
  // Sends what is queued, then closes the sockets.
  ~EventPublisher();
  EventPublisher(const EventPublisher&) = delete;
  EventPublisher& operator=(const EventPublisher&) = delete;

  // One batch with the time of now, or of `timestamp` in Unix seconds. No events: no batch. Returns
  // whether it was queued.
  bool Publish(std::vector<KvEvent> events);
  bool Publish(std::vector<KvEvent> events, double timestamp);

  // Whether all that was queued before was given to the sockets within `timeout`.
  bool Flush(std::chrono::milliseconds timeout);

  // As bound, with the port that the system chose.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;
  Stats stats() const;

 private:
  class Impl;
  explicit EventPublisher(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_ZMQ_EVENT_PUBLISHER_H_
