#include "kvblocks/sim/report/step_comparison.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr int kMaxRequests = 20;
constexpr size_t kMostEntries = 200'000;  // of one step that are looked at
constexpr std::string_view kRequests = "requests";

// Where the columns of `a` stand in both files; those of one file alone are named in `out`.
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

// A row that stays when its reader goes on.
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

// Of each replica, in order: those that the other file has not come to. Replicas keep their own order only.
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
