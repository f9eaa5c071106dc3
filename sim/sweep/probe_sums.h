// ProbeSums: what the replicas of one probe of a capacity search add up to.

#ifndef KVBLOCKS_SIM_SWEEP_PROBE_SUMS_H_
#define KVBLOCKS_SIM_SWEEP_PROBE_SUMS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "kvblocks/sim/sweep/sweep.pb.h"

namespace kvblocks::sim {

struct ProbeSums {
  explicit ProbeSums(size_t num_objectives) : good(num_objectives), observed(num_objectives) {}

  // One of independent replicas, or several behind a router. REQUIRES: it has a report.
  void Add(const ::kvblocks::sweep::v1::PointResult& result);

  std::vector<int64_t> good;  // requests within each limit
  // At its percentile: of the worst of independent replicas, or of all requests behind a router.
  std::vector<double> observed;
  int64_t all_good = 0, total = 0, arrived = 0;
  double first_arrival = std::numeric_limits<double>::infinity(), last_arrival = 0;
  // The replica with most of its limits.
  double worst_use = -1;
  ::kvblocks::sweep::v1::PointResult worst;

 private:
  void AddReplica(const ::kvblocks::sweep::v1::PointResult& result);
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_PROBE_SUMS_H_
