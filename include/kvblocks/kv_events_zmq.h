// kvblocks/kv_events_zmq.h: KV events over ZeroMQ, as vLLM's servers and routers speak it.
//
//   EventPublisher   engines hand it their events after each step; it never makes them wait
//   EventSubscriber  routers receive from it, in order; it asks for what is missing, and keeps the
//                    index block key -> holders
//
//   auto publisher = events::EventPublisher::Create({.endpoint = "tcp://*:5557",
//                                                    .replay_endpoint = "tcp://*:5558"});
//   (*publisher)->Publish(manager->TakeEvents());
//
// The only part of the library that needs ZeroMQ; the header itself does not. docs/events.md has
// the rules of the wire.

#ifndef KVBLOCKS_KV_EVENTS_ZMQ_H_
#define KVBLOCKS_KV_EVENTS_ZMQ_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/kv_events.h"

// EventPublisher: sends the KV events of an engine to routers, as vLLM's ZeroMQ publisher does
// (V-64, V-65).
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
// that was buffered when it was asked for. 64 clients are served round robin; further ones wait.
//
// Always: the messages of one publisher are numbered from 0 in the order of Publish.
// Threads: Publish from one thread at a time; the other functions from any.

namespace kvblocks::events {

class EventPublisher {
 public:
  enum class WhenFull { kDrop, kWait };

  struct Options {
    // Bound if it has a "*" or "::", or is ipc or inproc; else connected to. A port of 0 is chosen
    // by the system; endpoint() returns it.
    std::string endpoint = "tcp://*:5557";
    std::string replay_endpoint = {};  // always bound; empty: no replay
    std::string topic = {};
    // Added to the ports of tcp endpoints; sent in each batch.
    int64_t data_parallel_rank = 0;
    int64_t buffer_batches = 10'000;    // for replay; 0 to 10,000,000
    // Bytes of payloads that are kept for replay; the oldest go first. The latest batch always
    // stays.
    int64_t buffer_bytes = int64_t{64} << 20;  // 0 to 2^40
    int64_t high_water_mark = 100'000;  // messages per subscriber; 1 to 10,000,000
    int64_t queue_batches = 100'000;    // 40 bytes each; 1 to 10,000,000
    WhenFull when_full = WhenFull::kDrop;
    HashForm hash_form = {};
    bool join_removals = false;  // see EncodeOptions
    // How often the thread polls when it has no work; also the longest that a batch waits.
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

// EventSubscriber: receives KV events of one or many publishers, vLLM's or ours, in order and
// without gaps as far as they can be filled, and keeps the index that a router asks (V-64, V-65).
//
//   auto subscriber = EventSubscriber::Create({.sources = {
//       {.endpoint = "tcp://a:5557", .replay_endpoint = "tcp://a:5558", .name = "replica-a"}}});
//   while (true) {
//     auto received = (*subscriber)->Receive(std::chrono::milliseconds(100));
//     ...
//     (*subscriber)->index().FindLongestPrefix(hashes)
//   }
//
// A source is an endpoint; a stream is what comes from it under one topic, since many publishers
// may connect to one endpoint. Per stream, numbers are followed:
//   - A gap starts a replay from the first missing message on. Meanwhile ZeroMQ keeps what comes
//     live; afterwards both meet, and what comes twice is left out.
//   - What no replay gives (the publisher's buffer moved on or dropped it, there is no replay
//     endpoint, no answer in time) is a loss. The index then forgets this stream's cache,
//     since it may name blocks that are gone, and learns it anew from there on.
//   - A publisher that was restarted counts from 0 again: a restart, after which the cache is
//     empty.
// A subscriber that comes late asks for everything that is still buffered when it is made.
//
// Single-threaded; all work is done inside Receive. Messages that are no batches are counted and
// treated as lost.

class EventSubscriber {
 public:
  struct Source {
    // Connected to; bound if it has a "*", for publishers that connect.
    std::string endpoint = {};
    std::string replay_endpoint = {};  // empty: none
    std::string name = {};             // of the holder in the index; empty: the endpoint
  };
  struct Options {
    std::vector<Source> sources = {};
    std::string topic = {};             // topics that begin with it
    // What may wait per source; further messages wait at the publisher, which has a limit of its
    // own. ZeroMQ counts messages, not bytes, so each counts as one of max_message_bytes, and at
    // least one waits. Of a replay 20,000 wait: a publisher drops replies for which there is no
    // room.
    int64_t max_queue_bytes = int64_t{1} << 30;    // 1 KiB to 1 TiB
    int64_t max_message_bytes = int64_t{16} << 20;  // who sends more is disconnected; 1 KiB to 1
                                                    // GiB
    // How long a replay may bring nothing new before what is missing is given up. It may take 12
    // times as long in all, or longer as long as its replies wait here.
    std::chrono::milliseconds replay_timeout{5000};
    bool replay_at_start = true;
    int64_t max_streams = 4096;  // over all sources; messages of further ones are passed over
    bool keep_index = true;
    std::string medium = std::string(kGpuMedium);  // that the index keeps, see BlockIndex
  };

  enum class Kind {
    kBatch,
    kLoss,     // [sequence, sequence + num_lost) will not come; the index has forgotten the cache
    kRestart,  // the publisher counts from 0 again; the index has forgotten the cache
  };
  struct Received {
    Kind kind = Kind::kBatch;
    HolderId stream = 0;  // also the holder in the index
    int64_t sequence = 0;
    int64_t num_lost = 0;
    bool is_replayed = false;
    std::string payload = {};  // as it came
    EventBatch batch = {};
    std::string error = {};  // of a kLoss: what is wrong with the payload, if that is the reason
  };
  struct Stream {
    std::string source = {};  // its name
    std::string topic = {};
    int64_t next_sequence = 0;
    int64_t num_batches = 0;
    int64_t num_replayed = 0;  // of them
    int64_t num_duplicates = 0;
    int64_t num_gaps = 0;
    int64_t num_lost = 0;  // messages, those before the first one included
    int64_t num_restarts = 0;
    int64_t num_undecodable = 0;
  };
  struct Stats {
    int64_t num_malformed = 0;  // not the frames of a message
    int64_t num_replay_requests = 0;
    int64_t num_replay_timeouts = 0;
    int64_t num_streams_refused = 0;  // messages of streams beyond max_streams
  };

  // InvalidArgument for options out of range; Unavailable if an endpoint cannot be had.
  static absl::StatusOr<std::unique_ptr<EventSubscriber>> Create(const Options& options);
  ~EventSubscriber();
  EventSubscriber(const EventSubscriber&) = delete;
  EventSubscriber& operator=(const EventSubscriber&) = delete;

  // The next batch, loss or restart; none if there was none within `timeout`.
  std::optional<Received> Receive(std::chrono::milliseconds timeout);

  // Asks every source that has a replay endpoint for what came after the last message: a gap at the
  // end of a stream does not show otherwise. The answers come from Receive.
  void CatchUp();

  absl::Span<const Stream> streams() const;
  // A holder per stream, with the same id; empty unless keep_index is set.
  const BlockIndex& index() const;
  const Stats& stats() const;
  // As bound or connected to, per source.
  const std::string& endpoint(size_t source) const;

 private:
  class Impl;
  explicit EventSubscriber(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace kvblocks::events

#endif  // KVBLOCKS_KV_EVENTS_ZMQ_H_
