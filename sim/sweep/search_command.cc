#include "kvblocks/sim/sweep/search_command.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/report_json.h"
#include "kvblocks/sim/trace/byte_sink.h"

namespace kvblocks::sim {

void SearchOptions::AddRunOptions(OptionParser* options) {
  options->Add({.name = "--threads", .unit = "N", .help = "replays at once; 0: one per core [0]"},
               0, 1024, &threads_);
  options->Add(
      {.name = "--results",
       .unit = "FILE",
       .help = "keep each finished point there, a line of JSON each, and replay none that it "
               "has"},
      &results_);
  options->AddFlag(
      {.name = "--retry", .help = "replay points again that --results has without figures"},
      &retry_);
}

void SearchOptions::AddOutputOptions(OptionParser* options) {
  const char* kOutput = "Output";
  options->AddFlag(
      {.name = "--json", .help = "print the report as JSON instead of the table", .group = kOutput},
      &json_);
  options->Add({.name = "--json-file",
                .unit = "FILE",
                .help = "write the report as JSON, too; - is standard output, without a table",
                .group = kOutput},
               &json_file_);
  options->AddFlag({.name = "--quiet", .help = "neither table nor progress", .group = kOutput},
                   &quiet_);
  options->Add({.name = "--color",
                .unit = "auto|always|never",
                .help = "headings in bold [auto]",
                .group = kOutput},
               &color_);
}

bool SearchOptions::color() const { return UseColor(color_); }

absl::Status SearchOptions::Open(const std::string& command, const std::string& default_file) {
  if (results_.empty()) results_ = default_file;
  if (retry_ && results_.empty()) {
    return absl::InvalidArgumentError("--retry: needs --results=FILE, whose points it means");
  }
  auto log = ResultLog::Open(results_, retry_);
  if (!log.ok()) {
    return absl::Status(log.status().code(), absl::StrCat("--results: ", log.status().message()));
  }
  log_ = *std::move(log);
  if (!quiet_ && log_->num_torn_bytes() > 0) {
    std::fprintf(stderr, "kvsim %s: %s: its last line was not whole and is cut off\n",
                 command.c_str(), results_.c_str());
  }
  if (!quiet_ && log_->num_read() > 0) {
    std::fprintf(stderr, "kvsim %s: %s has %s; of these none is replayed again\n", command.c_str(),
                 results_.c_str(), Plural(log_->num_read(), "finished point").c_str());
  }
  if (!results_.empty()) {
    SetInterruptNote(absl::StrCat("kvsim ", command, ": finished points are in ", results_,
                                  "; the same command goes on from there\n"));
  }
  progress_ = std::make_unique<ProgressLine>(quiet_);
  runner_ = std::make_unique<PointRunner>(&traces_, log_.get(), static_cast<int>(threads_),
                                          progress_.get());
  return absl::OkStatus();
}

absl::Status SearchOptions::CheckOutputs(const std::string& trace, const std::string& csv,
                                         const std::string& html) const {
  std::vector<std::pair<const char*, std::string>> outputs;
  if (json_) outputs.push_back({"--json", "-"});
  for (const auto& [option, path] : {std::pair{"--json-file", json_file_},
                                     {"--csv", csv},
                                     {"--html", html},
                                     {"--results", results_}}) {
    if (!path.empty()) outputs.push_back({option, path});
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& [option, path] = outputs[i];
    if (path != "-" && IsSameFile(path, trace)) {
      return absl::InvalidArgumentError(absl::StrCat(
          option, ": ", path, " is the trace itself and would be overwritten; name another file"));
    }
    for (size_t j = i + 1; j < outputs.size(); ++j) {
      if (!IsSameFile(path, outputs[j].second)) continue;
      return absl::InvalidArgumentError(
          IsStandardOutput(path)
              ? absl::StrCat(option, " and ", outputs[j].first,
                             " both want standard output; write one of them to a file")
              : absl::StrCat(option, " and ", outputs[j].first, " are both ", path,
                             "; name two files"));
    }
  }
  return absl::OkStatus();
}

ExitStatus SearchOptions::Print(const std::string& command, const google::protobuf::Message& report,
                                const std::string& table, bool is_taken, ExitStatus done) {
  for (const std::string& warning : traces_.TakeWarnings()) {
    std::fprintf(stderr, "%s\n", warning.c_str());
  }
  if (json_ || !json_file_.empty()) {
    const auto json = ToJson(report);
    if (!json.ok()) return Fail(command, json.status());
    if (!json_file_.empty()) {
      if (absl::Status status = WriteFile(json_file_, *json); !status.ok()) {
        return Fail(command, status);
      }
    }
    if (json_ && !WriteStdout(*json)) return kBadInput;
  }
  if (is_taken || json_ || quiet_ || IsStandardOutput(json_file_)) return done;
  return WriteStdout(table) ? done : kBadInput;
}

}  // namespace kvblocks::sim
