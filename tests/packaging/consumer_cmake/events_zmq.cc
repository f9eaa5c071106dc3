// A batch of KV events from a publisher to a subscriber, and into its index.
#include <cstdio>

#include "kvblocks/kv_events_zmq.h"

int main() {
  using namespace kvblocks;
  const std::chrono::milliseconds patience(10000);
  auto publisher =
      events::EventPublisher::Create({.endpoint = "inproc://a", .replay_endpoint = "inproc://b"});
  if (!publisher.ok()) return 1;
  (*publisher)->Publish({BlockStored{.block_hashes = {BlockHash{}}, .block_size = 16}});
  if (!(*publisher)->Flush(patience)) return 1;
  auto subscriber = events::EventSubscriber::Create(
      {.sources = {{.endpoint = "inproc://a", .replay_endpoint = "inproc://b"}}});
  if (!subscriber.ok() || !(*subscriber)->Receive(patience)) return 1;
  const auto num_keys = (*subscriber)->index().num_keys();
  std::printf("events_zmq: %d block known\n", static_cast<int>(num_keys));
  return num_keys == 1 ? 0 : 1;
}
