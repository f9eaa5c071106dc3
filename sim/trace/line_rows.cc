#include "sim/trace/line_rows.h"

#include <xxhash.h>

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "checks/ceil_div.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

// One seed per kind, so that no role is ever mistaken for a text.
constexpr unsigned kTextTokenSeed = 1;
constexpr unsigned kRoleTokenSeed = 2;
constexpr unsigned kEndTokenSeed = 3;

// d: a digit; T: a blank, too.
bool HasForm(std::string_view text, std::string_view form) {
  return std::equal(text.begin(), text.end(), form.begin(), form.end(), [](char c, char f) {
    return f == 'd'   ? absl::ascii_isdigit(static_cast<unsigned char>(c))
           : f == 'T' ? c == 'T' || c == ' '
                      : c == f;
  });
}

// absl::ParseTime takes blanks, digits beyond a nanosecond and leap seconds, too.
bool IsTimestamp(std::string_view text) {
  constexpr std::string_view kForm = "dddd-dd-ddTdd:dd:dd";
  if (!HasForm(text.substr(0, kForm.size()), kForm) || text[kForm.size() - 2] > '5') return false;
  std::string_view rest = text.substr(kForm.size());
  if (!rest.empty() && rest[0] == '.') {
    const size_t end = std::min(rest.find_first_not_of("0123456789", 1), rest.size());
    if (end < 2 || end > 10) return false;
    rest.remove_prefix(end);
  }
  return rest.empty() || rest == "Z" || HasForm(rest, "+dd:dd") || HasForm(rest, "-dd:dd");
}

}  // namespace

LineRows::LineRows(RowInput& input, std::unique_ptr<RowRecords> records)
    : records_(records != nullptr ? std::move(records) : std::make_unique<RowLines>(input)),
      log_(input.log) {
  info_.format = input.format;
  info_.name = NameOfFile(*log_);
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
  KVBLOCKS_ASSIGN_OR_RETURN(const RowOutcome got, records_->Next(line, &problem));
  if (got == RowOutcome::kBad) {
    return absl::InvalidArgumentError(ProblemMessage(log_->file, problem));
  }
  return got == RowOutcome::kRow;
}

absl::StatusOr<RowOutcome> LineRows::Next(RawRow* row, std::vector<TraceProblem>* problems) {
  if (pending_.empty()) return NextParsed(row, problems);
  Pending next = std::move(pending_.front());
  pending_.pop_front();
  *row = std::move(next.row);
  *problems = std::move(next.problems);
  return next.outcome;
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
    if (*got == RowOutcome::kBad) {
      problem.row = next_row_++;
      problems->push_back(std::move(problem));
      return got;
    }
    row_ = RawRow();
    row_.request.row = next_row_;
    row_.request.line = line_;
    problems_ = problems;
    Parse(line.text);
    if (!problems->empty()) {
      rows_.clear();
      ++next_row_;
      return RowOutcome::kBad;
    }
  }
  *row = std::move(rows_[next_of_line_++]);
  row->request.row = next_row_++;
  row->request.line = line_;
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

int64_t PseudoTokens::NumberOf(std::string_view text) const {
  return CeilDiv(static_cast<int64_t>(text.size()), bytes_per_token_);
}

void PseudoTokens::AppendText(std::string_view text, std::vector<uint32_t>* tokens) const {
  while (!text.empty()) {
    const std::string_view run = text.substr(0, static_cast<size_t>(bytes_per_token_));
    tokens->push_back(XXH32(run.data(), run.size(), kTextTokenSeed));
    text.remove_prefix(run.size());
  }
}

void PseudoTokens::AppendRole(std::string_view role, std::vector<uint32_t>* tokens) {
  tokens->push_back(XXH32(role.data(), role.size(), kRoleTokenSeed));
}

void PseudoTokens::AppendEndOfTurn(std::vector<uint32_t>* tokens) {
  tokens->push_back(XXH32("", 0, kEndTokenSeed));
}

absl::StatusOr<absl::Time> ParseAzureTimestamp(std::string_view text) {
  absl::Time time;
  if (IsTimestamp(text)) {
    std::string full(text);
    full[10] = 'T';
    if (text.find_first_of("Z+-", 11) == std::string_view::npos) full += 'Z';
    if (absl::ParseTime(absl::RFC3339_full, full, &time, nullptr)) return time;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("got ", Shown(text), ", expected YYYY-MM-DD hh:mm:ss[.fffffffff][Z|+hh:mm]"));
}

std::string FormatAzureTimestamp(absl::Time time) {
  std::string text = absl::FormatTime("%E4Y-%m-%d %H:%M:%E9S", time, absl::UTCTimeZone());
  if (text.compare(text.size() - 2, 2, "00") == 0) text.resize(text.size() - 2);
  return text;
}

std::string FormatDay(absl::Time time) {
  return absl::FormatTime("%E4Y-%m-%d", time, absl::UTCTimeZone());
}

absl::Status DayClock::Since(absl::Time time, std::string_view text,
                             std::map<std::string, std::string>* notes, int64_t* ns) {
  if (!day_one_) {
    const absl::TimeZone utc = absl::UTCTimeZone();
    day_one_ = absl::FromCivil(absl::ToCivilDay(time, utc), utc);
    (*notes)["day_one"] = FormatDay(*day_one_);
  }
  const absl::Duration since = time - *day_one_;
  if (since < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("got ", Shown(text), ", expected a day from ",
                                                   FormatDay(*day_one_),
                                                   " on, the day of the first row"));
  }
  if (since > absl::Nanoseconds(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", Shown(text), ", expected a time within 2^63 ns of ",
                     FormatDay(*day_one_), ", the day of the first row"));
  }
  *ns = absl::ToInt64Nanoseconds(since);
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
