#include "sim/trace/row_source.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace kvblocks::sim {
void RowLog::Warn(ProblemKind kind, int64_t line, std::string_view text) {
  TraceProblem problem;
  problem.severity = ProblemSeverity::kWarning;
  problem.kind = kind;
  problem.line = line;
  problem.text = std::string(text);
  Warn(problem);
}

void RowLog::Warn(const TraceProblem& problem) {
  Notify(problem);
  if (static_cast<int>(warnings.size()) < max_warnings) {
    warnings.push_back(ProblemMessage(file, problem));
  }
}

TraceProblem RowProblem(ProblemKind kind, const TraceRequest& request, std::string_view text,
                        ProblemSeverity severity) {
  TraceProblem problem;
  problem.severity = severity;
  problem.kind = kind;
  problem.line = request.line;
  problem.row = request.row;
  problem.id = request.id;
  problem.text = std::string(text);
  return problem;
}

std::string RowError(const RowLog& log, int64_t line, std::string_view text) {
  return absl::StrCat(log.file, ":", line, ": error: ", View(text));
}

std::string RowError(const RowLog& log, int64_t line, int64_t column, std::string_view text) {
  return absl::StrCat(log.file, ":", line, ":", column, ": error: ", View(text));
}

absl::Status StreamError(const RowLog& log, const absl::Status& status, std::string_view unit,
                         int64_t last_good) {
  return absl::Status(status.code(),
                      absl::StrCat(log.file, ":", last_good + 1, ": error: ", status.message(),
                                   " (the last good ", View(unit), " is ", last_good, ")"));
}

void ErrorList::Add(std::string message, bool is_last) {
  if (num_++ < most_ || messages_.empty() || is_last) messages_.push_back(std::move(message));
}

absl::Status ErrorList::status() const {
  const int64_t more = num_ - static_cast<int64_t>(messages_.size());
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(messages_, "\n"),
                   more > 0 ? absl::StrCat("\nand ", more, " more errors") : ""));
}

std::string NameOfFile(const RowLog& log) {
  return log.file.substr(log.file.find_last_of('/') + 1);
}

std::string Shown(std::string_view value) {
  constexpr size_t kShown = 60;
  return absl::StrCat("\"", absl::CHexEscape(View(value.substr(0, kShown))),
                      value.size() > kShown ? "...\"" : "\"");
}

RowLines::RowLines(RowInput& input)
    : reader_(std::move(input.source), input.options.max_line_bytes),
      max_line_bytes_(input.options.max_line_bytes),
      log_(input.log) {}

absl::StatusOr<RowOutcome> RowLines::Next(Line* line, TraceProblem* problem) {
  while (true) {
    absl::StatusOr<bool> more = reader_.Next(line);
    if (!more.ok()) return StreamError(*log_, more.status(), "line", reader_.line_number());
    if (!*more) return RowOutcome::kEnd;
    if (line->too_long) {
      problem->kind = ProblemKind::kSyntax;
      problem->line = line->number;
      problem->text =
          absl::StrCat("line length: got ", line->bytes, " bytes, expected at most ",
                       max_line_bytes_, " (is this one JSON document instead of one per line?)");
      return RowOutcome::kBad;
    }
    if (line->text.find_first_not_of(" \t") != std::string_view::npos) break;
    if (num_blank_++ == 0) first_blank_ = line->number;
  }
  if (num_blank_ > 0) {
    log_->counters.blank_lines += num_blank_;
    log_->Warn(ProblemKind::kBlankLine, first_blank_,
               absl::StrCat("blank lines: got ", num_blank_,
                            ", expected none before the end of the file"));
    num_blank_ = 0;
  }
  return RowOutcome::kRow;
}

ReadProgress RowLines::progress() const {
  return {reader_.source().bytes_read(), reader_.source().bytes_total()};
}

}  // namespace kvblocks::sim
