#include "kvblocks/sim/serve/live_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool/check.h"
#include "kvblocks/sim/engine/request_store.h"
#include "kvblocks/sim/replica.h"
#include "kvblocks/sim/serve/live_metrics.h"
#ifdef KVBLOCKS_WITH_ZMQ
#include "kvblocks/events/zmq/event_publisher.h"
#else
namespace kvblocks::events {
class EventPublisher {};
}  // namespace kvblocks::events
#endif

namespace kvblocks::sim {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = SequenceUpdate::Kind;
using Task = std::function<void()>;

}  // namespace

class LiveEngine::Impl final : public Replica::Owner, public EngineObserver {
 public:
  // What others ask of the engine's thread, in order.
  struct Message {
    enum What { kArrival, kAbort, kTask };
    What what = kTask;
    SimTime time = 0;
    SequenceSpec spec;  // of an abort: the id alone
    Task task;
  };

  Impl(Options options, std::function<void()> wake)
      : options_(std::move(options)), wake_(std::move(wake)), metrics_(options_.metrics) {
    trace_.block_tokens = 1;
    trace_.format = "serve";
  }

  ~Impl() override {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  absl::Status Start() {
    if (absl::Status status = OpenEvents(); !status.ok()) return status;
    SimulationConfig& config = options_.simulation;
    config.manager.enable_events = publisher_ != nullptr;
    auto replica = Replica::Create(config, trace_, options_.step_time.get(), {&metrics_, this}, this);
    if (!replica.ok()) return replica.status();
    replica_ = *std::move(replica);
    replica_->Start();
    epoch_ = Clock::now();
    thread_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }

  // --- From any thread ---

  SimTime Now() const {
    const auto passed = std::chrono::duration<double, std::pico>(Clock::now() - epoch_);
    return static_cast<SimTime>(passed.count() * options_.speed);
  }

  // The time is taken under the lock, so that times are in the order of the queue.
  template <typename Fill>
  void Post(Message::What what, Fill&& fill) {
    {
      const std::lock_guard lock(mutex_);
      Message& message = inbox_.emplace_back();
      message.what = what;
      message.time = Now();
      fill(message);
    }
    changed_.notify_one();
  }
  void Run(Task task) {
    Post(Message::kTask, [&](Message& message) { message.task = std::move(task); });
  }
  void Submit(SequenceSpec spec) {
    Post(Message::kArrival, [&](Message& message) { message.spec = std::move(spec); });
  }
  void Abort(int64_t id) {
    Post(Message::kAbort, [&](Message& message) { message.spec.id = id; });
  }

  void TakeUpdates(std::vector<SequenceUpdate>* out) {
    out->clear();
    const std::lock_guard lock(outbox_mutex_);
    out->swap(outbox_);
  }

  std::string MetricsText() const { return metrics_.Text(); }
  Lag lag() const { return lag_; }
  bool ResetPrefixCache() { return replica_->ResetPrefixCache(); }
  absl::Status CheckInvariants() const { return replica_->scheduler().CheckInvariants(); }

  std::string events_endpoint() const;
  std::string replay_endpoint() const;

 private:
  absl::Status OpenEvents();

  // --- The engine's thread ---

  void Loop() {
    std::vector<Message> messages;
    while (true) {
      for (Message& message : messages) Take(message);
      messages.clear();
      AdvanceTo(Now());
      Publish();
      const std::optional<SimTime> next = replica_->NextTime();
      std::unique_lock lock(mutex_);
      const auto is_due = [&] { return is_ending_ || !inbox_.empty(); };
      if (next) {
        changed_.wait_until(lock, WallTime(*next), is_due);
      } else {
        changed_.wait(lock, is_due);
      }
      if (is_ending_) return;
      messages.swap(inbox_);
    }
  }

  Clock::time_point WallTime(SimTime time) const {
    const std::chrono::duration<double, std::pico> passed(static_cast<double>(time) /
                                                          options_.speed);
    // Rounded up: a step is over when its time has passed.
    return epoch_ + std::chrono::ceil<Clock::duration>(passed);
  }

  void Take(Message& message) {
    switch (message.what) {
      case Message::kArrival:
        // What came before happens before, also where the thread is late.
        AdvanceTo(message.time);
        Admit(std::move(message.spec), std::max(message.time, clock_));
        break;
      case Message::kAbort:
        if (const auto it = live_.find(message.spec.id); it != live_.end()) {
          replica_->PlanAbort(it->second, AbortCause::kAbortTime, std::max(message.time, clock_));
        }
        break;
      case Message::kTask:
        message.task();
        break;
    }
  }

  // Runs what is due by then. A request that can never go on is ended, and the others go on.
  void AdvanceTo(SimTime time) {
    while (true) {
      const std::optional<SimTime> next = replica_->NextTime();
      if (next && *next <= time) {
        clock_ = std::max(clock_, *next);
        const absl::Status status = replica_->Advance(*next);
        KVBLOCKS_CHECK(!absl::IsInternal(status), status.ToString());
        if (!status.ok()) EndStuck(status.ToString());
        continue;
      }
      if (!next && replica_->has_work()) {
        EndStuck(replica_->scheduler().DescribeNoProgress());
        continue;
      }
      break;
    }
    clock_ = std::max(clock_, time);
  }

  void EndStuck(std::string why) {
    const Scheduler& scheduler = replica_->scheduler();
    const SimRequest* stuck = scheduler.stuck();
    if (stuck == nullptr && !scheduler.waiting().empty()) stuck = scheduler.waiting().front();
    for (const auto& [id, request] : live_) {
      if (stuck != nullptr && request != stuck) continue;
      failure_ = std::move(why);
      const absl::Status status = replica_->AbortNow(request, AbortCause::kNone, clock_);
      failure_.clear();
      (void)status;  // from OnEnded, which has none
      return;
    }
  }

  void Admit(SequenceSpec asked, SimTime now) {
    const int64_t id = asked.id;
    TraceRequest spec;
    spec.row = id;
    spec.id = std::move(asked.name);
    spec.input_length = static_cast<int64_t>(asked.prompt->size());
    spec.output_length = static_cast<int64_t>(asked.output_ids.size());
    spec.output_ids = std::move(asked.output_ids);
    spec.priority = asked.priority;
    auto kv = replica_->manager().NewRequest(
        {.id = spec.id,
         .content = {.token_ids = *asked.prompt,
                     .lora_name = std::move(asked.lora_name),
                     .lora_path = std::move(asked.lora_path),
                     .cache_salt = std::move(asked.cache_salt)}});
    if (!kv.ok()) {
      Tell({.id = id, .kind = Kind::kRejected, .text = std::string(kv.status().message())});
      return;
    }
    SimRequest* request = store_.Add(std::move(spec));
    request->kv = *std::move(kv);
    request->arrival = now;
    if (asked.ends_by_stop) request->ending = FinishReason::kStop;
    live_[id] = request;
    Tell({.id = id, .kind = Kind::kAccepted});
    const absl::Status status = replica_->Submit(request, now);
    (void)status;  // from OnEnded, which has none
  }

  absl::Status OnEnded(SimRequest* request, SimTime) override {
    SequenceUpdate update = {.id = request->spec.row};
    switch (request->finish_reason) {
      case FinishReason::kRejected:
        update.kind = Kind::kRejected;
        update.text = request->finish_text;
        break;
      case FinishReason::kAbort:
        update.kind = failure_.empty() ? Kind::kAborted : Kind::kFailed;
        update.text = failure_;
        break;
      default:
        update.kind = Kind::kEnded;
        break;
    }
    Tell(std::move(update));
    live_.erase(request->spec.row);
    store_.Remove(request);
    return absl::OkStatus();
  }

  void OnAdmission(const AdmissionRecord& record, SimTime) override {
    if (record.is_resume) return;
    Tell({.id = record.request->spec.row,
          .num_tokens = record.num_hit_tokens,
          .kind = Kind::kAdmitted});
  }

  void OnStepFinished(const StepRecord& step) override {
    for (const OutputRecord& output : step.outputs) {
      if (output.request == nullptr || output.num_emitted == 0) continue;
      Tell({.id = output.request->spec.row, .num_tokens = output.num_emitted});
    }
    lag_.last_seconds = std::max(
        0.0, static_cast<double>(Now() - step.end) / static_cast<double>(kSecond) / options_.speed);
    lag_.max_seconds = std::max(lag_.max_seconds, lag_.last_seconds);
  }

  void OnKvEvents(absl::Span<const KvEvent> events, SimTime) override;

  // --- Updates, collected per turn of the loop ---

  void Tell(SequenceUpdate update) {
    turn_.push_back(std::move(update));
    if (turn_.size() >= kMostPerTurn) Publish();
  }

  void Publish() {
    if (turn_.empty()) return;
    bool was_empty;
    {
      const std::lock_guard lock(outbox_mutex_);
      was_empty = outbox_.empty();
      if (was_empty) {
        outbox_.swap(turn_);
      } else {
        outbox_.insert(outbox_.end(), std::make_move_iterator(turn_.begin()),
                       std::make_move_iterator(turn_.end()));
      }
    }
    turn_.clear();
    if (was_empty) wake_();
  }

  static constexpr size_t kMostPerTurn = 16384;  // a thread that is late tells in between

  Options options_;
  const std::function<void()> wake_;
  TraceInfo trace_;
  LiveMetrics metrics_;
  std::unique_ptr<events::EventPublisher> publisher_;
  std::unique_ptr<Replica> replica_;
  RequestStore store_;  // after the replica, whose manager its requests belong to
  absl::flat_hash_map<int64_t, SimRequest*> live_;
  SimTime clock_ = 0;  // up to which everything has happened
  std::string failure_;
  Lag lag_;
  std::vector<SequenceUpdate> turn_;
  Clock::time_point epoch_;

  std::mutex mutex_;  // of what others ask
  std::condition_variable changed_;
  std::vector<Message> inbox_;
  bool is_ending_ = false;

  std::mutex outbox_mutex_;
  std::vector<SequenceUpdate> outbox_;

  std::thread thread_;
};

#ifdef KVBLOCKS_WITH_ZMQ

absl::Status LiveEngine::Impl::OpenEvents() {
  const EngineEvents& asked = options_.events;
  if (asked.endpoint.empty()) return absl::OkStatus();
  events::EventPublisher::Options options{.endpoint = asked.endpoint,
                                          .replay_endpoint = asked.replay_endpoint,
                                          .topic = asked.topic};
  const BlockHasher hasher(options_.simulation.manager.hash_algorithm, "");
  options.hash_form.digest_size = hasher.digest_size();
  options.hash_form.as_integers = asked.integer_hashes;
  auto publisher = events::EventPublisher::Create(options);
  if (!publisher.ok()) {
    return absl::Status(publisher.status().code(),
                        absl::StrCat("--kv-events: ", publisher.status().message()));
  }
  publisher_ = *std::move(publisher);
  return absl::OkStatus();
}

void LiveEngine::Impl::OnKvEvents(absl::Span<const KvEvent> events, SimTime) {
  publisher_->Publish({events.begin(), events.end()});
}

std::string LiveEngine::Impl::events_endpoint() const {
  return publisher_ == nullptr ? "" : publisher_->endpoint();
}
std::string LiveEngine::Impl::replay_endpoint() const {
  return publisher_ == nullptr ? "" : publisher_->replay_endpoint();
}

#else

absl::Status LiveEngine::Impl::OpenEvents() {
  if (options_.events.endpoint.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      "--kv-events: this kvsim was built without ZeroMQ; install libzmq and cppzmq and build it "
      "again");
}
void LiveEngine::Impl::OnKvEvents(absl::Span<const KvEvent>, SimTime) {}
std::string LiveEngine::Impl::events_endpoint() const { return ""; }
std::string LiveEngine::Impl::replay_endpoint() const { return ""; }

#endif

LiveEngine::LiveEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LiveEngine::~LiveEngine() = default;

absl::StatusOr<std::unique_ptr<LiveEngine>> LiveEngine::Create(Options options,
                                                               std::function<void()> wake) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(wake));
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<LiveEngine>(new LiveEngine(std::move(impl)));
}

void LiveEngine::Submit(SequenceSpec spec) { impl_->Submit(std::move(spec)); }
void LiveEngine::Abort(int64_t id) { impl_->Abort(id); }
void LiveEngine::TakeUpdates(std::vector<SequenceUpdate>* out) { impl_->TakeUpdates(out); }

void LiveEngine::AskMetrics(std::function<void(std::string, Lag)> done) {
  impl_->Run([impl = impl_.get(), done = std::move(done)] {
    done(impl->MetricsText(), impl->lag());
  });
}

void LiveEngine::ResetPrefixCache(std::function<void(bool)> done) {
  impl_->Run([impl = impl_.get(), done = std::move(done)] { done(impl->ResetPrefixCache()); });
}

void LiveEngine::CheckInvariants(std::function<void(absl::Status)> done) {
  impl_->Run([impl = impl_.get(), done = std::move(done)] { done(impl->CheckInvariants()); });
}

std::string LiveEngine::events_endpoint() const { return impl_->events_endpoint(); }
std::string LiveEngine::replay_endpoint() const { return impl_->replay_endpoint(); }

}  // namespace kvblocks::sim
