#include "sim/sweep/condition.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/report/human_table.h"
#include "sim/report/latency_metrics.h"

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

// The number to compare with; empty if the baseline has none.
std::optional<double> BoundOf(const Condition& condition, const pb::PointResult& baseline) {
  if (!condition.is_of_baseline) return condition.bound;
  const auto value = ValueOf(*condition.metric, baseline);
  if (!value) return std::nullopt;
  return condition.bound * *value;
}

}  // namespace

absl::StatusOr<Condition> ParseCondition(std::string_view text, const Prices& prices) {
  Condition condition;
  condition.text = std::string(text);
  if (text == "slo") return condition;
  size_t sign = text.find("<=");
  if (sign == std::string_view::npos) {
    sign = text.find(">=");
    condition.is_upper_bound = false;
  }
  if (sign == std::string_view::npos) {
    return InvalidArgument(
        "got \"", std::string(text),
        "\", expected METRIC<=NUMBER, METRIC>=NUMBER or slo, like ttft-p99<=500 or hit-rate>=0.6");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(condition.metric, FindSweepMetric(text.substr(0, sign), prices));
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
    return InvalidArgument(
        "got \"", std::string(text),
        "\", expected a number, baseline, or a multiple of it, like 0.9*baseline, behind ",
        std::string(text.substr(sign, 2)));
  }
  return condition;
}

absl::StatusOr<std::vector<Condition>> ParseConditions(const std::vector<std::string>& texts,
                                                       const Prices& prices) {
  std::vector<Condition> conditions;
  for (const std::string& text : texts) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto condition, ParseCondition(text, prices));
    conditions.push_back(std::move(condition));
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
    return JudgeLimits(result, condition.goodput).probe.met();
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
      missed.push_back(
          DescribeMissedLimits(JudgeLimits(result, condition.goodput).probe, condition.goodput));
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
                    DescribeBottleneck(JudgeLimits(result, 0)));
  }
  return text;
}

namespace {

// The replica that uses most of its limits.
pb::PointResult WorstReplica(const pb::PointResult& result) {
  const auto& all = result.report();
  if (all.replicas_size() == 0) return result;
  pb::PointResult worst;
  double worst_use = -1;
  for (int r = 0; r < all.replicas_size(); ++r) {
    const auto& report = all.replicas(r).report();
    double use = 0;
    for (const auto& objective : report.goodput().objectives()) {
      use = std::max(use, objective.observed_ms() / objective.limit_ms());
    }
    if (use <= worst_use) continue;
    worst_use = use;
    worst.Clear();
    *worst.mutable_report() = report;
    if (!report.has_config()) *worst.mutable_report()->mutable_config() = all.config();
    if (r < result.pressures_size()) *worst.add_pressures() = result.pressures(r);
  }
  return worst;
}

// What kept requests from being served sooner.
std::string ShortResource(const pb::PointResult& result) {
  const auto& report = result.report();
  const pb::Pressure pressure = result.pressures().empty() ? pb::Pressure() : result.pressures(0);
  const auto& throughput = report.throughput();
  const std::string step =
      absl::StrFormat("steps have %.1f requests and %.0f tokens on average",
                      throughput.mean_batch_requests(), throughput.mean_step_tokens());
  constexpr double kSeldom = 0.02, kMostly = 0.5, kFullSteps = 0.8;
  const double waiting = pressure.waiting_share();
  if (waiting < kSeldom) {
    return absl::StrCat("compute: almost no request waits, but steps take too long (", step, ")");
  }
  if (pressure.pool_full_share() >= kMostly * waiting) {
    return absl::StrFormat("the block pool: at least 90 %% in use for %.0f %% of the time, %s",
                           100 * pressure.pool_full_share(),
                           Plural(report.preemption().preemptions(), "preemption"));
  }
  if (pressure.seqs_full_share() >= kMostly * waiting) {
    return absl::StrFormat(
        "max_num_seqs: %d requests run, and others wait, for %.0f %% of the time",
        report.config().max_num_seqs(), 100 * pressure.seqs_full_share());
  }
  if (throughput.budget_use() >= kFullSteps) {
    return absl::StrFormat("max_num_batched_tokens: steps are %.0f %% full of %d tokens",
                           100 * throughput.budget_use(), report.config().max_num_batched_tokens());
  }
  return absl::StrFormat("compute: the device is busy for %.0f %% of the time, %s",
                         100 * throughput.busy_share(), step);
}

}  // namespace

absl::StatusOr<bool> HasLimits(std::string_view slo, double goodput) {
  const auto objectives = ParseObjectives(slo);
  if (!objectives.ok()) {
    return InvalidArgument("--", objectives.status().message());
  }
  if (objectives->empty() && goodput > 0) {
    return absl::InvalidArgumentError("--goodput: needs --slo");
  }
  return goodput > 0 || std::any_of(objectives->begin(), objectives->end(),
                                    [](const Objective& one) { return one.percentile > 0; });
}

Probed JudgeLimits(const pb::PointResult& result, double goodput) {
  Probed probed;
  pb::CapacityReport::Probe& probe = probed.probe;
  probe.set_problem(result.problem());
  if (!result.problem().empty()) return probed;
  probed.worst = WorstReplica(result);
  const auto& all = result.report().goodput();
  const auto share = [&](int64_t part) {
    return all.requests_total() == 0
               ? 0.0
               : static_cast<double>(part) / static_cast<double>(all.requests_total());
  };
  bool met = all.requests_total() > 0;
  for (const auto& objective : all.objectives()) {
    pb::CapacityReport::Objective* out = probe.add_objectives();
    out->set_metric(objective.metric());
    out->set_limit_ms(objective.limit_ms());
    out->set_percentile(objective.percentile());
    out->set_observed_ms(objective.observed_ms());
    out->set_share(share(objective.requests_good()));
    // Counts, so that requests that never ran are not left out.
    const auto hundredths = std::llround(100 * objective.percentile());
    out->set_met(hundredths == 0 ||
                 static_cast<__int128>(objective.requests_good()) * 10000 >=
                     static_cast<__int128>(hundredths) * all.requests_total());
    met = met && out->met();
  }
  const auto& workload = result.report().workload();
  const double seconds = workload.last_arrival_s() - workload.first_arrival_s();
  if (seconds > 0) {
    probed.arrivals_per_s = static_cast<double>(workload.requests_arrived() - 1) / seconds;
  }
  probe.set_good_share(share(all.requests_good()));
  probe.set_met(met && share(all.requests_good()) >= goodput);
  return probed;
}

double WorstUse(const pb::CapacityReport::Probe& probe) {
  double worst = 0;
  for (const auto& objective : probe.objectives()) {
    if (!objective.met()) worst = std::max(worst, objective.observed_ms() / objective.limit_ms());
  }
  return worst;
}

std::string DescribeMissedLimits(const pb::CapacityReport::Probe& probe, double goodput) {
  std::vector<std::string> missed;
  for (const auto& objective : probe.objectives()) {
    if (objective.met()) continue;
    missed.push_back(absl::StrFormat("%s p%g is %s, the limit %s (%.2f %% of requests meet it)",
                                     objective.metric(), objective.percentile(),
                                     Span(objective.observed_ms() / 1e3),
                                     Span(objective.limit_ms() / 1e3), 100 * objective.share()));
  }
  if (missed.empty()) {
    missed.push_back(absl::StrFormat("%.2f %% of requests meet all limits, asked for are %.2f %%",
                                     100 * probe.good_share(), 100 * goodput));
  }
  return absl::StrJoin(missed, "; ");
}

std::string DescribeBottleneck(const Probed& probed) {
  return absl::StrCat("The bottleneck is ", ShortResource(probed.worst));
}

}  // namespace kvblocks::sim
