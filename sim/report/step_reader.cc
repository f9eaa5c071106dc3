#include "kvblocks/sim/report/step_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kvblocks/sim/trace/decimal.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMaxLineBytes = 16 << 20;
constexpr size_t kMaxColumns = 100;
constexpr std::string_view kFirstColumn = "step,";

void Split(std::string_view text, std::vector<std::string_view>* out) {
  out->clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    out->push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
}

bool ParseDigest(std::string_view text, uint64_t* out) {
  constexpr size_t kDigits = 16;
  if (text.size() != kDigits) return false;
  *out = 0;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (c < 'a' || c > 'f')) return false;
    *out = *out << 4 | static_cast<uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
  }
  return true;
}

bool ParseStep(std::string_view text, int64_t* out) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return false;
  const auto value = ParseScaledDecimal(text, 0);
  if (value.ok()) *out = *value;
  return value.ok();
}

}  // namespace

bool StepReader::Recognises(std::string_view head) {
  if (head.substr(0, 3) == "\xef\xbb\xbf") head.remove_prefix(3);
  return head.substr(0, kFirstColumn.size()) == kFirstColumn;
}

StepReader::StepReader(std::unique_ptr<ByteSource> source, const std::string& file)
    : file_(file), lines_(std::move(source), kMaxLineBytes) {}

absl::Status StepReader::Error(int64_t line, const std::string& text) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ":", line, ": error: ", text));
}

absl::StatusOr<std::unique_ptr<StepReader>> StepReader::Create(std::unique_ptr<ByteSource> source,
                                                               const std::string& file) {
  std::unique_ptr<StepReader> reader(new StepReader(std::move(source), file));
  if (absl::Status status = reader->ReadHeader(); !status.ok()) return status;
  return reader;
}

absl::StatusOr<bool> StepReader::NextLine(Line* line) {
  absl::StatusOr<bool> more = lines_.Next(line);
  if (!more.ok()) {
    return absl::DataLossError(absl::StrCat(file_, ":", lines_.line_number() + 1,
                                            ": error: ", more.status().message(),
                                            " (the last good line is ", lines_.line_number(), ")"));
  }
  if (*more && line->too_long) {
    return Error(line->number, absl::StrCat("line length: got ", line->bytes,
                                            " bytes, expected at most ", kMaxLineBytes));
  }
  return more;
}

absl::Status StepReader::ReadHeader() {
  Line line;
  const absl::StatusOr<bool> more = NextLine(&line);
  if (!more.ok()) return more.status();
  if (!*more || !Recognises(line.text)) {
    return Error(1, absl::StrCat("header: got ", Shown(*more ? line.text : ""),
                                 ", expected that of a file of kvsim replay --steps"));
  }
  std::vector<std::string_view> names;
  Split(line.text, &names);
  if (names.size() > kMaxColumns) {
    return Error(
        1, absl::StrCat("header: got ", names.size(), " columns, expected at most ", kMaxColumns));
  }
  for (const std::string_view name : names) {
    const bool is_name =
        !name.empty() &&
        name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string_view::npos;
    if (!is_name || std::find(columns_.begin(), columns_.end(), name) != columns_.end()) {
      return Error(1, absl::StrCat("header: got column ", Shown(name),
                                   ", expected each name once, in small letters"));
    }
    columns_.emplace_back(name);
  }
  const auto digest = std::find(columns_.begin(), columns_.end(), "digest");
  if (digest == columns_.end()) {
    return Error(1, "header: got no column digest, expected one");
  }
  digest_column_ = static_cast<size_t>(digest - columns_.begin());
  const auto replica = std::find(columns_.begin(), columns_.end(), "replica");
  if (replica != columns_.end()) replica_column_ = static_cast<size_t>(replica - columns_.begin());
  return absl::OkStatus();
}

absl::StatusOr<bool> StepReader::Next(StepRow* row) {
  Line line;
  const absl::StatusOr<bool> more = NextLine(&line);
  if (!more.ok() || !*more) return more;
  row->line = line.number;
  Split(line.text, &row->fields);
  if (row->fields.size() != columns_.size()) {
    return Error(line.number, absl::StrCat("row: got ", row->fields.size(), " fields, expected ",
                                           columns_.size(), " as in the header (truncated?)"));
  }
  row->replica = replica_column_ ? row->fields[*replica_column_] : std::string_view();
  auto last = last_steps_.find(row->replica);
  if (last == last_steps_.end()) last = last_steps_.emplace(row->replica, -1).first;
  if (!ParseStep(row->fields[0], &row->step) || row->step <= last->second) {
    return Error(line.number, absl::StrCat("step: got ", Shown(row->fields[0]),
                                           ", expected a whole number above ", last->second));
  }
  if (!ParseDigest(row->fields[digest_column_], &row->digest)) {
    return Error(line.number, absl::StrCat("digest: got ", Shown(row->fields[digest_column_]),
                                           ", expected 16 hexadecimal digits (truncated?)"));
  }
  last->second = row->step;
  return true;
}

}  // namespace kvblocks::sim
