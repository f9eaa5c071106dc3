#include "kvblocks/sim/sweep/tune_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/commands/curve_run.h"
#include "kvblocks/sim/commands/fleet_input.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;

namespace {

constexpr size_t kFewValues = 8;  // an axis of so many is tried as a whole
constexpr int kMostRounds = 20;

// How good a point is; larger is better, feasible ones first.
struct Grade {
  bool has_value = false;
  bool is_feasible = false;
  double value = -std::numeric_limits<double>::infinity();

  friend bool operator<(const Grade& a, const Grade& b) {
    return std::tie(a.has_value, a.is_feasible, a.value) <
           std::tie(b.has_value, b.is_feasible, b.value);
  }
};

Grade GradeOf(const SweepMetric& objective, const pb::PointResult& result) {
  Grade grade;
  const auto value = ValueOf(objective, result);
  if (!value) return grade;
  grade.has_value = true;
  grade.is_feasible = true;
  grade.value = objective.larger_is_better ? *value : -*value;
  if (!result.report().has_goodput() || result.report().goodput().met()) return grade;
  grade.is_feasible = false;
  double worst = 0;
  for (const auto& limit : result.report().goodput().objectives()) {
    if (!limit.met()) worst = std::max(worst, limit.observed_ms() / limit.limit_ms());
  }
  grade.value = -worst;
  return grade;
}

class CoordinateDescent {
 public:
  CoordinateDescent(const TuneOptions& options, PointRunner* runner, ContentHashes* hashes,
                    ProgressLine* progress)
      : options_(options), runner_(runner), hashes_(hashes), progress_(progress) {}

  absl::StatusOr<TuneResult> Run();

 private:
  using Place = std::vector<size_t>;  // an index into the values of each axis

  absl::Status ReadAxes();
  absl::Status StartByCurve(size_t axis);
  absl::Status Evaluate(const std::vector<Place>& places);
  absl::Status SearchAlong(size_t axis);
  std::string Describe(const Place& place) const;
  const pb::PointResult& ResultAt(const Place& place) const {
    return result_.evaluated[at_.at(place)];
  }

  const TuneOptions& options_;
  PointRunner* runner_;
  ContentHashes* hashes_;
  ProgressLine* progress_;
  std::vector<std::string> fields_;
  std::vector<std::vector<std::string>> values_;
  std::vector<bool> is_ordered_;
  Place place_;
  std::map<Place, size_t> at_;  // index of its result
  TuneResult result_;
};

absl::Status CoordinateDescent::ReadAxes() {
  for (const pb::Axis& axis : options_.axes) {
    auto values = AxisValues(axis);
    if (!values.ok()) return values.status();
    const std::string field = *OptionField(axis.option());
    if (std::find(fields_.begin(), fields_.end(), field) != fields_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(FlagName(field), ": two axes, expected one with all values"));
    }
    std::vector<double> numbers;
    for (const std::string& value : *values) {
      double number;
      if (absl::SimpleAtod(value, &number)) numbers.push_back(number);
    }
    const bool is_ordered =
        numbers.size() == values->size() && std::is_sorted(numbers.begin(), numbers.end());
    fields_.push_back(field);
    is_ordered_.push_back(is_ordered);
    place_.push_back(values->size() / 2);
    values_.push_back(*std::move(values));
  }
  return absl::OkStatus();
}

// Where pool sizes are searched, one pass over the trace says where nearly all hits are.
absl::Status CoordinateDescent::StartByCurve(size_t axis) {
  ReplayConfig given;
  for (size_t k = 0; k < fields_.size(); ++k) {
    if (k == axis) continue;
    if (absl::Status status = SetOption(fields_[k], values_[k][place_[k]], &given); !status.ok()) {
      return status;
    }
  }
  const auto config = EffectiveConfig(options_.asked, given);
  if (!config.ok() || !config->prefix_caching() || config->eviction_policy() != "lru" ||
      !config->retain().empty() || IsFleet(*config)) {
    return absl::OkStatus();
  }
  CurveOptions curve;
  curve.num_points = 0;
  curve.bounds = false;
  // Any size will do: only the sizes that answers name are used.
  curve.sizes = {1};
  ::kvblocks::report::v1::CurveReport report;
  if (!RunCurve(*config, curve, progress_, &report).ok() || report.mode() != "order") {
    result_.steps.push_back("no curve: this model or these options have no single pass");
    return absl::OkStatus();
  }
  constexpr double kNearlyAll = 0.99;
  for (const auto& answer : report.answers()) {
    if (answer.share_of_possible() < kNearlyAll) continue;
    const int64_t wanted = answer.num_blocks() + 1;  // with the null block
    const auto& values = values_[axis];
    size_t index = 0;
    int64_t size = 0;
    while (index + 1 < values.size() && absl::SimpleAtoi(values[index], &size) && size < wanted) {
      ++index;
    }
    place_[axis] = index;
    result_.steps.push_back(absl::StrCat(
        "the curve: requests one after the other hit 99 % of what is possible with ",
        WithThousands(wanted), " blocks; the search starts at num-blocks=", values[index]));
    break;
  }
  return absl::OkStatus();
}

absl::Status CoordinateDescent::Evaluate(const std::vector<Place>& places) {
  std::vector<PlannedPoint> points;
  std::vector<Place> fresh;
  for (const Place& place : places) {
    if (at_.contains(place) || std::find(fresh.begin(), fresh.end(), place) != fresh.end())
      continue;
    std::vector<pb::Setting> settings(fields_.size());
    for (size_t k = 0; k < fields_.size(); ++k) {
      settings[k].set_option(fields_[k]);
      settings[k].set_value(values_[k][place[k]]);
    }
    auto point = PlanPoint(options_.asked, settings, hashes_);
    if (!point.ok()) return point.status();
    points.push_back(*std::move(point));
    fresh.push_back(place);
  }
  auto results = runner_->Run(points);
  if (!results.ok()) return results.status();
  for (size_t i = 0; i < fresh.size(); ++i) {
    at_[fresh[i]] = result_.evaluated.size();
    result_.evaluated.push_back(std::move((*results)[i]));
  }
  return absl::OkStatus();
}

std::string CoordinateDescent::Describe(const Place& place) const {
  const pb::PointResult& result = ResultAt(place);
  const Grade grade = GradeOf(options_.objective, result);
  if (!grade.has_value) {
    return result.problem().empty() ? "without a value"
                                    : absl::StrCat("without figures: ", result.problem());
  }
  const double value = *ValueOf(options_.objective, result);
  const bool is_percent = options_.objective.is_percent;
  return absl::StrCat(options_.objective.name, " ",
                      GroupThousands(absl::StrFormat("%.*f", options_.objective.decimals,
                                                     is_percent ? 100 * value : value)),
                      is_percent ? " %" : "", grade.is_feasible ? "" : ", which misses --slo");
}

absl::Status CoordinateDescent::SearchAlong(size_t axis) {
  const size_t count = values_[axis].size();
  size_t low = 0, high = count - 1;
  std::set<size_t> tried;
  while (true) {
    std::set<size_t> wanted = {place_[axis]};
    if (place_[axis] > 0) wanted.insert(place_[axis] - 1);
    if (place_[axis] + 1 < count) wanted.insert(place_[axis] + 1);
    const bool is_last = count <= kFewValues || !is_ordered_[axis] || high - low <= 4;
    if (is_last) {
      for (size_t i = low; i <= high; ++i) wanted.insert(i);
    } else {
      for (size_t i = 0; i <= 4; ++i) wanted.insert(low + (high - low) * i / 4);
    }
    tried.insert(wanted.begin(), wanted.end());
    std::vector<Place> places;
    for (const size_t index : wanted) {
      places.push_back(place_);
      places.back()[axis] = index;
    }
    if (absl::Status status = Evaluate(places); !status.ok()) return status;
    Place best = place_;
    // Of equals the first: what is there stays, else the smaller index.
    for (const size_t index : tried) {
      Place other = place_;
      other[axis] = index;
      if (GradeOf(options_.objective, ResultAt(best)) <
          GradeOf(options_.objective, ResultAt(other))) {
        best = other;
      }
    }
    place_ = best;
    if (is_last) break;
    // Between the neighbours of the best one that were tried.
    auto at = tried.find(place_[axis]);
    low = at == tried.begin() ? *at : *std::prev(at);
    high = std::next(at) == tried.end() ? *at : *std::next(at);
  }
  result_.steps.push_back(absl::StrCat(
      FlagName(fields_[axis]).substr(2), ": ", Plural(static_cast<int64_t>(tried.size()), "value"),
      " tried, best is ", values_[axis][place_[axis]], ": ", Describe(place_)));
  return absl::OkStatus();
}

absl::StatusOr<TuneResult> CoordinateDescent::Run() {
  if (absl::Status status = ReadAxes(); !status.ok()) return status;
  for (size_t axis = 0; axis < fields_.size(); ++axis) {
    if (fields_[axis] != "num_blocks" || !is_ordered_[axis]) continue;
    if (absl::Status status = StartByCurve(axis); !status.ok()) return status;
  }
  for (int round = 0; round < kMostRounds; ++round) {
    const Place before = place_;
    for (size_t axis = 0; axis < fields_.size(); ++axis) {
      if (absl::Status status = SearchAlong(axis); !status.ok()) return status;
    }
    if (place_ == before && round > 0) break;
    if (fields_.size() == 1) break;
  }
  const Grade grade = GradeOf(options_.objective, ResultAt(place_));
  if (!grade.has_value) {
    const pb::PointResult& result = ResultAt(place_);
    return absl::FailedPreconditionError(absl::StrCat(
        "no point that was tried has ", options_.objective.name,
        result.problem().empty() ? "; --slo and a clock of measured times may be needed"
                                 : absl::StrCat(": ", result.problem())));
  }
  result_.best = at_.at(place_);
  result_.is_feasible = grade.is_feasible;
  return std::move(result_);
}

}  // namespace

absl::StatusOr<TuneResult> Tune(const TuneOptions& options, PointRunner* runner,
                                ContentHashes* hashes, ProgressLine* progress) {
  if (options.axes.empty()) {
    return absl::InvalidArgumentError(
        "nothing to tune: give --over OPTION=VALUE,... for each option to choose");
  }
  return CoordinateDescent(options, runner, hashes, progress).Run();
}

}  // namespace kvblocks::sim
