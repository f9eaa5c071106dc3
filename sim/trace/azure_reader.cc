#include "kvblocks/sim/trace/azure_reader.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kNsPerSecond = 1000000000;
constexpr int64_t kNsPerDay = 86400 * kNsPerSecond;
constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

// Reads fixed-width fields off the front of a text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool Digits(size_t width, int64_t* value) {
    if (text_.size() < width) return false;
    *value = 0;
    for (size_t i = 0; i < width; ++i) {
      if (text_[i] < '0' || text_[i] > '9') return false;
      *value = *value * 10 + (text_[i] - '0');
    }
    text_.remove_prefix(width);
    return true;
  }
  bool Literal(char c) {
    if (text_.empty() || text_[0] != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  // 0 to 9 digits as nanoseconds.
  bool Fraction(int64_t* ns) {
    int64_t scale = kNsPerSecond;
    *ns = 0;
    while (!text_.empty() && text_[0] >= '0' && text_[0] <= '9') {
      scale /= 10;
      if (scale == 0) return false;
      *ns += (text_[0] - '0') * scale;
      text_.remove_prefix(1);
    }
    return scale != kNsPerSecond;
  }
  bool done() const { return text_.empty(); }

 private:
  std::string_view text_;
};

bool ScanTimestamp(std::string_view text, CivilTime* out) {
  Scanner scan(text);
  int64_t year, month, day, hour, minute, second, fraction = 0;
  if (!scan.Digits(4, &year) || !scan.Literal('-') || !scan.Digits(2, &month) ||
      !scan.Literal('-') || !scan.Digits(2, &day)) {
    return false;
  }
  if (!scan.Literal(' ') && !scan.Literal('T')) return false;
  if (!scan.Digits(2, &hour) || !scan.Literal(':') || !scan.Digits(2, &minute) ||
      !scan.Literal(':') || !scan.Digits(2, &second)) {
    return false;
  }
  if (scan.Literal('.') && !scan.Fraction(&fraction)) return false;
  int64_t offset_minutes = 0;
  if (!scan.Literal('Z')) {
    const bool plus = scan.Literal('+');
    if (plus || scan.Literal('-')) {
      int64_t hours, minutes;
      if (!scan.Digits(2, &hours) || !scan.Literal(':') || !scan.Digits(2, &minutes)) return false;
      if (hours > 23 || minutes > 59) return false;
      offset_minutes = (plus ? 1 : -1) * (hours * 60 + minutes);
    }
  }
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(year)),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!scan.done() || !date.ok() || hour > 23 || minute > 59 || second > 59) return false;
  out->day = std::chrono::sys_days(date).time_since_epoch().count();
  out->ns_of_day = ((hour * 60 + minute - offset_minutes) * 60 + second) * kNsPerSecond + fraction;
  for (; out->ns_of_day < 0; out->ns_of_day += kNsPerDay) --out->day;
  for (; out->ns_of_day >= kNsPerDay; out->ns_of_day -= kNsPerDay) ++out->day;
  return true;
}

class AzureReader : public RowSource {
 public:
  AzureReader(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options, RowLog* log)
      : lines_(std::move(source), options, log), log_(log) {
    info_.format = "azure";
    info_.name = NameOfFile(*log);
  }

  absl::Status Open() {
    Line line;
    TraceProblem problem;
    absl::StatusOr<RowOutcome> header = lines_.Next(&line, &problem);
    if (!header.ok()) return header.status();
    if (*header == RowOutcome::kBad) {
      return absl::InvalidArgumentError(ProblemMessage(log_->file, problem));
    }
    if (*header == RowOutcome::kEnd || line.text != kHeader) {
      return absl::InvalidArgumentError(RowError(
          *log_, 1,
          absl::StrCat("CSV header: got ", Shown(line.text), ", expected ", Shown(kHeader))));
    }
    // The first row decides the day that arrivals count from.
    absl::StatusOr<RowOutcome> first = Parse(&pending_row_, &pending_problems_);
    if (!first.ok()) return first.status();
    pending_ = *first;
    has_pending_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<RowOutcome> Next(RawRow* row, std::vector<TraceProblem>* problems) override {
    if (!has_pending_) return Parse(row, problems);
    has_pending_ = false;
    *row = std::move(pending_row_);
    *problems = std::move(pending_problems_);
    return pending_;
  }

  const TraceInfo& info() const override { return info_; }
  ReadProgress progress() const override { return lines_.progress(); }

 private:
  absl::StatusOr<RowOutcome> Parse(RawRow* row, std::vector<TraceProblem>* problems) {
    Line line;
    TraceProblem problem;
    absl::StatusOr<RowOutcome> got = lines_.Next(&line, &problem);
    if (!got.ok() || *got == RowOutcome::kEnd) return got;
    *row = RawRow();
    row->request.row = next_row_++;
    row->request.line = line.number;
    if (*got == RowOutcome::kBad) {
      problem.row = row->request.row;
      problems->push_back(std::move(problem));
      return got;
    }
    ParseFields(line.text, row, problems);
    return problems->empty() ? RowOutcome::kRow : RowOutcome::kBad;
  }

  void ParseFields(std::string_view text, RawRow* row, std::vector<TraceProblem>* problems) {
    const auto bad = [&](ProblemKind kind, const std::string& message) {
      problems->push_back(RowProblem(kind, row->request, message));
    };
    std::array<std::string_view, 3> fields;
    size_t count = 0;
    for (size_t begin = 0; begin <= text.size(); ++count) {
      const size_t comma = std::min(text.find(',', begin), text.size());
      if (count < fields.size()) fields[count] = text.substr(begin, comma - begin);
      begin = comma + 1;
    }
    if (count != fields.size()) {
      bad(ProblemKind::kSyntax,
          absl::StrCat("CSV row: got ", count, " fields, expected 3 (",
                       absl::string_view(kHeader.data(), kHeader.size()), ")"));
      return;
    }
    absl::StatusOr<CivilTime> time = ParseAzureTimestamp(fields[0]);
    if (!time.ok()) {
      bad(ProblemKind::kValue, absl::StrCat("TIMESTAMP: ", time.status().message()));
    }
    for (const auto& [name, field, length] :
         {std::tuple("ContextTokens", fields[1], &row->request.input_length),
          std::tuple("GeneratedTokens", fields[2], &row->request.output_length)}) {
      const std::string problem = Length(name, field, length);
      if (!problem.empty()) bad(ProblemKind::kValue, problem);
    }
    if (!problems->empty()) return;
    if (!has_day_one_) {
      has_day_one_ = true;
      day_one_ = time->day;
      info_.notes["day_one"] = FormatDay(day_one_);
    }
    const int64_t days = time->day - day_one_;
    if (days < 0) {
      bad(ProblemKind::kValue,
          absl::StrCat("TIMESTAMP: got ", Shown(fields[0]), ", expected a day from ",
                       FormatDay(day_one_), " on, the day of the first row"));
    }
    if (__builtin_mul_overflow(days, kNsPerDay, &row->timestamp_ns) ||
        __builtin_add_overflow(row->timestamp_ns, time->ns_of_day, &row->timestamp_ns)) {
      bad(ProblemKind::kValue,
          absl::StrCat("TIMESTAMP: got ", Shown(fields[0]), ", expected a time within 2^63 ns of ",
                       FormatDay(day_one_), ", the day of the first row"));
    }
  }

  // Empty, or what is wrong.
  static std::string Length(const char* name, std::string_view text, int64_t* out) {
    absl::StatusOr<int64_t> value = ParseScaledDecimal(text, 0);
    if (!value.ok() || text.find_first_not_of("0123456789") != std::string_view::npos) {
      return absl::StrCat(name, ": got ", Shown(text), ", expected a whole number from 0 to ",
                          kMaxTraceLength);
    }
    *out = *value;
    return "";
  }

  RowLines lines_;
  RowLog* log_;
  TraceInfo info_;
  int64_t next_row_ = 0;
  bool has_day_one_ = false;
  int64_t day_one_ = 0;
  bool has_pending_ = false;
  RowOutcome pending_ = RowOutcome::kEnd;
  RawRow pending_row_;
  std::vector<TraceProblem> pending_problems_;
};

}  // namespace

absl::StatusOr<CivilTime> ParseAzureTimestamp(std::string_view text) {
  CivilTime time;
  if (ScanTimestamp(text, &time)) return time;
  return absl::InvalidArgumentError(
      absl::StrCat("got ", Shown(text), ", expected YYYY-MM-DD hh:mm:ss[.fffffffff][Z|+hh:mm]"));
}

std::string FormatDay(int64_t day) {
  const std::chrono::year_month_day date{
      std::chrono::sys_days(std::chrono::days(static_cast<int>(day)))};
  return absl::StrFormat("%04d-%02d-%02d", static_cast<int>(date.year()),
                         static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

std::string FormatAzureTimestamp(int64_t day, int64_t ns) {
  const int64_t seconds = ns % kNsPerDay / kNsPerSecond;
  const int64_t fraction = ns % kNsPerSecond;
  const std::string head = absl::StrFormat("%s %02d:%02d:%02d.", FormatDay(day + ns / kNsPerDay),
                                           seconds / 3600, seconds / 60 % 60, seconds % 60);
  return fraction % 100 == 0 ? absl::StrFormat("%s%07d", head, fraction / 100)
                             : absl::StrFormat("%s%09d", head, fraction);
}

absl::StatusOr<std::unique_ptr<RowSource>> MakeAzureReader(std::unique_ptr<ByteSource> source,
                                                           const TraceReaderOptions& options,
                                                           RowLog* log) {
  auto reader = std::make_unique<AzureReader>(std::move(source), options, log);
  if (absl::Status status = reader->Open(); !status.ok()) return status;
  return std::unique_ptr<RowSource>(std::move(reader));
}

}  // namespace kvblocks::sim
