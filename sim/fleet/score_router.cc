// ScoreRouter: the routers that weigh what a replica holds of a prompt against its load.

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/kv_events.h"
#include "sim/fleet/router.h"
#include "sim/gen/fixed_math.h"
#include "sim/gen/philox.h"

namespace kvblocks::sim {
namespace {

// SentBlocks: what a router without news of the caches guesses that one of them holds - the leading
// blocks of the prompts that it sent there, the least recently sent of which it forgets.
//
// Always: at most `capacity` blocks; with a block it knows all blocks before it, since a prompt's
// are renewed from the last to the first. Cost: 50 to 100 ns per block, 60 bytes each.
// Single-threaded.
class SentBlocks {
 public:
  // REQUIRES: capacity >= 1.
  explicit SentBlocks(int64_t capacity) : capacity_(capacity) {}

  // Leading blocks of `prompt` that it knows.
  int64_t Match(absl::Span<const BlockHash> prompt) const;
  // Of a prompt longer than the capacity, the first blocks.
  void Add(absl::Span<const BlockHash> prompt);

  int64_t size() const { return static_cast<int64_t>(places_.size()); }

 private:
  int64_t capacity_;
  std::list<BlockHash> order_;  // most recently sent first
  absl::flat_hash_map<BlockHash, std::list<BlockHash>::iterator> places_;
};

int64_t SentBlocks::Match(absl::Span<const BlockHash> prompt) const {
  const auto missing = std::find_if(prompt.begin(), prompt.end(), [&](const BlockHash& block) {
    return !places_.contains(block);
  });
  return missing - prompt.begin();
}

void SentBlocks::Add(absl::Span<const BlockHash> prompt) {
  const size_t count = std::min(prompt.size(), static_cast<size_t>(capacity_));
  // From the last to the first: what goes first is a prompt's end.
  for (size_t i = count; i-- > 0;) {
    const auto [place, is_new] = places_.try_emplace(prompt[i]);
    if (is_new) {
      order_.push_front(prompt[i]);
    } else {
      order_.splice(order_.begin(), order_, place->second);
    }
    place->second = order_.begin();
  }
  while (size() > capacity_) {
    places_.erase(order_.back());
    order_.pop_back();
  }
}

class ScoreRouter final : public Router {
 public:
  // REQUIRES: UsesContent(options.kind).
  ScoreRouter(const RouterOptions& options, int32_t num_replicas, GroupId group);

  RouteAnswer Route(const RouteQuestion& question) override;
  void OnKvEvents(int32_t replica, absl::Span<const KvEvent> events) override;
  void OnGone(int32_t replica) override;

 private:
  void Claim(const RouteQuestion& question);
  int32_t Best(const RouteQuestion& question) const;
  int32_t Drawn(const RouteQuestion& question);

  const RouterOptions options_;
  const GroupId group_;
  events::BlockIndex index_;        // of prefix; holders are replicas
  std::vector<SentBlocks> sent_;    // of prefix-approximate
  std::vector<int64_t> claimed_, scores_;
  // Scratch.
  std::vector<double> odds_;
  std::vector<int32_t> open_;  // whose they are
};

ScoreRouter::ScoreRouter(const RouterOptions& options, int32_t num_replicas, GroupId group)
    : options_(options),
      group_(group),
      claimed_(static_cast<size_t>(num_replicas)),
      scores_(static_cast<size_t>(num_replicas)) {
  for (int32_t r = 0; r < num_replicas; ++r) {
    index_.AddHolder(std::to_string(r));
    if (options.kind == RouterKind::kPrefixApproximate) sent_.emplace_back(options.tree_blocks);
  }
}

void ScoreRouter::OnKvEvents(int32_t replica, absl::Span<const KvEvent> events) {
  if (options_.kind == RouterKind::kPrefix) index_.Apply(replica, events);
}

void ScoreRouter::OnGone(int32_t replica) {
  index_.Forget(replica);
  if (!sent_.empty()) sent_[static_cast<size_t>(replica)] = SentBlocks(options_.tree_blocks);
}

void ScoreRouter::Claim(const RouteQuestion& question) {
  std::fill(claimed_.begin(), claimed_.end(), 0);
  switch (options_.kind) {
    case RouterKind::kPrefix:
      for (const auto& match : index_.FindLongestPrefix(question.blocks, group_)) {
        claimed_[static_cast<size_t>(match.holder)] = match.num_blocks * question.block_tokens;
      }
      break;
    case RouterKind::kPrefixApproximate:
      for (size_t r = 0; r < sent_.size(); ++r) {
        claimed_[r] = sent_[r].Match(question.blocks) * question.block_tokens;
      }
      break;
    default:
      std::copy(question.tokens_held.begin(), question.tokens_held.end(), claimed_.begin());
  }
}

RouteAnswer ScoreRouter::Route(const RouteQuestion& question) {
  Claim(question);
  const auto in_blocks = [&](int64_t tokens) {
    return (tokens + question.block_tokens - 1) / question.block_tokens;
  };
  for (size_t r = 0; r < scores_.size(); ++r) {
    const ReplicaLoad& load = question.loads[r];
    scores_[r] = options_.hit_weight * (claimed_[r] / question.block_tokens) -
                 options_.load_weight * in_blocks(load.num_tokens) -
                 options_.queue_weight * in_blocks(load.num_waiting_tokens);
  }
  const int32_t replica = options_.temperature > 0 ? Drawn(question) : Best(question);
  if (!sent_.empty()) sent_[static_cast<size_t>(replica)].Add(question.blocks);
  return {.replica = replica, .claimed_tokens = claimed_, .scores = scores_};
}

int32_t ScoreRouter::Best(const RouteQuestion& question) const {
  size_t best = scores_.size();
  for (size_t r = 0; r < scores_.size(); ++r) {
    if (!MayHave(question, r)) continue;
    if (best == scores_.size() || scores_[r] > scores_[best] ||
        (scores_[r] == scores_[best] &&
         question.loads[r].num_tokens < question.loads[best].num_tokens)) {
      best = r;
    }
  }
  return static_cast<int32_t>(best);
}

int32_t ScoreRouter::Drawn(const RouteQuestion& question) {
  const int64_t highest = scores_[static_cast<size_t>(Best(question))];
  odds_.clear();
  open_.clear();
  double sum = 0;
  for (size_t r = 0; r < scores_.size(); ++r) {
    if (!MayHave(question, r)) continue;
    sum += FixedExp(static_cast<double>(scores_[r] - highest) /
                    static_cast<double>(options_.temperature));
    odds_.push_back(sum);
    open_.push_back(static_cast<int32_t>(r));
  }
  Draws draws(options_.seed, "router", static_cast<uint64_t>(question.request.spec.row));
  const double drawn = draws.Uniform() * sum;
  const auto place = std::upper_bound(odds_.begin(), odds_.end() - 1, drawn);
  return open_[static_cast<size_t>(place - odds_.begin())];
}

}  // namespace

std::unique_ptr<Router> MakeScoreRouter(const RouterOptions& options, int32_t num_replicas,
                                        GroupId group) {
  return std::make_unique<ScoreRouter>(options, num_replicas, group);
}

// RankRouter: the balancer of vLLM 0.33 between the data-parallel ranks of a replica.
//
// Replicas get requests one after the other. Of a replica's ranks the one with the lowest score
// gets it:
//
//   max(sent there and not over, waiting + running) + waiting x 6 x max(0, use of the pool - 1/2)
//
// The first number is the front-end's own and exact. The others are what ranks reported: they
// report when a step is scheduled and when one ends, and the front-end learns of it at most once in
// `stats_interval`. In between it adds what it sent to the waiting ones. Of equal scores the first
// counts, from a rank on that moves on by one with every request.
//
// One front-end: with several each knows its own requests only. Scores are exact fractions.

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
