#include "sim/commands/output.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "checks/status_macros.h"
#include "sim/commands/commands.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {

bool WriteStdout(const std::string& text) {
  const absl::Status status = WriteFile("-", text);
  if (status.ok()) return true;
  std::fprintf(stderr, "kvsim: %s\n", std::string(status.message()).c_str());
  return false;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto sink, OpenByteSink(path));
  absl::Status status = sink->Write(text);
  if (status.ok()) status = sink->Close();
  return UnlessReaderGone(status);
}

void PrintWarnings(const TraceReader& reader) {
  for (const std::string& warning : reader.warnings()) {
    std::fprintf(stderr, "%s\n", warning.c_str());
  }
}

absl::Status UnlessReaderGone(const absl::Status& status) {
  return IsReaderGone(status) ? absl::OkStatus() : status;
}

ExitStatus Command::Run() {
  const auto status = Execute();
  return status.ok() ? *status : Fail(options_->name(), status.status());
}

ExitStatus Fail(const std::string& command, const absl::Status& status) {
  const std::string text(status.message());
  std::fprintf(stderr, "kvsim %s: %s\n", command.c_str(), text.c_str());
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
      return kNoProgress;
    case absl::StatusCode::kInternal:
      return kInternal;
    default:
      return kBadInput;
  }
}

namespace {
// Of fixed size, so that a signal handler may read it at any time.
char interrupt_note[1024] = "";
}  // namespace

void SetInterruptNote(const std::string& note) {
  std::snprintf(interrupt_note, sizeof(interrupt_note), "%s", note.c_str());
}

const char* InterruptNote() { return interrupt_note; }

bool UseColor(const std::string& choice) {
  if (choice != "auto") return choice == "always";
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0');
}

}  // namespace kvblocks::sim
