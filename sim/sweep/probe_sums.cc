#include "kvblocks/sim/sweep/probe_sums.h"

#include <algorithm>

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

void ProbeSums::AddReplica(const pb::PointResult& result) {
  const auto& goodput = result.report().goodput();
  const auto& workload = result.report().workload();
  if (workload.requests_arrived() > 0) {
    arrived += workload.requests_arrived();
    first_arrival = std::min(first_arrival, workload.first_arrival_s());
    last_arrival = std::max(last_arrival, workload.last_arrival_s());
  }
  total += goodput.requests_total();
  all_good += goodput.requests_good();
  double use = 0;
  for (size_t o = 0; o < good.size(); ++o) {
    const auto& objective = goodput.objectives(static_cast<int>(o));
    good[o] += objective.requests_good();
    observed[o] = std::max(observed[o], objective.observed_ms());
    use = std::max(use, objective.observed_ms() / objective.limit_ms());
  }
  if (use > worst_use) {
    worst_use = use;
    worst = result;
  }
}

void ProbeSums::Add(const pb::PointResult& result) {
  if (!result.has_fleet()) return AddReplica(result);
  const auto& fleet = result.fleet();
  for (int r = 0; r < fleet.reports_size(); ++r) {
    pb::PointResult one;
    *one.mutable_report() = fleet.reports(r);
    if (!one.report().has_config()) *one.mutable_report()->mutable_config() = fleet.config();
    *one.mutable_pressure() = result.pressures(r);
    AddReplica(one);
  }
  // With those that ended at the router.
  total = fleet.goodput().requests_total();
  for (size_t o = 0; o < good.size(); ++o) {
    observed[o] = fleet.goodput().objectives(static_cast<int>(o)).observed_ms();
  }
}

}  // namespace kvblocks::sim
