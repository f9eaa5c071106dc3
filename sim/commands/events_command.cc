// kvsim events: the KV events of a running engine, or recorded ones: shown, checked, recorded.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/events/event_codec.h"
#include "kvblocks/events/event_log.h"
#include "kvblocks/events/sequence_tracker.h"
#include "kvblocks/events/stream_check.h"
#include "kvblocks/sim/commands/commands.h"
#include "kvblocks/sim/commands/event_export.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/text_page.h"
#include "kvblocks/sim/trace/byte_sink.h"
#include "kvblocks/sim/trace/byte_source.h"
#ifdef KVBLOCKS_WITH_ZMQ
#include "kvblocks/events/zmq/event_subscriber.h"
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

Exit status: 0 done, 1 a stream has problems: it is not one that a cache can have sent, 2 bad input or
options.)";

volatile std::sig_atomic_t interrupted = 0;

// What is known of a stream beside its content.
struct Transport {
  std::string name;
  int64_t num_replayed = 0;
  int64_t num_duplicates = 0;
  int64_t num_lost = 0;
  int64_t num_losses = 0;
  int64_t num_restarts = 0;
  int64_t num_undecodable = 0;
  int64_t first_sequence = -1;
  int64_t last_sequence = -1;
};

std::string Harmless(const std::string& text) { return absl::CHexEscape(text.substr(0, 200)); }

std::string ShortHash(const BlockHash& hash) {
  const std::string hex = hash.ToHex();
  return hex.substr((hash.words[0] | hash.words[1] | hash.words[2]) == 0 ? 48 : 0, 12);
}

std::string Shown(const KvEvent& event) {
  if (const auto* stored = std::get_if<BlockStored>(&event)) {
    std::string text =
        absl::StrCat("stored ", Plural(static_cast<int64_t>(stored->block_hashes.size()), "block"),
                     " of ", stored->block_size, " tokens, group ", stored->group_idx);
    if (!stored->block_hashes.empty()) {
      absl::StrAppend(&text, ", ", ShortHash(stored->block_hashes.front()));
      if (stored->block_hashes.size() > 1) {
        absl::StrAppend(&text, " to ", ShortHash(stored->block_hashes.back()));
      }
    }
    absl::StrAppend(&text, stored->parent_block_hash
                               ? absl::StrCat(" behind ", ShortHash(*stored->parent_block_hash))
                               : std::string(" at token 0"));
    return text;
  }
  if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
    return absl::StrCat("removed ", ShortHash(removed->block_hash), ", group ", removed->group_idx);
  }
  return "cleared all";
}

class EventsCommand final : public Command {
 public:
  explicit EventsCommand(OptionParser* program)
      : options_(program->AddCommand("events", "Show, check and record KV events of an engine")) {
    options_->Add({.name = "SOURCE", .help = "endpoint or recorded file", .is_required = true},
                  &source_);
    options_->AddRepeated(
        {.name = "--source", .unit = "ENDPOINT", .help = "a further engine; may be given again"},
        &further_);
    options_->AddRepeated({.name = "--replay",
                           .unit = "ENDPOINT",
                           .help = "where to ask for missing batches: of SOURCE, then of each "
                                   "--source"},
                          &replay_);
    options_->Add({.name = "--topic", .unit = "TOPIC", .help = "topics that begin with it [all]"},
                  &topic_);
    options_->Add({.name = "--medium", .unit = "NAME", .help = "the medium to check [GPU]"},
                  &medium_);
    options_->Add({.name = "--for", .unit = "TIME", .help = "listen for this long"}, &for_);
    options_->Add(
        {.name = "--idle", .unit = "TIME", .help = "stop when nothing came for this long"}, &idle_);
    options_->Add({.name = "--batches", .unit = "N", .help = "stop after N batches"}, 1,
                  int64_t{1} << 60, &max_batches_);
    options_->Add({.name = "--record", .unit = "FILE", .help = "write the messages to a file"},
                  &record_);
    options_->AddFlag({.name = "--show", .help = "print each event as it comes"}, &show_);
    options_->Add({.name = "--color", .unit = "auto|always|never", .help = "labels in bold [auto]"},
                  &color_);
    options_->set_footer(kEventsFooter);
  }

  const OptionParser& options() const override { return *options_; }

  ExitStatus Run() override {
    check_ = std::make_unique<events::StreamCheck>(medium_);
    absl::Status status = Open();
    // Events on standard output would break the line.
    ProgressLine progress(/*quiet=*/show_);
    progress_ = &progress;
    if (status.ok()) status = IsEndpoint(source_) ? Listen() : ReadFile();
    progress.Clear();
    if (status.ok() && sink_ != nullptr) status = sink_->Close();
    if (!UnlessReaderGone(status).ok()) return Fail("events", status);
    int64_t num_problems = 0;
    TextPage page(UseColor(color_));
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (i > 0) page.Blank();
      Report(static_cast<events::HolderId>(i), page);
      num_problems += check_->totals(static_cast<events::HolderId>(i)).num_problems() +
                      streams_[i].num_undecodable;
    }
    if (streams_.empty()) page.Line("stream", "nothing came");
    if (!WriteStdout(page.Take())) return kBadInput;
    return num_problems > 0 ? kMissed : kDone;
  }

 private:
  absl::Status Open() {
    const auto time = [](const char* option, const std::string& text,
                         std::chrono::nanoseconds* out) -> absl::Status {
      if (text.empty()) return absl::OkStatus();
      const auto duration = ParseDuration(text);
      if (!duration.ok() || *duration < kMillisecond) {
        return absl::InvalidArgumentError(absl::StrCat(
            option, ": got \"", text, "\", expected a time of at least 1ms, like 10s"));
      }
      *out = std::chrono::nanoseconds(*duration / kNanosecond);
      return absl::OkStatus();
    };
    absl::Status status = time("--for", for_, &listen_for_);
    status.Update(time("--idle", idle_, &stop_idle_));
    if (!status.ok()) return status;
    if (!IsEndpoint(source_)) {
      for (const auto& [option, is_given] :
           {std::pair("--source", !further_.empty()), std::pair("--replay", !replay_.empty()),
            std::pair("--for", !for_.empty()), std::pair("--idle", !idle_.empty())}) {
        if (is_given) {
          return absl::InvalidArgumentError(
              absl::StrCat(option, " needs an endpoint as SOURCE, got the file ", source_));
        }
      }
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
    if (IsSameFile(record_, source_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--record: ", record_, " is the source itself; name another file"));
    }
    auto sink = OpenByteSink(record_);
    if (!sink.ok()) return sink.status();
    sink_ = *std::move(sink);
    std::string head;
    events::AppendLogHead(&head);
    return sink_->Write(head);
  }

  events::HolderId AddStream(std::string name) {
    const events::HolderId id = check_->AddStream(name);
    streams_.push_back({.name = std::move(name)});
    return id;
  }
  Transport& Of(events::HolderId id) { return streams_[static_cast<size_t>(id)]; }

  absl::Status Record(const events::LoggedMessage& message) {
    if (sink_ == nullptr) return absl::OkStatus();
    std::string bytes;
    events::AppendToLog(message, &bytes);
    return sink_->Write(bytes);
  }

  void OnBatch(events::HolderId id, int64_t sequence, const events::EventBatch& batch) {
    Transport& transport = Of(id);
    if (transport.first_sequence < 0) transport.first_sequence = sequence;
    transport.last_sequence = sequence;
    ++num_batches_;
    check_->Apply(id, batch);
    if (!show_) return;
    for (const KvEvent& event : batch.events) {
      Show(id, absl::StrCat("#", sequence, " ", Shown(event)));
    }
  }
  void OnLoss(events::HolderId id, int64_t count, const std::string& why) {
    Of(id).num_lost += count;
    ++Of(id).num_losses;
    check_->OnLoss(id);
    if (show_)
      Show(id, absl::StrCat(Plural(count, "batch"), " lost", why.empty() ? "" : ": ", why));
  }
  void OnRestart(events::HolderId id) {
    ++Of(id).num_restarts;
    check_->OnRestart(id);
    if (show_) Show(id, "the engine was started anew");
  }
  void Show(events::HolderId id, const std::string& text) {
    const std::string line = absl::StrCat(
        streams_.size() > 1 ? absl::StrCat(Harmless(Of(id).name), " ") : "", text, "\n");
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fflush(stdout);
  }

#ifdef KVBLOCKS_WITH_ZMQ
  absl::Status Listen() {
    using Kind = events::EventSubscriber::Kind;
    using Clock = std::chrono::steady_clock;
    events::EventSubscriber::Options options{.topic = topic_, .keep_index = false};
    options.sources.push_back({.endpoint = source_});
    for (const std::string& endpoint : further_) options.sources.push_back({.endpoint = endpoint});
    for (size_t i = 0; i < replay_.size(); ++i) options.sources[i].replay_endpoint = replay_[i];
    auto opened = events::EventSubscriber::Create(options);
    if (!opened.ok()) return opened.status();
    events::EventSubscriber& subscriber = **opened;
    std::signal(SIGINT, [](int) { interrupted = 1; });
    std::signal(SIGTERM, [](int) { interrupted = 1; });
    const Clock::time_point start = Clock::now();
    Clock::time_point last = start;
    while (interrupted == 0 && (max_batches_ == 0 || num_batches_ < max_batches_)) {
      const auto received = subscriber.Receive(std::chrono::milliseconds(20));
      const Clock::time_point now = Clock::now();
      if (received) last = now;
      if (listen_for_.count() > 0 && now - start >= listen_for_) break;
      if (!received && stop_idle_.count() > 0 && now - last >= stop_idle_) break;
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
          OnBatch(received->stream, received->sequence, received->batch);
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
      if (absl::Status status = Record(message); !status.ok()) return status;
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
    auto source = OpenByteSource(source_);
    if (!source.ok()) return source.status();
    events::EventLogReader reader;
    std::vector<char> buffer(size_t{1} << 18);
    while (max_batches_ == 0 || num_batches_ < max_batches_) {
      auto message = reader.Next();
      if (!message.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(source_, ": ", message.status().message()));
      }
      if (*message) {
        if (absl::Status status = OnLogged(**message); !status.ok()) return status;
        continue;
      }
      const auto size = (*source)->Read(buffer.data(), buffer.size());
      if (!size.ok()) return size.status();
      if (*size == 0) {
        return reader.is_complete()
                   ? absl::OkStatus()
                   : absl::InvalidArgumentError(absl::StrCat(
                         source_, ": ends inside a message; it was not written to its end"));
      }
      reader.Feed({buffer.data(), *size});
      progress_->UpdateReading({(*source)->bytes_read(), (*source)->bytes_total()}, num_batches_, 0,
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
      const events::HolderId id =
          AddStream(message.topic.empty() ? message.source
                                          : absl::StrCat(message.source, " ", message.topic));
      found = logged_.emplace(key, std::pair(id, events::SequenceTracker())).first;
    }
    auto& [id, tracker] = found->second;
    if (absl::Status status = Record(message); !status.ok()) return status;
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
      OnBatch(id, message.sequence, *batch);
    } else {
      ++Of(id).num_undecodable;
      OnLoss(id, 1, std::string(batch.status().message()));
    }
    return absl::OkStatus();
  }

  void Report(events::HolderId id, TextPage& page) {
    const Transport& transport = Of(id);
    const events::StreamCheck::Totals& totals = check_->totals(id);
    const events::BlockIndex::Holder& holder = check_->index().holder(id);
    page.Line("stream", Harmless(transport.name));
    page.Line("messages",
              absl::StrCat(WithThousands(totals.num_batches), " batches with ",
                           WithThousands(totals.num_events), " events",
                           totals.num_batches == 0
                               ? ""
                               : absl::StrCat(", numbers ", transport.first_sequence, " to ",
                                              transport.last_sequence, ", over ",
                                              Span(totals.last_time - totals.first_time))));
    page.Line("", absl::StrCat(WithThousands(transport.num_replayed), " replayed, ",
                               WithThousands(transport.num_duplicates), " came twice, ",
                               WithThousands(transport.num_lost), " lost at ",
                               Plural(transport.num_losses, "place"), ", ",
                               Plural(transport.num_restarts, "restart")));
    page.Line("cache now", absl::StrCat(Plural(holder.num_blocks, "block"), " with ",
                                        Plural(holder.num_keys, "key"), "; cleared ",
                                        Plural(totals.num_cleared, "time")));
    page.Line("removed", Plural(totals.num_removed, "block"));
    page.Line("stored", Plural(totals.num_stored, "block"));
    const auto part = [&](const char* name, int64_t count, const char* meaning) {
      const double share = totals.num_stored == 0 ? 0
                                                  : 100.0 * static_cast<double>(count) /
                                                        static_cast<double>(totals.num_stored);
      page.Line("", absl::StrFormat("%-16s %12s  %6.2f %%  %s", name, WithThousands(count), share,
                                    meaning));
    };
    part("first seen", totals.num_first_seen, "new to this cache");
    part("lost before", totals.num_lost_before, "a larger cache would have hit");
    part("held elsewhere", totals.num_held_elsewhere, "another routing would have hit");
    part("held here", totals.num_held_here, "side by side, or reported as reused");
    Problems(transport, totals, page);
  }

  void Problems(const Transport& transport, const events::StreamCheck::Totals& totals,
                TextPage& page) {
    const int64_t num_problems = totals.num_problems() + transport.num_undecodable;
    if (num_problems == 0) {
      page.Line("consistent", "yes: every removal, parent and length fits what was stored");
    } else {
      page.Text(
          "PROBLEMS",
          absl::StrCat(WithThousands(totals.num_unknown_removals),
                       " removals of what was not stored, ", WithThousands(totals.num_two_parents),
                       " hashes behind two parents, ", WithThousands(totals.num_unequal_lists),
                       " lists of wrong length, ", WithThousands(transport.num_undecodable),
                       " messages that are no batches. ", Harmless(totals.first_problem)));
    }
    std::vector<std::string> notes;
    const auto note = [&](int64_t count, const char* what) {
      if (count > 0) notes.push_back(absl::StrCat(WithThousands(count), " ", what));
    };
    note(totals.num_removals_after_loss, "removals of what a lost batch may have stored");
    note(totals.num_unknown_parents, "events whose parent was never stored");
    note(totals.num_times_backwards, "batches with a time before the last one's");
    note(totals.num_unknown_extra_keys, "extra keys of unknown kinds");
    note(totals.num_other_media, "blocks of other media");
    if (!notes.empty()) {
      std::string text;
      for (const std::string& line : notes) absl::StrAppend(&text, text.empty() ? "" : "; ", line);
      page.Text("notes", text);
    }
  }

  OptionParser* options_;
  std::string source_, topic_, for_, idle_, record_, color_ = "auto";
  std::string medium_ = std::string(kGpuMedium);
  std::vector<std::string> further_, replay_;
  int64_t max_batches_ = 0;
  bool show_ = false;

  std::chrono::nanoseconds listen_for_{0}, stop_idle_{0};
  std::unique_ptr<ByteSink> sink_;
  std::unique_ptr<events::StreamCheck> check_;
  std::vector<Transport> streams_;  // by id
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
