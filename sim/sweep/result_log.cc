#include "kvblocks/sim/sweep/result_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "kvblocks/checks/status_macros.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

namespace {

absl::Status SystemError(const std::string& path, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> ResultLine(const pb::PointResult& result) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string line;
  const auto status = google::protobuf::util::MessageToJsonString(result, &line, options);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("a result cannot be written as JSON: ", std::string(status.message())));
  }
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line + "\n";
}

absl::StatusOr<ResultLines> ParseResultLines(std::string_view text, const std::string& file) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  ResultLines lines;
  size_t begin = 0;
  for (int64_t line = 1;; ++line) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    auto result = std::make_unique<pb::PointResult>();
    const std::string json(text.substr(begin, end - begin));
    begin = end + 1;
    if (json.empty()) continue;
    const auto status = google::protobuf::util::JsonStringToMessage(json, result.get(), options);
    if (!status.ok() || result->name().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", line, ": error: expected a result of a sweep as JSON",
                       status.ok() ? ", with its name" : ""));
    }
    lines.results.push_back(std::move(result));
  }
  // A text of any kind must not be shortened because it lacks a line end.
  constexpr std::string_view kStart = "{\"name\":";
  if (begin < text.size() && begin == 0 &&
      kStart.substr(0, text.size()) != text.substr(0, kStart.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ":1: error: expected results of a sweep, one JSON text per line"));
  }
  lines.whole_bytes = begin;
  return lines;
}

absl::StatusOr<std::unique_ptr<ResultLog>> ResultLog::Open(const std::string& path, bool retry) {
  std::unique_ptr<ResultLog> log(new ResultLog);
  if (path.empty()) return log;
  KVBLOCKS_RETURN_IF_ERROR(log->Read(path, retry));
  return log;
}

ResultLog::~ResultLog() {
  if (file_ >= 0) close(file_);
}

absl::Status ResultLog::Read(const std::string& path, bool retry) {
  path_ = path;
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) return SystemError(path, "cannot be opened for results");
  struct stat facts;
  if (fstat(file_, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a regular file for results, which can be read again"));
  }
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(
        absl::StrCat(path, ": another program writes results to it; wait, or name another file"));
  }
  std::string text(static_cast<size_t>(facts.st_size), '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got =
        pread(file_, text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path, "cannot be read");
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  KVBLOCKS_ASSIGN_OR_RETURN(auto lines, ParseResultLines(text, path));
  for (auto& result : lines.results) {
    if (retry && !result->problem().empty()) continue;
    const std::string name = result->name();
    results_[name] = std::move(result);
  }
  num_read_ = static_cast<int64_t>(results_.size());
  const size_t begin = lines.whole_bytes;
  num_torn_bytes_ = static_cast<int64_t>(text.size() - begin);
  if (num_torn_bytes_ > 0 && ftruncate(file_, static_cast<off_t>(begin)) != 0) {
    return SystemError(path, "its last line is not whole and cannot be cut off");
  }
  return absl::OkStatus();
}

const pb::PointResult* ResultLog::Find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto it = results_.find(name);
  return it == results_.end() ? nullptr : it->second.get();
}

absl::Status ResultLog::Append(const pb::PointResult& result) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto line, ResultLine(result));
  const std::lock_guard lock(mutex_);
  results_[result.name()] = std::make_unique<pb::PointResult>(result);
  if (file_ < 0) return absl::OkStatus();
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t put = write(file_, line.data() + written, line.size() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(path_, "a result cannot be written");
    written += static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
