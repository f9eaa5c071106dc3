#include "sim/sweep/sweep_table.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "sim/report/human_table.h"
#include "sim/report/metric_list.h"
#include "sim/report/text_page.h"
#include "sim/sweep/capacity_search.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

namespace {

std::optional<double> RowValue(const pb::SweepRow& row, const std::string& metric) {
  for (const pb::MetricValue& value : row.values()) {
    if (value.metric() == metric) return value.value();
  }
  return std::nullopt;
}

std::string CsvCell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::string Dashed(std::string option) {
  std::replace(option.begin(), option.end(), '_', '-');
  return option;
}

}  // namespace

std::string SettingOf(const pb::SweepRow& row, const std::string& option) {
  for (const pb::Setting& setting : row.settings()) {
    if (setting.option() == option) return setting.value();
  }
  return "";
}

std::string MetricCell(const SweepMetric& metric, const pb::SweepRow& row) {
  const auto value = RowValue(row, metric.name);
  return value ? MetricText(metric, *value) : "n/a";
}

void DropEmptyMetrics(const std::vector<pb::PointResult>& results,
                      std::vector<SweepMetric>* metrics) {
  std::erase_if(*metrics, [&](const SweepMetric& metric) {
    return std::none_of(results.begin(), results.end(), [&](const pb::PointResult& result) {
      return ValueOf(metric, result).has_value();
    });
  });
}

pb::SweepReport MakeSweepReport(const std::vector<pb::PointResult>& results,
                                const std::vector<SweepMetric>& metrics,
                                const std::vector<SweepMetric>& front,
                                const std::vector<bool>& on_front) {
  pb::SweepReport report;
  report.set_schema_version(1);
  std::vector<std::string> options;
  int64_t num_problems = 0, num_same = 0;
  std::set<std::string> names;
  for (const SweepMetric& metric : metrics) report.add_metrics(metric.name);
  for (const SweepMetric& metric : front) report.add_front_metrics(metric.name);
  for (size_t i = 0; i < results.size(); ++i) {
    const pb::PointResult& result = results[i];
    pb::SweepRow* row = report.add_rows();
    row->set_index(static_cast<int64_t>(i));
    row->set_name(result.name());
    *row->mutable_settings() = result.settings();
    row->set_problem(result.problem());
    row->set_on_front(on_front[i]);
    num_problems += !result.problem().empty();
    num_same += !result.name().empty() && !names.insert(result.name()).second;
    for (const pb::Setting& setting : result.settings()) {
      if (std::find(options.begin(), options.end(), setting.option()) == options.end()) {
        options.push_back(setting.option());
      }
    }
    for (const SweepMetric& metric : metrics) {
      const auto value = ValueOf(metric, result);
      if (!value) continue;
      pb::MetricValue* entry = row->add_values();
      entry->set_metric(metric.name);
      entry->set_value(*value);
    }
    if (report.workload().empty() && result.has_report()) {
      const auto& workload = result.report().workload();
      const auto& config = result.report().config();
      const int64_t devices = config.tensor_parallel() *
                              std::max<int64_t>(config.pipeline_parallel(), 1) *
                              std::max<int64_t>(config.data_parallel(), 1);
      report.set_workload(absl::StrCat(workload.name(), " (", workload.format(),
                                       "): ", Plural(workload.requests_arrived(), "request"), ", ",
                                       config.model(), " on ", devices, " x ", config.device(),
                                       ", where no column says "
                                       "otherwise"));
      if (!result.report().setup().latency_is_meaningful()) {
        report.add_notes("all steps take the same time: there are no latencies");
      } else {
        report.add_notes(absl::StrCat("step times: ", result.report().setup().time_source()));
      }
    }
  }
  for (const std::string& option : options) report.add_options(option);
  if (num_same > 0) {
    report.add_notes(absl::StrCat(
        Plural(num_same, "point"), num_same == 1 ? " is" : " are",
        " the replay of another: options that nothing looks at there are all that differs"));
  }
  if (num_problems > 0) {
    report.add_notes(absl::StrCat(Plural(num_problems, "point"), " of ",
                                  WithThousands(static_cast<int64_t>(results.size())),
                                  num_problems == 1 ? " has" : " have", " no figures"));
  }
  return report;
}

namespace {

// Points that are best by one metric may be below the rows that are shown.
void AddBest(const pb::SweepReport& report, const std::vector<SweepMetric>& metrics,
             TextPage* page) {
  const std::string& name = report.front_metrics(0);
  const pb::SweepRow* best = nullptr;
  int64_t num_more = -1;
  for (const pb::SweepRow& row : report.rows()) {
    if (!row.on_front()) continue;
    if (best == nullptr) best = &row;
    ++num_more;
  }
  if (best == nullptr) {
    page->Text("best", absl::StrCat("no point has ", name));
    return;
  }
  std::vector<std::string> flags;
  for (const pb::Setting& setting : best->settings()) {
    flags.push_back(absl::StrCat("--", Dashed(setting.option()), "=", setting.value()));
  }
  const auto metric = std::find_if(metrics.begin(), metrics.end(),
                                   [&](const SweepMetric& other) { return other.name == name; });
  const std::string more = num_more > 0 ? absl::StrCat("; ", num_more, " more have it, too") : "";
  page->Text("best", absl::StrCat("* ", absl::StrJoin(flags, " "), ": ", name, " ",
                                  MetricCell(*metric, *best), more));
}

}  // namespace

std::string FormatSweep(const pb::SweepReport& report, const std::vector<SweepMetric>& metrics,
                        int64_t max_rows, bool color) {
  TextPage page(color);
  if (!report.workload().empty()) page.Text("workload", report.workload());
  page.Line("points", WithThousands(report.rows_size()));
  if (report.front_metrics_size() == 1) {
    AddBest(report, metrics, &page);
  } else if (report.front_metrics_size() > 1) {
    page.Text("front",
              absl::StrCat("* no other point is at least as good in ",
                           absl::StrJoin(report.front_metrics(), ", "), " and better in one"));
  }
  if (report.conditions_size() > 0) {
    page.Text("", absl::StrCat("of those with ", absl::StrJoin(report.conditions(), " and ")));
  }
  page.Blank();
  std::vector<std::vector<std::string>> cells;
  std::vector<std::string> heading = {""};
  for (const std::string& option : report.options()) heading.push_back(Dashed(option));
  for (const SweepMetric& metric : metrics) heading.push_back(metric.name);
  cells.push_back(std::move(heading));
  for (const pb::SweepRow& row : report.rows()) {
    if (static_cast<int64_t>(cells.size()) > max_rows) break;
    std::vector<std::string> line = {row.on_front() ? "*" : ""};
    for (const std::string& option : report.options()) line.push_back(SettingOf(row, option));
    if (row.problem().empty()) {
      for (const SweepMetric& metric : metrics) line.push_back(MetricCell(metric, row));
    }
    cells.push_back(std::move(line));
  }
  std::vector<size_t> widths(cells[0].size(), 0);
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out = page.Take();
  for (size_t r = 0; r < cells.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < cells[r].size(); ++i) {
      if (i > 0) line += "  ";
      line.append(widths[i] - cells[r][i].size(), ' ');
      line += cells[r][i];
    }
    if (r > 0) {
      const pb::SweepRow& row = report.rows(static_cast<int>(r) - 1);
      if (!row.problem().empty()) absl::StrAppend(&line, "  ", row.problem());
    }
    if (color && r == 0) line = absl::StrCat("\033[1m", line, "\033[0m");
    absl::StrAppend(&out, line, "\n");
  }
  TextPage end(color);
  const int64_t shown = static_cast<int64_t>(cells.size()) - 1;
  if (shown < report.rows_size()) {
    end.Line("", absl::StrCat("and ", WithThousands(report.rows_size() - shown),
                              " points more; --rows=N, --csv and --json have them"));
  }
  end.Blank();
  for (const std::string& note : report.notes()) end.Text("note", note);
  return out + end.Take();
}

pb::ShownMetrics DescribeMetrics(const std::vector<SweepMetric>& metrics) {
  pb::ShownMetrics shown;
  for (const SweepMetric& metric : metrics) {
    auto* added = shown.add_metrics();
    added->set_name(metric.name);
    added->set_larger_is_better(metric.larger_is_better);
    added->set_is_percent(metric.is_percent);
    added->set_decimals(metric.decimals);
  }
  return shown;
}

std::string SweepCsv(const pb::SweepReport& report) {
  std::string out = "index,name";
  for (const std::string& option : report.options()) absl::StrAppend(&out, ",", CsvCell(option));
  for (const std::string& metric : report.metrics()) absl::StrAppend(&out, ",", CsvCell(metric));
  absl::StrAppend(&out, ",on_front,problem\n");
  for (const pb::SweepRow& row : report.rows()) {
    absl::StrAppend(&out, row.index(), ",", row.name());
    for (const std::string& option : report.options()) {
      absl::StrAppend(&out, ",", CsvCell(SettingOf(row, option)));
    }
    for (const std::string& metric : report.metrics()) {
      const auto value = RowValue(row, metric);
      absl::StrAppend(&out, ",", value ? ExactText(*value) : "");
    }
    absl::StrAppend(&out, ",", row.on_front() ? "true" : "false", ",", CsvCell(row.problem()),
                    "\n");
  }
  return out;
}

// --- Capacity ---

namespace {

std::string ProbeText(const pb::CapacityReport::Probe& probe) {
  std::string text = absl::StrFormat("%.4g requests/s:", probe.requests_per_s());
  for (const auto& objective : probe.objectives()) {
    if (objective.percentile() > 0) {
      absl::StrAppendFormat(&text, " %s p%g %s,", objective.metric(), objective.percentile(),
                            Span(objective.observed_ms() / 1e3));
    } else {
      absl::StrAppendFormat(&text, " %s within %s for %.2f %%,", objective.metric(),
                            Span(objective.limit_ms() / 1e3), 100 * objective.share());
    }
  }
  absl::StrAppendFormat(&text, " %.2f %% of requests meet all limits", 100 * probe.good_share());
  return text;
}

std::string CandidateName(const pb::CapacityReport::Candidate& candidate) {
  return absl::StrCat(candidate.replica_devices(), " x ", candidate.device());
}

// "3 replicas", or "3 prefill and 6 decode replicas".
std::string Replicas(const pb::CapacityReport& report, int64_t count) {
  if (report.prefill_replicas() == 0) return Plural(count, "replica");
  return absl::StrCat(WithThousands(count * report.prefill_replicas()), " prefill and ",
                      Plural(count * report.decode_replicas(), "decode replica"));
}

void AddCandidate(const pb::CapacityReport& report, const pb::CapacityReport::Candidate& candidate,
                  TextPage* page) {
  page->Blank();
  const std::string name = CandidateName(candidate);
  if (candidate.highest_rate() > 0) {
    const bool is_split = report.prefill_replicas() > 0;
    page->Text(name.size() < 14 ? name : "",
               absl::StrCat(name.size() < 14 ? "" : absl::StrCat(name, ": "),
                            report.fleet() > 0 ? absl::StrCat(report.fleet(), " replicas behind ",
                                                              report.router(), " serve ")
                            : is_split         ? absl::StrCat(Replicas(report, 1), " serve ")
                                               : "one replica serves ",
                            absl::StrFormat("%.4g", candidate.highest_rate()),
                            " requests/s within the limits (kvsim replay --speedup=",
                            candidate.at_highest().speedup(),
                          report.fleet() > 0 ? absl::StrCat(" --router=", report.router()) : "",
                          ")"));
    page->Text("  met", ProbeText(candidate.at_highest()));
    if (candidate.failing_rate() > 0) {
      page->Text("  missed", ProbeText(candidate.at_failing()));
      page->Text("  because", candidate.binding());
    } else {
      page->Text("  missed", "no rate that was tried misses the limits");
    }
    if (candidate.price_per_hour() > 0) {
      const pb::CapacityReport::Probe& probe = candidate.at_highest();
      page->Text(
          "  price",
          absl::StrFormat("%.4g per hour of %s, %.4g per million requests, %.4g per million output "
                          "tokens",
                          probe.cost_per_hour(),
                          report.fleet() > 0 || is_split ? "them all" : "a replica",
                          probe.cost_per_hour() / (candidate.highest_rate() * 3600) * 1e6,
                          probe.cost_per_1m_tokens()));
    }
  }
  if (candidate.replicas() > 0) {
    const pb::CapacityReport::Probe& target = candidate.at_target();
    const auto cost = [](int64_t devices, double hourly) {
      return absl::StrCat(Plural(devices, "device"),
                          hourly > 0 ? absl::StrFormat(", %.4g per hour", hourly) : "");
    };
    const bool is_split = report.prefill_replicas() > 0;
    const int64_t spare = candidate.replica_devices() * (is_split ? 2 : 1);
    page->Text(
        "  needs",
        absl::StrFormat("%s of %s%s for %.4g requests/s: %s; %s more to spare: %s",
                        Replicas(report, candidate.replicas()), name,
                        candidate.replicas() == 1 || is_split
                            ? ""
                            : absl::StrCat(" behind ", report.router()),
                        report.target_rate(), cost(target.devices(), target.cost_per_hour()),
                        is_split ? "one of each" : "one",
                        cost(target.devices() + spare, target.spare_cost_per_hour())));
    page->Text("  with them", ProbeText(candidate.at_target()));
    if (candidate.one_less().replicas() > 0) {
      page->Text("  one less", ProbeText(candidate.one_less()));
    }
  }
  if (!candidate.problem().empty()) {
    page->Text(candidate.highest_rate() > 0 ? "  problem" : "problem",
               absl::StrCat(name, ": ", candidate.problem()));
    if (candidate.highest_rate() == 0 && !candidate.binding().empty()) {
      page->Text("  because", candidate.binding());
    }
  }
}

}  // namespace

void AddCapacityNotes(double arrival_seconds, int64_t num_arrivals, int64_t num_arrival_times,
                      pb::CapacityReport* report) {
  double fastest = report->target_rate();
  std::string met_if_spread;
  for (const auto& candidate : report->candidates()) {
    fastest = std::max(fastest, candidate.highest_rate());
    const std::string name = CandidateName(candidate);
    if (!candidate.is_monotone()) {
      report->add_notes(absl::StrCat(
          name,
          ": a rate above the highest one shown meets the limits again; look at the curve with "
          "kvsim sweep --grid speedup=..."));
    }
    if (candidate.met_if_spread()) {
      absl::StrAppendFormat(&met_if_spread, "%s%s at %.4g requests/s",
                            met_if_spread.empty() ? "" : ", ", name, candidate.failing_rate());
    }
  }
  if (!met_if_spread.empty()) {
    report->add_notes(absl::StrCat(
        Plural(num_arrivals, "request"), " arrive at ", Plural(num_arrival_times, "time"),
        ", so that they march in step, perhaps only because of how they were recorded. Spread over "
        "the time up to the next ones (--spread) they are served within the limits where they miss "
        "them here: ",
        met_if_spread));
  }
  constexpr double kShort = 120;
  const double seconds =
      fastest > 0 ? arrival_seconds * report->trace_rate() / fastest : arrival_seconds;
  if (seconds < kShort) {
    report->add_notes(
        absl::StrCat("at the highest rate here the trace arrives within ", Span(seconds),
                     ": a burst that ends before queues are as long as they would get; a longer "
                     "trace gives a lower rate"));
  }
  if (report->target_rate() > 0 && report->prefill_replicas() == 0) {
    report->add_notes(absl::StrCat("several replicas are behind the router ", report->router(),
                                   "; another one may need fewer (--router)"));
  }
  report->add_notes(absl::StrFormat(
      "rates are searched to %.1f %%; the two next higher ones that were tried miss, unless a note "
      "says otherwise",
      100 * report->tolerance()));
}

std::string FormatCapacity(const pb::CapacityReport& report, bool color) {
  TextPage page(color);
  page.Text("workload", report.workload());
  page.Text("limits", report.goodput() > 0
                          ? absl::StrFormat("%s, all of them for %.4g %% of requests", report.slo(),
                                            100 * report.goodput())
                          : report.slo());
  for (const auto& candidate : report.candidates()) AddCandidate(report, candidate, &page);
  page.Blank();
  if (report.candidates_size() > 1) {
    const auto best = std::find_if(report.candidates().begin(), report.candidates().end(),
                                   [](const auto& candidate) { return candidate.is_cheapest(); });
    const bool has_price = best != report.candidates().end() && best->price_per_hour() > 0;
    if (best == report.candidates().end()) {
      page.Text("answer", "none of these meets the limits");
    } else if (report.target_rate() > 0) {
      page.Text(
          "answer",
          absl::StrCat(has_price ? "cheapest" : "fewest devices", ": ",
                       Replicas(report, best->replicas()), " of ", CandidateName(*best),
                       has_price ? absl::StrFormat(", %.4g per hour", best->cost_per_hour()) : ""));
    } else {
      page.Text("answer",
                absl::StrCat(has_price ? "cheapest per request: " : "most requests per device: ",
                             CandidateName(*best)));
    }
  }
  for (const std::string& note : report.notes()) page.Text("note", note);
  return page.Take();
}

}  // namespace kvblocks::sim
