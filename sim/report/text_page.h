// TextPage: a page of labelled lines for people, of 100 columns; what kvsim's tables are made of.

#ifndef KVBLOCKS_SIM_REPORT_TEXT_PAGE_H_
#define KVBLOCKS_SIM_REPORT_TEXT_PAGE_H_

#include <climits>
#include <cstddef>
#include <string>
#include <vector>

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
  // A page of more lines gives up its blank ones.
  std::string Take(int max_lines = INT_MAX);

 private:
  bool color_;
  std::string out_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_TEXT_PAGE_H_
