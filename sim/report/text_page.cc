#include "kvblocks/sim/report/text_page.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvblocks::sim {

std::string TextPage::Take(int max_lines) {
  if (std::count(out_.begin(), out_.end(), '\n') > max_lines) {
    for (size_t at; (at = out_.find("\n\n")) != std::string::npos;) out_.erase(at, 1);
  }
  return std::move(out_);
}

void TextPage::Line(const std::string& label, const std::string& text) {
  std::string padded = label;
  padded.resize(std::max(kLabelWidth, label.size() + 1), ' ');
  if (color_ && !label.empty()) padded = absl::StrCat("\033[1m", padded, "\033[0m");
  std::string line = absl::StrCat(padded, text);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  absl::StrAppend(&out_, line, "\n");
}

void TextPage::Cells(const std::string& label, const std::vector<std::string>& cells,
                     const std::vector<size_t>& widths) {
  std::string text;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) text += ' ';
    if (cells[i].size() < widths[i]) text.append(widths[i] - cells[i].size(), ' ');
    text += cells[i];
  }
  Line(label, text);
}

void TextPage::Text(std::string label, const std::string& text) {
  std::string line;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!line.empty() && line.size() + 1 + word.size() > kWidth - kLabelWidth) {
      Line(label, line);
      label.clear();
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  Line(label, line);
}

}  // namespace kvblocks::sim
