#include "kvblocks/sim/report/html_page.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "kvblocks/checks/json_text.h"
#include "kvblocks/sim/report/page_assets.h"

namespace kvblocks::sim {
namespace {

std::string Markup(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// JSON has no infinities; a gap is left there.
void AppendNumber(double value, std::string* out) {
  absl::StrAppend(out, std::isfinite(value) ? absl::StrFormat("%.9g", value) : "null");
}

void AppendKey(const char* key, std::string* out) {
  if (out->back() != '{') *out += ',';
  absl::StrAppend(out, "\"", key, "\":");
}

void AppendField(const char* key, const std::string& text, std::string* out) {
  AppendKey(key, out);
  AppendJsonString(text, out);
}

const char* StyleName(ChartLine::Style style) {
  switch (style) {
    case ChartLine::Style::kDashed:
      return "dashed";
    case ChartLine::Style::kBand:
      return "band";
    case ChartLine::Style::kDots:
      return "dots";
    default:
      return "line";
  }
}

void AppendLine(const ChartLine& line, int color, std::string* out) {
  *out += '{';
  AppendField("name", line.name, out);
  AppendField("style", StyleName(line.style), out);
  AppendKey("color", out);
  absl::StrAppend(out, color);
  AppendKey(line.bars.empty() ? "points" : "bars", out);
  *out += '[';
  for (size_t i = 0; i < line.points.size(); ++i) {
    absl::StrAppend(out, i == 0 ? "[" : ",[");
    AppendNumber(line.points[i].first, out);
    *out += ',';
    AppendNumber(line.points[i].second, out);
    *out += ']';
  }
  for (size_t i = 0; i < line.bars.size(); ++i) {
    if (i > 0) *out += ',';
    AppendNumber(line.bars[i], out);
  }
  *out += "]}";
}

}  // namespace

HtmlPage::HtmlPage(std::string title, std::string subtitle)
    : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

void HtmlPage::Enter(Row row) {
  if (row == row_) return;
  if (row_ != Row::kNone) body_ += "</div>\n";
  if (row == Row::kCharts) body_ += "<div class=\"charts\">\n";
  if (row == Row::kTables) body_ += "<div class=\"tables\">\n";
  row_ = row;
}

void HtmlPage::AddHeading(const std::string& text) {
  Enter(Row::kNone);
  absl::StrAppend(&body_, "<h2>", Markup(text), "</h2>\n");
}

void HtmlPage::AddNote(const std::string& text) {
  Enter(Row::kNone);
  absl::StrAppend(&body_, "<p class=\"note\">", Markup(text), "</p>\n");
}

void HtmlPage::AddTable(const HtmlTable& table) {
  Enter(Row::kTables);
  absl::StrAppend(&body_, "<table>\n");
  if (!table.title.empty()) {
    absl::StrAppend(&body_, "<caption>", Markup(table.title), "</caption>\n");
  }
  if (!table.columns.empty()) {
    body_ += "<thead><tr>";
    for (const std::string& column : table.columns) {
      absl::StrAppend(&body_, "<th scope=\"col\">", Markup(column), "</th>");
    }
    body_ += "</tr></thead>\n";
  }
  body_ += "<tbody>\n";
  for (const auto& row : table.rows) {
    body_ += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&body_, i == 0 ? "<th scope=\"row\">" : "<td>", Markup(row[i]),
                      i == 0 ? "</th>" : "</td>");
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table>\n";
}

void HtmlPage::AddChart(const Chart& chart) {
  const auto is_empty = [](const ChartLine& line) {
    return line.points.empty() && line.bars.empty();
  };
  if (std::all_of(chart.lines.begin(), chart.lines.end(), is_empty)) return;
  Enter(Row::kCharts);
  absl::StrAppend(&body_, "<figure id=\"chart-", num_charts_, "\"><h3>", Markup(chart.title),
                  "</h3><div class=\"plot\"><canvas role=\"img\" aria-label=\"",
                  Markup(chart.title), "\"></canvas></div><figcaption>", Markup(chart.caption),
                  "</figcaption></figure>\n");
  data_ += num_charts_++ == 0 ? "{" : ",\n{";
  AppendField("title", chart.title, &data_);
  AppendField("x", chart.x_label, &data_);
  AppendField("y", chart.y_label, &data_);
  AppendKey("log", &data_);
  data_ += chart.is_x_log ? "true" : "false";
  AppendKey("top", &data_);
  AppendNumber(chart.y_max, &data_);
  AppendKey("categories", &data_);
  data_ += '[';
  for (size_t i = 0; i < chart.categories.size(); ++i) {
    if (i > 0) data_ += ',';
    AppendJsonString(chart.categories[i], &data_);
  }
  data_ += ']';
  AppendKey("lines", &data_);
  data_ += '[';
  int place = 0;
  for (const ChartLine& line : chart.lines) {
    if (is_empty(line)) continue;
    if (place > 0) data_ += ',';
    AppendLine(line, line.color >= 0 ? line.color : place, &data_);
    ++place;
  }
  data_ += ']';
  AppendKey("marks", &data_);
  data_ += '[';
  for (const ChartMark& mark : chart.marks) {
    if (data_.back() == '}') data_ += ',';
    data_ += '{';
    AppendField("name", mark.name, &data_);
    AppendKey("at", &data_);
    AppendNumber(mark.at, &data_);
    AppendKey("vertical", &data_);
    data_ += mark.is_vertical ? "true}" : "false}";
  }
  data_ += "]}";
}

std::string HtmlPage::Finish() {
  Enter(Row::kNone);
  std::string out = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
      Markup(title_), "</title>\n<style>\n", kPageStyle, "</style>\n</head>\n<body>\n<main>\n<h1>",
      Markup(title_), "</h1>\n<p class=\"subtitle\">", Markup(subtitle_), "</p>\n", body_,
      "<noscript><p class=\"note\">The charts need JavaScript; the tables do not.</p></noscript>\n"
      "</main>\n");
  absl::StrAppend(&out, "<footer>Charts by Chart.js, whose licence is in this file.</footer>\n",
                  "<script type=\"application/json\" id=\"charts\">[\n", data_, "\n]</script>\n",
                  "<!-- Chart.js:\n", kChartLibraryLicense, "-->\n<script>\n", kChartLibrary,
                  "</script>\n<script>\n", kPageScript, "</script>\n</body>\n</html>\n");
  return out;
}

}  // namespace kvblocks::sim
