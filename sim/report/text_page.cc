#include "sim/report/text_page.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

std::string Bold(const std::string& text) { return absl::StrCat("\033[1m", text, "\033[0m"); }

}  // namespace

std::string TextPage::Take(int max_lines) {
  if (std::ranges::count(out_, '\n') > max_lines) {
    for (size_t at; (at = out_.find("\n\n")) != std::string::npos;) out_.erase(at, 1);
  }
  return std::move(out_);
}

void TextPage::Line(const std::string& label, const std::string& text) {
  if (!label.empty()) label_ = std::string(absl::StripAsciiWhitespace(label));
  std::string padded = label;
  padded.resize(std::max(kLabelWidth, label.size() + 1), ' ');
  if (color_ && !label.empty()) padded = Bold(padded);
  Plain(absl::StrCat(padded, text));
}

void TextPage::Plain(std::string text) {
  while (!text.empty() && text.back() == ' ') text.pop_back();
  absl::StrAppend(&out_, text, "\n");
}

void TextPage::Heading(const std::string& text) { Plain(color_ ? Bold(text) : text); }

void TextPage::Wrap(const std::string& prefix, const std::string& words) {
  std::string line = prefix;
  bool is_start = true;
  for (absl::string_view word : absl::StrSplit(absl::StripTrailingAsciiWhitespace(words), ' ')) {
    if (!is_start && line.size() + 1 + word.size() > kWidth) {
      Plain(line);
      line = std::string(prefix.size(), ' ');
      is_start = true;
    }
    absl::StrAppend(&line, is_start ? "" : " ", word);
    is_start = line.size() <= prefix.size();
  }
  Plain(line);
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
  if (!label.empty()) label_ = std::string(absl::StripAsciiWhitespace(label));
  if (facts_.empty() || facts_.back().label != label_) {
    facts_.push_back({label_, text});
  } else {
    absl::StrAppend(&facts_.back().text, "; ", text);
  }
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

std::string Span(double seconds) {
  if (seconds >= 3600) {
    const auto minutes = static_cast<int64_t>(seconds / 60);
    return absl::StrFormat("%d h %02d min", minutes / 60, minutes % 60);
  }
  if (seconds >= 120) {
    const auto whole = static_cast<int64_t>(seconds);
    return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  }
  if (seconds >= 1 || seconds == 0) return absl::StrFormat("%.2f s", seconds);
  return absl::StrFormat("%.3g ms", seconds * 1e3);
}

std::string Percent(double share) { return absl::StrFormat("%.2f %%", 100.0 * share); }

std::string WithThousands(int64_t value) { return GroupThousands(absl::StrCat(value)); }

std::string Plural(int64_t count, std::string_view noun) {
  return absl::StrCat(WithThousands(count), " ", std::string(noun), count == 1 ? "" : "s");
}

std::string Gigabytes(double bytes) {
  const double gigabytes = bytes / 1e9;
  return gigabytes < 10 ? absl::StrFormat("%.3g GB", gigabytes)
                        : absl::StrFormat("%.1f GB", gigabytes);
}

std::string Short(double value) {
  return value >= 1e4 ? WithThousands(std::llround(value))
                      : GroupThousands(absl::StrFormat("%.4g", value));
}

std::string Printable(const std::string& name) {
  std::string text = name;
  for (char& c : text) {
    if (c <= ' ' || c > '~') c = '?';
  }
  return text.size() <= kPrintableWidth ? text
                                        : absl::StrCat(text.substr(0, kPrintableWidth - 3), "...");
}

}  // namespace kvblocks::sim
