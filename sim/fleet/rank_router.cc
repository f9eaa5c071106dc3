// RankRouter: the balancer of vLLM 0.33 between the data-parallel ranks of a replica.
//
// Replicas get requests one after the other. Of a replica's ranks the one with the lowest score gets
// it:
//
//   max(sent there and not over, waiting + running) + waiting x 6 x max(0, use of the pool - 1/2)
//
// The first number is the front-end's own and exact. The others are what ranks reported: they report
// when a step is scheduled and when one ends, and the front-end learns of it at most once in
// `stats_interval`. In between it adds what it sent to the waiting ones. Of equal scores the first
// counts, from a rank on that moves on by one with every request.
//
// One front-end: with several each knows its own requests only. Scores are exact fractions.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kvblocks/sim/fleet/router.h"

namespace kvblocks::sim {
namespace {

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
    int32_t start = 0;        // where the next search begins
    bool is_changed = false;  // ranks reported what the front-end does not know
    bool has_reported = false;
    SimTime reported = 0;  // when that was due, or is
  };
  void Report(Unit& unit, SimTime now);
  int32_t Choose(Unit& unit, const RouteQuestion& question);

  const SimTime interval_;
  std::vector<Unit> units_;
  std::vector<size_t> unit_of_;  // by replica
  std::vector<RankCounts> latest_, known_;
  size_t next_unit_ = 0;  // of units
};

// A score times `num_blocks`, so that it is a whole number.
__int128 ScoreOf(const RankCounts& known, int64_t num_sent, int64_t num_blocks) {
  const __int128 blocks = num_blocks;
  __int128 score = std::max(num_sent, known.num_waiting + known.num_running) * blocks;
  const __int128 above_half = 2 * __int128{known.num_blocks_used} - known.num_blocks;
  if (known.num_waiting > 0 && above_half > 0 && known.num_blocks > 0) {
    score += 3 * known.num_waiting * above_half * blocks / known.num_blocks;
  }
  return score;
}

RankRouter::RankRouter(const RouterOptions& options, int32_t num_replicas,
                       const std::vector<RankGroup>& groups)
    : interval_(options.stats_interval),
      latest_(static_cast<size_t>(num_replicas)),
      known_(latest_.size()) {
  auto group = groups.begin();
  for (int32_t r = 0; r < num_replicas;) {
    const bool is_group = group != groups.end() && group->first == r;
    const int32_t count = is_group ? (group++)->count : 1;
    unit_of_.insert(unit_of_.end(), static_cast<size_t>(count), units_.size());
    units_.push_back({.first = r, .count = count});
    r += count;
  }
}

// What came before the report was due is in it, also if it is asked for later.
void RankRouter::Report(Unit& unit, SimTime now) {
  if (!unit.is_changed || unit.reported > now) return;
  const auto begin = latest_.begin() + unit.first;
  std::copy(begin, begin + unit.count, known_.begin() + unit.first);
  unit.is_changed = false;
  unit.has_reported = true;
}

void RankRouter::OnCounts(int32_t replica, const RankCounts& counts, SimTime now) {
  Unit& unit = units_[unit_of_[static_cast<size_t>(replica)]];
  RankCounts& latest = latest_[static_cast<size_t>(replica)];
  if (latest == counts) return;
  // What comes at one instant is in one report.
  if (unit.reported < now) Report(unit, now);
  latest = counts;
  if (unit.is_changed) return;
  unit.is_changed = true;
  unit.reported = unit.has_reported ? std::max(unit.reported + interval_, now) : now;
}

int32_t RankRouter::Choose(Unit& unit, const RouteQuestion& question) {
  int64_t num_blocks = 1;
  for (int32_t i = 0; i < unit.count; ++i) {
    num_blocks = std::max(num_blocks, known_[static_cast<size_t>(unit.first + i)].num_blocks);
  }
  int32_t chosen = -1;
  __int128 least = 0;
  for (int32_t i = 0; i < unit.count; ++i) {
    const int32_t rank = unit.first + (unit.start + i) % unit.count;
    const auto r = static_cast<size_t>(rank);
    if (!MayHave(question, r)) continue;
    const __int128 score = ScoreOf(known_[r], question.loads[r].num_requests, num_blocks);
    if (chosen >= 0 && score >= least) continue;
    chosen = rank;
    least = score;
  }
  return chosen;
}

RouteAnswer RankRouter::Route(const RouteQuestion& question) {
  // Somebody has room.
  for (;; ++next_unit_) {
    Unit& unit = units_[next_unit_ % units_.size()];
    Report(unit, question.now);
    const int32_t chosen = Choose(unit, question);
    if (chosen < 0) continue;
    ++next_unit_;
    ++known_[static_cast<size_t>(chosen)].num_waiting;
    unit.start = (unit.start + 1) % unit.count;
    return {.replica = chosen};
  }
}

}  // namespace

std::unique_ptr<Router> MakeRankRouter(const RouterOptions& options, int32_t num_replicas,
                                       const std::vector<RankGroup>& groups) {
  return std::make_unique<RankRouter>(options, num_replicas, groups);
}

}  // namespace kvblocks::sim
