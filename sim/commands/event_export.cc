#include "sim/commands/event_export.h"

#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_events.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/report/report_section.h"
#ifdef KVBLOCKS_WITH_ZMQ
#include "kvblocks/kv_events_zmq.h"
#else
namespace kvblocks::events {
class EventPublisher {};
}  // namespace kvblocks::events
#endif

namespace kvblocks::sim {

absl::Status BuiltWithoutZmq(const std::string& option) {
  return absl::UnimplementedError(
      absl::StrCat(option,
                   ": this kvsim was built without ZeroMQ; install libzmq and cppzmq and "
                   "build it again, or name a file"));
}

bool IsEndpoint(const std::string& text) { return text.find("://") != text.npos; }

class EventExport::OfReplica final : public EngineObserver {
 public:
  OfReplica(EventExport* parent, int64_t replica, std::string name)
      : rank(replica), source(std::move(name)), parent_(parent) {}

  bool NeedsEveryRecord() const override { return false; }
  void OnKvEvents(absl::Span<const KvEvent> batch, SimTime now) override {
    parent_->Publish(this, batch, now);
  }

  const int64_t rank;
  const std::string source;
  std::unique_ptr<events::EventPublisher> publisher;
  int64_t next_sequence = 0;  // of the file

 private:
  EventExport* const parent_;
};

EventExport::EventExport() = default;
EventExport::~EventExport() = default;

EngineObserver* EventExport::of_replica(size_t replica) { return replicas_[replica].get(); }

void EventExport::AddOptions(OptionParser* options) {
  options
      ->Add({"--events", "ENDPOINT",
             "publish KV events as vLLM does, on a ZeroMQ endpoint (tcp://*:5557); a file in its "
             "place records them for kvsim events"},
            &target_)
      .file = FileUse::kWritten;
  const std::string needs = "--events";
  options
      ->Add({"--events-replay", "ENDPOINT",
             "where subscribers can ask for the last 10,000 batches again"},
            &replay_)
      .needs = needs;
  options->Add({"--events-topic", "TOPIC", "of the messages [none]"}, &topic_).needs = needs;
  options
      ->Add({"--events-pace", "FACTOR", "simulated seconds per second; 0: as fast as possible [0]"},
            0.0, 1e9, &pace_)
      .needs = needs;
  options
      ->Add({"--events-subscribers", "N", "wait for N subscribers before the run [0]"}, 0, 100'000,
            &num_subscribers_)
      .needs = needs;
  options
      ->AddSeconds({"--events-linger", "TIME",
                    "keep answering subscribers for this long after the run [0s]"},
                   0, 86400, &linger_seconds_)
      .needs = needs;
}

absl::Status EventExport::Check() const {
  if (!IsEndpoint(target_)) {
    for (const auto& [option, is_given] :
         {std::pair("--events-replay", !replay_.empty()), std::pair("--events-pace", pace_ > 0),
          std::pair("--events-subscribers", num_subscribers_ > 0),
          std::pair("--events-linger", linger_seconds_ > 0)}) {
      if (is_given) {
        return InvalidArgument(option, " needs --events=ENDPOINT, got the file ", target_);
      }
    }
    return IsStandardOutput(target_) ? InvalidArgument(
                                           "--events: got standard output, expected a file or an "
                                           "endpoint: a log is no text")
                                     : absl::OkStatus();
  }
#ifndef KVBLOCKS_WITH_ZMQ
  return BuiltWithoutZmq("--events");
#endif
  return absl::OkStatus();
}

absl::Status EventExport::Open(size_t num_replicas) {
  for (size_t r = 0; r < num_replicas; ++r) {
    replicas_.push_back(std::make_unique<OfReplica>(
        this, static_cast<int64_t>(r), num_replicas == 1 ? "kvsim" : absl::StrCat("replica-", r)));
  }
  if (!IsEndpoint(target_)) {
    KVBLOCKS_ASSIGN_OR_RETURN(sink_, OpenByteSink(target_));
    std::string head;
    events::AppendLogHead(&head);
    return sink_->Write(head);
  }
  for (const auto& replica : replicas_) {
    KVBLOCKS_RETURN_IF_ERROR(Bind(replica.get()));
  }
#ifdef KVBLOCKS_WITH_ZMQ
  for (const auto& replica : replicas_) {
    while (replica->publisher->stats().num_subscribers < num_subscribers_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
#endif
  epoch_ = std::chrono::system_clock::now();
  return absl::OkStatus();
}

absl::Status EventExport::Bind(OfReplica* replica) {
#ifdef KVBLOCKS_WITH_ZMQ
  KVBLOCKS_ASSIGN_OR_RETURN(
      replica->publisher,
      OfOption("--events", events::EventPublisher::Create(
                               {.endpoint = target_,
                                .replay_endpoint = replay_,
                                .topic = topic_,
                                .data_parallel_rank = replica->rank,
                                .when_full = events::EventPublisher::WhenFull::kWait})));
  std::fprintf(stderr, "KV events: %s%s%s\n", replica->publisher->endpoint().c_str(),
               replay_.empty() ? "" : ", replay ", replica->publisher->replay_endpoint().c_str());
#else
  (void)replica;
#endif
  return absl::OkStatus();
}

void EventExport::Publish(OfReplica* replica, absl::Span<const KvEvent> batch, SimTime now) {
  if (sink_ != nullptr) return Record(replica, batch, now);
#ifdef KVBLOCKS_WITH_ZMQ
  if (pace_ > 0) {
    const std::chrono::duration<double> since(Seconds(now) / pace_);
    std::this_thread::sleep_until(
        epoch_ + std::chrono::duration_cast<std::chrono::system_clock::duration>(since));
  }
  // Unix time, so that a restarted run differs from the one before.
  const double start = std::chrono::duration<double>(epoch_.time_since_epoch()).count();
  replica->publisher->Publish({batch.begin(), batch.end()}, start + Seconds(now));
#endif
}

// Simulated time: the same run gives the same file.
void EventExport::Record(OfReplica* replica, absl::Span<const KvEvent> batch, SimTime now) {
  events::LoggedMessage message{
      .source = replica->source, .topic = topic_, .sequence = replica->next_sequence++};
  events::EncodeEvents(batch,
                       {.timestamp = Seconds(now), .data_parallel_rank = replica->rank},
                       &message.payload);
  std::string bytes;
  events::AppendToLog(message, &bytes);
  if (sink_status_.ok()) sink_status_ = sink_->Write(bytes);
}

absl::Status EventExport::Close() {
  if (sink_ != nullptr) return sink_status_.ok() ? sink_->Close() : sink_status_;
#ifdef KVBLOCKS_WITH_ZMQ
  if (replicas_.empty()) return absl::OkStatus();
  for (const auto& replica : replicas_) {
    while (!replica->publisher->Flush(std::chrono::seconds(1))) continue;
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(linger_seconds_));
  replicas_.clear();
#endif
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
