#include "sim/cost/recorded_steps.h"

#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvblocks::sim {
namespace {

class RecordedSteps final : public StepTimeModel {
 public:
  RecordedSteps(std::vector<SimTime> times, const std::string& source)
      : times_(std::move(times)), source_(source) {}

  absl::StatusOr<SimTime> StepTime(absl::Span<const SequenceWork>, const Decodes&) const override {
    const size_t step = next_.fetch_add(1, std::memory_order_relaxed);
    if (step < times_.size()) return times_[step];
    return absl::OutOfRangeError(absl::StrCat("--step-times: ", source_, " has ", times_.size(),
                                              " steps, and the replay needs more"));
  }
  bool adds_up_decodes() const override { return true; }
  std::string_view source() const override { return "recorded steps"; }
  std::vector<TimePart> parts() const override {
    return {{"steps", absl::StrCat(times_.size(), " recorded in ", source_)}};
  }

 private:
  const std::vector<SimTime> times_;
  const std::string source_;
  mutable std::atomic<size_t> next_ = 0;
};

absl::Status BadLine(const std::string& source, int64_t line, absl::string_view what,
                     absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat(source, ":", line, ": got \"", got.substr(0, 60), "\", expected ", what));
}

// Position of a column, or -1.
int ColumnOf(const std::vector<absl::string_view>& header, absl::string_view name) {
  const auto it = std::find(header.begin(), header.end(), name);
  return it == header.end() ? -1 : static_cast<int>(it - header.begin());
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  constexpr size_t kMostBytes = size_t{256} << 20;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  std::string text;
  std::vector<char> buffer(size_t{1} << 16);
  absl::Status status = absl::OkStatus();
  while (true) {
    const int size = gzread(file, buffer.data(), static_cast<unsigned>(buffer.size()));
    if (size < 0) {
      int code = Z_OK;
      gzerror(file, &code);
      // A folder, for example, can be opened.
      status = code == Z_ERRNO ? absl::InvalidArgumentError(absl::StrCat(
                                     path, ": cannot be read: ", std::strerror(errno)))
                               : absl::DataLossError(absl::StrCat(path, ": is damaged"));
    }
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(size));
    if (text.size() > kMostBytes) {
      status = absl::ResourceExhaustedError(absl::StrCat(path, ": more than 256 MiB"));
      break;
    }
  }
  // A stream that was cut off is an error only at the end.
  if (gzclose_r(file) != Z_OK && status.ok()) {
    status = absl::DataLossError(absl::StrCat(path, ": ends too early"));
  }
  if (!status.ok()) return status;
  return text;
}

absl::StatusOr<std::unique_ptr<StepTimeModel>> ParseRecordedSteps(const std::string& text,
                                                                  const std::string& source) {
  std::vector<SimTime> times;
  int start_column = -1, end_column = -1;
  SimTime last_end = 0;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
    if (times.empty() && end_column < 0 && ColumnOf(cells, "end_ms") >= 0) {
      start_column = ColumnOf(cells, "start_ms");
      end_column = ColumnOf(cells, "end_ms");
      if (start_column < 0) return BadLine(source, number, "a column start_ms", line);
      continue;
    }
    if (end_column < 0) {
      const auto time = ParseDuration(std::string(line));
      if (!time.ok() || *time < 1) return BadLine(source, number, "a duration like 12.5ms", line);
      times.push_back(*time);
      continue;
    }
    if (static_cast<int>(cells.size()) <= std::max(start_column, end_column)) {
      return BadLine(source, number, "as many columns as the header has", line);
    }
    const auto start = ParseDuration(absl::StrCat(cells[static_cast<size_t>(start_column)], "ms"));
    const auto end = ParseDuration(absl::StrCat(cells[static_cast<size_t>(end_column)], "ms"));
    if (!start.ok() || !end.ok()) return BadLine(source, number, "times in ms", line);
    // Scheduled while the step before was running, it began when that one ended.
    const SimTime begin = std::max(*start, last_end);
    if (*end <= begin) {
      return BadLine(source, number, "an end after its start and after the row before", line);
    }
    times.push_back(*end - begin);
    last_end = *end;
  }
  if (times.empty()) return absl::InvalidArgumentError(absl::StrCat(source, ": no steps"));
  return std::unique_ptr<StepTimeModel>(std::make_unique<RecordedSteps>(std::move(times), source));
}

absl::StatusOr<std::unique_ptr<StepTimeModel>> LoadRecordedSteps(const std::string& path) {
  const auto text = ReadTextFile(path);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("--step-times: ", text.status().message()));
  }
  auto model = ParseRecordedSteps(*text, path);
  if (!model.ok()) {
    return absl::Status(model.status().code(),
                        absl::StrCat("--step-times: ", model.status().message()));
  }
  return model;
}

}  // namespace kvblocks::sim
