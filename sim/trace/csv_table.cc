#include "kvblocks/sim/trace/csv_table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/row_source.h"

namespace kvblocks::sim {
namespace {

constexpr size_t kMostColumns = 1000;

}  // namespace

// False: a quote where none may stand.
bool CsvTable::Split(std::string_view line) {
  fields_.clear();
  if (line.find('"') == std::string_view::npos) {
    for (size_t begin = 0; begin <= line.size();) {
      const size_t comma = std::min(line.find(',', begin), line.size());
      fields_.push_back(line.substr(begin, comma - begin));
      begin = comma + 1;
    }
    return true;
  }
  // What is unquoted is never longer than the line, so views into it stay.
  unquoted_.clear();
  unquoted_.reserve(line.size());
  size_t i = 0;
  while (true) {
    const size_t begin = unquoted_.size();
    if (i < line.size() && line[i] == '"') {
      for (++i;; ++i) {
        if (i == line.size()) return false;
        if (line[i] != '"') {
          unquoted_.push_back(line[i]);
        } else if (i + 1 < line.size() && line[i + 1] == '"') {
          unquoted_.push_back(line[++i]);
        } else {
          break;
        }
      }
      ++i;
      if (i < line.size() && line[i] != ',') return false;
    } else {
      for (; i < line.size() && line[i] != ','; ++i) {
        if (line[i] == '"') return false;
        unquoted_.push_back(line[i]);
      }
    }
    fields_.push_back(std::string_view(unquoted_).substr(begin));
    if (i == line.size()) return true;
    ++i;
  }
}

std::string CsvTable::SetHeader(std::string_view line) {
  header_ = std::string(line.substr(0, 200));
  columns_.clear();
  if (!Split(line)) {
    return absl::StrCat("CSV header: got ", Shown(line),
                        ", expected each quoted field to end with a quote");
  }
  if (fields_.size() > kMostColumns) {
    return absl::StrCat("CSV header: got ", fields_.size(), " columns, expected at most ",
                        kMostColumns);
  }
  for (const std::string_view field : fields_) {
    columns_.emplace_back(absl::StripAsciiWhitespace(View(field)));
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (!columns_[i].empty() && ColumnOf(columns_[i]) != i) {
      return absl::StrCat("CSV header: got the column ", Shown(columns_[i]),
                          " twice, expected each once");
    }
  }
  return "";
}

size_t CsvTable::ColumnOf(std::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  return found == columns_.end() ? kNoColumn : static_cast<size_t>(found - columns_.begin());
}

std::string CsvTable::SetRow(std::string_view line) {
  if (!Split(line)) {
    return absl::StrCat("CSV row: got ", Shown(line),
                        ", expected each quoted field to end with a quote and a comma");
  }
  if (fields_.size() == columns_.size()) return "";
  return absl::StrCat("CSV row: got ", fields_.size(), " fields, expected ", columns_.size(), " (",
                      header_, ")");
}

}  // namespace kvblocks::sim
