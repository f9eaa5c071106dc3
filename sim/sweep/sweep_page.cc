#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/sim/report/html_page.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/sweep/sweep_table.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

namespace {

std::string AxisLabel(const SweepMetric& metric) {
  return absl::StrCat(metric.name, metric.is_percent ? ", %" : "",
                      metric.larger_is_better ? " (more is better)" : " (less is better)");
}

// As it is drawn; false: the row has none.
bool DrawnValue(const SweepMetric& metric, const pb::SweepRow& row, double* value) {
  for (const pb::MetricValue& entry : row.values()) {
    if (entry.metric() != metric.name) continue;
    *value = metric.is_percent ? 100 * entry.value() : entry.value();
    return true;
  }
  return false;
}

void AddFrontChart(const pb::SweepReport& report, const std::vector<SweepMetric>& front,
                   HtmlPage* page) {
  if (front.size() < 2) return;
  Chart chart = {.title = absl::StrCat("Pareto front: ", front[0].name, " and ", front[1].name),
                 .caption = absl::StrCat("Each point of the sweep. On the front are those that no "
                                         "other point beats in ",
                                         absl::StrJoin(report.front_metrics(), ", "), "."),
                 .x_label = AxisLabel(front[1]),
                 .y_label = AxisLabel(front[0])};
  ChartLine best = {.name = "on the front", .style = ChartLine::Style::kLine};
  ChartLine others = {.name = "others", .style = ChartLine::Style::kDots};
  for (const pb::SweepRow& row : report.rows()) {
    double x, y;
    if (!DrawnValue(front[1], row, &x) || !DrawnValue(front[0], row, &y)) continue;
    (row.on_front() ? best : others).points.emplace_back(x, y);
  }
  // With three metrics and more the front is no line.
  if (front.size() > 2) best.style = ChartLine::Style::kDots;
  std::sort(best.points.begin(), best.points.end());
  chart.lines = {std::move(best), std::move(others)};
  page->AddChart(chart);
}

// One line per combination of the other options.
void AddMetricChart(const pb::SweepReport& report, const SweepMetric& metric,
                    const std::string& option, HtmlPage* page) {
  constexpr size_t kMostLines = 12;
  Chart chart = {.title = absl::StrCat(metric.name, " by ", option),
                 .caption = "One line per combination of the other options.",
                 .x_label = option,
                 .y_label = AxisLabel(metric)};
  for (const pb::SweepRow& row : report.rows()) {
    double x, y;
    if (!absl::SimpleAtod(SettingOf(row, option), &x) || !DrawnValue(metric, row, &y)) continue;
    std::vector<std::string> others;
    for (const pb::Setting& setting : row.settings()) {
      if (setting.option() != option) {
        others.push_back(absl::StrCat(setting.option(), "=", setting.value()));
      }
    }
    const std::string name = others.empty() ? metric.name : absl::StrJoin(others, ", ");
    auto line = std::find_if(chart.lines.begin(), chart.lines.end(),
                             [&](const ChartLine& other) { return other.name == name; });
    if (line == chart.lines.end()) {
      if (chart.lines.size() == kMostLines) continue;
      line = chart.lines.insert(chart.lines.end(), ChartLine{.name = name});
    }
    line->points.emplace_back(x, y);
  }
  for (ChartLine& line : chart.lines) std::sort(line.points.begin(), line.points.end());
  if (chart.lines.size() == kMostLines) {
    chart.caption = absl::StrCat("The first ", kMostLines, " combinations of the other options.");
  }
  page->AddChart(chart);
}

}  // namespace

std::string SweepPage(const pb::SweepReport& report, const std::vector<SweepMetric>& metrics,
                      const std::vector<SweepMetric>& front) {
  HtmlPage page(absl::StrCat("A sweep of ", Plural(report.rows_size(), "point")),
                report.workload());
  for (const std::string& note : report.notes()) page.AddNote(note);
  AddFrontChart(report, front, &page);
  // Over the first option that has numbers.
  for (const std::string& option : report.options()) {
    const bool has_numbers =
        std::any_of(report.rows().begin(), report.rows().end(), [&](const pb::SweepRow& row) {
          double ignored;
          return absl::SimpleAtod(SettingOf(row, option), &ignored);
        });
    if (!has_numbers) continue;
    for (const SweepMetric& metric : metrics) AddMetricChart(report, metric, option, &page);
    break;
  }
  HtmlTable table = {.title = "Points", .columns = {"front"}};
  for (const std::string& option : report.options()) table.columns.push_back(option);
  for (const SweepMetric& metric : metrics) table.columns.push_back(metric.name);
  table.columns.push_back("problem");
  for (const pb::SweepRow& row : report.rows()) {
    std::vector<std::string> cells = {row.on_front() ? "*" : ""};
    for (const std::string& option : report.options()) cells.push_back(SettingOf(row, option));
    for (const SweepMetric& metric : metrics) {
      cells.push_back(row.problem().empty() ? MetricCell(metric, row) : "");
    }
    cells.push_back(row.problem());
    table.rows.push_back(std::move(cells));
  }
  page.AddTable(table);
  return page.Finish();
}

}  // namespace kvblocks::sim
