// RankRouter: the balancer of vLLM 0.33 between the data-parallel ranks of a replica.
//
// Replicas get requests in turn. Of a replica's ranks the one with the lowest score gets it:
//
//   max(sent there and not over, waiting + running) + waiting x 6 x max(0, use of the pool - 1/2)
//
// The first number is the front-end's own and exact. The others are what ranks told: they tell when a step
// is scheduled and when one ends, and the front-end learns of it at most once in `stats_interval`. In
// between it adds what it sent to the waiting ones. Of equal scores the first counts, from a rank on that
// moves on by one with every request.
//
// One front-end: with several each knows its own requests only. Scores are exact fractions.

#ifndef KVBLOCKS_SIM_FLEET_RANK_ROUTER_H_
#define KVBLOCKS_SIM_FLEET_RANK_ROUTER_H_

#include <cstdint>
#include <vector>

#include "kvblocks/sim/fleet/router.h"

namespace kvblocks::sim {

class RankRouter final : public Router {
 public:
  // REQUIRES: groups that are ascending. A replica that is in none of the groups has one rank.
  RankRouter(const RouterOptions& options, int32_t num_replicas,
             const std::vector<RankGroup>& groups);

  RouteAnswer Route(const RouteQuestion& question) override;
  void OnCounts(int32_t replica, const RankCounts& counts, SimTime now) override;

 private:
  struct Unit {
    int32_t first = 0, count = 1;
    int32_t start = 0;        // where the next look begins
    bool is_changed = false;  // ranks told what the front-end does not know
    bool has_reported = false;
    SimTime reported = 0;  // when that was due, or is
  };
  void Report(Unit& unit, SimTime now);
  int32_t Choose(Unit& unit, const RouteQuestion& question);

  const SimTime interval_;
  std::vector<Unit> units_;
  std::vector<size_t> unit_of_;  // by replica
  std::vector<RankCounts> told_, known_;
  size_t turn_ = 0;  // of units
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_RANK_ROUTER_H_
