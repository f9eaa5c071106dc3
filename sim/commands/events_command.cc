// kvsim events: the KV events of a running engine, or recorded ones: shown, checked, recorded.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "events/sequence_tracker.h"
#include "kvblocks/kv_events.h"
#include "sim/commands/commands.h"
#include "sim/commands/event_export.h"
#include "sim/commands/event_report.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/report/human_table.h"
#include "sim/report/text_page.h"
#include "sim/trace/byte_sink.h"
#include "sim/trace/byte_source.h"
#ifdef KVBLOCKS_WITH_ZMQ
#include "kvblocks/kv_events_zmq.h"
#endif

namespace kvblocks::sim {
namespace {

constexpr const char* kEventsFooter =
    R"(SOURCE is a ZeroMQ endpoint (tcp://HOST:5557; with a "*" it is bound, for engines that connect),
or a file that --record or kvsim replay --events wrote. Without --for, --batches or --idle it listens
until Ctrl-C, and then reports.

Examples
  kvsim events tcp://localhost:5557
  kvsim events tcp://localhost:5557 --replay=tcp://localhost:5558 --show
  kvsim events tcp://a:5557 --source=tcp://b:5557 --for=10min --record=events.kvlog.zst
  kvsim events events.kvlog.zst
  kvsim events events.kvlog.zst --json | jq -c 'select(.type == "batch") | .events[]'

Exit status: 0 done, 1 a stream has problems: it is not one that a cache can have sent, 2 bad input or
options.)";

constexpr double kMostSeconds = 100 * 86400;

volatile std::sig_atomic_t interrupted = 0;

class EventsCommand final : public Command {
 public:
  explicit EventsCommand(OptionParser* program)
      : Command(program->AddCommand("events", "Show, check and record KV events of an engine")) {
    options_->Add({.name = "SOURCE", .help = "endpoint or recorded file", .is_required = true,
                   .file = FileUse::kRead},
                  &source_);
    options_->AddRepeated({"--source", "ENDPOINT", "a further engine; may be given again"},
                          &further_);
    options_->AddRepeated({"--replay", "ENDPOINT",
                           "where to ask for missing batches: of SOURCE, then of each "
                           "--source"},
                          &replay_);
    options_->Add({"--topic", "TOPIC", "topics that begin with it [all]"}, &topic_);
    options_->Add({"--medium", "NAME", "the medium to check [GPU]"}, &medium_);
    options_->AddSeconds({"--for", "TIME", "listen for this long"}, 0.001, kMostSeconds,
                         &for_seconds_);
    options_->AddSeconds({"--idle", "TIME", "stop when nothing came for this long"}, 0.001,
                         kMostSeconds, &idle_seconds_);
    options_->Add({"--batches", "N", "stop after N batches"}, 1, int64_t{1} << 60, &max_batches_);
    options_->Add({.name = "--record", .unit = "FILE", .help = "write the messages to a file",
                   .file = FileUse::kWritten},
                  &record_);
    options_->AddFlag({.name = "--show", .help = "print each event as it comes"}, &show_);
    options_->AddFlag({.name = "--json",
                       .help = "print batches as they come, and the report, as JSON: one object "
                               "per line"},
                      &json_);
    options_->Add({"--color", "auto|always|never", "labels in bold [auto]"}, &color_);
    options_->set_footer(kEventsFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override {
    check_ = std::make_unique<events::StreamCheck>(medium_);
    absl::Status status = Open();
    // Events on standard output would break the line.
    ProgressLine progress(/*quiet=*/show_ || json_);
    progress_ = &progress;
    if (status.ok()) status = IsEndpoint(source_) ? Listen() : ReadFile();
    progress.Clear();
    FlushPrinted();
    status.Update(print_status_);
    if (status.ok() && sink_ != nullptr) status = sink_->Close();
    if (!UnlessReaderGone(status).ok()) return status;
    int64_t num_problems = 0;
    std::string json;
    TextPage page(UseColor(color_));
    for (size_t i = 0; i < streams_.size(); ++i) {
      const auto id = static_cast<events::HolderId>(i);
      const events::StreamCheck::Totals& totals = check_->totals(id);
      num_problems += totals.num_problems() + streams_[i].num_undecodable;
      if (json_) {
        json += StreamReportAsJson(streams_[i], totals, check_->index().holder(id));
        continue;
      }
      if (i > 0) page.Blank();
      AddStreamReport(streams_[i], totals, check_->index().holder(id), page);
    }
    if (streams_.empty()) page.Line("stream", "nothing came");
    if (!WriteStdout(json_ ? json : page.Take())) return kBadInput;
    return num_problems > 0 ? kMissed : kDone;
  }

 private:
  absl::Status Open() {
    if (!IsEndpoint(source_)) {
      for (const auto& [option, is_given] :
           {std::pair("--source", !further_.empty()), std::pair("--replay", !replay_.empty()),
            std::pair("--for", for_seconds_ > 0), std::pair("--idle", idle_seconds_ > 0)}) {
        if (is_given) {
          return absl::InvalidArgumentError(
              absl::StrCat(option, " needs an endpoint as SOURCE, got the file ", source_));
        }
      }
    }
    is_live_ = IsEndpoint(source_);
    KVBLOCKS_ASSIGN_OR_RETURN(stdout_, OpenByteSink("-"));
    if (show_ && json_) {
      return absl::InvalidArgumentError(
          "--json and --show: --json prints each event already; give one of them");
    }
    if (replay_.size() > further_.size() + 1) {
      return absl::InvalidArgumentError(absl::StrCat("--replay: got ", replay_.size(),
                                                     " endpoints for ", further_.size() + 1,
                                                     " sources; give one for each at most"));
    }
    if (record_.empty()) return absl::OkStatus();
    if (IsStandardOutput(record_)) {
      return absl::InvalidArgumentError(
          "--record: got standard output, which has the report; "
          "name a file");
    }
    KVBLOCKS_ASSIGN_OR_RETURN(sink_, OpenByteSink(record_));
    std::string head;
    events::AppendLogHead(&head);
    return sink_->Write(head);
  }

  events::HolderId AddStream(std::string name) {
    const events::HolderId id = check_->AddStream(name);
    streams_.push_back({.name = std::move(name)});
    return id;
  }
  EventStream& Of(events::HolderId id) { return streams_[static_cast<size_t>(id)]; }

  absl::Status Record(const events::LoggedMessage& message) {
    if (sink_ == nullptr) return absl::OkStatus();
    std::string bytes;
    events::AppendToLog(message, &bytes);
    return sink_->Write(bytes);
  }

  void OnBatch(events::HolderId id, int64_t sequence, bool is_replayed,
               const events::EventBatch& batch) {
    EventStream& stream = Of(id);
    if (stream.first_sequence < 0) stream.first_sequence = sequence;
    stream.last_sequence = sequence;
    ++num_batches_;
    check_->Apply(id, batch);
    if (json_) Print(BatchAsJson(Of(id), sequence, is_replayed, batch));
    if (!show_) return;
    for (const KvEvent& event : batch.events) {
      Show(id, absl::StrCat("#", sequence, " ", InWords(event)));
    }
  }
  void OnLoss(events::HolderId id, int64_t count, const std::string& why) {
    Of(id).num_lost += count;
    ++Of(id).num_losses;
    check_->OnLoss(id);
    if (json_) Print(LossAsJson(Of(id), count, why));
    if (show_)
      Show(id, absl::StrCat(Plural(count, "batch"), " lost", why.empty() ? "" : ": ", why));
  }
  void OnRestart(events::HolderId id) {
    ++Of(id).num_restarts;
    check_->OnRestart(id);
    if (json_) Print(RestartAsJson(Of(id)));
    if (show_) Show(id, "the engine was started anew");
  }
  void Show(events::HolderId id, const std::string& text) {
    Print(absl::StrCat(streams_.size() > 1 ? absl::StrCat(Harmless(Of(id).name), " ") : "", text,
                       "\n"));
  }
  void Print(const std::string& line) {
    printed_ += line;
    // A user who watches a live stream wants each line at once.
    if (is_live_ || printed_.size() > size_t{1} << 16) FlushPrinted();
  }
  void FlushPrinted() {
    if (print_status_.ok() && !printed_.empty()) print_status_ = stdout_->Write(printed_);
    printed_.clear();
  }
  bool WantsMore() const {
    return print_status_.ok() && (max_batches_ == 0 || num_batches_ < max_batches_);
  }

#ifdef KVBLOCKS_WITH_ZMQ
  absl::Status Listen() {
    using Kind = events::EventSubscriber::Kind;
    using Clock = std::chrono::steady_clock;
    events::EventSubscriber::Options options{.topic = topic_, .keep_index = false};
    options.sources.push_back({.endpoint = source_});
    for (const std::string& endpoint : further_) options.sources.push_back({.endpoint = endpoint});
    for (size_t i = 0; i < replay_.size(); ++i) options.sources[i].replay_endpoint = replay_[i];
    KVBLOCKS_ASSIGN_OR_RETURN(auto opened, events::EventSubscriber::Create(options));
    events::EventSubscriber& subscriber = *opened;
    std::signal(SIGINT, [](int) { interrupted = 1; });
    std::signal(SIGTERM, [](int) { interrupted = 1; });
    const Clock::time_point start = Clock::now();
    Clock::time_point last = start;
    const auto since = [](Clock::time_point then) {
      return std::chrono::duration<double>(Clock::now() - then).count();
    };
    while (interrupted == 0 && WantsMore()) {
      const auto received = subscriber.Receive(std::chrono::milliseconds(20));
      if (received) last = Clock::now();
      if (for_seconds_ > 0 && since(start) >= for_seconds_) break;
      if (!received && idle_seconds_ > 0 && since(last) >= idle_seconds_) break;
      progress_->UpdateCount(num_batches_, max_batches_, "batches");
      if (!received) continue;
      while (streams_.size() < subscriber.streams().size()) {
        const auto& stream = subscriber.streams()[streams_.size()];
        AddStream(stream.topic.empty() ? stream.source
                                       : absl::StrCat(stream.source, " ", stream.topic));
      }
      const auto& stream = subscriber.streams()[static_cast<size_t>(received->stream)];
      events::LoggedMessage message{
          .source = stream.source, .topic = stream.topic, .sequence = received->sequence};
      switch (received->kind) {
        case Kind::kBatch:
          message.payload = received->payload;
          Of(received->stream).num_replayed += received->is_replayed;
          OnBatch(received->stream, received->sequence, received->is_replayed,
                  received->batch);
          break;
        case Kind::kLoss:
          message.sequence = events::LoggedMessage::kLoss;
          Of(received->stream).num_undecodable += !received->error.empty();
          OnLoss(received->stream, received->num_lost, received->error);
          break;
        case Kind::kRestart:
          message.sequence = events::LoggedMessage::kRestart;
          OnRestart(received->stream);
      }
      KVBLOCKS_RETURN_IF_ERROR(Record(message));
    }
    for (size_t i = 0; i < streams_.size(); ++i) {
      streams_[i].num_duplicates = subscriber.streams()[i].num_duplicates;
    }
    return absl::OkStatus();
  }
#else
  absl::Status Listen() { return BuiltWithoutZmq("SOURCE"); }
#endif

  absl::Status ReadFile() {
    KVBLOCKS_ASSIGN_OR_RETURN(auto source, OpenByteSource(source_));
    events::EventLogReader reader;
    std::vector<char> buffer(size_t{1} << 18);
    while (WantsMore()) {
      auto message = reader.Next();
      if (!message.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(source_, ": ", message.status().message()));
      }
      if (*message) {
        KVBLOCKS_RETURN_IF_ERROR(OnLogged(**message));
        continue;
      }
      KVBLOCKS_ASSIGN_OR_RETURN(const auto size, source->Read(buffer.data(), buffer.size()));
      if (size == 0) {
        return reader.is_complete()
                   ? absl::OkStatus()
                   : absl::InvalidArgumentError(absl::StrCat(
                         source_, ": ends inside a message; it was not written to its end"));
      }
      reader.Feed({buffer.data(), size});
      progress_->UpdateReading({source->bytes_read(), source->bytes_total()}, num_batches_, 0,
                               "batches");
    }
    return absl::OkStatus();
  }

  absl::Status OnLogged(const events::LoggedMessage& message) {
    using Arrival = events::SequenceTracker::Arrival;
    if (message.topic.substr(0, topic_.size()) != topic_) return absl::OkStatus();
    const std::pair<std::string, std::string> key(message.source, message.topic);
    auto found = logged_.find(key);
    if (found == logged_.end()) {
      const int64_t most = events::EventSubscriber::Options().max_streams;
      if (static_cast<int64_t>(streams_.size()) == most) {
        return absl::InvalidArgumentError(absl::StrCat(
            source_, ": got more than ", most,
            " streams of a source and a topic, expected at most as many as are recorded"));
      }
      const events::HolderId id =
          AddStream(message.topic.empty() ? message.source
                                          : absl::StrCat(message.source, " ", message.topic));
      found = logged_.emplace(key, std::pair(id, events::SequenceTracker())).first;
    }
    auto& [id, tracker] = found->second;
    KVBLOCKS_RETURN_IF_ERROR(Record(message));
    if (message.sequence == events::LoggedMessage::kLoss) return absl::OkStatus();  // a gap follows
    if (message.sequence == events::LoggedMessage::kRestart) {
      tracker.Restart();
      OnRestart(id);
      return absl::OkStatus();
    }
    Arrival arrival = tracker.Classify(message.sequence, message.payload);
    if (arrival == Arrival::kDuplicate) {
      ++Of(id).num_duplicates;
      return absl::OkStatus();
    }
    if (arrival == Arrival::kRestart) {
      tracker.Restart();
      OnRestart(id);
    }
    if (message.sequence > tracker.next()) {
      OnLoss(id, message.sequence - tracker.next(), "");
      tracker.SkipTo(message.sequence);
    }
    tracker.Accept(message.payload);
    const auto batch = events::DecodeEvents(message.payload);
    if (batch.ok()) {
      OnBatch(id, message.sequence, /*is_replayed=*/false, *batch);
    } else {
      ++Of(id).num_undecodable;
      OnLoss(id, 1, std::string(batch.status().message()));
    }
    return absl::OkStatus();
  }

  std::string source_, topic_, record_, color_ = "auto";
  double for_seconds_ = 0, idle_seconds_ = 0;  // 0: no limit
  std::string medium_ = std::string(kGpuMedium);
  std::vector<std::string> further_, replay_;
  int64_t max_batches_ = 0;
  bool show_ = false, json_ = false, is_live_ = false;

  std::unique_ptr<ByteSink> stdout_;
  std::string printed_;  // and not written yet
  absl::Status print_status_;
  std::unique_ptr<ByteSink> sink_;
  std::unique_ptr<events::StreamCheck> check_;
  std::vector<EventStream> streams_;  // by id
  std::map<std::pair<std::string, std::string>,
           std::pair<events::HolderId, events::SequenceTracker>>
      logged_;
  int64_t num_batches_ = 0;
  ProgressLine* progress_ = nullptr;
};

}  // namespace

std::unique_ptr<Command> AddEventsCommand(OptionParser* program) {
  return std::make_unique<EventsCommand>(program);
}

}  // namespace kvblocks::sim
