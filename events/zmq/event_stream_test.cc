// Publisher and subscriber over real sockets of this process. inproc endpoints are names of their
// own per test; where sockets must be distinguished from outside, tcp ports that the system
// chooses.

#ifdef __linux__
#include <sched.h>
#endif

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "events/sequence_tracker.h"
#include "events/zmq/wire.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_events.h"
#include "kvblocks/kv_events_zmq.h"

namespace kvblocks::events {
namespace {

using std::chrono::milliseconds;
using Kind = EventSubscriber::Kind;

constexpr milliseconds kPatience(20'000);

BlockHash HashNamed(uint64_t name) { return {{name, 1, 2, 3}}; }
std::vector<KvEvent> StoredEvent(uint64_t name) {
  return {BlockStored{.block_hashes = {HashNamed(name)}, .block_size = 16}};
}

std::unique_ptr<EventPublisher> Publisher(EventPublisher::Options options) {
  auto publisher = EventPublisher::Create(options);
  EXPECT_TRUE(publisher.ok()) << publisher.status();
  return *std::move(publisher);
}
std::unique_ptr<EventSubscriber> Subscriber(EventSubscriber::Options options) {
  auto subscriber = EventSubscriber::Create(options);
  EXPECT_TRUE(subscriber.ok()) << subscriber.status();
  return *std::move(subscriber);
}
// PUB sends nothing to sockets that have not subscribed yet.
void AwaitSubscribers(const EventPublisher& publisher, int64_t count) {
  for (int i = 0; i < 20'000 && publisher.stats().num_subscribers < count; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_GE(publisher.stats().num_subscribers, count);
}
// "0 1 L2+3 R 0": numbers of batches; losses with first and count; restarts.
std::string Take(EventSubscriber& subscriber, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const auto received = subscriber.Receive(kPatience);
    if (!received) return text + " nothing";
    if (i > 0) text += ' ';
    if (received->kind == Kind::kRestart) {
      text += 'R';
    } else if (received->kind == Kind::kLoss) {
      text += absl::StrCat("L", received->sequence, "+", received->num_lost);
    } else {
      text += absl::StrCat(received->sequence);
    }
  }
  return text;
}
std::string Unique(const char* name) {
  return absl::StrCat("inproc://", name, "-",
                      ::testing::UnitTest::GetInstance()->current_test_info()->name());
}

TEST(EventStreamTest, WhatIsPublishedArrives) {  // V-64
  auto publisher = Publisher({.endpoint = Unique("pub"), .topic = "kv", .data_parallel_rank = 0});
  auto subscriber = Subscriber({.sources = {{.endpoint = Unique("pub"), .name = "a"}}});
  AwaitSubscribers(*publisher, 1);
  EXPECT_TRUE(publisher->Publish({}));  // no events, no number
  EXPECT_TRUE(publisher->Publish(StoredEvent(1), 1.5));
  const auto received = subscriber->Receive(kPatience);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->sequence, 0);
  EXPECT_EQ(received->batch.timestamp, 1.5);
  EXPECT_EQ(received->batch.data_parallel_rank, 0);
  EXPECT_EQ(received->batch.events, StoredEvent(1));
  EXPECT_EQ(subscriber->streams()[0].topic, "kv");
  EXPECT_EQ(subscriber->index().FindLongestPrefix(std::vector<BlockHash>{HashNamed(1)}),
            (std::vector<BlockIndex::PrefixMatch>{{0, 1}}));
  EXPECT_EQ(subscriber->Receive(milliseconds(1)), std::nullopt);
}

TEST(EventStreamTest, WhoComesLateGetsWhatIsBuffered) {  // V-65
  auto publisher = Publisher(
      {.endpoint = Unique("pub"), .replay_endpoint = Unique("replay"), .buffer_batches = 3});
  for (uint64_t i = 0; i < 5; ++i) publisher->Publish(StoredEvent(i));
  ASSERT_TRUE(publisher->Flush(kPatience));
  const EventSubscriber::Options options = {
      .sources = {{.endpoint = Unique("pub"), .replay_endpoint = Unique("replay")}}};
  auto late = Subscriber(options);
  EXPECT_EQ(Take(*late, 4), "L0+2 2 3 4");
  EXPECT_EQ(late->index().num_keys(), 3);
  late = nullptr;  // killed, and back
  publisher->Publish(StoredEvent(5));
  ASSERT_TRUE(publisher->Flush(kPatience));
  auto back = Subscriber(options);
  AwaitSubscribers(*publisher, 1);
  publisher->Publish(StoredEvent(6));
  EXPECT_EQ(Take(*back, 5), "L0+3 3 4 5 6");
  EXPECT_EQ(back->index().num_keys(), 4);
}

TEST(EventStreamTest, WhatIsBufferedIsBoundedInBytes) {
  auto publisher = Publisher(
      {.endpoint = Unique("pub"), .replay_endpoint = Unique("replay"), .buffer_bytes = 1});
  for (uint64_t i = 0; i < 5; ++i) publisher->Publish(StoredEvent(i));
  ASSERT_TRUE(publisher->Flush(kPatience));
  auto late =
      Subscriber({.sources = {{.endpoint = Unique("pub"), .replay_endpoint = Unique("replay")}}});
  EXPECT_EQ(Take(*late, 2), "L0+4 4") << "the latest batch always stays";
}

// Speaks as a publisher would, but leaves out what the test names.
class RawPublisher {
 public:
  RawPublisher(const std::string& endpoint, const std::string& replay_endpoint)
      : context_(SharedContext()),
        pub_(*context_, zmq::socket_type::xpub),
        router_(*context_, zmq::socket_type::router) {
    pub_.bind(endpoint);
    if (!replay_endpoint.empty()) router_.bind(replay_endpoint);
    pub_.set(zmq::sockopt::linger, 0);
    router_.set(zmq::sockopt::linger, 0);
  }
  void AwaitSubscriber() {
    zmq::message_t frame;
    ASSERT_TRUE(pub_.recv(frame, zmq::recv_flags::none));
  }
  void Send(int64_t sequence, std::string payload = "") {
    if (payload.empty()) EncodeEvents(StoredEvent(static_cast<uint64_t>(sequence)), {}, &payload);
    SendFrames(pub_, "", sequence, zmq::message_t(payload.data(), payload.size()));
  }
  // Waits for a request, checks its start, and answers with these numbers and the end.
  void Answer(int64_t start, const std::vector<int64_t>& sequences, bool with_topic = true) {
    const zmq::message_t client = AwaitRequest(start);
    for (const int64_t sequence : sequences) Reply(client, sequence, with_topic);
    Reply(client, kEndOfReplay, with_topic);
  }
  zmq::message_t AwaitRequest(int64_t start) {
    std::vector<zmq::message_t> frames;
    for (int i = 0; i < 20'000 && !ReceiveFrames(router_, &frames); ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (frames.size() != 3) {
      ADD_FAILURE() << "got " << frames.size() << " frames";
      return zmq::message_t();
    }
    EXPECT_EQ(frames[1].size(), 0u);
    EXPECT_EQ(ReadSequence(frames[2]), start);
    return std::move(frames[0]);
  }
  void Reply(const zmq::message_t& client, int64_t sequence, bool with_topic = true) {
    std::string payload;
    if (sequence >= 0) EncodeEvents(StoredEvent(static_cast<uint64_t>(sequence)), {}, &payload);
    router_.send(zmq::const_buffer(client.data(), client.size()), zmq::send_flags::sndmore);
    if (with_topic) router_.send(zmq::const_buffer(), zmq::send_flags::sndmore);
    SendFrames(router_, "", sequence, zmq::message_t(payload.data(), payload.size()));
  }

 private:
  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t pub_, router_;
};

class GapTest : public ::testing::Test {
 protected:
  void Start(bool with_replay = true) {
    raw_ = std::make_unique<RawPublisher>(Unique("pub"), Unique("replay"));
    subscriber_ = Subscriber({.sources = {{.endpoint = Unique("pub"),
                                           .replay_endpoint = with_replay ? Unique("replay") : ""}},
                              .replay_timeout = timeout_,
                              .replay_at_start = false});
    raw_->AwaitSubscriber();
  }
  // Receives while the other side answers.
  std::string TakeWhile(int count, const std::function<void()>& answer) {
    std::thread thread(answer);
    const std::string text = Take(*subscriber_, count);
    thread.join();
    return text;
  }

  milliseconds timeout_{20'000};
  std::unique_ptr<RawPublisher> raw_;
  std::unique_ptr<EventSubscriber> subscriber_;
};

TEST_F(GapTest, IsFilledByAReplay) {
  Start();
  for (const int64_t sequence : {0, 1, 4, 5}) raw_->Send(sequence);
  EXPECT_EQ(TakeWhile(6, [&] { raw_->Answer(2, {2, 3, 4}); }), "0 1 2 3 4 5");
  const auto& stream = subscriber_->streams()[0];
  EXPECT_EQ(stream.num_gaps, 1);
  EXPECT_EQ(stream.num_replayed, 3);
  EXPECT_EQ(stream.num_duplicates, 1);  // 4 came live, too
  EXPECT_EQ(stream.num_lost, 0);
  EXPECT_EQ(subscriber_->index().num_keys(), 6);
}

TEST_F(GapTest, IsFilledByTheRepliesOfOlderEngines) {  // V-65: 0.25, without the topic
  Start();
  raw_->Send(1);
  EXPECT_EQ(TakeWhile(2, [&] { raw_->Answer(0, {0}, /*with_topic=*/false); }), "0 1");
}

TEST_F(GapTest, IsALossWhereTheReplayHasAHole) {
  Start();
  for (const int64_t sequence : {0, 6}) raw_->Send(sequence);
  EXPECT_EQ(TakeWhile(5, [&] { raw_->Answer(1, {3}); }), "0 L1+2 3 L4+2 6");
  EXPECT_EQ(subscriber_->streams()[0].num_lost, 4);
  EXPECT_EQ(subscriber_->index().num_keys(), 1);  // 6: the rest may be gone
}

TEST_F(GapTest, IsALossWithoutAReplayOrAnAnswer) {
  Start(/*with_replay=*/false);
  for (const int64_t sequence : {2, 3, 5}) raw_->Send(sequence);
  EXPECT_EQ(Take(*subscriber_, 5), "L0+2 2 3 L4+1 5");
  subscriber_ = nullptr;
  raw_ = nullptr;
  timeout_ = milliseconds(20);
  Start();
  for (const int64_t sequence : {0, 2}) raw_->Send(sequence);
  EXPECT_EQ(Take(*subscriber_, 3), "0 L1+1 2");
  EXPECT_EQ(subscriber_->stats().num_replay_timeouts, 1);
}

TEST_F(GapTest, RepliesThatBringNothingDoNotProlongAReplay) {
  timeout_ = milliseconds(100);
  Start();
  for (const int64_t sequence : {0, 2}) raw_->Send(sequence);
  std::atomic<bool> is_over{false};
  bool was_over = false;
  std::thread peer([&] {
    // What is known already, again and again.
    const zmq::message_t client = raw_->AwaitRequest(1);
    for (int i = 0; i < 2000 && !is_over; ++i) {
      raw_->Reply(client, 0);
      std::this_thread::sleep_for(milliseconds(10));
    }
    was_over = is_over;
  });
  EXPECT_EQ(Take(*subscriber_, 3), "0 L1+1 2");
  is_over = true;
  peer.join();
  EXPECT_TRUE(was_over);
  EXPECT_EQ(subscriber_->stats().num_replay_timeouts, 1);
}

TEST_F(GapTest, ManyRepliesThatBringNothingDoNotProlongAReplayEither) {
  timeout_ = milliseconds(50);
  Start();
  for (const int64_t sequence : {0, 2}) raw_->Send(sequence);
  EXPECT_EQ(Take(*subscriber_, 1), "0");
  while (subscriber_->stats().num_replay_requests == 0) subscriber_->Receive(milliseconds(1));
  const zmq::message_t client = raw_->AwaitRequest(1);
  for (int i = 0; i < 1000; ++i) raw_->Reply(client, 0);
  std::this_thread::sleep_for(13 * timeout_);
  EXPECT_EQ(Take(*subscriber_, 2), "L1+1 2");
  EXPECT_LE(subscriber_->streams()[0].num_duplicates, 1) << "of those that wait";
  EXPECT_EQ(subscriber_->stats().num_replay_timeouts, 1);
}

TEST_F(GapTest, ARestartedPublisherIsNoDuplicate) {
  Start();
  for (const int64_t sequence : {0, 1, 2}) raw_->Send(sequence);
  raw_->Send(1);  // the same once more
  std::string other;
  EncodeEvents(StoredEvent(77), {.timestamp = 9}, &other);
  raw_->Send(0, other);
  raw_->Send(1);
  EXPECT_EQ(Take(*subscriber_, 6), "0 1 2 R 0 1");
  EXPECT_EQ(subscriber_->streams()[0].num_duplicates, 1);
  EXPECT_EQ(subscriber_->streams()[0].num_restarts, 1);
  EXPECT_EQ(subscriber_->index().num_keys(), 2);
}

TEST_F(GapTest, WhatARestartedPublisherSentBeforeIsReplayed) {
  Start();
  for (const int64_t sequence : {0, 1, 2}) raw_->Send(sequence);
  std::string other;
  EncodeEvents(StoredEvent(77), {.timestamp = 9}, &other);
  raw_->Send(1, other);
  EXPECT_EQ(TakeWhile(6, [&] { raw_->Answer(0, {0}); }), "0 1 2 R 0 1");
}

TEST_F(GapTest, AMessageThatIsNoBatchIsLost) {
  Start();
  raw_->Send(0);
  raw_->Send(1, "\x93");
  raw_->Send(2);
  EXPECT_EQ(Take(*subscriber_, 3), "0 L1+1 2");
  EXPECT_EQ(subscriber_->streams()[0].num_undecodable, 1);
  EXPECT_EQ(subscriber_->index().num_keys(), 1);
}

TEST_F(GapTest, AtTheEndIsFoundByCatchingUp) {
  Start();
  raw_->Send(0);
  EXPECT_EQ(Take(*subscriber_, 1), "0");
  subscriber_->CatchUp();
  EXPECT_EQ(TakeWhile(2, [&] { raw_->Answer(1, {1, 2}); }), "1 2");
}

TEST(EventStreamTest, AFullQueueDropsAndSubscribersKnow) {
  // Nobody takes from the queue for a second: the thread serves before it checks again.
  auto publisher = Publisher(
      {.endpoint = Unique("pub"), .replay_endpoint = Unique("replay"), .queue_batches = 2});
  int64_t kept = 0, sent = 0;
  while (publisher->stats().num_dropped_batches == 0 && sent < 10'000'000) {
    kept += publisher->Publish(StoredEvent(static_cast<uint64_t>(sent++)));
  }
  ASSERT_TRUE(publisher->Flush(kPatience));
  publisher->Publish(StoredEvent(1));  // behind the gap
  ASSERT_TRUE(publisher->Flush(kPatience));
  const EventPublisher::Stats stats = publisher->stats();
  EXPECT_EQ(stats.num_dropped_batches, sent - kept);
  EXPECT_EQ(stats.num_dropped_events, sent - kept);
  EXPECT_EQ(stats.num_batches, kept + 1);
  auto subscriber =
      Subscriber({.sources = {{.endpoint = Unique("pub"), .replay_endpoint = Unique("replay")}}});
  while (subscriber->streams().empty() || subscriber->streams()[0].next_sequence <= sent) {
    ASSERT_TRUE(subscriber->Receive(kPatience).has_value());
  }
  EXPECT_GE(subscriber->streams()[0].num_lost, stats.num_dropped_batches);
}

TEST(EventStreamTest, ClientsThatDoNotReadTheirReplaysHoldNothingUp) {
  auto publisher = Publisher({.endpoint = Unique("pub"), .replay_endpoint = Unique("replay")});
  constexpr uint64_t kBatches = 1000;  // several parts
  for (uint64_t i = 0; i < kBatches; ++i) publisher->Publish(StoredEvent(i));
  ASSERT_TRUE(publisher->Flush(kPatience));
  const auto context = SharedContext();
  std::vector<zmq::socket_t> stuck;
  const uint64_t first = 0;
  for (int i = 0; i < 3; ++i) {
    stuck.emplace_back(*context, zmq::socket_type::dealer);
    stuck.back().set(zmq::sockopt::linger, 0);
    stuck.back().set(zmq::sockopt::rcvhwm, 1);
    stuck.back().connect(Unique("replay"));
    for (int request = 0; request < 100; ++request) {
      stuck.back().send(zmq::const_buffer(), zmq::send_flags::sndmore);
      stuck.back().send(zmq::const_buffer(&first, sizeof(first)), zmq::send_flags::none);
    }
  }
  auto subscriber =
      Subscriber({.sources = {{.endpoint = Unique("pub"), .replay_endpoint = Unique("replay")}}});
  AwaitSubscribers(*publisher, 1);
  for (uint64_t i = kBatches; i < 2 * kBatches; ++i) publisher->Publish(StoredEvent(i));
  ASSERT_TRUE(publisher->Flush(kPatience));
  for (uint64_t i = 0; i < 2 * kBatches; ++i) {
    const auto received = subscriber->Receive(kPatience);
    ASSERT_TRUE(received.has_value());
    ASSERT_EQ(received->kind, Kind::kBatch);
    ASSERT_EQ(received->sequence, static_cast<int64_t>(i));
  }
}

TEST(EventStreamTest, ASubscriberThatIsNotAskedHoldsSoManyBytes) {
  const auto context = SharedContext();
  zmq::socket_t publisher(*context, zmq::socket_type::xpub);
  publisher.set(zmq::sockopt::linger, 0);
  publisher.set(zmq::sockopt::sndhwm, 1);
  publisher.set(zmq::sockopt::xpub_nodrop, 1);
  publisher.bind("tcp://127.0.0.1:*");
  constexpr int kMegabyte = 1 << 20;
  auto subscriber = Subscriber(
      {.sources = {{.endpoint = publisher.get(zmq::sockopt::last_endpoint)}},
       .max_queue_bytes = 4 * kMegabyte,
       .max_message_bytes = kMegabyte});
  zmq::message_t joined;
  ASSERT_TRUE(publisher.recv(joined).has_value());
  const std::string message(kMegabyte, 'x');
  constexpr int kMost = 256;
  int sent = 0;
  // What the system's own buffers hold comes on top.
  for (int idle = 0; idle < 100 && sent < kMost;) {
    const bool is_taken =
        publisher.send(zmq::buffer(message), zmq::send_flags::dontwait).has_value();
    sent += is_taken;
    idle = is_taken ? 0 : idle + 1;
    if (!is_taken) std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_GE(sent, 4);
  EXPECT_LT(sent, 64);
}

TEST(EventStreamTest, WaitingLosesNothing) {
  auto publisher = Publisher({.endpoint = Unique("pub"),
                              .replay_endpoint = Unique("replay"),
                              .queue_batches = 1,
                              .when_full = EventPublisher::WhenFull::kWait});
  for (uint64_t i = 0; i < 100; ++i) EXPECT_TRUE(publisher->Publish(StoredEvent(i)));
  ASSERT_TRUE(publisher->Flush(kPatience));
  EXPECT_EQ(publisher->stats().num_batches, 100);
  EXPECT_EQ(publisher->stats().num_dropped_batches, 0);
}

TEST(EventStreamTest, PublishersMayConnectToOneSubscriber) {  // V-65
  auto subscriber = Subscriber(
      {.sources = {{.endpoint = "tcp://127.0.0.1:*", .name = "router"}}, .topic = "kv@"});
  const std::string endpoint = subscriber->endpoint(0);
  auto a = Publisher({.endpoint = endpoint, .topic = "kv@a"});
  auto b = Publisher({.endpoint = endpoint, .topic = "kv@b"});
  auto other = Publisher({.endpoint = endpoint, .topic = "metrics"});
  const auto is_known = [](const auto& publisher) {
    return publisher->stats().num_subscribers > 0;
  };
  for (int i = 0; i < 20'000 && !(is_known(a) && is_known(b) && is_known(other)); ++i) {
    subscriber->Receive(
        milliseconds(1));  // a bound socket subscribes at who connects when it is used
  }
  for (auto* publisher : {&a, &b, &other}) (*publisher)->Publish(StoredEvent(1));
  EXPECT_EQ(Take(*subscriber, 2), "0 0");
  EXPECT_EQ(subscriber->streams().size(), 2u);
  EXPECT_EQ(subscriber->index().FindLongestPrefix(std::vector<BlockHash>{HashNamed(1)}).size(), 2u);
  EXPECT_EQ(subscriber->Receive(milliseconds(30)), std::nullopt);
}

TEST(EventStreamTest, BadRequestsAndMessagesAreCounted) {
  auto publisher = Publisher({.endpoint = Unique("pub"), .replay_endpoint = Unique("replay")});
  publisher->Publish(StoredEvent(1));
  const auto context = SharedContext();
  zmq::socket_t dealer(*context, zmq::socket_type::dealer);
  dealer.set(zmq::sockopt::linger, 0);
  dealer.connect(Unique("replay"));
  dealer.send(zmq::str_buffer("hello"), zmq::send_flags::none);
  for (int i = 0; i < 20'000 && publisher->stats().num_bad_requests == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(publisher->stats().num_bad_requests, 1);
  // A number beyond all, as unsigned: nothing but the end.
  const uint64_t most = ~uint64_t{0};
  dealer.send(zmq::const_buffer(), zmq::send_flags::sndmore);
  dealer.send(zmq::const_buffer(&most, sizeof(most)), zmq::send_flags::none);
  zmq::message_t frame;
  std::vector<size_t> sizes;
  do {
    ASSERT_TRUE(dealer.recv(frame, zmq::recv_flags::none));
    sizes.push_back(frame.size());
  } while (frame.more());
  EXPECT_EQ(sizes, (std::vector<size_t>{0, 0, 8, 0}));
}

#ifdef __linux__
TEST(EventStreamTest, ThreadsThatSendDoNotPreemptTheCaller) {
  const int own = sched_getscheduler(0);
  const auto num_batch_threads = [] {
    int count = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      count += sched_getscheduler(std::stoi(task.path().filename())) == SCHED_BATCH;
    }
    return count;
  };
  auto publisher = Publisher({.endpoint = Unique("pub")});
  publisher->Publish(StoredEvent(1));
  ASSERT_TRUE(publisher->Flush(milliseconds(20'000)));
  EXPECT_GE(num_batch_threads(), 3);  // the publisher's, and two of ZeroMQ
  EXPECT_EQ(sched_getscheduler(0), own);
}
#endif

TEST(EventStreamTest, WhatCannotBeIsRefusedByName) {
  const absl::Status empty = EventPublisher::Create({.queue_batches = 0}).status();
  EXPECT_NE(empty.ToString().find("queue_batches: got 0"), std::string::npos) << empty;
  EXPECT_FALSE(EventPublisher::Create({.endpoint = "http://x:1"}).ok());
  EXPECT_FALSE(EventSubscriber::Create({}).ok());
  const auto queue =
      EventSubscriber::Create({.sources = {{.endpoint = Unique("pub")}}, .max_queue_bytes = 0});
  EXPECT_NE(queue.status().message().find("max_queue_bytes: got 0"), std::string::npos);
  auto first = Publisher({.endpoint = "tcp://127.0.0.1:*"});
  const auto second = EventPublisher::Create({.endpoint = "tcp://::1:1", .high_water_mark = -1});
  EXPECT_FALSE(second.ok());
  auto bound = Publisher({.endpoint = Unique("pub"), .replay_endpoint = "tcp://127.0.0.1:*"});
  const auto taken = EventPublisher::Create(
      {.endpoint = Unique("pub2"), .replay_endpoint = bound->replay_endpoint()});
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(taken.status().message().find("is another process bound to it?"), std::string::npos);
}

TEST(EndpointTest, RanksHaveEndpointsOfTheirOwn) {  // V-65
  EXPECT_EQ(*EndpointOfRank("tcp://*:5557", 0), "tcp://*:5557");
  EXPECT_EQ(*EndpointOfRank("tcp://*:5557", 3), "tcp://*:5560");
  EXPECT_EQ(*EndpointOfRank("tcp://*:0", 3), "tcp://*:0");
  EXPECT_EQ(*EndpointOfRank("tcp://127.0.0.1:*", 3), "tcp://127.0.0.1:*");
  EXPECT_EQ(*EndpointOfRank("inproc://cache", 2), "inproc://cache_dp2");
  EXPECT_EQ(*EndpointOfRank("ipc:///tmp/x", 0), "ipc:///tmp/x");
  EXPECT_FALSE(EndpointOfRank("ipc:///tmp/x", 1).ok());
  EXPECT_FALSE(EndpointOfRank("tcp://*:65535", 1).ok());
  EXPECT_FALSE(EndpointOfRank("tcp://host", 0).ok());
  EXPECT_TRUE(IsBoundByPublisher("tcp://*:1") && IsBoundByPublisher("tcp://[::]:1") &&
              IsBoundByPublisher("ipc://x") && IsBoundByPublisher("inproc://x"));
  EXPECT_FALSE(IsBoundByPublisher("tcp://router:5557"));
  EXPECT_TRUE(IsBoundBySubscriber("tcp://*:5557"));
  EXPECT_FALSE(IsBoundBySubscriber("ipc://x"));
}

TEST(SequenceTrackerTest, TellsGapsDuplicatesAndRestartsApart) {
  using Arrival = SequenceTracker::Arrival;
  SequenceTracker tracker;
  EXPECT_EQ(tracker.Classify(0, "a"), Arrival::kNext);
  tracker.Accept("a");
  tracker.Accept("b");
  EXPECT_EQ(tracker.Classify(2, "c"), Arrival::kNext);
  EXPECT_EQ(tracker.Classify(3, "c"), Arrival::kGap);
  EXPECT_EQ(tracker.Classify(1, "b"), Arrival::kDuplicate);
  EXPECT_EQ(tracker.Classify(0, "b"), Arrival::kRestart);
  tracker.SkipTo(9);
  EXPECT_EQ(tracker.next(), 9);
  EXPECT_EQ(tracker.Classify(1, "b"), Arrival::kRestart);
  tracker.Restart();
  EXPECT_EQ(tracker.Classify(0, "a"), Arrival::kNext);
}

}  // namespace
}  // namespace kvblocks::events
