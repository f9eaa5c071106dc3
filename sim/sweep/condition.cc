#include "kvblocks/sim/sweep/condition.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/sim/sweep/probe.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

namespace {

constexpr const char* kBaseline = "baseline";

bool IsAboutTime(const Condition& condition) {
  if (!condition.metric) return true;
  const std::string& name = condition.metric->name;
  for (const char* kind : {"ttft", "tpot", "e2e", "good"}) {
    if (absl::StartsWith(name, kind)) return true;
  }
  return false;
}

Probed JudgeOne(const Condition& limits, const pb::PointResult& result) {
  return JudgeLimits(absl::MakeConstSpan(&result, 1), limits.goodput);
}

// The number to compare with; empty if the baseline has none.
std::optional<double> BoundOf(const Condition& condition, const pb::PointResult& baseline) {
  if (!condition.is_of_baseline) return condition.bound;
  const auto value = ValueOf(*condition.metric, baseline);
  if (!value) return std::nullopt;
  return condition.bound * *value;
}

}  // namespace

absl::StatusOr<Condition> ParseCondition(std::string_view text, const DevicePrices& prices) {
  Condition condition;
  condition.text = std::string(text);
  if (text == "slo") return condition;
  size_t sign = text.find("<=");
  if (sign == std::string_view::npos) {
    sign = text.find(">=");
    condition.is_upper_bound = false;
  }
  if (sign == std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got \"", std::string(text),
        "\", expected METRIC<=NUMBER, METRIC>=NUMBER or slo, like ttft-p99<=500 or hit-rate>=0.6"));
  }
  auto metric = FindSweepMetric(text.substr(0, sign), prices);
  if (!metric.ok()) return metric.status();
  condition.metric = *std::move(metric);
  std::string bound(text.substr(sign + 2));
  condition.is_of_baseline = absl::EndsWith(bound, kBaseline);
  if (condition.is_of_baseline) bound.resize(bound.size() - std::strlen(kBaseline));
  if (condition.is_of_baseline && bound.empty()) {
    condition.bound = 1;
    return condition;
  }
  const bool is_multiple = condition.is_of_baseline && bound.back() == '*';
  if (is_multiple) bound.pop_back();
  if (condition.is_of_baseline != is_multiple || !absl::SimpleAtod(bound, &condition.bound) ||
      !std::isfinite(condition.bound)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got \"", std::string(text),
        "\", expected a number, baseline, or a multiple of it, like 0.9*baseline, behind ",
        std::string(text.substr(sign, 2))));
  }
  return condition;
}

absl::StatusOr<std::vector<Condition>> ParseConditions(const std::vector<std::string>& texts,
                                                       const DevicePrices& prices) {
  std::vector<Condition> conditions;
  for (const std::string& text : texts) {
    auto condition = ParseCondition(text, prices);
    if (!condition.ok()) return condition.status();
    conditions.push_back(*std::move(condition));
  }
  return conditions;
}

std::optional<bool> Holds(const Condition& condition, const pb::PointResult& result,
                          const pb::PointResult& baseline) {
  if (!condition.metric) {
    const auto& limits = result.report().goodput().objectives();
    const bool has_limits = condition.goodput > 0 ||
                            std::any_of(limits.begin(), limits.end(),
                                        [](const auto& limit) { return limit.percentile() > 0; });
    if (!has_limits) return std::nullopt;
    return JudgeOne(condition, result).probe.met();
  }
  const auto value = ValueOf(*condition.metric, result);
  const auto bound = BoundOf(condition, baseline);
  if (!value || !bound) return std::nullopt;
  return condition.is_upper_bound ? *value <= *bound : *value >= *bound;
}

std::string DescribeMiss(const std::vector<Condition>& conditions, const pb::PointResult& result,
                         const pb::PointResult& baseline) {
  if (!result.problem().empty()) return result.problem();
  std::vector<std::string> missed;
  bool is_about_time = false;
  for (const Condition& condition : conditions) {
    if (Holds(condition, result, baseline).value_or(false)) continue;
    is_about_time |= IsAboutTime(condition);
    if (!condition.metric) {
      missed.push_back(DescribeMissedLimits(JudgeOne(condition, result).probe, condition.goodput));
      continue;
    }
    const SweepMetric& metric = *condition.metric;
    missed.push_back(absl::StrCat(metric.name, " is ",
                                  MetricText(metric, ValueOf(metric, result).value_or(0)),
                                  condition.is_upper_bound ? ", the most is " : ", the least is ",
                                  MetricText(metric, BoundOf(condition, baseline).value_or(0))));
  }
  std::string text = absl::StrJoin(missed, "; ");
  if (is_about_time) {
    absl::StrAppend(&text, ". ",
                    DescribeBottleneck(JudgeLimits(absl::MakeConstSpan(&result, 1), 0)));
  }
  return text;
}

}  // namespace kvblocks::sim
