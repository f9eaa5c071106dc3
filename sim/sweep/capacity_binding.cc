#include "kvblocks/sim/sweep/capacity_binding.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kvblocks/sim/report/human_table.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

namespace {

// What kept requests from being served sooner.
std::string ShortResource(const pb::PointResult& result) {
  const auto& report = result.report();
  const auto& pressure = result.pressure();
  const auto& throughput = report.throughput();
  const std::string step =
      absl::StrFormat("steps have %.1f requests and %.0f tokens on average",
                      throughput.mean_batch_requests(), throughput.mean_step_tokens());
  constexpr double kSeldom = 0.02, kMostly = 0.5, kFullSteps = 0.8;
  const double waiting = pressure.waiting_share();
  if (waiting < kSeldom) {
    return absl::StrCat("compute: hardly anybody waits, but steps take too long (", step, ")");
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

double WorstUse(const pb::CapacityReport::Probe& probe) {
  double worst = 0;
  for (const auto& objective : probe.objectives()) {
    if (!objective.met()) worst = std::max(worst, objective.observed_ms() / objective.limit_ms());
  }
  return worst;
}

std::string DescribeBinding(const pb::CapacityReport::Probe& probe, const pb::PointResult& worst,
                            double goodput) {
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
  return absl::StrCat(absl::StrJoin(missed, "; "), ". Short is ", ShortResource(worst));
}

}  // namespace kvblocks::sim
