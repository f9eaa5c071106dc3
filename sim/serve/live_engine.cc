#include "sim/serve/live_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/engine/request_store.h"
#include "sim/replica.h"
#include "sim/serve/live_metrics.h"
#ifdef KVBLOCKS_WITH_ZMQ
#include "kvblocks/kv_events_zmq.h"
#else
namespace kvblocks::events {
class EventPublisher {};
}  // namespace kvblocks::events
#endif

namespace kvblocks::sim {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = SequenceUpdate::Kind;
using Task = std::function<void(SimTime asked)>;

class EngineThread final : public LiveEngine, public Replica::Owner, public EngineObserver {
 public:
  EngineThread(Options options, std::function<void()> wake)
      : options_(std::move(options)), wake_(std::move(wake)), metrics_(options_.metrics) {
    trace_.block_tokens = 1;
    trace_.format = "serve";
  }

  ~EngineThread() override {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;  // under the lock, so that no wait misses it
    }
    changed_.notify_one();
    thread_.join();
  }

  absl::Status Start() {
    KVBLOCKS_RETURN_IF_ERROR(OpenEvents());
    SimulationConfig& config = options_.simulation;
    config.manager.enable_events = config.manager.enable_events || publisher_ != nullptr;
    std::vector<EngineObserver*> observers = {&metrics_, this};
    if (options_.tiers != nullptr) observers.push_back(options_.tiers.get());
    KVBLOCKS_ASSIGN_OR_RETURN(
        replica_, Replica::Create(config, trace_, options_.step_time.get(), observers, this));
    if (options_.tiers != nullptr) {
      if (absl::Status status = options_.tiers->Attach(replica_->manager()); !status.ok()) {
        return absl::Status(status.code(), absl::StrCat("--tier: ", status.message()));
      }
      replica_->set_connector(options_.tiers.get());
    }
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

  // What others ask of the engine's thread is done in order. The time is taken under the lock, so
  // that times are in the order of the queue.
  void Post(Task task) {
    {
      const std::lock_guard lock(mutex_);
      inbox_.emplace_back(Now(), std::move(task));
    }
    changed_.notify_one();
  }
  void Submit(SequenceSpec spec) override {
    Post([this, spec = std::move(spec)](SimTime asked) mutable {
      // What came before happens before, also where the thread is late.
      AdvanceTo(asked);
      Admit(std::move(spec), std::max(asked, clock_));
    });
  }
  void Abort(int64_t id) override {
    Post([this, id](SimTime asked) {
      const auto it = live_.find(id);
      if (it == live_.end()) return;
      replica_->PlanAbort(it->second.request, AbortCause::kAbortTime, std::max(asked, clock_));
    });
  }

  void TakeUpdates(std::vector<SequenceUpdate>* out) override {
    out->clear();
    const std::lock_guard lock(outbox_mutex_);
    out->swap(outbox_);
  }

  void AskMetrics(std::function<void(std::string, const State&)> done) override {
    Post([this, done = std::move(done)](SimTime) { done(metrics_.Text(), CurrentState()); });
  }
  void ResetPrefixCache(std::function<void(bool)> done) override {
    Post([this, done = std::move(done)](SimTime) {
      const bool is_empty = replica_->ResetPrefixCache();
      metrics_.ReadPool();
      done(is_empty);
    });
  }
  std::string events_endpoint() const override;
  std::string replay_endpoint() const override;

 private:
  State CurrentState() const {
    State state{.lag_seconds = lag_seconds_,
                .max_lag_seconds = max_lag_seconds_,
                .num_checks = num_checks_};
    std::set<std::string> running, waiting;
    for (const auto& [id, live] : live_) {
      if (live.lora_name.empty()) continue;
      (live.request->state == RequestState::kRunning ? running : waiting).insert(live.lora_name);
    }
    state.running_loras.assign(running.begin(), running.end());
    state.waiting_loras.assign(waiting.begin(), waiting.end());
    return state;
  }
  // A sequence on its way.
  struct Live {
    SimRequest* request = nullptr;
    std::string lora_name = {};
    int64_t max_tokens = 0;
    std::shared_ptr<AnswerGroup> group = {};
    std::shared_ptr<const std::vector<TokenId>> output = {};
    size_t output_start = 0;
  };

  absl::Status OpenEvents();

  // --- The engine's thread ---

  void Loop() {
    std::vector<std::pair<SimTime, Task>> tasks;
    while (true) {
      for (auto& [asked, task] : tasks) {
        if (is_ending_) return;
        task(asked);
      }
      tasks.clear();
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
      tasks.swap(inbox_);
    }
  }

  Clock::time_point WallTime(SimTime time) const {
    const std::chrono::duration<double, std::pico> passed(static_cast<double>(time) /
                                                          options_.speed);
    // Rounded up: a step is over when its time has passed.
    return epoch_ + std::chrono::ceil<Clock::duration>(passed);
  }

  // Runs what is due by then. A request that can never go on is ended, and the others go on.
  void AdvanceTo(SimTime time) {
    while (!is_ending_) {
      const std::optional<SimTime> next = replica_->NextTime();
      if (next && *next <= time) {
        clock_ = std::max(clock_, *next);
        const absl::Status status = replica_->Advance(*next);
        KVBLOCKS_CHECK(!absl::IsInternal(status), status.ToString());
        // Without anything to end the same step would fail for ever.
        if (!status.ok()) KVBLOCKS_CHECK(EndStuck(status.ToString()), status.ToString());
        if (options_.simulation.check_invariants) CheckAll();
        continue;
      }
      // What is left when no request is, like a load that nobody waits for, waits for the next one.
      if (next || !replica_->has_work()) break;
      if (!EndStuck(replica_->scheduler().DescribeNoProgress())) break;
    }
    clock_ = std::max(clock_, time);
  }

  // All that must hold of scheduler, pool and tiers.
  void CheckAll() {
    absl::Status status = replica_->scheduler().CheckInvariants();
    if (status.ok() && options_.tiers != nullptr) status = options_.tiers->CheckInvariants();
    KVBLOCKS_CHECK_OK(status);
    ++num_checks_;
  }

  // Ends the request that can never go on, or any where the scheduler names none of those that
  // live. False: none lives.
  bool EndStuck(std::string why) {
    if (live_.empty()) return false;
    const Scheduler& scheduler = replica_->scheduler();
    const SimRequest* stuck = scheduler.stuck();
    if (stuck == nullptr && !scheduler.waiting().empty()) stuck = scheduler.waiting().front();
    auto it = std::find_if(live_.begin(), live_.end(),
                           [&](const auto& entry) { return entry.second.request == stuck; });
    if (it == live_.end()) it = live_.begin();
    failure_ = std::move(why);
    const absl::Status status = replica_->AbortNow(it->second.request, AbortCause::kNone, clock_);
    failure_.clear();
    (void)status;  // from OnEnded, which has none
    return true;
  }

  // An id for every output token that the next steps can come to. Those of an answer that may never
  // be produced would take memory for nothing.
  static void Extend(const Live& live) {
    std::vector<uint32_t>& ids = live.request->spec.output_ids;
    const auto enough = [&](int64_t more) {
      return static_cast<size_t>(
          std::min(live.request->spec.output_length, live.request->num_outputs() + more));
    };
    if (ids.size() >= enough(kIdsAhead / 2)) return;
    for (const size_t size = enough(kIdsAhead); ids.size() < size;) {
      ids.push_back(static_cast<uint32_t>(
          (*live.output)[(live.output_start + ids.size()) % live.output->size()]));
    }
  }

  void Admit(SequenceSpec asked, SimTime now) {
    const int64_t id = asked.id;
    Live live{.lora_name = asked.lora_name,
              .max_tokens = asked.max_tokens,
              .group = std::move(asked.group),
              .output = std::move(asked.output),
              .output_start = asked.output_start};
    TraceRequest spec;
    spec.row = id;
    spec.id = std::move(asked.name);
    spec.input_length = static_cast<int64_t>(asked.prompt->size());
    spec.output_length = asked.num_output;
    spec.priority = asked.priority;
    auto kv = replica_->manager().NewRequest(
        {.id = spec.id,
         .content = {.token_ids = *asked.prompt,
                     .lora_name = std::move(asked.lora_name),
                     .lora_path = std::move(asked.lora_path),
                     .cache_salt = std::move(asked.cache_salt)}});
    if (!kv.ok()) {
      Notify({.id = id, .kind = Kind::kRejected, .text = std::string(kv.status().message())});
      return;
    }
    SimRequest* request = store_.Add(std::move(spec));
    request->kv = *std::move(kv);
    request->arrival = now;
    if (asked.ends_by_stop) request->ending = FinishReason::kStop;
    live.request = request;
    live_[id] = std::move(live);
    Notify({.id = id, .kind = Kind::kAccepted});
    const absl::Status status = replica_->Submit(request, now);
    (void)status;  // from OnEnded, which has none
  }

  absl::Status OnEnded(SimRequest* request, SimTime now) override {
    SequenceUpdate update = {.id = request->spec.row};
    const auto live = live_.find(request->spec.row);
    switch (request->finish_reason) {
      case FinishReason::kRejected:
        update.kind = Kind::kRejected;
        update.text = request->finish_text;
        break;
      case FinishReason::kAbort:
        update.kind = failure_.empty() ? Kind::kAborted : Kind::kFailed;
        update.text = failure_;
        break;
      case FinishReason::kError:
        update.kind = Kind::kFailed;
        update.text = "its KV could not be loaded";
        break;
      default:
        update.kind = Kind::kEnded;
        CountAnswer(live->second, now);
        break;
    }
    Notify(std::move(update));
    live_.erase(live);
    store_.Remove(request);
    return absl::OkStatus();
  }

  void CountAnswer(const Live& live, SimTime now) {
    const int64_t num_tokens = live.request->num_outputs();
    metrics_.OnMaxTokens(std::max(live.max_tokens, num_tokens), now);
    if (live.group == nullptr) return metrics_.OnAnswers(1, num_tokens, now);
    AnswerGroup& group = *live.group;
    group.most_tokens = std::max(group.most_tokens, num_tokens);
    if (++group.num_finished == group.count) {
      metrics_.OnAnswers(group.count, group.most_tokens, now);
    }
  }

  void OnAdmission(const AdmissionRecord& record, SimTime) override {
    if (record.is_resume) return;
    Extend(live_.at(record.request->spec.row));
    Notify({.id = record.request->spec.row,
            .num_tokens = record.num_hit_tokens + record.num_external_tokens,
            .kind = Kind::kAdmitted});
  }

  void OnStepFinished(const StepRecord& step) override {
    for (const OutputRecord& output : step.outputs) {
      if (output.request == nullptr || output.num_emitted == 0) continue;
      Notify({.id = output.request->spec.row, .num_tokens = output.num_emitted});
      if (const auto it = live_.find(output.request->spec.row); it != live_.end()) {
        Extend(it->second);
      }
    }
    lag_seconds_ = std::max(
        0.0, static_cast<double>(Now() - step.end) / static_cast<double>(kSecond) / options_.speed);
    max_lag_seconds_ = std::max(max_lag_seconds_, lag_seconds_);
  }

  void OnKvEvents(absl::Span<const KvEvent> events, SimTime) override;

  // --- Updates, collected per turn of the loop ---

  void Notify(SequenceUpdate update) {
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

  static constexpr size_t kMostPerTurn = 16384;  // a thread that is late notifies in between
  static constexpr int64_t kIdsAhead = 2048;     // twice what steps under way can produce, and more

  Options options_;
  const std::function<void()> wake_;
  TraceInfo trace_;
  LiveMetrics metrics_;
  std::unique_ptr<events::EventPublisher> publisher_;
  std::unique_ptr<Replica> replica_;
  RequestStore store_;  // after the replica, whose manager its requests belong to
  absl::flat_hash_map<int64_t, Live> live_;
  SimTime clock_ = 0;  // up to which everything has happened
  std::string failure_;
  double lag_seconds_ = 0, max_lag_seconds_ = 0;
  int64_t num_checks_ = 0;
  std::vector<SequenceUpdate> turn_;
  Clock::time_point epoch_;

  std::mutex mutex_;  // of what others ask
  std::condition_variable changed_;
  std::vector<std::pair<SimTime, Task>> inbox_;
  std::atomic<bool> is_ending_ = false;

  std::mutex outbox_mutex_;
  std::vector<SequenceUpdate> outbox_;

  std::thread thread_;
};

#ifdef KVBLOCKS_WITH_ZMQ

absl::Status EngineThread::OpenEvents() {
  const EngineEvents& asked = options_.events;
  if (asked.endpoint.empty()) return absl::OkStatus();
  events::EventPublisher::Options options{.endpoint = asked.endpoint,
                                          .replay_endpoint = asked.replay_endpoint,
                                          .topic = asked.topic};
  // What waits for subscribers who do not read stays small; who is behind asks for a replay.
  options.high_water_mark = 1000;
  options.buffer_bytes = int64_t{16} << 20;
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

void EngineThread::OnKvEvents(absl::Span<const KvEvent> events, SimTime) {
  if (publisher_ != nullptr) publisher_->Publish({events.begin(), events.end()});
}

std::string EngineThread::events_endpoint() const {
  return publisher_ == nullptr ? "" : publisher_->endpoint();
}
std::string EngineThread::replay_endpoint() const {
  return publisher_ == nullptr ? "" : publisher_->replay_endpoint();
}

#else

absl::Status EngineThread::OpenEvents() {
  if (options_.events.endpoint.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      "--kv-events: this kvsim was built without ZeroMQ; install libzmq and cppzmq and build it "
      "again");
}
void EngineThread::OnKvEvents(absl::Span<const KvEvent>, SimTime) {}
std::string EngineThread::events_endpoint() const { return ""; }
std::string EngineThread::replay_endpoint() const { return ""; }

#endif

}  // namespace

absl::StatusOr<std::unique_ptr<LiveEngine>> LiveEngine::Create(Options options,
                                                               std::function<void()> wake) {
  options.metrics.has_connector = options.tiers != nullptr;
  auto engine = std::make_unique<EngineThread>(std::move(options), std::move(wake));
  KVBLOCKS_RETURN_IF_ERROR(engine->Start());
  return engine;
}

}  // namespace kvblocks::sim
