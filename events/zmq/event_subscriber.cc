#include "kvblocks/kv_events_zmq.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "checks/field_error.h"
#include "events/sequence_tracker.h"
#include "events/zmq/wire.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_events.h"

namespace kvblocks::events {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Arrival = SequenceTracker::Arrival;

absl::Status CheckOptions(const EventSubscriber::Options& options) {
  absl::Status status = CheckPositive("sources", static_cast<int64_t>(options.sources.size()));
  status.Update(CheckRange("max_queue_bytes", options.max_queue_bytes, 1024, int64_t{1} << 40));
  status.Update(CheckRange("max_message_bytes", options.max_message_bytes, 1024, int64_t{1} << 30));
  status.Update(CheckRange("replay_timeout", options.replay_timeout.count(), 1, 3'600'000));
  status.Update(CheckRange("max_streams", options.max_streams, 1, 1'000'000));
  for (size_t i = 0; status.ok() && i < options.sources.size(); ++i) {
    const std::string field = absl::StrCat("sources[", i, "]");
    status.Update(WithFieldPrefix(EndpointOfRank(options.sources[i].endpoint, 0).status(), field));
    const std::string& replay = options.sources[i].replay_endpoint;
    if (replay.empty()) continue;
    status.Update(
        WithFieldPrefix(EndpointOfRank(replay, 0).status(), absl::StrCat(field, ".replay")));
  }
  return status;
}

// Beyond all that a publisher can count to: numbers up to here can be added to.
constexpr int64_t kMaxSequence = int64_t{1} << 62;

// What ends a replay that does not end itself: so many replies, as many as a publisher can buffer,
// or so many times replay_timeout. Replies that bring something may have waited for Receive longer.
constexpr int64_t kMostReplies = 10'000'000;
constexpr int64_t kMostReplayTimeouts = 12;
// A router drops replies that do not fit. vLLM and we buffer 10,000 batches by default.
constexpr int kReplyQueue = 20'000;

}  // namespace

class EventSubscriber::Impl {
 public:
  explicit Impl(const Options& options) : options_(options), index_({.medium = options.medium}) {}

  // Throws zmq::error_t.
  void Open() {
    context_ = SharedContext();
    for (const Source& source : options_.sources) {
      SourceState& state = sources_.emplace_back();
      state.name = source.name.empty() ? source.endpoint : source.name;
      state.replay_endpoint = source.replay_endpoint;
      state.sub = NewSocket(zmq::socket_type::sub);
      state.sub.set(zmq::sockopt::subscribe, options_.topic);
      state.endpoint = Attach(state.sub, source.endpoint, IsBoundBySubscriber(source.endpoint));
      if (options_.replay_at_start && !source.replay_endpoint.empty()) StartReplay(state, 0);
    }
  }

  std::optional<Received> Receive(milliseconds timeout) {
    const Clock::time_point deadline = Clock::now() + timeout;
    while (outbox_.empty()) {
      Clock::time_point until = deadline;
      items_.clear();
      for (SourceState& source : sources_) {
        while (source.is_replaying && !source.dealer) {
          ++stats_.num_replay_timeouts;
          EndReplay(source);
        }
        zmq::socket_t& socket = source.is_replaying ? source.dealer : source.sub;
        items_.push_back({socket.handle(), 0, ZMQ_POLLIN, 0});
        if (source.is_replaying) until = std::min(until, source.replay_deadline);
      }
      if (!outbox_.empty()) break;
      const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
      try {
        zmq::poll(items_, std::max(left, milliseconds(0)));
      } catch (const zmq::error_t&) {
        return std::nullopt;  // a signal: the caller may want to look at it
      }
      for (size_t i = 0; i < sources_.size(); ++i) {
        SourceState& source = sources_[i];
        if ((items_[i].revents & ZMQ_POLLIN) != 0) {
          source.is_replaying ? OnReplayReply(source) : OnLiveMessage(source);
        } else if (source.is_replaying && Clock::now() >= source.replay_deadline) {
          ++stats_.num_replay_timeouts;
          EndReplay(source);
        }
      }
      if (outbox_.empty() && Clock::now() >= deadline) return std::nullopt;
    }
    Received received = std::move(outbox_.front());
    outbox_.pop_front();
    return received;
  }

  void CatchUp() {
    for (SourceState& source : sources_) {
      if (source.replay_endpoint.empty() || source.is_replaying) continue;
      // Of several streams the one that misses most decides; what the others know comes twice.
      int64_t first = source.streams.empty() ? 0 : INT64_MAX;
      for (const auto& [topic, stream] : source.streams) {
        first = std::min(first, trackers_[static_cast<size_t>(stream)].next());
      }
      StartReplay(source, first);
    }
  }

  absl::Span<const Stream> streams() const { return streams_; }
  const BlockIndex& index() const { return index_; }
  const Stats& stats() const { return stats_; }
  const std::string& endpoint(size_t source) const { return sources_[source].endpoint; }

 private:
  struct Message {
    std::string topic;
    int64_t sequence = 0;
    std::string payload;
  };
  struct SourceState {
    std::string name, endpoint, replay_endpoint;
    zmq::socket_t sub;
    absl::flat_hash_map<std::string, HolderId> streams;  // by topic
    // While a replay is under way, `sub` is not read.
    bool is_replaying = false;
    zmq::socket_t dealer;  // one per request, so that late answers go nowhere
    Clock::time_point replay_deadline = {};  // renewed by replies that bring something
    Clock::time_point replay_end = {};       // never renewed
    int64_t num_replies = 0;                 // of this replay
    std::optional<Message> held;  // the live message behind the gap
  };

  zmq::socket_t NewSocket(zmq::socket_type type) {
    zmq::socket_t socket(*context_, type);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::maxmsgsize, options_.max_message_bytes);
    const int64_t queue = options_.max_queue_bytes / options_.max_message_bytes;
    socket.set(zmq::sockopt::rcvhwm, static_cast<int>(std::clamp<int64_t>(queue, 1, 10'000'000)));
    return socket;
  }

  // --- Messages ---

  void OnLiveMessage(SourceState& source) {
    if (!ReceiveFrames(source.sub, &frames_)) return;
    const std::optional<int64_t> sequence =
        frames_.size() == 3 ? ReadSequence(frames_[1]) : std::nullopt;
    if (!sequence || *sequence < 0 || *sequence > kMaxSequence) {
      ++stats_.num_malformed;
      return;
    }
    Take(source, MessageOf(frames_[0], *sequence, frames_[2]), /*may_replay=*/true);
  }

  void OnReplayReply(SourceState& source) {
    if (!ReceiveFrames(source.dealer, &frames_)) return;
    bool has_news = false;
    // [empty, topic, number, payload]; up to vLLM 0.25 without the topic.
    const size_t place = frames_.size() == 4 ? 2 : 1;
    const std::optional<int64_t> sequence =
        frames_.size() == 4 || frames_.size() == 3 ? ReadSequence(frames_[place]) : std::nullopt;
    if (!sequence || *sequence < kEndOfReplay || *sequence > kMaxSequence) {
      ++stats_.num_malformed;
    } else if (*sequence == kEndOfReplay) {
      EndReplay(source);
      return;
    } else if (frames_.size() == 4) {
      has_news = TakeReplayed(source, MessageOf(frames_[1], *sequence, frames_[3]));
    } else {
      const bool is_one = source.streams.size() == 1;
      Message message = MessageOf(frames_[0], *sequence, frames_[2]);
      message.topic = source.held ? source.held->topic
                      : is_one    ? source.streams.begin()->first
                                  : options_.topic;
      has_news = TakeReplayed(source, std::move(message));
    }
    const Clock::time_point now = Clock::now();
    if (has_news) {
      source.replay_deadline = std::min(now + options_.replay_timeout, source.replay_end);
    }
    // Without news the deadline holds, however many replies come.
    if (++source.num_replies >= kMostReplies || (!has_news && now >= source.replay_end)) {
      ++stats_.num_replay_timeouts;
      EndReplay(source);
    }
  }
  static Message MessageOf(const zmq::message_t& topic, int64_t sequence,
                           const zmq::message_t& payload) {
    return {std::string(TextOf(topic)), sequence, std::string(TextOf(payload))};
  }

  void Take(SourceState& source, Message message, bool may_replay) {
    const std::optional<HolderId> id = StreamOf(source, message.topic);
    if (!id) return;
    SequenceTracker& tracker = trackers_[Place(*id)];
    Stream& stream = streams_[Place(*id)];
    Arrival arrival = tracker.Classify(message.sequence, message.payload);
    if (arrival == Arrival::kRestart) {
      Restart(*id);
      arrival = tracker.Classify(message.sequence, message.payload);
    }
    if (arrival == Arrival::kDuplicate) {
      ++stream.num_duplicates;
      return;
    }
    if (arrival == Arrival::kGap) {
      if (may_replay) ++stream.num_gaps;
      if (may_replay && !source.replay_endpoint.empty()) {
        const int64_t first = tracker.next();
        source.held = std::move(message);
        StartReplay(source, first);
        return;
      }
      Lose(*id, message.sequence);
    }
    Deliver(*id, std::move(message), /*is_replayed=*/false);
  }

  // Whether it brought something that was not known.
  bool TakeReplayed(SourceState& source, Message message) {
    const std::optional<HolderId> id = StreamOf(source, message.topic);
    if (!id) return false;
    SequenceTracker& tracker = trackers_[Place(*id)];
    switch (tracker.Classify(message.sequence, message.payload)) {
      case Arrival::kDuplicate:
        ++streams_[Place(*id)].num_duplicates;
        return false;
      case Arrival::kRestart:
        Restart(*id);
        break;
      case Arrival::kNext:
      case Arrival::kGap:
        break;
    }
    Lose(*id, message.sequence);
    Deliver(*id, std::move(message), /*is_replayed=*/true);
    return true;
  }

  void Deliver(HolderId id, Message message, bool is_replayed) {
    Stream& stream = streams_[Place(id)];
    trackers_[Place(id)].Accept(message.payload);
    stream.next_sequence = message.sequence + 1;
    absl::StatusOr<EventBatch> batch = DecodeEvents(message.payload);
    Received received{.stream = id,
                      .sequence = message.sequence,
                      .is_replayed = is_replayed,
                      .payload = std::move(message.payload)};
    if (batch.ok()) {
      ++stream.num_batches;
      stream.num_replayed += is_replayed;
      received.batch = *std::move(batch);
      if (options_.keep_index) index_.Apply(id, received.batch.events);
    } else {
      ++stream.num_undecodable;
      ++stream.num_lost;
      received.kind = Kind::kLoss;
      received.num_lost = 1;
      received.error = std::string(batch.status().message());
      if (options_.keep_index) index_.Forget(id);
    }
    outbox_.push_back(std::move(received));
  }

  // Everything before `sequence` that has not come.
  void Lose(HolderId id, int64_t sequence) {
    SequenceTracker& tracker = trackers_[Place(id)];
    const int64_t first = tracker.next();
    if (sequence == first) return;
    tracker.SkipTo(sequence);
    streams_[Place(id)].num_lost += sequence - first;
    if (options_.keep_index) index_.Forget(id);
    outbox_.push_back(
        {.kind = Kind::kLoss, .stream = id, .sequence = first, .num_lost = sequence - first});
  }
  void Restart(HolderId id) {
    trackers_[Place(id)].Restart();
    ++streams_[Place(id)].num_restarts;
    streams_[Place(id)].next_sequence = 0;
    if (options_.keep_index) index_.Forget(id);
    outbox_.push_back({.kind = Kind::kRestart, .stream = id});
  }

  std::optional<HolderId> StreamOf(SourceState& source, const std::string& topic) {
    const auto found = source.streams.find(topic);
    if (found != source.streams.end()) return found->second;
    if (static_cast<int64_t>(streams_.size()) == options_.max_streams) {
      ++stats_.num_streams_refused;
      return std::nullopt;
    }
    const auto id = static_cast<HolderId>(streams_.size());
    source.streams.emplace(topic, id);
    streams_.push_back({.source = source.name, .topic = topic});
    trackers_.emplace_back();
    if (options_.keep_index) {
      index_.AddHolder(topic.empty() ? source.name : absl::StrCat(source.name, " ", topic));
    }
    return id;
  }
  static size_t Place(HolderId id) { return static_cast<size_t>(id); }

  // --- Replays ---

  void StartReplay(SourceState& source, int64_t first) {
    ++stats_.num_replay_requests;
    source.is_replaying = true;
    source.replay_deadline = Clock::now() + options_.replay_timeout;
    source.replay_end = Clock::now() + kMostReplayTimeouts * options_.replay_timeout;
    source.num_replies = 0;
    try {
      source.dealer = NewSocket(zmq::socket_type::dealer);
      source.dealer.set(zmq::sockopt::rcvhwm, kReplyQueue);
      Attach(source.dealer, source.replay_endpoint, false);
      const uint64_t bits = BigEndian(static_cast<uint64_t>(first));
      source.dealer.send(zmq::const_buffer(), zmq::send_flags::sndmore);
      source.dealer.send(zmq::const_buffer(&bits, sizeof(bits)), zmq::send_flags::dontwait);
    } catch (const zmq::error_t&) {
      source.dealer = zmq::socket_t();  // no more sockets: as without an answer
    }
  }

  void EndReplay(SourceState& source) {
    source.is_replaying = false;
    source.dealer.close();
    std::optional<Message> held = std::exchange(source.held, std::nullopt);
    // What is still missing now is lost; but a publisher that restarted may have it under the
    // numbers that it counts now, which were not asked for.
    if (!held) return;
    const auto found = source.streams.find(held->topic);
    const bool restarted =
        found != source.streams.end() && trackers_[Place(found->second)].Classify(
                                             held->sequence, held->payload) == Arrival::kRestart;
    Take(source, *std::move(held), /*may_replay=*/restarted);
  }

  const Options options_;
  std::shared_ptr<zmq::context_t> context_;  // outlives the sockets
  std::vector<SourceState> sources_;
  std::vector<Stream> streams_;
  std::deque<SequenceTracker> trackers_;  // per stream
  BlockIndex index_;
  Stats stats_;
  std::deque<Received> outbox_;
  std::vector<zmq::pollitem_t> items_;  // scratch
  std::vector<zmq::message_t> frames_;  // scratch
};

EventSubscriber::EventSubscriber(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EventSubscriber::~EventSubscriber() = default;

absl::StatusOr<std::unique_ptr<EventSubscriber>> EventSubscriber::Create(const Options& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  auto impl = std::make_unique<Impl>(options);
  try {
    impl->Open();
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("endpoints of the sources: ", error.what(), "; can they be reached?"));
  }
  return std::unique_ptr<EventSubscriber>(new EventSubscriber(std::move(impl)));
}

std::optional<EventSubscriber::Received> EventSubscriber::Receive(milliseconds timeout) {
  return impl_->Receive(timeout);
}
void EventSubscriber::CatchUp() { impl_->CatchUp(); }
absl::Span<const EventSubscriber::Stream> EventSubscriber::streams() const {
  return impl_->streams();
}
const BlockIndex& EventSubscriber::index() const { return impl_->index(); }
const EventSubscriber::Stats& EventSubscriber::stats() const { return impl_->stats(); }
const std::string& EventSubscriber::endpoint(size_t source) const {
  return impl_->endpoint(source);
}

}  // namespace kvblocks::events
