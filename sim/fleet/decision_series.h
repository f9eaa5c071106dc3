// DecisionSeries: what a router's decisions were worth, over time, on a grid whose tick doubles when a
// run outgrows it. Counts belong to the tick in which they happen; their sums stay exact.
//
// Cost: O(1) per decision. Memory: kMostPoints at most.

#ifndef KVBLOCKS_SIM_FLEET_DECISION_SERIES_H_
#define KVBLOCKS_SIM_FLEET_DECISION_SERIES_H_

#include <cstdint>
#include <vector>

#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/fleet/fleet.pb.h"

namespace kvblocks::sim {

class DecisionSeries {
 public:
  static constexpr size_t kMostPoints = 500;

  struct Counts {
    int64_t routed = 0;
    int64_t oracle_more_tokens = 0;
    int64_t missing_tokens = 0;
    int64_t unknown_tokens = 0;
  };

  void Add(SimTime at, const Counts& counts);
  void Fill(::kvblocks::fleet::v1::DecisionSeries* out) const;

 private:
  SimTime tick_ = kSecond;
  std::vector<Counts> points_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_DECISION_SERIES_H_
