#include "kvblocks/sim/sweep/break_even_search.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/checks/status_text.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/text_page.h"
#include "kvblocks/sim/sweep/sweep_metrics.h"
#include "kvblocks/sim/tiers/tier_text.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;

namespace {

constexpr double kFirstSpeed = 1e9, kSpeedStep = 8;
constexpr double kLeastSpeed = 1e6, kMostSpeed = 1e13;

// Four digits: far below any tolerance, and short enough to type again.
std::string SpeedText(double bytes_per_second) {
  return absl::StrFormat("%.4gGB/s", bytes_per_second / 1e9);
}
double RoundedSpeed(double bytes_per_second) {
  return std::stod(SpeedText(bytes_per_second)) * 1e9;
}

class BreakEvenSearch {
 public:
  BreakEvenSearch(const BreakEvenOptions& options, PointRunner* runner, ContentHashes* hashes)
      : options_(options), runner_(runner), hashes_(hashes) {}

  absl::StatusOr<pb::BreakEvenReport> Run();

 private:
  using Settings = std::vector<pb::Setting>;

  absl::Status Check();
  absl::StatusOr<std::vector<pb::BreakEvenReport::Probe>> Replay(const std::vector<Settings>& all);
  absl::Status Probe(std::vector<double> speeds);
  absl::Status CloseIn();
  void Judge();
  static Settings With(const std::string& tiers) {
    pb::Setting setting;
    setting.set_option("tier");
    setting.set_value(tiers);
    return {setting};
  }
  static Settings Without();
  // Smaller is worse for some metrics.
  bool IsWorse(const pb::BreakEvenReport::Probe& probe) const {
    const double without = report_.without().value();
    return metric_.larger_is_better ? probe.value() < without : probe.value() > without;
  }

  const BreakEvenOptions& options_;
  PointRunner* runner_;
  ContentHashes* hashes_;
  SweepMetric metric_;
  std::string tier_;
  double low_ = 0, high_ = 0;  // worse, and not; 0: not known
  pb::BreakEvenReport report_;
};

BreakEvenSearch::Settings BreakEvenSearch::Without() {
  Settings settings = With("");
  // What is said of tiers goes with them.
  for (const char* option : {"load", "load_if", "load_failures", "load_failure_policy"}) {
    for (const ReplayOption& row : ReplayOptions()) {
      if (row.name() != option) continue;
      pb::Setting& setting = settings.emplace_back();
      setting.set_option(option);
      setting.set_value(DefaultText(row));
    }
  }
  return settings;
}

absl::Status BreakEvenSearch::Check() {
  if (options_.asked.tier().empty()) {
    return InvalidArgument("--tier: none given, expected the tiers whose break-even is sought, as "
                           "host:64GiB:read=50GB/s");
  }
  const auto config = EffectiveConfig({}, options_.asked);
  if (!config.ok()) return config.status();
  if (config->time() == "fixed") {
    return InvalidArgument("--time: got fixed: with steps of one length no latency means anything; "
                           "expected another clock");
  }
  const auto tiers = ParseTiers(options_.asked.tier());
  if (!tiers.ok()) return InvalidArgument("--", tiers.status().message());
  std::string names;
  bool is_there = false;
  for (const SimTier& tier : *tiers) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", tier.options.name);
    is_there |= tier.options.name == options_.tier;
  }
  if (options_.tier.empty() && tiers->size() > 1) {
    return InvalidArgument("--of: not given, expected the tier whose bandwidth is sought: ", names);
  }
  if (!options_.tier.empty() && !is_there) {
    return InvalidArgument("--of: got \"", options_.tier, "\", expected a tier of --tier: ", names);
  }
  tier_ = options_.tier.empty() ? tiers->front().options.name : options_.tier;
  auto metric = FindSweepMetric(options_.metric, {});
  if (!metric.ok()) return InvalidArgument("--metric: ", metric.status().message());
  metric_ = *std::move(metric);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<pb::BreakEvenReport::Probe>> BreakEvenSearch::Replay(
    const std::vector<Settings>& all) {
  std::vector<PlannedPoint> points;
  for (const Settings& settings : all) {
    auto point = PlanPoint(options_.asked, settings, hashes_);
    if (!point.ok()) return point.status();
    points.push_back(*std::move(point));
  }
  const auto results = runner_->Run(points);
  if (!results.ok()) return results.status();
  std::vector<pb::BreakEvenReport::Probe> probes;
  for (size_t i = 0; i < all.size(); ++i) {
    const pb::PointResult& result = (*results)[i];
    if (!result.problem().empty()) return FailedPrecondition(result.problem());
    const auto value = ValueOf(metric_, result);
    if (!value) {
      return InvalidArgument("--metric: the report of these replays has no ", metric_.name);
    }
    const auto& report = result.report();
    const auto& ttft = report.latency().ttft();
    pb::BreakEvenReport::Probe& probe = probes.emplace_back();
    probe.set_tier(all[i].front().value());
    probe.set_value(*value);
    probe.set_ttft_mean_ms(ttft.mean_ms());
    probe.set_ttft_p50_ms(ttft.p50_ms());
    probe.set_ttft_p90_ms(ttft.p90_ms());
    probe.set_ttft_p99_ms(ttft.p99_ms());
    const double device_rate = report.whole_run().token_hit_rate().value();
    probe.set_hit_rate(report.has_tiers() ? report.tiers().hit_rate() : device_rate);
    probe.set_loads(report.tiers().loads());
    probe.set_mean_load_ms(report.tiers().mean_load_ms());
  }
  return probes;
}

absl::Status BreakEvenSearch::Probe(std::vector<double> speeds) {
  std::vector<Settings> all;
  for (double& speed : speeds) {
    speed = RoundedSpeed(speed);
    auto text = WithReadSpeed(options_.asked.tier(), tier_, SpeedText(speed));
    if (!text.ok()) return text.status();
    all.push_back(With(*text));
  }
  auto probes = Replay(all);
  if (!probes.ok()) return probes.status();
  for (size_t i = 0; i < speeds.size(); ++i) {
    pb::BreakEvenReport::Probe& probe = (*probes)[i];
    probe.set_bytes_per_s(speeds[i]);
    probe.set_is_worse(IsWorse(probe));
    if (probe.is_worse()) {
      if (speeds[i] > low_ && (high_ == 0 || speeds[i] < high_)) low_ = speeds[i];
    } else if (speeds[i] > low_ && (high_ == 0 || speeds[i] < high_)) {
      high_ = speeds[i];
    }
    *report_.add_probes() = std::move(probe);
  }
  return absl::OkStatus();
}

absl::Status BreakEvenSearch::CloseIn() {
  // Two at a time, so that two cores have work.
  if (absl::Status status = Probe({kFirstSpeed, kSpeedStep * kFirstSpeed}); !status.ok()) return status;
  for (double speed = kSpeedStep * kSpeedStep * kFirstSpeed; high_ == 0 && speed <= kMostSpeed;
       speed *= kSpeedStep * kSpeedStep) {
    if (absl::Status status = Probe({speed, kSpeedStep * speed}); !status.ok()) return status;
  }
  for (double speed = kFirstSpeed / (kSpeedStep * kSpeedStep); low_ == 0 && speed >= kLeastSpeed;
       speed /= kSpeedStep * kSpeedStep) {
    if (absl::Status status = Probe({speed, kSpeedStep * speed}); !status.ok()) return status;
  }
  while (low_ > 0 && high_ > 0 && high_ / low_ > 1 + options_.tolerance) {
    const double third = std::cbrt(high_ / low_);
    const double low = low_, high = high_;
    if (absl::Status status = Probe({low * third, low * third * third}); !status.ok()) return status;
    if (low_ == low && high_ == high) break;  // no number between them has four digits
  }
  return absl::OkStatus();
}

void BreakEvenSearch::Judge() {
  std::sort(report_.mutable_probes()->begin(), report_.mutable_probes()->end(),
            [](const auto& a, const auto& b) { return a.bytes_per_s() < b.bytes_per_s(); });
  for (const auto& probe : report_.probes()) {
    if ((probe.is_worse() && high_ > 0 && probe.bytes_per_s() > high_) ||
        (!probe.is_worse() && low_ > 0 && probe.bytes_per_s() < low_)) {
      report_.add_notes(absl::StrCat(
          SpeedText(probe.bytes_per_s()), " contradicts: the metric does not change evenly with the "
          "bandwidth, so there are several places where it breaks even, of which one was found"));
    }
  }
  report_.set_worse_bytes_per_s(low_);
  report_.set_break_even_bytes_per_s(high_);
  const std::string name = absl::StrCat(metric_.name, " with ", tier_);
  if (report_.free().is_worse()) {
    report_.set_answer(absl::StrCat(name, " is worse at any bandwidth, also if transfers take no time"));
  } else if (high_ == 0) {
    report_.set_answer(absl::StrCat(name, " is worse up to ", SpeedText(low_)));
  } else if (low_ == 0) {
    report_.set_answer(absl::StrCat(name, " is not worse even at ", SpeedText(high_)));
  } else {
    report_.set_answer(absl::StrCat(name, " breaks even between ", SpeedText(low_), " and ",
                                    SpeedText(high_), ": with less it is worse than without tiers"));
  }
  if (report_.as_given().loads() == 0) {
    report_.add_notes("with the tiers as given nothing was loaded");
  }
}

absl::StatusOr<pb::BreakEvenReport> BreakEvenSearch::Run() {
  if (absl::Status status = Check(); !status.ok()) return status;
  report_.set_schema_version(1);
  report_.set_tier(tier_);
  report_.set_metric(metric_.name);
  report_.set_larger_is_better(metric_.larger_is_better);
  report_.set_tolerance(options_.tolerance);
  const auto free = WithReadSpeed(options_.asked.tier(), tier_, "free");
  if (!free.ok()) return free.status();
  auto probes = Replay({Without(), With(options_.asked.tier()), With(*free)});
  if (!probes.ok()) return probes.status();
  *report_.mutable_without() = std::move((*probes)[0]);
  *report_.mutable_as_given() = std::move((*probes)[1]);
  *report_.mutable_free() = std::move((*probes)[2]);
  for (auto* probe : {report_.mutable_as_given(), report_.mutable_free()}) {
    probe->set_is_worse(IsWorse(*probe));
  }
  if (!report_.free().is_worse()) {
    if (absl::Status status = CloseIn(); !status.ok()) return status;
  }
  Judge();
  return std::move(report_);
}

std::string BreakEvenProbeName(const pb::BreakEvenReport& report, const pb::BreakEvenReport::Probe& probe) {
  if (&probe == &report.without()) return "no tiers";
  if (&probe == &report.as_given()) return "as given";
  return &probe == &report.free() ? "free" : SpeedText(probe.bytes_per_s());
}

}  // namespace

absl::StatusOr<pb::BreakEvenReport> FindBreakEven(const BreakEvenOptions& options,
                                                  PointRunner* runner, ContentHashes* hashes) {
  return BreakEvenSearch(options, runner, hashes).Run();
}

std::string FormatBreakEven(const pb::BreakEvenReport& report, bool color) {
  TextPage page(color);
  page.Line(report.tier(), absl::StrFormat("%10s %10s %10s %10s %9s %7s %10s", "TTFT mean", "p50",
                                           "p90", "p99", "hit rate", "loads", "one took"));
  const auto add = [&](const pb::BreakEvenReport::Probe& probe) {
    const auto ms = [](double value) { return Span(value / 1e3); };
    page.Line(BreakEvenProbeName(report, probe),
              absl::StrFormat("%10s %10s %10s %10s %7.2f %% %7d %10s%s", ms(probe.ttft_mean_ms()),
                              ms(probe.ttft_p50_ms()), ms(probe.ttft_p90_ms()),
                              ms(probe.ttft_p99_ms()), 100 * probe.hit_rate(), probe.loads(),
                              probe.loads() > 0 ? ms(probe.mean_load_ms()) : "",
                              probe.is_worse() ? "  worse" : ""));
  };
  add(report.without());
  add(report.as_given());
  add(report.free());
  for (const auto& probe : report.probes()) add(probe);
  page.Blank();
  page.Text("answer", report.answer());
  for (const std::string& note : report.notes()) page.Text("note", note);
  return page.Take();
}

std::string BreakEvenCsv(const pb::BreakEvenReport& report) {
  std::string rows = "probe,bytes_per_s,value,is_worse,ttft_mean_ms,ttft_p50_ms,ttft_p90_ms,"
                     "ttft_p99_ms,hit_rate,loads,mean_load_ms\n";
  const auto add = [&](const pb::BreakEvenReport::Probe& probe) {
    absl::StrAppendFormat(&rows, "%s,%.10g,%.10g,%d,%.10g,%.10g,%.10g,%.10g,%.10g,%d,%.10g\n",
                          BreakEvenProbeName(report, probe), probe.bytes_per_s(), probe.value(),
                          probe.is_worse(), probe.ttft_mean_ms(), probe.ttft_p50_ms(),
                          probe.ttft_p90_ms(), probe.ttft_p99_ms(), probe.hit_rate(), probe.loads(),
                          probe.mean_load_ms());
  };
  add(report.without());
  add(report.as_given());
  add(report.free());
  for (const auto& probe : report.probes()) add(probe);
  return rows;
}

}  // namespace kvblocks::sim
