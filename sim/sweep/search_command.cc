#include "sim/sweep/search_command.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/report/human_table.h"

namespace kvblocks::sim {

void SearchOptions::AddRunOptions(OptionParser* options) {
  options->Add({"--threads", "N", "replays at once; 0: one per core [0]"}, 0, 1024, &threads_);
  options->Add(
      {.name = "--results",
       .unit = "FILE",
       .help = "keep each finished point there, a line of JSON each, and replay none that it "
               "has",
       .file = FileUse::kWritten},
      &results_);
  options->AddFlag(
      {.name = "--retry", .help = "replay points again that --results has without figures"},
      &retry_);
}

void SearchOptions::AddOutputOptions(OptionParser* options, const ReportOutput::Files& files) {
  options->BeginGroup("Output");
  output_.AddFiles(options, files);
  output_.AddTerminal(options, "neither table nor progress");
}

absl::Status SearchOptions::Open(const std::string& command, const std::string& default_file) {
  if (results_.empty()) results_ = default_file;
  if (retry_ && results_.empty()) {
    return absl::InvalidArgumentError("--retry: needs --results=FILE, whose points it means");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(log_, OfOption("--results", ResultLog::Open(results_, retry_)));
  if (!quiet() && log_->num_torn_bytes() > 0) {
    std::fprintf(stderr, "kvsim %s: %s: its last line was not whole and is cut off\n",
                 command.c_str(), results_.c_str());
  }
  if (!quiet() && log_->num_read() > 0) {
    std::fprintf(stderr, "kvsim %s: %s has %s; of these none is replayed again\n", command.c_str(),
                 results_.c_str(), Plural(log_->num_read(), "finished point").c_str());
  }
  if (!results_.empty()) {
    SetInterruptNote(absl::StrCat("kvsim ", command, ": finished points are in ", results_,
                                  "; the same command goes on from there\n"));
  }
  progress_ = std::make_unique<ProgressLine>(quiet());
  runner_ = std::make_unique<PointRunner>(&traces_, log_.get(), static_cast<int>(threads_),
                                          progress_.get());
  return absl::OkStatus();
}

absl::Status SearchOptions::CheckOutputs(const std::vector<RunFile>& others) {
  return output_.Check(others);
}

ExitStatus SearchOptions::Print(const std::string& command, const google::protobuf::Message& report,
                                const ReportOutput::Texts& texts, ExitStatus done) {
  for (const std::string& warning : traces_.TakeWarnings()) {
    std::fprintf(stderr, "%s\n", warning.c_str());
  }
  const ExitStatus status = output_.Print(command, report, texts);
  return status == kDone ? done : status;
}

}  // namespace kvblocks::sim
