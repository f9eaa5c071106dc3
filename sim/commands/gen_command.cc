// kvsim gen: makes a workload - from a few options, from a specification, or like a trace.

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checks/field_error.h"
#include "checks/status_macros.h"
#include "kvblocks/config_source.h"
#include "sim/commands/commands.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/trace_fit.h"
#include "sim/gen/session_plan.h"
#include "sim/gen/workload_spec.h"
#include "sim/report/human_table.h"
#include "sim/trace/byte_sink.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/convert.h"

namespace kvblocks::sim {
namespace {

namespace wl = ::kvblocks::workload::v1;

constexpr int64_t kMostCount = int64_t{1} << 40;

constexpr const char* kGenFooter =
    R"(SPEC is a text that begins with workload: "NAME" (docs/generating.md). Every command that reads a
trace reads it in place of one, with the same results. Without SPEC the options describe a chat.
Lengths are tokens: 500, or 500:2000 for a median and a 90th percentile.

Examples
  kvsim gen --requests=2000 --rate=10 -o work.kvt
  kvsim gen --requests=2000 --turns=4 --system=800 --groups=20 --to=spec -o chat.txtpb
  kvsim gen chat.txtpb --seed=2 -o chat.kvt.zst
  kvsim gen --like=trace.jsonl.gz --to=spec -o like.txtpb
  kvsim gen --like=trace.jsonl.gz --check)";

// As many sessions as have the requests asked for. The first requests of sessions that begin
// without end would be first turns, most of them.
void KeepSessionsWhole(wl::Workload* workload) {
  const SessionPlanner planner(*workload);
  int64_t sessions = 0, requests = 0;
  while (requests < workload->requests()) {
    requests += static_cast<int64_t>(planner.Plan(static_cast<uint64_t>(sessions++), 0).size());
  }
  if (sessions < workload->requests()) workload->set_sessions(sessions);
}

// "500" or "500:2000".
absl::Status ParseLength(const std::string& flag, const std::string& text,
                         wl::Distribution* shape) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  double values[2] = {0, 0};
  bool ok = parts.size() <= 2;
  for (size_t i = 0; ok && i < parts.size(); ++i) ok = absl::SimpleAtod(parts[i], &values[i]);
  if (!ok) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": got \"", text, "\", expected a number, or MEDIAN:P90"));
  }
  if (parts.size() == 1) {
    shape->set_fixed(values[0]);
  } else {
    shape->mutable_lognormal()->set_median(values[0]);
    shape->mutable_lognormal()->set_p90(values[1]);
  }
  const absl::Status status =
      CheckDistribution(*shape, 0, static_cast<double>(kMostPromptTokens));
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
}

class GenCommand final : public Command {
 public:
  explicit GenCommand(OptionParser* program)
      : Command(program->AddCommand("gen", "Make a workload")) {
    options_->Add({.name = "SPEC", .help = "specification; - is standard input",
                   .file = FileUse::kRead}, &spec_);
    options_->Add({.name = "-o,--output", .unit = "FILE", .help = "file to write; - is standard "
                   "output; compressed if its name ends in .gz or .zst",
                   .file = FileUse::kWritten}, &output_);
    options_->Add({"--to", "native|mooncake|csv|oracle|spec",
                   "form to write [native]; spec: what it is made from"},
                  &to_);
    options_->Add({.name = "--like", .unit = "TRACE",
                   .help = "reuse prefixes as this trace does; nothing of its content is kept",
                   .file = FileUse::kRead},
                  &like_);
    options_->AddFlag({.name = "--check", .help = "with --like: print the hit rates of both, for "
                       "all pool sizes"}, &check_);
    options_->Add({"--seed", "N",
                   "other random numbers [1; with --like the one of "
                   "the first few that comes nearest to the trace]"},
                  0, INT64_MAX, &seed_);
    options_->Add({"--requests", "N",
                   "how many, of whole sessions but for the last ones; with --like: as many as "
                   "the trace has [1000]"},
                  1, kMostCount, &requests_);
    options_->AddFlag({.name = "--quiet", .help = "say nothing about what was made"}, &quiet_);
    const auto chat = [this](OptionText option, std::optional<std::string>* value) {
      option.group = "Chat";
      options_->Add(option, value);
      chat_options_.push_back({option.name, value});
    };
    chat({"--rate", "PER_SECOND", "sessions that begin per second, Poisson [10]"}, &rate_);
    chat({"--input", "TOKENS", "what a user says [500:2000]"}, &input_);
    chat({"--answer", "TOKENS", "what the model answers [150:600]"}, &answer_);
    chat({"--turns", "N", "of a session on average, geometric [1]"}, &turns_);
    chat({"--think", "SECONDS", "between an answer and the next turn [20:90]"}, &think_);
    chat({"--system", "TOKENS", "system prompt at the start of each session [0]"}, &system_);
    chat({"--groups", "N", "so many different system prompts, by Zipf's law [1]"}, &groups_);
    BindOptions(kWorkloadGroup, options_, &given_);
    options_->set_footer(kGenFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override {
    KVBLOCKS_RETURN_IF_ERROR(CheckOptions());
    KVBLOCKS_ASSIGN_OR_RETURN(const auto reader_options, ReaderOptionsOf(given_));
    KVBLOCKS_ASSIGN_OR_RETURN(auto workload, MakeWorkload(reader_options));
    if (seed_ >= 0) workload.set_seed(static_cast<uint64_t>(seed_));
    if (requests_ > 0) workload.set_requests(requests_);
    KVBLOCKS_RETURN_IF_ERROR(CheckWorkload(workload));
    if (!workload.has_fit() && (requests_ > 0 || spec_.empty())) KeepSessionsWhole(&workload);
    const std::string text = PrintWorkload(workload);
    if (static_cast<int64_t>(text.size()) > kMaxConfigBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("specification: got ", text.size(),
                                                       " bytes, expected at most ", kMaxConfigBytes,
                                                       " (--limit reads less of the trace)"));
    }
    if (output_) {
      const absl::Status status =
          to_ == "spec" ? WriteFile(*output_, text) : WriteRequests(workload, text);
      if (IsReaderGone(status)) return kDone;
      if (!status.ok()) return status;
    }
    if (num_missing_ > 0) {
      std::fprintf(
          stderr,
          "kvsim gen: note: %s of %s requests are missing: nothing arrives after 10^9 seconds; "
          "raise the rate, or ask for fewer\n",
          WithThousands(num_missing_).c_str(), WithThousands(workload.requests()).c_str());
    }
    if (!note_.empty() && !quiet_) std::fprintf(stderr, "kvsim gen: note: %s\n", note_.c_str());
    if (check_) return Check(text, reader_options);
    return kDone;
  }

 private:
  absl::Status CheckOptions() const {
    if (!output_ && !check_) {
      return absl::InvalidArgumentError(
          "--output: got nothing, expected the file to write (-o FILE; - is standard output)");
    }
    if (check_ && !like_) {
      return absl::InvalidArgumentError("--check: got no --like, expected the trace to check with");
    }
    if (check_ && output_ == "-") {
      return absl::InvalidArgumentError(
          "--check: got --output=-, expected another file, as the table goes to standard output");
    }
    if (check_ && !CanBeReadAgain(*like_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--check: got --like=", *like_, ", expected a file, which can be read twice"));
    }
    if (!spec_.empty() && like_) {
      return absl::InvalidArgumentError(
          absl::StrCat("--like: got it beside ", spec_, ", expected the one or the other"));
    }
    std::vector<const google::protobuf::FieldDescriptor*> of_trace;
    given_.GetReflection()->ListFields(given_, &of_trace);
    if (!of_trace.empty() && !like_) {
      return absl::InvalidArgumentError(
          absl::StrCat(FlagName(std::string(of_trace.front()->name())),
                       " needs --like, whose trace it is about"));
    }
    for (const ChatOption& option : chat_options_) {
      if (!option.value->has_value() || (spec_.empty() && !like_)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(option.name, ": got \"", **option.value, "\" beside ",
                       like_ ? "--like" : spec_,
                       ", expected none of the options of a chat (write it into a specification: "
                       "--to=spec)"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<wl::Workload> MakeWorkload(const TraceReaderOptions& reader_options) {
    if (like_) {
      KVBLOCKS_ASSIGN_OR_RETURN(const auto reader, OpenLike(reader_options));
      auto workload = FitTrace(*reader);
      // A seed that is given is not chosen; a pipe cannot be read again.
      if (!workload.ok() || seed_ >= 0 || !CanBeReadAgain(*like_)) return workload;
      KVBLOCKS_ASSIGN_OR_RETURN(const auto run, RunTrace(reader_options));
      KVBLOCKS_ASSIGN_OR_RETURN(const auto greatest, ChooseSeed(run, &*workload, [&](auto made) {
                                  return WithProgress(std::move(made), &progress_);
                                }));
      note_ = NoteOfPoorFit(greatest, run.num_requests);
      return workload;
    }
    if (!spec_.empty()) {
      KVBLOCKS_ASSIGN_OR_RETURN(const auto text,
                                ReadConfigFile(spec_ == "-" ? "/dev/stdin" : spec_));
      return ParseWorkload(text, spec_);
    }
    return Chat();
  }

  absl::StatusOr<std::unique_ptr<TraceReader>> OpenLike(const TraceReaderOptions& options) const {
    auto reader = OpenTrace(*like_, options);
    if (!reader.ok()) return reader;
    return WithProgress(*std::move(reader), &progress_);
  }

  absl::StatusOr<OrderRun> RunTrace(const TraceReaderOptions& reader_options) const {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto reader, OpenLike(reader_options));
    return RunOrder(reader->info(), FeedFrom(reader.get()), {});
  }

  absl::StatusOr<wl::Workload> Chat() const {
    wl::Workload workload;
    workload.set_workload("chat");
    if (requests_ < 0) workload.set_requests(1000);
    double rate = 10, turns = 1;
    int64_t groups = 1;
    if (rate_ && !absl::SimpleAtod(*rate_, &rate)) return NoNumber("--rate", *rate_);
    if (turns_ && !absl::SimpleAtod(*turns_, &turns)) return NoNumber("--turns", *turns_);
    if (groups_ && !absl::SimpleAtoi(*groups_, &groups)) return NoNumber("--groups", *groups_);
    workload.mutable_arrivals()->mutable_poisson()->set_rate(rate);
    wl::Kind& kind = *workload.add_kind();
    KVBLOCKS_RETURN_IF_ERROR(
        ParseLength("--input", input_.value_or("500:2000"), kind.mutable_user()));
    KVBLOCKS_RETURN_IF_ERROR(
        ParseLength("--answer", answer_.value_or("150:600"), kind.mutable_answer()));
    if (turns != 1) {
      kind.mutable_turns()->set_geometric(turns);
      KVBLOCKS_RETURN_IF_ERROR(
          ParseLength("--think", think_.value_or("20:90"), kind.mutable_think_s()));
    } else if (think_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--think: got \"", *think_, "\" for sessions of one turn, expected --turns above 1"));
    }
    if (system_) {
      wl::Kind::System& system = *kind.mutable_system();
      system.set_groups(groups);
      system.set_alpha(1);
      KVBLOCKS_RETURN_IF_ERROR(ParseLength("--system", *system_, system.mutable_tokens()));
    } else if (groups_) {
      return absl::InvalidArgumentError(absl::StrCat("--groups: got \"", *groups_,
                                                     "\" without a length, expected --system"));
    }
    // The fields are named as in a specification; these are options.
    wl::Workload complete = workload;
    complete.set_requests(1);
    const absl::Status status = CheckWorkload(complete);
    if (status.ok()) return workload;
    const auto field = FieldOfError(status).value_or("");
    const char* flag = field == "arrivals.poisson.rate"      ? "--rate"
                       : field == "kind[0].turns.geometric" ? "--turns"
                       : field == "kind[0].system.groups"   ? "--groups"
                                                            : nullptr;
    return flag != nullptr ? OfOption(flag, field, status) : status;
  }

  static absl::Status NoNumber(const char* flag, const std::string& text) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": got \"", text, "\", expected a number"));
  }

  absl::Status WriteRequests(const wl::Workload& workload, const std::string& text) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto reader, OpenTraceString(text, "the workload", {}));
    KVBLOCKS_ASSIGN_OR_RETURN(auto sink, OpenByteSink(*output_));
    const auto writer = MakeTraceWriter(std::move(sink), *ParseTraceFormat(to_), {});
    reader = WithProgress(std::move(reader), &progress_);
    KVBLOCKS_ASSIGN_OR_RETURN(const auto report, CopyTrace(*reader, *writer));
    if (workload.sessions() == 0) num_missing_ = workload.requests() - report.num_requests;
    if (quiet_) return absl::OkStatus();
    for (const std::string& loss : report.losses) {
      std::fprintf(stderr, "kvsim gen: not written: %s\n", loss.c_str());
    }
    std::fprintf(stderr, "%s requests written to %s: %s input tokens, %s output tokens\n",
                 WithThousands(report.num_requests).c_str(), output_->c_str(),
                 WithThousands(report.input_tokens).c_str(),
                 WithThousands(report.output_tokens).c_str());
    const auto& notes = reader->info().notes;
    for (const char* fact : {"requests", "input_tokens", "output_tokens", "hit_rate"}) {
      const auto note = notes.find(absl::StrCat("expected_", fact));
      if (note == notes.end()) continue;
      std::fprintf(stderr, "  expected %s: %s\n", fact, note->second.c_str());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ExitStatus> Check(const std::string& text,
                                   const TraceReaderOptions& reader_options) const {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto trace, RunTrace(reader_options));
    KVBLOCKS_ASSIGN_OR_RETURN(auto made, OpenTraceString(text, "the workload", {}));
    made = WithProgress(std::move(made), &progress_);
    KVBLOCKS_ASSIGN_OR_RETURN(const auto difference, CompareCurves(trace, *made));
    return WriteStdout(FormatCurveDifference(difference)) ? kDone : kBadInput;
  }

  struct ChatOption {
    std::string name;
    const std::optional<std::string>* value;
  };

  ::kvblocks::config::v1::ReplayConfig given_;
  std::string spec_, to_ = "native";
  std::optional<std::string> output_, like_;
  std::optional<std::string> rate_, input_, answer_, turns_, think_, system_, groups_;
  std::vector<ChatOption> chat_options_;
  int64_t seed_ = -1, requests_ = -1;
  bool check_ = false, quiet_ = false;
  std::string note_;  // of the fit
  int64_t num_missing_ = 0;  // of the requests asked for
  mutable ProgressLine progress_{/*quiet=*/false};
};

}  // namespace

std::unique_ptr<Command> AddGenCommand(OptionParser* program) {
  return std::make_unique<GenCommand>(program);
}

}  // namespace kvblocks::sim
