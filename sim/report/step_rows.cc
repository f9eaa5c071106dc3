#include "sim/report/step_rows.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sim/report/report_section.h"
#include "sim/trace/row_source.h"

namespace kvblocks::sim {

std::string StepFile::Header(bool with_requests, bool has_replicas) {
  return absl::StrCat(
      "step,start_ms,end_ms,tokens,prefill_tokens,decode_tokens,scheduled,running,waiting,"
      "free_blocks,preempted,new_blocks,hit_tokens,",
      has_replicas ? "replica," : "", with_requests ? "requests," : "", "digest\r\n");
}

void StepRows::OnPreemption(const PreemptionRecord& record, SimTime) {
  preempted_.push_back(record.request->spec.row);
}

void StepRows::OnStepScheduled(const StepRecord& step) {
  if (step.scheduled.empty()) return;
  Row row;
  row.step = step.step;
  row.num_running = step.num_running;
  row.num_waiting = step.num_waiting;
  row.num_free = step.pool.num_free;
  row.num_preempted = static_cast<int64_t>(preempted_.size());

  // Every list begins with its length, so that no two schedules give the same words.
  words_.assign({step.step, row.num_preempted});
  words_.insert(words_.end(), preempted_.begin(), preempted_.end());
  for (const ScheduledRecord& record : step.scheduled) {
    row.num_new_blocks += record.num_new_blocks;
    if (record.is_admission) row.num_hit_tokens += record.num_context;
    words_.insert(words_.end(),
                  {record.request->spec.row, record.num_tokens, record.num_new_blocks});
    if (record.num_new_blocks == 0) continue;
    for (size_t group = 0; group < record.new_blocks.num_groups(); ++group) {
      const auto blocks = record.new_blocks.blocks(static_cast<GroupId>(group));
      words_.push_back(static_cast<int64_t>(blocks.size()));
      words_.insert(words_.end(), blocks.begin(), blocks.end());
    }
  }
  digest_ = XXH64(words_.data(), words_.size() * sizeof(words_[0]), digest_);
  row.digest = digest_;
  if (file_.with_requests()) {
    for (const int64_t preempted : preempted_) {
      absl::StrAppend(&row.requests, row.requests.empty() ? "-" : " -", preempted);
    }
    for (const ScheduledRecord& record : step.scheduled) Describe(record, &row.requests);
  }
  preempted_.clear();
  in_flight_.push_back(std::move(row));
}

void StepRows::Describe(const ScheduledRecord& record, std::string* out) const {
  absl::StrAppend(out, out->empty() ? "" : " ", record.request->spec.row, ":", record.num_tokens);
  if (record.num_new_blocks == 0) return;
  for (size_t group = 0; group < record.new_blocks.num_groups(); ++group) {
    for (const BlockId block : record.new_blocks.blocks(static_cast<GroupId>(group))) {
      absl::StrAppend(out, "+", block);
      if (group > 0) absl::StrAppend(out, "@", group);
    }
  }
}

void StepRows::OnStepFinished(const StepRecord& step) {
  // Steps end in the order in which they were scheduled; those that never end have no row.
  while (!in_flight_.empty() && in_flight_.front().step < step.step) in_flight_.pop_front();
  if (in_flight_.empty() || in_flight_.front().step != step.step) return;
  const Row row = std::move(in_flight_.front());
  in_flight_.pop_front();
  std::string line = absl::StrCat(
      row.step, ",", MillisecondsText(step.start), ",", MillisecondsText(step.end), ",",
      step.num_tokens, ",", step.num_prefill_tokens, ",", step.num_decode_tokens, ",",
      step.scheduled.size(), ",", row.num_running, ",", row.num_waiting, ",", row.num_free, ",",
      row.num_preempted, ",", row.num_new_blocks, ",", row.num_hit_tokens, ",");
  if (file_.has_replicas()) absl::StrAppend(&line, replica_, ",");
  if (file_.with_requests()) absl::StrAppend(&line, row.requests, ",");
  absl::StrAppend(&line, absl::Hex(row.digest, absl::kZeroPad16), "\r\n");
  file_.Append(line);
}

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

namespace {

namespace pb = ::kvblocks::report::v1;

constexpr int kMaxRequests = 20;
constexpr size_t kMostEntries = 200'000;  // of one step that are looked at
constexpr std::string_view kRequests = "requests";

// The positions of the columns of `a` in both files; `out` names those of one file alone.
struct CommonColumn {
  std::string name;
  size_t in_a;
  size_t in_b;
};

size_t Find(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

std::vector<CommonColumn> Align(const StepReader& a, const StepReader& b,
                                pb::ScheduleComparison* out) {
  std::vector<CommonColumn> common;
  for (size_t i = 0; i < a.columns().size(); ++i) {
    const std::string& name = a.columns()[i];
    const size_t in_b = Find(b.columns(), name);
    if (in_b == b.columns().size()) {
      out->add_only_in_a(name);
    } else {
      common.push_back({name, i, in_b});
    }
  }
  for (const std::string& name : b.columns()) {
    if (Find(a.columns(), name) == a.columns().size()) out->add_only_in_b(name);
  }
  return common;
}

// "12:64+5+6" is row 12 with "64+5+6"; "-12" is row 12, preempted. An entry of neither form stands
// for itself.
std::vector<std::pair<std::string, std::string>> SplitRequests(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> entries;
  for (size_t begin = 0; begin < text.size() && entries.size() < kMostEntries;) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view entry = text.substr(begin, end - begin);
    begin = end + 1;
    if (entry.empty()) continue;
    const size_t colon = entry.find(':');
    if (entry[0] == '-') {
      entries.emplace_back(entry.substr(1), "preempted");
    } else if (colon != std::string_view::npos) {
      entries.emplace_back(entry.substr(0, colon), entry.substr(colon + 1));
    } else {
      entries.emplace_back(entry, "");
    }
  }
  return entries;
}

void CompareRequests(std::string_view a, std::string_view b, pb::StepDifference* out) {
  // A request preempted and scheduled in one step has two entries.
  std::map<std::string, std::pair<std::string, std::string>> by_row;
  std::vector<std::string> order;
  const auto add = [&](std::string_view text, bool is_a) {
    for (auto& [row, what] : SplitRequests(text)) {
      const auto [it, inserted] = by_row.try_emplace(row);
      if (inserted) order.push_back(row);
      std::string& side = is_a ? it->second.first : it->second.second;
      absl::StrAppend(&side, side.empty() ? "" : ", ", what);
    }
  };
  add(a, true);
  add(b, false);
  int64_t num_differ = 0;
  for (const std::string& row : order) {
    const auto& [in_a, in_b] = by_row[row];
    if (in_a == in_b || ++num_differ > kMaxRequests) continue;
    auto* request = out->add_requests();
    request->set_row(row);
    if (!in_a.empty()) request->set_a(in_a);
    if (!in_b.empty()) request->set_b(in_b);
  }
  out->set_requests_differ(num_differ);
}

// Null: that file has ended.
void Describe(const std::vector<CommonColumn>& columns, const StepRow* a, const StepRow* b,
              pb::StepDifference* out) {
  out->set_step(a != nullptr ? a->step : b->step);
  if (a != nullptr) out->set_line_a(a->line);
  if (b != nullptr) out->set_line_b(b->line);
  for (const CommonColumn& column : columns) {
    const std::string_view in_a = a == nullptr ? std::string_view() : a->fields[column.in_a];
    const std::string_view in_b = b == nullptr ? std::string_view() : b->fields[column.in_b];
    if (column.name == kRequests) {
      CompareRequests(in_a, in_b, out);
      continue;
    }
    auto* c = out->add_columns();
    c->set_name(column.name);
    if (a != nullptr) c->set_a(std::string(in_a));
    if (b != nullptr) c->set_b(std::string(in_b));
    c->set_differs(a == nullptr || b == nullptr || in_a != in_b);
  }
}

bool RowsDiffer(const std::vector<CommonColumn>& columns, const StepRow& a, const StepRow& b) {
  return std::any_of(columns.begin(), columns.end(), [&](const CommonColumn& column) {
    return a.fields[column.in_a] != b.fields[column.in_b];
  });
}

// A row that stays valid when its reader moves to the next one.
struct KeptRow {
  explicit KeptRow(const StepRow& other)
      : texts(other.fields.begin(), other.fields.end()), row(other) {
    row.fields.assign(texts.begin(), texts.end());
    row.replica = {};
  }
  KeptRow(const KeptRow&) = delete;
  KeptRow& operator=(const KeptRow&) = delete;

  std::vector<std::string> texts;
  StepRow row;
};

// Of each replica, in order: those that the other file has not come to. Replicas keep their own
// order only.
using KeptRows = std::map<std::string, std::deque<std::unique_ptr<KeptRow>>>;

// Compares what both files have of a replica. False: the schedules part.
template <typename GoesOn>
bool MatchKept(const GoesOn& goes_on, KeptRows* a, KeptRows* b) {
  for (auto of_a = a->begin(); of_a != a->end();) {
    auto of_b = b->find(of_a->first);
    if (of_b == b->end()) {
      ++of_a;
      continue;
    }
    while (!of_a->second.empty() && !of_b->second.empty()) {
      if (!goes_on(&of_a->second.front()->row, &of_b->second.front()->row)) return false;
      of_a->second.pop_front();
      of_b->second.pop_front();
    }
    if (of_b->second.empty()) b->erase(of_b);
    of_a = of_a->second.empty() ? a->erase(of_a) : std::next(of_a);
  }
  return true;
}

}  // namespace

absl::StatusOr<pb::ScheduleComparison> CompareSteps(
    StepReader& a, StepReader& b, const std::function<void(int64_t equal_steps)>& progress) {
  pb::ScheduleComparison out;
  out.set_a(a.file());
  out.set_b(b.file());
  const std::vector<CommonColumn> columns = Align(a, b, &out);
  int64_t equal_steps = 0;
  // False: the schedules part. Null: that file has no such step.
  const auto goes_on = [&](const StepRow* a_row, const StepRow* b_row) {
    if (a_row == nullptr || b_row == nullptr || a_row->step != b_row->step ||
        a_row->digest != b_row->digest) {
      Describe(columns, a_row, b_row, out.mutable_first_divergence());
      return false;
    }
    if (++equal_steps % 256 == 0 && progress) progress(equal_steps);
    if (!out.has_first_difference() && RowsDiffer(columns, *a_row, *b_row)) {
      Describe(columns, a_row, b_row, out.mutable_first_difference());
    }
    return true;
  };
  StepRow row_a, row_b;
  KeptRows kept_a, kept_b;
  bool is_equal = true;
  while (is_equal) {
    const auto more_a = a.Next(&row_a);
    if (!more_a.ok()) return more_a.status();
    const auto more_b = b.Next(&row_b);
    if (!more_b.ok()) return more_b.status();
    if (*more_a && *more_b && row_a.replica == row_b.replica && kept_a.empty() && kept_b.empty()) {
      is_equal = goes_on(&row_a, &row_b);
      continue;
    }
    if (!*more_a && !*more_b && kept_a.empty() && kept_b.empty()) {
      out.set_same(true);
      break;
    }
    if (*more_a) kept_a[std::string(row_a.replica)].push_back(std::make_unique<KeptRow>(row_a));
    if (*more_b) kept_b[std::string(row_b.replica)].push_back(std::make_unique<KeptRow>(row_b));
    is_equal = MatchKept(goes_on, &kept_a, &kept_b);
    // What waits for a file that has ended waits for nothing.
    if (is_equal && !*more_a && !kept_b.empty()) {
      is_equal = goes_on(nullptr, &kept_b.begin()->second.front()->row);
    } else if (is_equal && !*more_b && !kept_a.empty()) {
      is_equal = goes_on(&kept_a.begin()->second.front()->row, nullptr);
    }
  }
  out.set_equal_steps(equal_steps);
  return out;
}

}  // namespace kvblocks::sim
