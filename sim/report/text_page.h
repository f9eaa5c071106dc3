// TextPage: a page of labelled lines for people, of 100 columns; what kvsim's tables are made of.

#ifndef KVBLOCKS_SIM_REPORT_TEXT_PAGE_H_
#define KVBLOCKS_SIM_REPORT_TEXT_PAGE_H_

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/substitute.h"

namespace kvblocks::sim {

class TextPage {
 public:
  static constexpr size_t kWidth = 100;      // columns
  static constexpr size_t kLabelWidth = 14;  // of these

  // `color`: labels with terminal escapes, which add no columns.
  explicit TextPage(bool color) : color_(color) {}

  // Longer lines are not cut.
  void Line(const std::string& label, const std::string& text);
  // Cells to the right of columns of so many letters, with a blank between columns.
  void Cells(const std::string& label, const std::vector<std::string>& cells,
             const std::vector<size_t>& widths);
  // A labelled paragraph, wrapped between words. A word that is longer than a line stays whole.
  void Text(std::string label, const std::string& text);
  void Blank() { out_ += "\n"; }
  // Without a label: a line from the first column on, and one that stands out.
  void Plain(std::string text);
  void Heading(const std::string& text);
  // Words after `prefix`, wrapped; further lines are indented as far as the prefix is long.
  void Wrap(const std::string& prefix, const std::string& words);
  // What Text was given, by label: sentences without the tables between them.
  struct Fact {
    std::string label, text;
  };
  const std::vector<Fact>& facts() const { return facts_; }
  // A page of more lines has no blank ones.
  std::string Take(int max_lines = INT_MAX);

 private:
  bool color_;
  std::string out_;
  std::string label_;  // the last one
  std::vector<Fact> facts_;
};

// "12,031".
std::string WithThousands(int64_t value);

// "3 h 35 min", "58 min 57 s", "3.20 s", "12 ms".
std::string Span(double seconds);

// "1 request", "12,031 requests".
std::string Plural(int64_t count, std::string_view noun);

// "34.10 %".
std::string Percent(double share);

// "9.75 GB", "64.0 GB".
std::string Gigabytes(double bytes);

// Four digits, with thousands.
std::string Short(double value);

// Text with values in place of "$0", "$1", ...: whole numbers as WithThousands, others as Short.
inline std::string AsText(int64_t value) { return WithThousands(value); }
inline std::string AsText(int value) { return WithThousands(value); }
inline std::string AsText(double value) { return Short(value); }
inline const std::string& AsText(const std::string& text) { return text; }
inline const char* AsText(const char* text) { return text; }
template <typename... Values>
std::string Say(const char* format, const Values&... values) {
  return absl::Substitute(format, AsText(values)...);
}

// A name from the trace: short, and nothing that a terminal would obey.
inline constexpr size_t kPrintableWidth = 24;
std::string Printable(const std::string& name);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_TEXT_PAGE_H_
