// EventSubscriber: receives KV events of one or many publishers, vLLM's or ours, in order and without
// gaps as far as they can be filled, and keeps the index that a router asks (V-64, V-65).
//
//   auto subscriber = EventSubscriber::Create({.sources = {
//       {.endpoint = "tcp://a:5557", .replay_endpoint = "tcp://a:5558", .name = "replica-a"}}});
//   while (true) {
//     auto received = (*subscriber)->Receive(std::chrono::milliseconds(100));
//     ...
//     (*subscriber)->index().FindLongestPrefix(hashes)
//   }
//
// A source is an endpoint; a stream is what comes from it under one topic, since many publishers may
// connect to one endpoint. Per stream, numbers are followed:
//   - A gap starts a replay from the first missing message on. Meanwhile ZeroMQ keeps what comes
//     live; afterwards both meet, and what comes twice is left out.
//   - What no replay gives (the publisher's buffer moved on or dropped it, there is no replay
//     endpoint, nobody answers in time) is a loss. The index then forgets this stream's cache, since
//     it may name blocks that are gone, and learns it anew from there on.
//   - A publisher that was restarted counts from 0 again: a restart, after which the cache is empty.
// A subscriber that comes late asks for everything that is still buffered when it is made.
//
// Single-threaded; all work is done inside Receive. Messages that are no batches are counted and
// treated as lost.

#ifndef KVBLOCKS_EVENTS_ZMQ_EVENT_SUBSCRIBER_H_
#define KVBLOCKS_EVENTS_ZMQ_EVENT_SUBSCRIBER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/events/block_index.h"
#include "kvblocks/events/event_batch.h"

namespace kvblocks::events {

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
    // What may wait per source; further messages wait at the publisher, which has a limit of its own.
    // ZeroMQ counts messages, not bytes, so each counts as one of max_message_bytes, and at least
    // one waits. Of a replay 20,000 wait: a publisher drops replies for which there is no room.
    int64_t max_queue_bytes = int64_t{1} << 30;    // 1 KiB to 1 TiB
    int64_t max_message_bytes = int64_t{16} << 20;  // who sends more is disconnected; 1 KiB to 1 GiB
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

#endif  // KVBLOCKS_EVENTS_ZMQ_EVENT_SUBSCRIBER_H_
