#include "kvblocks/sim/cost/table_rows.h"

#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMaxStepCount = int64_t{1} << 40;
constexpr double kMaxTableUs = 1e8;

}  // namespace

absl::StatusOr<std::vector<TableRow>> ReadTableRows(const std::string& text,
                                                    const std::string& file,
                                                    const std::string& name_column,
                                                    const std::vector<std::string>& columns) {
  const bool has_name = !name_column.empty();
  std::vector<std::string> header = columns;
  if (has_name) header.insert(header.begin(), name_column);
  header.push_back("time_us");
  const std::string expected = absl::StrJoin(header, ",");
  std::vector<TableRow> rows;
  int64_t number = 0;
  const auto bad = [&](absl::string_view got, absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ":", number, ": got \"", got.substr(0, 60), "\", expected ", what));
  };
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (number == 1) {
      if (line != expected) return bad(line, absl::StrCat("the header ", expected));
      continue;
    }
    if (line.empty()) continue;
    const std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
    if (cells.size() != header.size()) return bad(line, absl::StrCat(header.size(), " columns"));
    TableRow row;
    row.line = number;
    if (has_name) row.name = std::string(cells[0]);
    for (size_t i = has_name ? 1 : 0; i + 1 < cells.size(); ++i) {
      int64_t count;
      if (!absl::SimpleAtoi(cells[i], &count) || count < 0 || count > kMaxStepCount) {
        return bad(cells[i], absl::StrCat("a count from 0 to ", kMaxStepCount));
      }
      row.counts.push_back(count);
    }
    double us;
    if (!absl::SimpleAtod(cells.back(), &us) || !(us >= 0 && us <= kMaxTableUs)) {
      return bad(cells.back(), "a time from 0 to 1e8 us");
    }
    row.time = std::llround(us * 1e6);
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return absl::InvalidArgumentError(absl::StrCat(file, ": no rows"));
  return rows;
}

}  // namespace kvblocks::sim
