#include "kvblocks/sim/trace/line_rows.h"

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {

LineRows::LineRows(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                   RowLog* log, std::string_view format)
    : LineRows(std::make_unique<RowLines>(std::move(source), options, log), log, format) {}

LineRows::LineRows(std::unique_ptr<RowRecords> records, RowLog* log, std::string_view format)
    : records_(std::move(records)), log_(log) {
  info_.format = std::string(format);
  info_.name = NameOfFile(*log);
}

absl::Status LineRows::ReadAhead() {
  while (pending_.size() < kMostPending) {
    Pending& next = pending_.emplace_back();
    next.outcome = NextParsed(&next.row, &next.problems);
    if (!next.outcome.ok() && pending_.size() == 1) return next.outcome.status();
    if (!next.outcome.ok() || *next.outcome != RowOutcome::kBad) break;
  }
  is_settled_ = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> LineRows::ReadHeader(Line* line) {
  TraceProblem problem;
  absl::StatusOr<RowOutcome> got = records_->Next(line, &problem);
  if (!got.ok()) return got.status();
  if (*got == RowOutcome::kBad) {
    return absl::InvalidArgumentError(ProblemMessage(log_->file, problem));
  }
  return *got == RowOutcome::kRow;
}

absl::StatusOr<RowOutcome> LineRows::Next(RawRow* row, std::vector<TraceProblem>* problems) {
  if (pending_.empty()) return NextParsed(row, problems);
  Pending next = std::move(pending_.front());
  pending_.pop_front();
  *row = std::move(next.row);
  *problems = std::move(next.problems);
  return next.outcome;
}

void LineRows::Take(RawRow* row) {
  *row = std::move(rows_[next_of_line_++]);
  row->request.row = next_row_++;
  row->request.line = line_;
}

absl::StatusOr<RowOutcome> LineRows::NextParsed(RawRow* row, std::vector<TraceProblem>* problems) {
  while (next_of_line_ == rows_.size()) {
    Line line;
    TraceProblem problem;
    absl::StatusOr<RowOutcome> got = records_->Next(&line, &problem);
    if (!got.ok() || *got == RowOutcome::kEnd) return got;
    rows_.clear();
    next_of_line_ = 0;
    line_ = line.number;
    *row = RawRow();
    row->request.row = next_row_;
    row->request.line = line_;
    if (*got == RowOutcome::kBad) {
      problem.row = next_row_++;
      problems->push_back(std::move(problem));
      return got;
    }
    // The row's own place stays, for a line that turns out to be bad.
    RawRow at;
    at.request.row = next_row_;
    at.request.line = line_;
    Parse(line.text, std::move(at), &rows_, problems);
    if (!problems->empty()) {
      rows_.clear();
      ++next_row_;
      return RowOutcome::kBad;
    }
  }
  Take(row);
  return RowOutcome::kRow;
}

uint64_t SessionNumbers::NumberOf(const JsonId& id) {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const bool keep = id.is_integer && id.integer > 0;
  if (!decided_) {
    decided_ = true;
    keep_integers_ = keep;
    next_ = keep ? kHalf : 1;
  }
  if (keep && keep_integers_) return static_cast<uint64_t>(id.integer);
  const auto [it, inserted] = numbers_.try_emplace(id.text, next_);
  if (inserted) ++next_;
  return it->second;
}

BlockSizeRule::BlockSizeRule(int64_t given, int64_t initial, TraceInfo* info)
    : is_fixed_(given > 0) {
  info->block_tokens = given > 0 ? given : initial;
}

std::string BlockSizeRule::Check(int64_t tokens, std::string_view field, bool is_good,
                                 bool is_settled, TraceInfo* info) {
  if (is_fixed_) return "";
  if (!is_decided_ && !is_settled) {
    if (is_good) {
      info->block_tokens = tokens;
      is_decided_ = true;
    }
    return "";
  }
  if (tokens == info->block_tokens) return "";
  return absl::StrCat(View(field), ": got ", tokens, ", expected ", info->block_tokens,
                      " as in the first good row (--trace-block-size)");
}

void SetConversationInfo(TraceInfo* info) {
  info->block_tokens = kConversationBlockTokens;
  info->scope = ContentScope::kSession;
}

void SetConversationContent(TraceRequest* request) {
  const int64_t tokens = request->input_length + request->output_length;
  if (tokens > kMaxTraceLength) return;  // an error of the row; no ids for it
  request->ids_cover_output = true;
  request->content_ids.clear();
  for (int64_t begin = 0; begin < tokens; begin += kConversationBlockTokens) {
    request->content_ids.push_back(begin / kConversationBlockTokens);
  }
}

}  // namespace kvblocks::sim
