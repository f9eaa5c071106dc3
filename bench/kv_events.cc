// What publishing KV events costs the scheduler's thread, and what one core can send.
//
//   bazel run -c opt //bench:kv_events
//   bazel run -c opt //bench:kv_events -- --rate=200000 --seconds=5 --events=8
//   bazel run -c opt //bench:kv_events -- --smoke
//
// The scheduler's thread hands over a batch of --events events per step, --rate events per second;
// half of them store four blocks of 16 tokens, half remove a block. A subscriber in this process
// decodes everything and keeps an index. "handed over" is the time of one Publish, from the median
// and the 99th percentile over groups of 32 calls; the clock is read once per group. Groups in
// which the kernel took the thread off its core are counted, and left out of a second percentile:
// on a machine with other work it does so by itself. Times of threads are processor time, so other
// work on the machine is not counted.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "bench/thread_time.h"
#include "kvblocks/kv_events.h"
#include "kvblocks/kv_events_zmq.h"

namespace kvblocks::bench {
namespace {

using events::EventPublisher;
using events::EventSubscriber;
using Clock = std::chrono::steady_clock;

double WallNs() {
  return std::chrono::duration<double, std::nano>(Clock::now().time_since_epoch()).count();
}
// How often the kernel took this thread off its core although it could have run on.
int64_t NumInterruptions() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}
double Quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(q * static_cast<double>(values.size())))];
}

std::vector<KvEvent> MakeBatch(int64_t num_events, uint64_t number) {
  std::vector<KvEvent> batch;
  batch.reserve(static_cast<size_t>(num_events));
  for (int64_t i = 0; i < num_events; ++i) {
    const auto name = number * 64 + static_cast<uint64_t>(i);
    if (i % 2 == 0) {
      BlockStored stored{.block_size = 16, .kv_cache_spec_kind = "full_attention"};
      for (uint64_t b = 0; b < 4; ++b) stored.block_hashes.push_back({{name, b, name * 7, 1}});
      for (int32_t t = 0; t < 64; ++t) stored.token_ids.push_back(t * 1999);
      stored.extra_keys.resize(4);
      batch.emplace_back(std::move(stored));
    } else {
      batch.emplace_back(BlockRemoved{.block_hash = {{name - 1, 0, (name - 1) * 7, 1}}});
    }
  }
  return batch;
}

// Nanoseconds per event of the codec alone.
void MeasureCodec(int64_t num_events, int rounds) {
  const std::vector<KvEvent> batch = MakeBatch(num_events, 1);
  std::string bytes;
  std::vector<double> encode, decode;
  for (int i = 0; i < rounds; ++i) {
    bytes.clear();
    double start = ThreadSeconds();
    for (int k = 0; k < 32; ++k) {
      bytes.clear();
      events::EncodeEvents(batch, {}, &bytes);
    }
    encode.push_back((ThreadSeconds() - start) * 1e9 / 32 / num_events);
    start = ThreadSeconds();
    for (int k = 0; k < 32; ++k) {
      if (!events::DecodeEvents(bytes).ok()) std::abort();
    }
    decode.push_back((ThreadSeconds() - start) * 1e9 / 32 / num_events);
  }
  absl::PrintF("encode                %8.0f ns per event, %d bytes each\n", Quantile(encode, 0.5),
               static_cast<int64_t>(bytes.size()) / num_events);
  std::printf("decode                %8.0f ns per event\n", Quantile(decode, 0.5));
}

int Run(int64_t rate, double seconds, int64_t num_events) {
  constexpr int kGroup = 32;
  auto publisher = EventPublisher::Create(
      {.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = "tcp://127.0.0.1:*"});
  if (!publisher.ok()) return 2;
  std::atomic<bool> stopping{false};
  std::atomic<int64_t> num_received{0}, num_lost{0};
  double subscriber_cpu = 0;
  std::thread router([&] {
    auto subscriber = EventSubscriber::Create(
        {.sources = {{.endpoint = (*publisher)->endpoint()}}, .replay_at_start = false});
    if (!subscriber.ok()) return;
    while (!stopping) {
      const auto received = (*subscriber)->Receive(std::chrono::milliseconds(5));
      if (!received) continue;
      num_received += static_cast<int64_t>(received->batch.events.size());
      num_lost += received->num_lost;
    }
    subscriber_cpu = ThreadSeconds();
  });
  while ((*publisher)->stats().num_subscribers == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<double> with_events, undisturbed, without_events;
  std::vector<std::vector<KvEvent>> batches(kGroup);
  const double cpu_before = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
  const double mine_before = ThreadSeconds();
  const auto start = Clock::now();
  int64_t num_sent = 0;
  uint64_t number = 0;
  const double group_seconds = static_cast<double>(kGroup * num_events) / static_cast<double>(rate);
  while (std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    for (auto& batch : batches) batch = MakeBatch(num_events, number++);
    const int64_t interruptions = NumInterruptions();
    double before = WallNs();
    for (auto& batch : batches) (*publisher)->Publish(std::move(batch));
    with_events.push_back((WallNs() - before) / kGroup);
    if (NumInterruptions() == interruptions) undisturbed.push_back(with_events.back());
    before = WallNs();
    for (int i = 0; i < kGroup; ++i) (*publisher)->Publish({});
    without_events.push_back((WallNs() - before) / kGroup);
    num_sent += kGroup * num_events;
    std::this_thread::sleep_until(
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                    group_seconds * static_cast<double>(with_events.size()))));
  }
  const double wall = std::chrono::duration<double>(Clock::now() - start).count();
  (*publisher)->Flush(std::chrono::seconds(60));
  // On a busy machine the subscriber may be behind; it is done when nothing comes any more.
  for (int64_t before = -1; before != num_received && num_received < num_sent;) {
    before = num_received;
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  stopping = true;
  router.join();
  const double mine = ThreadSeconds() - mine_before;
  const double others = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_before - mine - subscriber_cpu;
  const EventPublisher::Stats stats = (*publisher)->stats();
  absl::PrintF("handed over           %8.0f ns per step with %d events (99th percentile %.0f ns)\n",
               Quantile(with_events, 0.5), num_events, Quantile(with_events, 0.99));
  absl::PrintF(
      "                      %8.0f ns in the 99th percentile without %d of %d groups in "
      "which the kernel interrupted the thread\n",
      Quantile(undisturbed, 0.99), with_events.size() - undisturbed.size(), with_events.size());
  std::printf("                      %8.1f ns per step without events\n",
              Quantile(without_events, 0.5));
  absl::PrintF("sent                  %8.0f events/s, %.1f MB/s; received %d of %d\n",
               static_cast<double>(num_sent) / wall,
               static_cast<double>(stats.num_bytes) / wall / 1e6, num_received.load(), num_sent);
  absl::PrintF(
      "                      %8d events dropped by the queue, %d batches missed by the "
      "subscriber\n",
      stats.num_dropped_events, num_lost.load());
  std::printf("publisher and sockets %8.1f %% of a core: %.0f events/s would fill one\n",
              100 * others / wall, static_cast<double>(num_sent) / others);
  std::printf("subscriber            %8.1f %% of a core, index included\n",
              100 * subscriber_cpu / wall);
  return num_received == num_sent ? 0 : 1;
}

}  // namespace

int Main(int argc, char** argv) {
  int64_t rate = 200'000, num_events = 8;
  double seconds = 5;
  int rounds = 2000;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = argument.substr(argument.find('=') + 1);
    bool is_read = true;
    if (argument == "--smoke") {
      seconds = 0.2;
      rounds = 5;
    } else if (argument.rfind("--rate=", 0) == 0) {
      is_read = absl::SimpleAtoi(value, &rate) && rate > 0;
    } else if (argument.rfind("--seconds=", 0) == 0) {
      is_read = absl::SimpleAtod(value, &seconds) && seconds > 0;
    } else if (argument.rfind("--events=", 0) == 0) {
      is_read = absl::SimpleAtoi(value, &num_events) && num_events > 0 && num_events <= 64;
    } else {
      is_read = false;
    }
    if (!is_read) {
      std::fprintf(stderr, "%s: expected --rate=N, --seconds=S, --events=1..64 or --smoke\n",
                   argv[i]);
      return 2;
    }
  }
  MeasureCodec(num_events, rounds);
  return Run(rate, seconds, num_events);
}

}  // namespace kvblocks::bench

int main(int argc, char** argv) { return kvblocks::bench::Main(argc, argv); }
