#include "kvblocks/sim/commands/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {

bool WriteStdout(const std::string& text) {
  const bool done =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (done || errno == EPIPE) return true;
  std::fprintf(stderr, "kvsim: cannot write to standard output: %s\n", std::strerror(errno));
  return false;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  // A name of its own, so that two runs into one folder do not meet.
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  const bool written =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (written && closed && std::rename(temporary.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  const std::string why = std::strerror(errno);
  if (file != nullptr) std::remove(temporary.c_str());
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", why));
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

bool IsSameFile(const std::string& a, const std::string& b) {
  struct stat x, y;
  return stat(a.c_str(), &x) == 0 && stat(b.c_str(), &y) == 0 && x.st_dev == y.st_dev &&
         x.st_ino == y.st_ino && S_ISREG(x.st_mode);
}

bool UseColor(const std::string& choice) {
  if (choice != "auto") return choice == "always";
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0');
}

}  // namespace kvblocks::sim
