#include "kvblocks/kv_events_zmq.h"

#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "checks/field_error.h"
#include "events/zmq/wire.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_events.h"

namespace kvblocks::events {
namespace {

constexpr int64_t kMostBatches = 10'000'000;
constexpr size_t kMostReplays = 64;

absl::Status CheckOptions(const EventPublisher::Options& options) {
  absl::Status status = CheckRange("buffer_batches", options.buffer_batches, 0, kMostBatches);
  status.Update(CheckRange("buffer_bytes", options.buffer_bytes, 0, int64_t{1} << 40));
  status.Update(CheckRange("high_water_mark", options.high_water_mark, 1, kMostBatches));
  status.Update(CheckRange("queue_batches", options.queue_batches, 1, kMostBatches));
  status.Update(CheckRange("data_parallel_rank", options.data_parallel_rank, 0, 65'535));
  status.Update(CheckRange("poll_interval", options.poll_interval.count(), 1, 1000));
  status.Update(CheckRange("linger", options.linger.count(), 0, 3'600'000));
  const int64_t least = options.hash_form.as_integers ? 8 : 1;
  status.Update(CheckRange("hash_form.digest_size",
                           static_cast<int64_t>(options.hash_form.digest_size), least,
                           sizeof(BlockHash)));
  return status;
}

}  // namespace

class EventPublisher::Impl {
 public:
  explicit Impl(const Options& options)
      : options_(options), slots_(static_cast<size_t>(options.queue_batches)) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    stopping_.store(true, std::memory_order_release);
    thread_.join();
  }

  // Throws zmq::error_t.
  void Open(const std::string& endpoint, const std::string& replay_endpoint) {
    context_ = SharedContext();
    // Like PUB, and it also reports subscriptions.
    pub_ = zmq::socket_t(*context_, zmq::socket_type::xpub);
    pub_.set(zmq::sockopt::xpub_verboser, true);
    pub_.set(zmq::sockopt::sndhwm, static_cast<int>(options_.high_water_mark));
    pub_.set(zmq::sockopt::linger, static_cast<int>(options_.linger.count()));
    endpoint_ = Attach(pub_, endpoint, IsBoundByPublisher(endpoint));
    if (replay_endpoint.empty()) return;
    replay_ = zmq::socket_t(*context_, zmq::socket_type::router);
    // ZeroMQ learns only every half high-water mark what was read, so a whole replay fits twice.
    replay_.set(zmq::sockopt::sndhwm, static_cast<int>(2 * (options_.buffer_batches + 1)));
    replay_.set(zmq::sockopt::maxmsgsize, int64_t{1024});  // requests are small
    replay_.set(zmq::sockopt::linger, static_cast<int>(options_.linger.count()));
    replay_endpoint_ = Attach(replay_, replay_endpoint, true);
  }
  void Start() {
    thread_ = std::thread([this] { Run(); });
  }

  // --- The scheduler's thread ---

  bool Publish(std::vector<KvEvent>&& events, double timestamp) {
    if (events.empty()) return true;
    const int64_t sequence = next_sequence_++;
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    while (tail - head_seen_ == slots_.size()) {
      head_seen_ = head_.load(std::memory_order_acquire);
      if (tail - head_seen_ < slots_.size()) break;
      if (options_.when_full == WhenFull::kDrop) {
        Count(num_dropped_batches_, 1);
        Count(num_dropped_events_, static_cast<int64_t>(events.size()));
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    Slot& slot = slots_[tail_place_];
    slot.events = std::move(events);
    slot.timestamp = timestamp;
    slot.sequence = sequence;
    if (++tail_place_ == slots_.size()) tail_place_ = 0;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  bool Flush(std::chrono::milliseconds timeout) const {
    const uint64_t tail = tail_.load(std::memory_order_acquire);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (head_.load(std::memory_order_acquire) < tail) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }
  Stats stats() const {
    return {.num_batches = num_batches_,
            .num_events = num_events_,
            .num_bytes = num_bytes_,
            .num_dropped_batches = num_dropped_batches_,
            .num_dropped_events = num_dropped_events_,
            .num_queued_batches = static_cast<int64_t>(tail_.load() - head_.load()),
            .num_failed_sends = num_failed_sends_,
            .num_replay_requests = num_replay_requests_,
            .num_bad_requests = num_bad_requests_,
            .num_replayed_batches = num_replayed_batches_,
            .num_subscribers = num_subscribers_};
  }

 private:
  struct Slot {
    std::vector<KvEvent> events;
    double timestamp = 0;
    int64_t sequence = 0;
  };
  struct Buffered {
    int64_t sequence = 0;
    zmq::message_t payload;
  };

  static uint64_t Number(const Buffered& buffered) {
    return static_cast<uint64_t>(buffered.sequence);
  }
  // What a client is still to get: [next, end).
  struct Replay {
    zmq::message_t client;
    uint64_t next = 0, end = 0;
  };

  // Each counter has one writer.
  static void Count(std::atomic<int64_t>& counter, int64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

  // --- The publisher's thread ---

  void Run() {
    constexpr int kMostInARow = 64;
    DoNotPreemptOthers();
    while (true) {
      const bool stopping = stopping_.load(std::memory_order_acquire);
      int sent = 0;
      while (sent < kMostInARow && SendOne()) ++sent;
      const bool idle = sent == 0;
      if (idle && stopping && replays_.empty()) return;
      try {
        const bool may_wait = idle && replays_.empty();
        Serve(may_wait ? options_.poll_interval : std::chrono::milliseconds(0), stopping);
        ContinueReplay();
      } catch (const zmq::error_t&) {
        Count(num_failed_sends_, 1);
      }
    }
  }

  bool SendOne() {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    Slot& slot = slots_[head_place_];
    scratch_.clear();
    EncodeEvents(slot.events,
                 {.timestamp = slot.timestamp,
                  .data_parallel_rank = options_.data_parallel_rank,
                  .hash_form = options_.hash_form,
                  .join_removals = options_.join_removals},
                 &scratch_);
    const auto num_events = static_cast<int64_t>(slot.events.size());
    const int64_t sequence = slot.sequence;
    slot.events = std::vector<KvEvent>();  // {} would keep its memory in each of many slots
    try {
      zmq::message_t payload(scratch_.data(), scratch_.size());
      zmq::message_t copy;
      copy.copy(payload);  // of the reference
      SendFrames(pub_, options_.topic, sequence, std::move(copy));
      if (options_.buffer_batches > 0 && replay_) {
        if (static_cast<int64_t>(buffer_.size()) == options_.buffer_batches) DropOldest();
        buffered_bytes_ += static_cast<int64_t>(payload.size());
        buffer_.push_back({sequence, std::move(payload)});
        while (buffered_bytes_ > options_.buffer_bytes && buffer_.size() > 1) DropOldest();
      }
      Count(num_batches_, 1);
      Count(num_events_, num_events);
      Count(num_bytes_, static_cast<int64_t>(scratch_.size()));
    } catch (const zmq::error_t&) {
      Count(num_failed_sends_, 1);
    }
    if (++head_place_ == slots_.size()) head_place_ = 0;
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  void DropOldest() {
    buffered_bytes_ -= static_cast<int64_t>(buffer_.front().payload.size());
    buffer_.pop_front();
  }

  void Serve(std::chrono::milliseconds wait, bool stopping) {
    zmq::pollitem_t items[] = {{pub_.handle(), 0, ZMQ_POLLIN, 0},
                               {replay_.handle(), 0, ZMQ_POLLIN, 0}};
    // Requests beyond those under way wait in the socket, which drops what does not fit.
    const bool takes_requests = replay_ && !stopping && replays_.size() < kMostReplays;
    zmq::poll(items, takes_requests ? 2 : 1, wait);
    zmq::message_t frame;
    while ((items[0].revents & ZMQ_POLLIN) != 0 && pub_.recv(frame, zmq::recv_flags::dontwait)) {
      // 1 and a topic: subscribes; 0: no longer.
      if (frame.size() == 0) continue;
      const bool subscribes = frame.data<char>()[0] == 1;
      Count(num_subscribers_, subscribes ? 1 : num_subscribers_.load() > 0 ? -1 : 0);
    }
    if (takes_requests && (items[1].revents & ZMQ_POLLIN) != 0) TakeReplayRequest();
  }

  void TakeReplayRequest() {
    std::vector<zmq::message_t> frames;
    if (!ReceiveFrames(replay_, &frames)) return;
    Count(num_replay_requests_, 1);
    const std::optional<int64_t> start =
        frames.size() == 3 ? ReadSequence(frames[2]) : std::nullopt;
    if (!start) {
      Count(num_bad_requests_, 1);
      return;
    }
    // Read as unsigned: -1 is beyond all. What is published from now on comes live.
    replays_.push_back({.client = std::move(frames[0]),
                        .next = static_cast<uint64_t>(*start),
                        .end = buffer_.empty() ? 0 : Number(buffer_.back()) + 1});
  }
  // A part of the first replay, which then goes behind the others: neither batches nor other
  // clients wait for a long one.
  void ContinueReplay() {
    constexpr int kMostInARow = 256;
    if (replays_.empty()) return;
    // Not there while it is sent: one that cannot be sent is over.
    Replay replay = std::move(replays_.front());
    replays_.pop_front();
    auto buffered = std::partition_point(
        buffer_.begin(), buffer_.end(),
        [&](const Buffered& entry) { return Number(entry) < replay.next; });
    for (int sent = 0; sent < kMostInARow && buffered != buffer_.end(); ++sent, ++buffered) {
      if (Number(*buffered) >= replay.end) break;
      zmq::message_t copy;
      copy.copy(buffered->payload);
      SendEnvelope(replay.client);
      SendFrames(replay_, options_.topic, buffered->sequence, std::move(copy));
      Count(num_replayed_batches_, 1);
      replay.next = Number(*buffered) + 1;
    }
    if (buffered != buffer_.end() && Number(*buffered) < replay.end) {
      replays_.push_back(std::move(replay));
      return;
    }
    SendEnvelope(replay.client);
    SendFrames(replay_, "", kEndOfReplay, zmq::message_t());
  }
  void SendEnvelope(const zmq::message_t& client) {
    replay_.send(zmq::const_buffer(client.data(), client.size()), zmq::send_flags::sndmore);
    replay_.send(zmq::const_buffer(), zmq::send_flags::sndmore);
  }

  const Options options_;
  std::string endpoint_, replay_endpoint_;
  std::shared_ptr<zmq::context_t> context_;  // outlives the sockets
  zmq::socket_t pub_, replay_;

  // The queue: slots [head_, tail_), taken round. Only the scheduler's thread moves tail_.
  std::vector<Slot> slots_;
  alignas(64) std::atomic<uint64_t> tail_{0};
  uint64_t head_seen_ = 0;  // a head_ of some time ago
  size_t tail_place_ = 0;
  int64_t next_sequence_ = 0;
  std::atomic<int64_t> num_dropped_batches_{0}, num_dropped_events_{0};
  alignas(64) std::atomic<uint64_t> head_{0};
  size_t head_place_ = 0;

  std::deque<Buffered> buffer_;  // by number
  int64_t buffered_bytes_ = 0;
  std::deque<Replay> replays_;   // under way; at most kMostReplays
  std::string scratch_;
  std::atomic<int64_t> num_batches_{0}, num_events_{0}, num_bytes_{0}, num_failed_sends_{0};
  std::atomic<int64_t> num_replay_requests_{0}, num_bad_requests_{0}, num_replayed_batches_{0};
  std::atomic<int64_t> num_subscribers_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses all of the above
};

EventPublisher::EventPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EventPublisher::~EventPublisher() = default;

absl::StatusOr<std::unique_ptr<EventPublisher>> EventPublisher::Create(const Options& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  const auto endpoint = EndpointOfRank(options.endpoint, options.data_parallel_rank);
  if (!endpoint.ok()) return endpoint.status();
  std::string replay_endpoint;
  if (!options.replay_endpoint.empty()) {
    const auto replay = EndpointOfRank(options.replay_endpoint, options.data_parallel_rank);
    if (!replay.ok()) return WithFieldPrefix(replay.status(), "replay");
    replay_endpoint = *replay;
  }
  auto impl = std::make_unique<Impl>(options);
  try {
    impl->Open(*endpoint, replay_endpoint);
    impl->Start();
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("endpoint ", *endpoint, replay_endpoint.empty() ? "" : " or ", replay_endpoint,
                     ": ", error.what(), "; is another process bound to it?"));
  }
  return std::unique_ptr<EventPublisher>(new EventPublisher(std::move(impl)));
}

bool EventPublisher::Publish(std::vector<KvEvent> events) {
  if (events.empty()) return true;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return impl_->Publish(std::move(events), std::chrono::duration<double>(now).count());
}
bool EventPublisher::Publish(std::vector<KvEvent> events, double timestamp) {
  return impl_->Publish(std::move(events), timestamp);
}
bool EventPublisher::Flush(std::chrono::milliseconds timeout) { return impl_->Flush(timeout); }
const std::string& EventPublisher::endpoint() const { return impl_->endpoint(); }
const std::string& EventPublisher::replay_endpoint() const { return impl_->replay_endpoint(); }
EventPublisher::Stats EventPublisher::stats() const { return impl_->stats(); }

}  // namespace kvblocks::events
