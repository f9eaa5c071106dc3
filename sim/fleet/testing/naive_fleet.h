// NaiveFleet: naive engines on one event list behind a naive router, with its queue, replicas that
// come and go and ranks that step together, to hold Fleet against.
//
// Everything is asked anew at every instant, contents are whole prefixes, and an index is a set.
// Steps of 1 s, all times in seconds.

#ifndef KVBLOCKS_SIM_FLEET_TESTING_NAIVE_FLEET_H_
#define KVBLOCKS_SIM_FLEET_TESTING_NAIVE_FLEET_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/fleet/fleet.h"
#include "sim/fleet/testing/naive_ranks.h"
#include "sim/gen/philox.h"
#include "sim/testing/naive_engine.h"

namespace kvblocks::sim {

class NaiveFleet {
 public:
  NaiveFleet(const NaiveOptions& engine, const FleetOptions& fleet, int64_t count,
             const NaivePassTime& pass_time = {})
      : o_(engine),
        fleet_(fleet),
        sent_(static_cast<size_t>(count)),
        balancer_(fleet.router.stats_interval / kSecond) {
    for (int64_t i = 0; i < count; ++i) {
      engines.emplace_back(engine);
      states_.push_back(i < fleet.num_live ? "live" : "off");
    }
    balancer_.set_pool(engine.num_blocks - 1);
    for (size_t e = 0; e < engines.size(); ++e) {
      engines[e].on_counts = [this, e](int64_t now) {
        balancer_.Report(e,
                         {.num_waiting = engines[e].num_waiting(),
                          .num_running = engines[e].num_running(),
                          .num_blocks_used = engines[e].num_used(),
                          .num_blocks = o_.num_blocks - 1},
                         now);
      };
    }
    for (const RankGroup& ranks : fleet.ranks) {
      if (!ranks.is_lockstep) continue;
      LockstepOptions options = fleet.lockstep;
      options.prefill_interval = engine.prefill_schedule_interval;
      groups.push_back({static_cast<size_t>(ranks.first), static_cast<size_t>(ranks.count), options,
                        engine.async, pass_time});
    }
    ups_.resize(engines.size());
    published_.resize(engines.size());
    recent_.resize(engines.size());
  }

  // In arrival order.
  void Run(std::vector<NaiveRequest> requests) {
    size_t next_request = 0;
    int64_t now = 0;
    for (int guard = 0; guard < 100000; ++guard) {
      for (size_t e = 0; e < engines.size(); ++e) {
        if (!engines[e].EndsStep(now)) continue;
        if (engines[e].EndStep(now)) Publish(e, now);
      }
      for (size_t e = 0; e < engines.size(); ++e) SwitchOff(e);
      GiveUp(now);
      Scale(now);
      while (next_request < requests.size() && Due(requests[next_request]) <= now) {
        Reach(&requests[next_request++], now);
      }
      Drain(now);
      for (size_t e = 0; e < engines.size(); ++e) {
        if (IsCoupled(e)) {
          engines[e].GiveUp(now);
          continue;
        }
        engines[e].Go(now);
        if (engines[e].idles()) Publish(e, now);
        SwitchOff(e);
      }
      for (NaiveLockstep& group : groups) {
        group.Step(engines, now);
        for (size_t e = group.first; e < group.first + group.count; ++e) {
          if (engines[e].idles()) Publish(e, now);
        }
      }
      int64_t next = next_request < requests.size() ? Due(requests[next_request]) : -1;
      for (const NaiveEngine& engine : engines) {
        const int64_t wanted = engine.Next(now);
        if (wanted >= 0 && (next < 0 || wanted < next)) next = wanted;
      }
      for (const NaiveRequest* r : queue_) {
        if (r->abort_at >= 0 && (next < 0 || r->abort_at < next)) next = r->abort_at;
      }
      if (!queue_.empty() && !Open(*queue_.front()).empty()) next = now;  // an abort made room
      if (next < 0 && queue_.empty()) return;
      const int64_t change = NextChange(now);
      if (change >= 0 && (next < 0 || change < next)) next = change;
      if (next < 0) return;
      now = std::max(now, next);
    }
  }

  std::vector<NaiveEngine> engines;
  std::vector<NaiveLockstep> groups;
  std::vector<std::string> decisions;
  int64_t num_lost = 0;
  bool has_held() const { return !queue_.empty(); }

 private:
  static int64_t CeilOf(int64_t a, int64_t b) { return (a + b - 1) / b; }
  using Key = NaiveEngine::Key;

  int64_t Due(const NaiveRequest& r) const {
    return r.arrival + fleet_.router_delay / kSecond;
  }

  bool IsCoupled(size_t e) const {
    return std::any_of(groups.begin(), groups.end(), [&](const NaiveLockstep& group) {
      return e >= group.first && e < group.first + group.count;
    });
  }

  // Replicas in turn, and of one the rank with the lowest score.
  size_t ChooseRank(const std::vector<size_t>& open, int64_t now) {
    std::vector<std::pair<size_t, size_t>> units;
    size_t next = 0;
    for (const RankGroup& ranks : fleet_.ranks) {
      for (; next < static_cast<size_t>(ranks.first); ++next) units.push_back({next, 1});
      units.push_back({next, static_cast<size_t>(ranks.count)});
      next += units.back().second;
    }
    for (; next < engines.size(); ++next) units.push_back({next, 1});
    const auto has_room = [&](const std::pair<size_t, size_t>& unit) {
      return std::any_of(open.begin(), open.end(), [&](size_t e) {
        return e >= unit.first && e < unit.first + unit.second;
      });
    };
    while (!has_room(units[turn_ % units.size()])) ++turn_;
    const auto [first, count] = units[turn_++ % units.size()];
    return balancer_.Choose(
        first, count, open, [&](size_t e) { return Requests(e); }, num_sends_[first]++, now);
  }

  // --- Replicas that come and go ---

  void SwitchOff(size_t e) {
    if (states_[e] == "draining" && Requests(e) == 0) states_[e] = "off";
  }
  int64_t NextChange(int64_t now) const {
    int64_t next = -1;
    const auto consider = [&](int64_t time) {
      if (time >= now && (next < 0 || time < next)) next = time;
    };
    for (const ScaleEntry& entry : fleet_.scaling.schedule) {
      if (!done_.count(&entry)) consider(entry.time / kSecond);
    }
    for (size_t e = 0; e < engines.size(); ++e) {
      if (states_[e] == "starting") consider(ups_[e]);
    }
    return next;
  }
  std::vector<size_t> Live() const {
    std::vector<size_t> live;
    for (size_t e = 0; e < engines.size(); ++e) {
      if (states_[e] == "live") live.push_back(e);
    }
    return live;
  }
  void Forget(size_t e) {
    published_[e].clear();
    recent_[e].clear();
    std::erase_if(homes_, [&](const auto& home) { return home.second == e; });
  }
  std::optional<size_t> Pick(const ScaleEntry& entry) const {
    const auto suits = [&](size_t e) {
      if (entry.action == ScaleAction::kStart) return states_[e] == "off";
      const bool may_drain = entry.action == ScaleAction::kCrash && entry.replica >= 0;
      return states_[e] == "live" || states_[e] == "starting" ||
             (may_drain && states_[e] == "draining");
    };
    if (entry.replica >= 0) {
      const auto e = static_cast<size_t>(entry.replica);
      return e < engines.size() && suits(e) ? std::optional<size_t>(e) : std::nullopt;
    }
    std::optional<size_t> picked;
    for (size_t e = 0; e < engines.size(); ++e) {
      if (suits(e) && (!picked || entry.action != ScaleAction::kStart)) picked = e;
    }
    return picked;
  }
  void Change(const ScaleEntry& entry, int64_t now, std::vector<NaiveRequest*>& lost) {
    for (int32_t i = 0; i < entry.count; ++i) {
      const std::optional<size_t> e = Pick(entry);
      if (!e) return;
      if (entry.action == ScaleAction::kStop) {
        states_[*e] = "draining";
        Forget(*e);
        SwitchOff(*e);
        continue;
      }
      const auto taken = engines[*e].Crash(now);
      lost.insert(lost.end(), taken.begin(), taken.end());
      for (NaiveRequest* r : taken) std::erase(sent_[*e], r);
      Forget(*e);
      states_[*e] = "off";
      if (entry.action == ScaleAction::kCrash) continue;
      ups_[*e] = now + fleet_.scaling.start_time / kSecond;
      states_[*e] = ups_[*e] > now ? "starting" : "live";
    }
  }
  void Scale(int64_t now) {
    std::vector<NaiveRequest*> lost;
    bool is_due = false;
    for (size_t e = 0; e < engines.size(); ++e) {
      if (states_[e] != "starting" || ups_[e] > now) continue;
      states_[e] = "live";
      is_due = true;
    }
    for (const ScaleEntry& entry : fleet_.scaling.schedule) {
      if (entry.time / kSecond > now || !done_.insert(&entry).second) continue;
      Change(entry, now, lost);
      is_due = true;
    }
    if (!is_due) return;
    num_lost += static_cast<int64_t>(lost.size());
    if (fleet_.scaling.fails_lost) lost.clear();
    std::sort(lost.begin(), lost.end(), [](const NaiveRequest* a, const NaiveRequest* b) {
      return std::pair(a->arrival, a->row) < std::pair(b->arrival, b->row);
    });
    Drain(now);
    for (NaiveRequest* r : lost) {
      r->tokens.resize(static_cast<size_t>(r->prompt));
      r->settled = r->drafts = r->next_call = 0;
      r->table.clear();
      r->arrived = r->ended = r->chunk = r->admitted = r->prefilling = false;
      Reach(r, now);
    }
  }

  void Publish(size_t e, int64_t now) {
    if (states_[e] != "live") return;
    published_[e].push_back({now + fleet_.event_delay / kSecond, engines[e].cached()});
  }
  // What has been reported to the router by now.
  std::set<Key> Known(size_t e, int64_t now) const {
    std::set<Key> known;
    for (const auto& [time, keys] : published_[e]) {
      if (time <= now) known = keys;
    }
    return known;
  }

  int64_t Requests(size_t e) const {
    return std::count_if(sent_[e].begin(), sent_[e].end(),
                         [](const NaiveRequest* r) { return !r->ended; });
  }
  int64_t Tokens(size_t e) const {
    int64_t sum = 0;
    for (const NaiveRequest* r : sent_[e])
      sum += r->ended ? 0 : static_cast<int64_t>(r->tokens.size());
    return sum;
  }
  int64_t Waiting(size_t e) const {
    int64_t sum = 0;
    for (const NaiveRequest* r : sent_[e]) sum += r->ended || r->admitted ? 0 : r->prompt;
    return sum;
  }

  // Those that may be sent it.
  std::vector<size_t> Open(const NaiveRequest& r) const {
    const RouterQueueOptions& q = fleet_.queue;
    std::vector<size_t> open;
    for (size_t e = 0; e < engines.size(); ++e) {
      const bool is_full = (q.max_requests > 0 && Requests(e) + 1 > q.max_requests) ||
                           (q.max_tokens > 0 && Tokens(e) + r.prompt > q.max_tokens);
      if (states_[e] == "live" && (!is_full || Requests(e) == 0)) open.push_back(e);
    }
    return open;
  }

  // --- Those that wait ---

  void Reach(NaiveRequest* r, int64_t now) {
    const bool has_limits = fleet_.queue.max_requests > 0 || fleet_.queue.max_tokens > 0;
    if (!has_limits && queue_.empty() && !Live().empty()) return Send(r, now);
    queue_.push_back(r);
    if (fleet_.queue.by_priority) {
      std::stable_sort(
          queue_.begin(), queue_.end(),
          [](const NaiveRequest* a, const NaiveRequest* b) { return a->priority < b->priority; });
    }
    Drain(now);
    if (static_cast<int64_t>(queue_.size()) <= fleet_.queue.max_waiting) return;
    decisions.push_back(absl::StrCat(now, " ", queue_.back()->id, " rejected"));
    queue_.pop_back();
  }
  void Drain(int64_t now) {
    while (!queue_.empty() && !Open(*queue_.front()).empty()) {
      NaiveRequest* r = queue_.front();
      queue_.erase(queue_.begin());
      Send(r, now);
    }
  }
  void GiveUp(int64_t now) {
    std::vector<NaiveRequest*> gone;
    for (NaiveRequest* r : queue_) {
      if (r->abort_at >= 0 && r->abort_at <= now) gone.push_back(r);
    }
    std::stable_sort(gone.begin(), gone.end(), [](const NaiveRequest* a, const NaiveRequest* b) {
      return a->abort_at < b->abort_at;
    });
    for (NaiveRequest* r : gone) {
      decisions.push_back(absl::StrCat(now, " ", r->id, " gave up"));
      queue_.erase(std::find(queue_.begin(), queue_.end(), r));
    }
  }

  template <typename Measure>
  size_t Least(const std::vector<size_t>& open, Measure measure) const {
    return *std::min_element(open.begin(), open.end(),
                             [&](size_t a, size_t b) { return measure(a) < measure(b); });
  }

  size_t Choose(const NaiveRequest& r, const std::vector<int64_t>& claims, int64_t now) {
    const std::vector<size_t> live = Live();
    const auto count = static_cast<int64_t>(live.size());
    const auto by_requests = [&](size_t e) { return Requests(e); };
    const std::vector<size_t> open = Open(r);
    const auto is_open = [&](size_t e) { return std::count(open.begin(), open.end(), e) > 0; };
    const auto num_open = static_cast<int64_t>(open.size());
    switch (fleet_.router.kind) {
      case RouterKind::kRoundRobin:
        while (!is_open(turn_ % engines.size())) ++turn_;
        return turn_++ % engines.size();
      case RouterKind::kRandom:
      case RouterKind::kTwoChoices: {
        Draws draws(fleet_.router.seed, "router", static_cast<uint64_t>(r.row));
        const int64_t first = draws.Below(num_open);
        const size_t a = open[static_cast<size_t>(first)];
        if (fleet_.router.kind == RouterKind::kRandom || num_open == 1) return a;
        int64_t second = draws.Below(num_open - 1);
        second += second >= first;
        const size_t b = open[static_cast<size_t>(second)];
        return Requests(b) < Requests(a) ? b : a;
      }
      case RouterKind::kLeastRequests:
        return Least(open, by_requests);
      case RouterKind::kLeastTokens:
        return Least(open, [&](size_t e) { return Tokens(e); });
      case RouterKind::kSession: {
        if (r.session == 0) return Least(open, by_requests);
        if (!homes_.count(r.session)) {
          homes_[r.session] = live[static_cast<size_t>(
              Draws(fleet_.router.seed, "session", r.session).Below(count))];
        }
        int64_t all = 1;
        for (const size_t e : live) all += Requests(e);
        const int64_t limit = CeilOf(fleet_.router.session_factor * all, kMillion * count);
        size_t& home = homes_[r.session];
        if (fleet_.router.session_factor == 0)
          return is_open(home) ? home : Least(open, by_requests);
        if (Requests(home) + 1 > limit || !is_open(home)) home = Least(open, by_requests);
        return home;
      }
      case RouterKind::kDataParallel:
        return ChooseRank(open, now);
      default:
        break;
    }
    std::vector<std::pair<int64_t, int64_t>> order;  // smaller is better
    for (const size_t e : open) {
      const int64_t score = fleet_.router.hit_weight * (claims[e] / o_.block_size) -
                            fleet_.router.load_weight * CeilOf(Tokens(e), o_.block_size) -
                            fleet_.router.queue_weight * CeilOf(Waiting(e), o_.block_size);
      order.push_back({-score, Tokens(e)});
    }
    return open[static_cast<size_t>(std::min_element(order.begin(), order.end()) - order.begin())];
  }

  void Send(NaiveRequest* r, int64_t now) {
    std::vector<int64_t> held, claims;
    for (size_t e = 0; e < engines.size(); ++e) {
      held.push_back(states_[e] == "live" ? engines[e].Leading(*r, engines[e].cached()) : 0);
      std::set<Key> known = fleet_.router.kind == RouterKind::kPrefixApproximate
                                ? std::set<Key>(recent_[e].begin(), recent_[e].end())
                                : Known(e, now);
      claims.push_back(fleet_.router.kind == RouterKind::kOracle ? held[e]
                                                                 : engines[e].Leading(*r, known));
    }
    const size_t chosen = Choose(*r, claims, now);
    if (fleet_.router.kind == RouterKind::kPrefixApproximate) Remember(*r, recent_[chosen]);
    decisions.push_back(absl::StrCat(now, " ", r->id, " to ", chosen, " held ",
                                     absl::StrJoin(held, ",")));
    if (UsesContent(fleet_.router.kind)) {
      absl::StrAppend(&decisions.back(), " claimed ", absl::StrJoin(claims, ","));
    }
    sent_[chosen].push_back(r);
    engines[chosen].Hand(r);
  }

  void Remember(const NaiveRequest& r, std::vector<Key>& recent) {
    const int64_t count =
        std::min((r.prompt - 1) / o_.block_size, fleet_.router.tree_blocks);
    for (int64_t b = count; b-- > 0;) {
      const Key key(r.tokens.begin(), r.tokens.begin() + (b + 1) * o_.block_size);
      recent.erase(std::remove(recent.begin(), recent.end(), key), recent.end());
      recent.insert(recent.begin(), key);
    }
    while (static_cast<int64_t>(recent.size()) > fleet_.router.tree_blocks) recent.pop_back();
  }

  const NaiveOptions o_;
  const FleetOptions fleet_;
  std::vector<std::vector<NaiveRequest*>> sent_;
  std::vector<std::vector<std::pair<int64_t, std::set<Key>>>> published_;
  std::vector<std::vector<Key>> recent_;
  std::map<uint64_t, size_t> homes_;
  size_t turn_ = 0;
  NaiveBalancer balancer_;
  std::map<size_t, int64_t> num_sends_;  // by the first rank of a replica
  std::vector<NaiveRequest*> queue_;
  std::vector<std::string> states_;
  std::vector<int64_t> ups_;  // when those that start are live
  std::set<const ScaleEntry*> done_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_TESTING_NAIVE_FLEET_H_
