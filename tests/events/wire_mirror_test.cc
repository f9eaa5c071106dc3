// A router that hears of a manager through sockets, with a hundredth of the messages dropped on the
// way, knows exactly what the manager's table holds once the replays have filled the gaps.
//
// KVBLOCKS_EVENTS=1000000 sends as many events; docs/events.md has the command.

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "events/zmq/wire.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_events.h"
#include "kvblocks/kv_events_zmq.h"
#include "tests/group_specs.h"

namespace kvblocks::testing {
namespace {

using events::EventPublisher;
using events::EventSubscriber;
using events::StreamCheck;
using std::chrono::milliseconds;

constexpr const char* kFrom = "inproc://wire-mirror";
constexpr const char* kTo = "inproc://wire-mirror-with-losses";
constexpr const char* kReplay = "inproc://wire-mirror-replay";

// Passes messages on, but every hundredth one at random.
class LossyProxy {
 public:
  LossyProxy()
      : context_(events::SharedContext()),
        from_(*context_, zmq::socket_type::xsub),
        to_(*context_, zmq::socket_type::xpub) {
    for (zmq::socket_t* socket : {&from_, &to_}) socket->set(zmq::sockopt::linger, 0);
    from_.connect(kFrom);
    to_.bind(kTo);
    thread_ = std::thread([this] { Run(); });
  }
  ~LossyProxy() {
    stopping_ = true;
    thread_.join();
  }
  int64_t num_dropped() const { return num_dropped_; }

 private:
  void Run() {
    std::mt19937_64 random(3);
    std::vector<zmq::message_t> frames;
    while (!stopping_) {
      zmq::pollitem_t items[] = {{from_.handle(), 0, ZMQ_POLLIN, 0},
                                 {to_.handle(), 0, ZMQ_POLLIN, 0}};
      zmq::poll(items, 2, milliseconds(1));
      if (events::ReceiveFrames(to_, &frames)) Subscribe(from_);  // a subscription
      while (events::ReceiveFrames(from_, &frames_)) {
        if (random() % 100 == 0) {
          ++num_dropped_;
          continue;
        }
        for (size_t i = 0; i < frames_.size(); ++i) {
          to_.send(frames_[i],
                   i + 1 < frames_.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
        }
      }
    }
  }
  static void Subscribe(zmq::socket_t& socket) {
    socket.send(zmq::const_buffer("\1", 1), zmq::send_flags::none);
  }

  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t from_, to_;
  std::vector<zmq::message_t> frames_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> num_dropped_{0};
  std::thread thread_;
};

// Requests with shared prefixes through a full-attention and a window group, so small that blocks
// are evicted all the time.
class Workload {
 public:
  Workload() {
    KvCacheConfig config{.num_blocks = 2000,
                         .groups = {{.spec = Full(4)}, {.spec = Window(4, 30)}}};
    auto manager = KvCacheManager::Create(
        config, {.max_model_len = 4000, .enable_events = true, .hash_seed = "seed"});
    EXPECT_TRUE(manager.ok()) << manager.status();
    manager_ = *std::move(manager);
  }
  std::vector<KvEvent> Step() {
    KvCacheManager::RequestOptions options{.id = "r"};
    const auto document = static_cast<TokenId>(random_() % 40);
    const size_t length = 40 + random_() % 360;
    const size_t own = random_() % length;
    for (size_t i = 0; i < length; ++i) {
      const auto token = static_cast<TokenId>(i < own ? i : random_() % 1'000'000);
      options.content.token_ids.push_back(1000 * document + token);
    }
    auto request = manager_->NewRequest(std::move(options));
    EXPECT_TRUE(request.ok()) << request.status();
    auto hits = manager_->GetComputedBlocks(**request);
    EXPECT_TRUE(hits.ok()) << hits.status();
    const auto slots = manager_->AllocateSlots(
        **request, {.num_new_tokens = (*request)->num_tokens() - hits->num_tokens(),
                    .computed_blocks = &*hits});
    EXPECT_TRUE(slots.ok() && slots->has_value()) << slots.status();
    EXPECT_TRUE(manager_->Free(**request).ok());
    if (random_() % 2000 == 0) manager_->ResetPrefixCache();
    return manager_->TakeEvents();
  }
  const BlockPool& pool() const { return manager_->pool(); }

 private:
  std::mt19937_64 random_{7};
  std::unique_ptr<KvCacheManager> manager_;
};

TEST(WireMirrorTest, ARouterKnowsTheTableInSpiteOfLosses) {
  const char* wanted = std::getenv("KVBLOCKS_EVENTS");
  const int64_t num_events = wanted != nullptr ? std::atoll(wanted) : 60'000;
  auto publisher = EventPublisher::Create({.endpoint = kFrom, .replay_endpoint = kReplay});
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  LossyProxy proxy;
  auto subscriber =
      EventSubscriber::Create({.sources = {{.endpoint = kTo, .replay_endpoint = kReplay}}});
  ASSERT_TRUE(subscriber.ok()) << subscriber.status();
  for (int i = 0; i < 20'000 && (*publisher)->stats().num_subscribers == 0; ++i) {
    (*subscriber)->Receive(milliseconds(1));
  }
  Workload workload;
  StreamCheck check;
  check.AddStream("wire");
  int64_t num_sent = 0, num_batches = 0, next = 0;
  const auto receive = [&](milliseconds patience) {
    const auto received = (*subscriber)->Receive(patience);
    if (!received) return false;
    EXPECT_EQ(received->kind, EventSubscriber::Kind::kBatch);
    EXPECT_EQ(received->sequence, next);
    next = received->sequence + 1;
    check.Apply(0, received->batch);
    return true;
  };
  while (num_sent < num_events) {
    std::vector<KvEvent> batch = workload.Step();
    num_sent += static_cast<int64_t>(batch.size());
    num_batches += !batch.empty();
    ASSERT_TRUE((*publisher)->Publish(std::move(batch)));
    // As far behind as the publisher's buffer reaches, but not further.
    const bool is_far = num_batches - next > 3000;
    while (receive(milliseconds(is_far ? 10 : 0)) || num_batches - next > 5000) continue;
  }
  ASSERT_TRUE((*publisher)->Flush(milliseconds(60'000)));
  for (int i = 0; i < 1000 && next < num_batches; ++i) {
    if (receive(milliseconds(100))) continue;
    (*subscriber)->CatchUp();  // the last message may be among the dropped ones
  }
  ASSERT_EQ(next, num_batches);
  const EventSubscriber::Stream& stream = (*subscriber)->streams()[0];
  EXPECT_GT(proxy.num_dropped(), 0);
  EXPECT_GE(stream.num_replayed, proxy.num_dropped());
  EXPECT_EQ(stream.num_lost, 0);
  EXPECT_EQ(check.totals(0).num_problems(), 0) << check.totals(0).first_problem;
  EXPECT_EQ(check.totals(0).num_events, num_sent);

  std::map<std::pair<std::array<uint64_t, 4>, GroupId>, int32_t> expected;
  const BlockPool& pool = workload.pool();
  for (BlockId id = 1; id < pool.num_blocks(); ++id) {
    const KvCacheBlock& block = pool.block(id);
    if (block.has_key()) ++expected[{pool.hash(id).words, block.key_group}];
    for (const auto& [hash, group] : pool.further_keys(id)) ++expected[{hash.words, group}];
  }
  const events::BlockIndex& index = (*subscriber)->index();
  EXPECT_EQ(index.num_keys(), static_cast<int64_t>(expected.size()));
  for (const auto& [key, count] : expected) {
    const auto holdings = index.Holders({BlockHash{key.first}, key.second});
    ASSERT_EQ(holdings.size(), 1u);
    ASSERT_EQ(holdings[0].num_blocks, count);
  }
  std::printf(
      "%lld events in %lld batches, %lld dropped, %lld gaps, %lld replayed, %lld came twice\n",
      static_cast<long long>(num_sent), static_cast<long long>(num_batches),
      static_cast<long long>(proxy.num_dropped()), static_cast<long long>(stream.num_gaps),
      static_cast<long long>(stream.num_replayed), static_cast<long long>(stream.num_duplicates));
}

}  // namespace
}  // namespace kvblocks::testing
