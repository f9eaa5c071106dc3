#include "sim/sweep/border_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/option_table.h"
#include "sim/report/text_page.h"
#include "sim/sweep/condition.h"
#include "sim/sweep/sweep_table.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

namespace {

class BorderSearch {
 public:
  BorderSearch(const BorderOptions& options, PointRunner* runner, ContentHashes* hashes)
      : options_(options),
        runner_(runner),
        hashes_(hashes),
        border_({.low_meets = options.is_largest,
                 .is_whole = options.searched.is_whole,
                 .tolerance = options.tolerance},
                [this](const std::vector<double>& numbers) { return Probe(numbers); }) {}

  absl::StatusOr<pb::BorderReport> Run(std::vector<SweepMetric>* metrics);

 private:
  absl::StatusOr<std::vector<pb::PointResult>> Replay(
      const std::vector<std::vector<pb::Setting>>& points);
  absl::StatusOr<bool> HoldsAll(const pb::PointResult& result) const;
  absl::StatusOr<std::vector<bool>> Probe(const std::vector<double>& numbers);
  pb::SweepReport MakeTried(std::vector<SweepMetric>* metrics) const;
  std::string ValueText(double number) const {
    return options_.searched.ValueText(border_.Text(number));
  }

  const BorderOptions& options_;
  PointRunner* runner_;
  ContentHashes* hashes_;
  Bisection border_;
  pb::PointResult baseline_;
  std::map<double, pb::PointResult> tried_;
};

absl::StatusOr<std::vector<pb::PointResult>> BorderSearch::Replay(
    const std::vector<std::vector<pb::Setting>>& points) {
  std::vector<PlannedPoint> planned;
  for (const std::vector<pb::Setting>& settings : points) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto point, PlanPoint(options_.asked, settings, hashes_));
    planned.push_back(std::move(point));
  }
  return runner_->Run(planned);
}

absl::StatusOr<bool> BorderSearch::HoldsAll(const pb::PointResult& result) const {
  if (!result.problem().empty()) return false;
  bool holds_all = true;
  for (const Condition& condition : options_.conditions) {
    const auto holds = Holds(condition, result, baseline_);
    if (!holds) {
      return InvalidArgument("--where: got \"", condition.text,
                             "\", but the replay has no such figure",
                             condition.metric ? "" : ": it needs --slo");
    }
    holds_all = holds_all && *holds;
  }
  return holds_all;
}

absl::StatusOr<std::vector<bool>> BorderSearch::Probe(const std::vector<double>& numbers) {
  std::vector<std::vector<pb::Setting>> points;
  for (const double number : numbers) {
    points.push_back({MakeSetting(options_.searched.field, ValueText(number))});
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto results, Replay(points));
  std::vector<bool> holds;
  for (size_t i = 0; i < numbers.size(); ++i) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto one, HoldsAll(results[i]));
    holds.push_back(one);
    tried_[numbers[i]] = std::move(results[i]);
  }
  return holds;
}

pb::SweepReport BorderSearch::MakeTried(std::vector<SweepMetric>* metrics) const {
  std::vector<pb::PointResult> results;
  std::vector<bool> is_answer;
  if (!options_.baseline.empty()) {
    results.push_back(baseline_);
    is_answer.push_back(false);
  }
  for (const auto& [number, result] : tried_) {
    results.push_back(result);
    is_answer.push_back(number == border_.met());
  }
  DropEmptyMetrics(results, metrics);
  return MakeSweepReport(results, *metrics, {}, is_answer);
}

absl::StatusOr<pb::BorderReport> BorderSearch::Run(std::vector<SweepMetric>* metrics) {
  if (!options_.baseline.empty()) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto results, Replay({options_.baseline}));
    baseline_ = std::move(results.front());
    if (!baseline_.problem().empty()) {
      return absl::FailedPreconditionError(absl::StrCat("--baseline: ", baseline_.problem()));
    }
  }
  const SearchedOption& searched = options_.searched;
  KVBLOCKS_RETURN_IF_ERROR(border_.Try({searched.first, searched.last}));
  KVBLOCKS_RETURN_IF_ERROR(border_.CloseIn());
  KVBLOCKS_RETURN_IF_ERROR(border_.LookBeyond(searched.first, searched.last));
  pb::BorderReport report;
  report.set_schema_version(1);
  report.set_option(searched.field);
  report.set_is_largest(options_.is_largest);
  report.set_tolerance(options_.tolerance);
  for (const Condition& condition : options_.conditions) report.add_conditions(condition.text);
  if (border_.met() > 0) report.set_value(ValueText(border_.met()));
  if (border_.missed() > 0) {
    report.set_missed(ValueText(border_.missed()));
    report.set_because(DescribeMiss(options_.conditions, tried_.at(border_.missed()), baseline_));
  }
  *report.mutable_tried() = MakeTried(metrics);
  if (!border_.is_monotone()) {
    report.mutable_tried()->add_notes(
        "a value beyond the one found holds the conditions again: there are several borders, of "
        "which this is one");
  }
  return report;
}

}  // namespace

pb::Axis SearchedOption::Ends() const {
  pb::Axis axis;
  axis.set_option(field);
  for (const double end : {first, last}) {
    axis.add_values(ValueText(is_whole ? absl::StrFormat("%.0f", end) : absl::StrCat(end)));
  }
  return axis;
}

absl::StatusOr<SearchedOption> ParseSearchedOption(std::string_view text) {
  const auto bad = [&](std::string_view expected) {
    return InvalidArgument("got \"", std::string(text), "\", expected ", std::string(expected));
  };
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return bad("OPTION=FIRST:LAST, like num-blocks=500:20000");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto field, OptionField(text.substr(0, equals)));
  SearchedOption searched;
  searched.field = field;
  std::string_view range = text.substr(equals + 1);
  if (const size_t open = range.find('{'); open != std::string_view::npos) {
    const size_t close = range.find('}', open);
    if (close == std::string_view::npos) return bad("a range in braces, like {1:64}");
    searched.before = range.substr(0, open);
    searched.after = range.substr(close + 1);
    range = range.substr(open + 1, close - open - 1);
  }
  const std::vector<std::string> ends = absl::StrSplit(std::string(range), ':');
  if (ends.size() != 2 || !absl::SimpleAtod(ends[0], &searched.first) ||
      !absl::SimpleAtod(ends[1], &searched.last) || !(searched.first > 0) ||
      !(searched.first < searched.last) || !std::isfinite(searched.last)) {
    return bad(
        "a range FIRST:LAST above 0 that grows, alone or in braces: num-blocks=500:20000 or "
        "tier=host:2GiB:read={0.5:50}GB/s");
  }
  int64_t ignored;
  searched.is_whole = absl::SimpleAtoi(ends[0], &ignored) && absl::SimpleAtoi(ends[1], &ignored);
  KVBLOCKS_RETURN_IF_ERROR(AxisValues(searched.Ends()).status());
  return searched;
}

absl::StatusOr<pb::Setting> ParseSetting(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return InvalidArgument("got \"", std::string(text), "\", expected OPTION=VALUE");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto field, OptionField(text.substr(0, equals)));
  pb::Setting setting = MakeSetting(field, std::string(text.substr(equals + 1)));
  ::kvblocks::config::v1::ReplayConfig scratch;
  KVBLOCKS_RETURN_IF_ERROR(SetOption(field, setting.value(), &scratch));
  return setting;
}

absl::Status AddLimits(double goodput, BorderOptions* options) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto config, EffectiveConfig(options->asked, {}));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto has_limits, HasLimits(config.slo(), goodput));
  const bool names_limits = std::erase_if(options->conditions, [](const Condition& condition) {
                              return !condition.metric.has_value();
                            }) > 0;
  if (has_limits) {
    options->conditions.push_back({.text = "slo", .metric = std::nullopt, .goodput = goodput});
    return absl::OkStatus();
  }
  if (names_limits) {
    return absl::InvalidArgumentError(
        "--where: got \"slo\", but no limit of --slo has a percentile, like ttft:2s@p99");
  }
  if (!options->conditions.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--where: none given, expected a condition, like hit-rate>=0.6, or --slo with percentiles");
}

absl::Status CheckBaseline(const BorderOptions& options) {
  const auto needs_one = std::find_if(options.conditions.begin(), options.conditions.end(),
                                      [](const Condition& c) { return c.is_of_baseline; });
  if (options.baseline.empty() && needs_one != options.conditions.end()) {
    return InvalidArgument("--where: got \"", needs_one->text,
                           "\", which needs --baseline OPTION=VALUE");
  }
  if (!options.baseline.empty() && needs_one == options.conditions.end()) {
    return absl::InvalidArgumentError(
        "--baseline: no condition of --where compares with it, like ttft-mean<=baseline");
  }
  return absl::OkStatus();
}

absl::StatusOr<pb::BorderReport> FindBorder(const BorderOptions& options,
                                            std::vector<SweepMetric>* metrics, PointRunner* runner,
                                            ContentHashes* hashes) {
  return BorderSearch(options, runner, hashes).Run(metrics);
}

std::string FormatBorder(const pb::BorderReport& report, const std::vector<SweepMetric>& metrics,
                         bool color) {
  const std::string option = FlagName(report.option());
  TextPage page(color);
  page.Text("search", absl::StrCat("the ", report.is_largest() ? "largest " : "smallest ", option,
                                   " with ", absl::StrJoin(report.conditions(), " and ")));
  page.Text("answer", report.value().empty() ? "no value of the range holds the conditions"
                                             : absl::StrCat(option, "=", report.value()));
  if (report.missed().empty()) {
    page.Text("", "every value that was tried holds the conditions: widen the range");
  } else {
    page.Text("  missed", absl::StrCat(option, "=", report.missed()));
    page.Text("  because", report.because());
  }
  page.Blank();
  constexpr int64_t kMostRows = 1000;
  return page.Take() + FormatSweep(report.tried(), metrics, kMostRows, color);
}

std::string Bisection::Text(double number) const {
  return options_.is_whole ? absl::StrFormat("%.0f", number) : absl::StrCat(number);
}

double FourDigits(double number) {
  double rounded = number;
  return absl::SimpleAtod(absl::StrFormat("%.4g", number), &rounded) ? rounded : number;
}

absl::Status Bisection::Try(std::vector<double> numbers) {
  for (double& number : numbers)
    number = options_.is_whole ? std::round(number) : FourDigits(number);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  KVBLOCKS_ASSIGN_OR_RETURN(const auto is_met, probe_(numbers));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double number = numbers[i];
    if (is_met[i] == options_.low_meets) {
      if (high_ > 0 && number > high_) {
        is_monotone_ = false;
      } else if (number > low_) {
        low_ = number;
      }
    } else if (low_ > 0 && number < low_) {
      is_monotone_ = false;
    } else if (high_ == 0 || number < high_) {
      high_ = number;
    }
  }
  return absl::OkStatus();
}

absl::Status Bisection::CloseIn() {
  while (low_ > 0 && high_ > 0 && high_ / low_ > 1 + options_.tolerance) {
    if (options_.is_whole && high_ - low_ < 1.5) break;
    const double third = std::cbrt(high_ / low_);
    const double before_low = low_, before_high = high_;
    std::vector<double> between = {low_ * third, low_ * third * third};
    if (options_.is_whole) {
      for (double& number : between) number = std::clamp(std::round(number), low_ + 1, high_ - 1);
    }
    KVBLOCKS_RETURN_IF_ERROR(Try(std::move(between)));
    // No number between them has four digits.
    if (low_ == before_low && high_ == before_high) break;
  }
  return absl::OkStatus();
}

absl::Status Bisection::LookBeyond(double first, double last) {
  if (low_ == 0 || high_ == 0) return absl::OkStatus();
  const double near = 1 + options_.tolerance, far = 1 + 4 * options_.tolerance;
  std::vector<double> beyond = options_.low_meets ? std::vector{high_ * near, high_ * far}
                                                  : std::vector{low_ / far, low_ / near};
  if (options_.is_whole) {
    for (double& number : beyond) {
      number = options_.low_meets ? std::ceil(number) : std::floor(number);
    }
  }
  std::erase_if(beyond, [&](double number) { return number < first || number > last; });
  return beyond.empty() ? absl::OkStatus() : Try(std::move(beyond));
}

}  // namespace kvblocks::sim
