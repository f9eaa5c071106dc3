#include "kvblocks/sim/fleet/fleet_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/fleet/fleet_table.h"
#include "kvblocks/sim/report/html_page.h"
#include "kvblocks/sim/report/human_table.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::fleet::v1;
using ::kvblocks::report::v1::Point;

constexpr int kMostLines = 16;
constexpr int kMostPoints = 200;  // of a line: more cannot be told apart

// The unit in which a run's times are read best.
struct TimeAxis {
  const char* name;
  double seconds;
};

TimeAxis AxisFor(const pb::FleetReport& report) {
  double longest = 0;
  for (const auto& one : report.reports()) {
    const auto& points = one.series().points();
    if (!points.empty()) longest = std::max(longest, points[points.size() - 1].start_s());
  }
  if (longest < 300) return {"s", 1};
  if (longest < 3 * 3600) return {"min", 60};
  return {"h", 3600};
}

class FleetCharts {
 public:
  FleetCharts(const pb::FleetReport& report, HtmlPage* page)
      : report_(report), page_(*page), axis_(AxisFor(report)) {}

  void AddAll() {
    page_.AddHeading("Load of each replica");
    if (report_.reports_size() > kMostLines) {
      page_.AddNote(absl::StrCat("Lines are those of the first ", kMostLines, " of ",
                                 report_.reports_size(), " replicas."));
    }
    AddGauge("Running requests", "Mean number of requests that ran.", "requests", &Point::running);
    AddGauge("Waiting requests", "Mean number of requests that waited at the replica.", "requests",
             &Point::waiting);
    AddGauge("Busy", "Share of the time in which a step ran.", "%", &Point::busy_share, 100);
    AddGauge("Pool in use", "Share of the blocks that requests held.", "%", &Point::usage, 100);
    page_.AddHeading("Hits");
    AddHitRates();
    page_.AddHeading("Decisions");
    AddDecisions();
    AddBars();
  }

 private:
  Chart OverTime(const std::string& title, const std::string& caption,
                 const std::string& y_label) const {
    return {.title = title,
            .caption = caption,
            .x_label = absl::StrCat("simulated time, ", axis_.name),
            .y_label = y_label};
  }

  // One line per replica: value of `numerator` to that of `denominator`, each summed up over
  // neighbouring points where a line would have too many.
  void AddLines(const std::function<double(const Point&)>& numerator,
                const std::function<double(const Point&)>& denominator, double factor,
                Chart* chart) const {
    const int count = std::min(report_.reports_size(), kMostLines);
    for (int r = 0; r < count; ++r) {
      const auto& points = report_.reports(r).series().points();
      const int step = (points.size() + kMostPoints - 1) / kMostPoints;
      ChartLine line = {.name = absl::StrCat("replica ", r)};
      for (int first = 0; first < points.size(); first += step) {
        double above = 0, below = 0;
        for (int i = first; i < std::min(first + step, points.size()); ++i) {
          above += numerator(points[i]);
          below += denominator(points[i]);
        }
        if (below == 0) continue;
        line.points.emplace_back(points[first].start_s() / axis_.seconds, factor * above / below);
      }
      chart->lines.push_back(std::move(line));
    }
    page_.AddChart(*chart);
  }

  void AddGauge(const std::string& title, const std::string& caption, const std::string& y_label,
                double (Point::*value)() const, double factor = 1) const {
    Chart chart = OverTime(title, caption, y_label);
    if (factor == 100) chart.y_max = 100;
    AddLines([value](const Point& point) { return (point.*value)(); },
             [](const Point&) { return 1.0; }, factor, &chart);
  }

  void AddHitRates() const {
    Chart chart = OverTime("Hit rate", "Token hit rate of the admissions of each point.", "%");
    chart.y_max = 100;
    AddLines([](const Point& point) { return static_cast<double>(point.hit_tokens()); },
             [](const Point& point) { return static_cast<double>(point.queried_tokens()); }, 100,
             &chart);
  }

  void AddDecisions() const {
    const auto& series = report_.decision_series();
    Chart chart = OverTime(
        "Wrong decisions",
        "Hit tokens per second that another replica would have had more; and what the router claimed "
        "and was not found, or did not know of.",
        "tokens per second");
    const auto add = [&](const char* name, int64_t (pb::DecisionPoint::*value)() const) {
      ChartLine line = {.name = name};
      const int step = (series.points_size() + kMostPoints - 1) / kMostPoints;
      for (int first = 0; first < series.points_size(); first += step) {
        double sum = 0;
        for (int i = first; i < std::min(first + step, series.points_size()); ++i) {
          sum += static_cast<double>((series.points(i).*value)());
        }
        line.points.emplace_back(series.points(first).start_s() / axis_.seconds,
                                 sum / (series.tick_s() * step));
      }
      chart.lines.push_back(std::move(line));
    };
    add("missed hits", &pb::DecisionPoint::oracle_more_tokens);
    if (LooksAtContent(report_.router())) {
      add("claimed, not found", &pb::DecisionPoint::missing_tokens);
      add("found, not claimed", &pb::DecisionPoint::unknown_tokens);
    }
    page_.AddChart(chart);
  }

  void AddBars() const {
    Chart chart = {.title = "Prompt tokens per replica",
                   .caption = "Hit tokens, all others, and hits that another replica would have had more.",
                   .y_label = "tokens"};
    ChartLine hits = {.name = "hit"}, others = {.name = "computed"}, missed = {.name = "missed hits"};
    for (const pb::ReplicaRow& row : report_.replicas()) {
      chart.categories.push_back(absl::StrCat(row.replica()));
      hits.bars.push_back(static_cast<double>(row.hit_tokens()));
      others.bars.push_back(static_cast<double>(row.queried_tokens() - row.hit_tokens()));
      missed.bars.push_back(static_cast<double>(row.oracle_more_tokens()));
    }
    chart.lines = {std::move(hits), std::move(others), std::move(missed)};
    page_.AddChart(chart);
  }

  const pb::FleetReport& report_;
  HtmlPage& page_;
  const TimeAxis axis_;
};

void AddFleetTables(const pb::FleetReport& report, HtmlPage* page) {
  HtmlTable results = {.title = "What came of it"};
  for (auto& [name, text] : FleetFigures(report)) results.rows.push_back({name, text});
  page->AddTable(results);
  HtmlTable replicas = {.title = "Replicas", .columns = ReplicaColumns(report)};
  for (const pb::ReplicaRow& row : report.replicas()) {
    replicas.rows.push_back(ReplicaCells(report, row));
  }
  page->AddTable(replicas);
}

}  // namespace

std::string FleetPage(const pb::FleetReport& report) {
  const std::string workload =
      report.reports_size() > 0 ? report.reports(0).workload().name() : std::string();
  HtmlPage page(absl::StrCat("Replay of ", workload, " through ",
                             Plural(report.replicas_size(), "replica")),
                report.kinds_size() > 0
                    ? absl::StrCat(Plural(report.kinds_size(), "kind"), " of replicas behind ",
                                   report.router().router())
                    : absl::StrCat(report.config().model(), " on ",
                                   report.config().tensor_parallel(), " x ",
                                   report.config().device(), " each, behind ",
                                   report.router().router()));
  for (const std::string& note : report.notes()) page.AddNote(note);
  AddFleetTables(report, &page);
  FleetCharts(report, &page).AddAll();
  return page.Finish();
}

}  // namespace kvblocks::sim
