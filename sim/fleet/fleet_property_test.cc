// Fleets against naive engines on one event list, and a fleet of one against a simulation: random
// workloads, configurations and routers.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/fleet/fleet.h"
#include "kvblocks/sim/gen/philox.h"
#include "kvblocks/sim/testing/draw.h"
#include "kvblocks/sim/testing/naive_engine.h"
#include "kvblocks/sim/testing/replay.h"
#include "rapidcheck/gtest.h"

namespace kvblocks::sim {
namespace {

int64_t CeilOf(int64_t a, int64_t b) { return (a + b - 1) / b; }

// --- Naive engines behind a naive router ---

// Steps of 1 s, all times in seconds.
class NaiveFleet {
 public:
  NaiveFleet(const NaiveOptions& engine, const FleetOptions& fleet, int64_t count)
      : o_(engine), fleet_(fleet), sent_(static_cast<size_t>(count)) {
    for (int64_t i = 0; i < count; ++i) {
      engines.emplace_back(engine);
      states_.push_back(i < fleet.num_live ? "live" : "off");
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
        engines[e].EndStep(now);
        Publish(e, now);
      }
      for (size_t e = 0; e < engines.size(); ++e) SwitchOff(e);
      GiveUp(now);
      Scale(now);
      while (next_request < requests.size() && Due(requests[next_request]) <= now) {
        Reach(&requests[next_request++], now);
      }
      Drain(now);
      for (size_t e = 0; e < engines.size(); ++e) {
        engines[e].Go(now);
        if (engines[e].idles()) Publish(e, now);
        SwitchOff(e);
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
  std::vector<std::string> decisions;
  int64_t num_lost = 0;
  bool has_held() const { return !queue_.empty(); }

 private:
  using Key = NaiveEngine::Key;

  int64_t Due(const NaiveRequest& r) const {
    return r.arrival + fleet_.router_delay / kSecond;
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
  // What the router has been told by now.
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
    for (const NaiveRequest* r : sent_[e]) sum += r->ended ? 0 : static_cast<int64_t>(r->tokens.size());
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
      std::stable_sort(queue_.begin(), queue_.end(), [](const NaiveRequest* a, const NaiveRequest* b) {
        return a->priority < b->priority;
      });
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

  size_t Choose(const NaiveRequest& r, const std::vector<int64_t>& claims) {
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
        if (fleet_.router.session_factor == 0) return is_open(home) ? home : Least(open, by_requests);
        if (Requests(home) + 1 > limit || !is_open(home)) home = Least(open, by_requests);
        return home;
      }
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
    const size_t chosen = Choose(*r, claims);
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
  std::vector<NaiveRequest*> queue_;
  std::vector<std::string> states_;
  std::vector<int64_t> ups_;  // when those that start are live
  std::set<const ScaleEntry*> done_;
};

// --- The real one, watched ---

class Decisions : public FleetObserver {
 public:
  void OnRouted(const RoutingRecord& record, SimTime now) override {
    lines.push_back(absl::StrCat(now / kSecond, " ", record.request.spec.id, " to ", record.replica,
                                 " held ", absl::StrJoin(record.held_tokens, ",")));
    if (!record.claimed_tokens.empty()) {
      absl::StrAppend(&lines.back(), " claimed ", absl::StrJoin(record.claimed_tokens, ","));
    }
  }
  void OnEndedAtRouter(const SimRequest& request, SimTime now) override {
    const bool is_rejected = request.finish_reason == FinishReason::kRejected;
    lines.push_back(absl::StrCat(now / kSecond, " ", request.spec.id,
                                 is_rejected ? " rejected" : " gave up"));
    ++num_ended[request.spec.id];
  }
  std::vector<std::string> lines;
  std::map<std::string, int> num_ended;  // at the router
};

// How often each request ended or was rejected; what a crash ended goes on elsewhere.
struct EndCounts : EngineObserver {
  void OnFinish(const SimRequest& request, SimTime) override {
    if (request.abort_cause == AbortCause::kCrash) ++num_lost;
    if (request.abort_cause != AbortCause::kCrash || counts_lost) ++of[request.spec.id];
  }
  void OnRejection(const SimRequest& request, SimTime) override { ++of[request.spec.id]; }

  bool counts_lost = false;
  int64_t num_lost = 0;
  std::map<std::string, int> of;
};

struct RealFleet {
  explicit RealFleet(size_t count) : watches(count) {}

  absl::Status Run(const FleetOptions& options, const SimulationConfig& config,
                   TraceReader* reader) {
    const auto one_second = MakeFixedStepTime(kSecond);
    std::vector<ReplicaSetup> setups;
    ends.counts_lost = options.scaling.fails_lost;
    for (Replay& watch : watches) setups.push_back({config, one_second->get(), {&watch, &ends}});
    auto fleet = Fleet::Create(options, std::move(setups), reader, {&decisions});
    if (!fleet.ok()) return fleet.status();
    const absl::Status status = (*fleet)->Run();
    result = (*fleet)->result();
    for (size_t r = 0; r < watches.size(); ++r) {
      watches[r].free_queue = (*fleet)->replica(r).manager().pool().free_queue().Walk();
    }
    return status;
  }

  std::vector<Replay> watches;
  EndCounts ends;
  Decisions decisions;
  FleetResult result;
};

RouterOptions DrawRouter(Draw& draw) {
  RouterOptions router;
  router.kind = static_cast<RouterKind>(draw(0, 8));
  router.seed = static_cast<uint64_t>(draw(0, 3));
  if (draw.OneIn(2)) router.load_weight = draw(0, 2) * 500'000;
  if (draw.OneIn(2)) router.queue_weight = draw(0, 2) * 500'000;
  router.session_factor = draw(0, 1) * draw(1'000'000, 2'000'000);
  if (draw.OneIn(2)) router.tree_blocks = draw(1, 8);
  return router;
}

RouterQueueOptions DrawQueue(Draw& draw) {
  RouterQueueOptions queue;
  if (draw.OneIn(2)) return queue;
  if (draw.OneIn(2)) queue.max_requests = draw(1, 4);
  if (draw.OneIn(2)) queue.max_tokens = draw(1, 60);
  if (draw.OneIn(2)) queue.max_waiting = draw(0, 5);
  queue.by_priority = draw.OneIn(2);
  return queue;
}

// By count and by number.
ScalingOptions DrawScaling(Draw& draw, int64_t num_live, int64_t horizon) {
  ScalingOptions scaling;
  const int64_t count = draw(1, 6);
  for (int64_t i = 0; i < count; ++i) {
    ScaleEntry entry = {.time = draw(0, horizon) * kSecond,
                        .action = static_cast<ScaleAction>(draw(0, 2))};
    if (draw.OneIn(2)) {
      entry.replica = static_cast<int32_t>(draw(0, num_live + 1));
    } else {
      entry.count = static_cast<int32_t>(draw(1, 2));
    }
    scaling.schedule.push_back(entry);
  }
  std::stable_sort(scaling.schedule.begin(), scaling.schedule.end(),
                   [](const ScaleEntry& a, const ScaleEntry& b) { return a.time < b.time; });
  scaling.start_time = draw(0, 1) * draw(0, 5) * kSecond;
  scaling.fails_lost = draw.OneIn(3);
  return scaling;
}

void CompareWithNaive(uint64_t seed, bool scales) {
  Draw draw(seed);
  NaiveOptions o{};
  o.async = draw.OneIn(2);
  o.block_size = draw(1, 4);
  o.num_blocks = draw(8, 24);
  o.budget = draw(4, 30);
  o.max_seqs = draw(2, 6);
  o.max_len = draw(12, 50);
  o.chunked = true;
  o.gate = draw.OneIn(2);
  o.append_all = draw.OneIn(3);
  o.as_in_033 = true;
  o.interval = 1;
  o.accepted = 0;

  SimulationConfig config = Replay().config;
  config.kv_cache.num_blocks = o.num_blocks;
  config.kv_cache.groups = {FullGroup(o.block_size)};
  config.manager.max_model_len = o.max_len;
  config.manager.free_order = o.append_all ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
  SchedulerOptions& s = config.scheduler;
  s.rules = SchedulerRules::Of(EngineVersion::kVllm033);
  s.adaptive_prefill_threshold = false;
  s.async = o.async;
  s.max_num_batched_tokens = o.budget;
  s.max_num_seqs = o.max_seqs;
  s.reserve_full_isl = o.gate;

  FleetOptions options{.router = DrawRouter(draw), .queue = DrawQueue(draw)};
  if (draw.OneIn(2)) options.router_delay = draw(0, 3) * kSecond;
  if (draw.OneIn(2)) options.event_delay = draw(0, 4) * kSecond;

  int64_t num_replicas = draw(1, 4);
  options.num_live = static_cast<int32_t>(num_replicas);
  if (scales) {
    options.scaling = DrawScaling(draw, num_replicas, draw(5, 50));
    num_replicas = *Scaler::NumReplicas(options.scaling, options.num_live);
  }

  Replay workload;
  std::vector<NaiveRequest> naive;
  int64_t at = 0;
  const int64_t count = draw(2, 20);
  for (int64_t i = 0; i < count; ++i) {
    at += draw.OneIn(2) ? draw(1, 6) : 0;
    NaiveRequest r{};
    r.id = std::to_string(i);
    r.row = i;
    r.prompt = draw(1, 24);
    r.output = draw(1, 10);
    r.arrival = at;
    // A request that fails takes its session along, too.
    r.session = static_cast<uint64_t>(options.scaling.fails_lost ? 0 : draw(0, 3));
    r.priority = draw(-1, 1);  // of the router's queue; the engine has one class
    // An abort ends its session: then nothing but that session's requests may be aborted.
    r.abort_at = -1;
    if (r.session == 0 && draw.OneIn(4)) r.abort_at = at + draw(1, 15);
    const int64_t document = draw(0, 3);
    for (int64_t t = 0; t < r.prompt; ++t) {
      r.tokens.push_back(document == 3 ? 100000 + i * 100 + t : (t < 6 ? t : document * 100 + t));
    }
    workload.Add({.id = r.id,
                  .prompt = r.prompt,
                  .output = r.output,
                  .at = static_cast<double>(at),
                  .priority = static_cast<int32_t>(r.priority),
                  .content = r.tokens,
                  .abort_after = r.abort_at < 0 ? 0 : static_cast<double>(r.abort_at - at),
                  .session = r.session});
    naive.push_back(r);
  }
  RealFleet real(static_cast<size_t>(num_replicas));
  const auto reader = workload.MakeReader();
  const absl::Status status = real.Run(options, config, reader.get());
  if (!status.ok()) RC_LOG() << status.ToString() << "\n";
  NaiveFleet expected(o, options, num_replicas);
  expected.Run(std::move(naive));
  RC_ASSERT(status.ok() == !expected.has_held());
  RC_ASSERT(real.result.scaling.num_lost == expected.num_lost);
  RC_ASSERT(real.decisions.lines == expected.decisions);
  for (size_t r = 0; r < real.watches.size(); ++r) {
    RC_ASSERT(real.watches[r].lines == expected.engines[r].lines());
    RC_ASSERT(real.watches[r].token_times == expected.engines[r].token_times());
    RC_ASSERT(real.watches[r].free_queue == expected.engines[r].free_queue());
  }
}

// SM-98 to SM-101: who waits at the router, is turned away or gives up there, which replica each request goes to and why, and every schedule to the last
// block id.
RC_GTEST_PROP(FleetProperty, AgreesWithNaiveEnginesOnOneEventList, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) CompareWithNaive(seed, false);
}

// SM-102: the same with replicas that start, stop and crash.
RC_GTEST_PROP(FleetProperty, AgreesWithNaiveEnginesThatComeAndGo, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) CompareWithNaive(seed, true);
}

// --- Workloads with sessions, dependencies and aborts ---

enum class Ends { kAny, kSessionsLast, kNoSessions };

void FillSessions(Draw& draw, Replay& workload, Ends ends) {
  const int64_t count = draw(1, 20);
  for (int64_t i = 0; i < count; ++i) {
    ReplayRequest request{.id = std::to_string(i), .prompt = draw(0, 30), .output = draw(0, 12)};
    request.at = static_cast<double>(i) / 2;
    const int64_t document = draw(0, 2);
    for (int64_t t = 0; t < request.prompt; ++t) {
      request.content.push_back(t < 5 ? t : 1000 * document + t);
    }
    if (ends != Ends::kSessionsLast && draw.OneIn(3)) {
      request.abort_after = static_cast<double>(draw(1, 60)) / 4.0;
    }
    if (i > 0 && draw.OneIn(2)) {
      request.waits_for = {draw(0, i - 1)};
      request.think = static_cast<double>(draw(0, 8)) / 4.0;
      request.has_arrival = ends != Ends::kAny || draw.OneIn(2);
    }
    if (ends != Ends::kNoSessions && draw.OneIn(2)) {
      request.session = static_cast<uint64_t>(draw(1, 3));
    }
    workload.Add(request);
  }
}

SimulationConfig DrawConfig(Draw& draw) {
  SimulationConfig config = Replay().config;
  const int64_t block_size = draw(1, 4);
  config.kv_cache.num_blocks = draw(4, 40);
  config.kv_cache.groups = {FullGroup(block_size)};
  if (draw.OneIn(3)) config.kv_cache.groups.push_back(WindowGroup(block_size, draw(2, 9)));
  config.manager.max_model_len = draw(8, 60);
  config.scheduler.async = draw.OneIn(2);
  config.scheduler.max_num_batched_tokens = draw(5, 40);
  config.scheduler.max_num_seqs = draw(1, 6);
  DrawRules(draw, config.scheduler);
  config.zero_output = static_cast<ZeroOutput>(draw(0, 2));
  if (draw.OneIn(2)) config.max_queue_time = draw(1, 20) * kSecond;
  if (draw.OneIn(3)) config.concurrency = draw(1, 3);
  if (draw.OneIn(3)) config.empty_step_time = draw(1, 3) * kSecond;
  return config;
}

// A fleet of one is a simulation, call by call, whatever the router.
RC_GTEST_PROP(FleetProperty, OfOneIsASimulation, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) {
    Draw draw(seed);
    Replay single;
    // What a turn of a session given up, a row without a time or one that is left out lets arrive
    // depends on when it was read: a simulation reads when its engine is at a boundary, a fleet at
    // every instant.
    const bool with_sessions = draw.OneIn(2);
    FillSessions(draw, single, with_sessions ? Ends::kSessionsLast : Ends::kNoSessions);
    single.config = DrawConfig(draw);
    single.config.concurrency = 0;  // voids times, too
    if (with_sessions) single.config.max_queue_time = 0;
    if (single.config.zero_output == ZeroOutput::kSkip) single.config.zero_output = ZeroOutput::kOne;
    const FleetOptions options{.router = DrawRouter(draw)};
    const auto reader = single.MakeReader();
    RealFleet fleet(1);
    const absl::Status status = fleet.Run(options, single.config, reader.get());
    const absl::Status expected = single.Run();
    RC_ASSERT(status.code() == expected.code());
    const Replay& watch = fleet.watches.front();
    RC_ASSERT(watch.lines == single.lines);
    RC_ASSERT(watch.device == single.device);
    RC_ASSERT(watch.token_times == single.token_times);
    RC_ASSERT(watch.ends == single.ends);
    RC_ASSERT(watch.rejections == single.rejections);
    if (!status.ok()) continue;
    SimulationResult result = fleet.result.replicas.front();
    result.num_skipped = fleet.result.num_skipped;
    // Requests are read as soon as the clock needs them, not as soon as the engine does.
    result.peak_live_requests = single.result.peak_live_requests;
    result.num_iterations = single.result.num_iterations;
    RC_ASSERT(result == single.result);
  }
}

// Each request ends exactly once, wherever its session's turns ran, and every block comes back.
RC_GTEST_PROP(FleetProperty, EveryRequestEndsOnce, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) {
    Draw draw(seed);
    Replay workload;
    FillSessions(draw, workload, Ends::kAny);
    const SimulationConfig config = DrawConfig(draw);
    FleetOptions options{.router = DrawRouter(draw), .queue = DrawQueue(draw)};
    options.router.temperature = draw(0, 1) * draw(1, 3'000'000);
    options.event_loss = draw(0, 1) * draw(0, kMillion);
    if (draw.OneIn(2)) options.router_delay = draw(0, 6) * kSecond / 2;
    const auto reader = workload.MakeReader();
    options.num_live = static_cast<int32_t>(draw(2, 4));
    auto num_replicas = static_cast<size_t>(options.num_live);
    if (draw.OneIn(2)) {
      options.scaling = DrawScaling(draw, options.num_live, 20);
      // Whatever crashes and stops, there is one more.
      options.scaling.schedule.push_back({.time = 21 * kSecond});
      num_replicas = static_cast<size_t>(*Scaler::NumReplicas(options.scaling, options.num_live));
    }
    RealFleet fleet(num_replicas);
    const absl::Status status = fleet.Run(options, config, reader.get());
    if (!status.ok()) RC_LOG() << status.ToString() << "\n";
    RC_ASSERT(status.ok());
    for (const Replay& watch : fleet.watches) {
      RC_ASSERT(static_cast<int64_t>(watch.free_queue.size()) == config.kv_cache.num_blocks - 1);
    }
    std::map<std::string, int> ends = fleet.decisions.num_ended;
    for (const auto& [id, times] : fleet.ends.of) ends[id] += times;
    for (const auto& [id, times] : ends) RC_ASSERT(times == 1);
    RC_ASSERT(fleet.ends.num_lost == fleet.result.scaling.num_lost);
    RC_ASSERT(static_cast<int64_t>(ends.size()) + fleet.result.num_skipped ==
              static_cast<int64_t>(reader->num_read()));

    // The same bytes again.
    RealFleet again(fleet.watches.size());
    const auto reader_again = workload.MakeReader();
    RC_ASSERT(again.Run(options, config, reader_again.get()).ok());
    RC_ASSERT(again.result == fleet.result);
    RC_ASSERT(again.decisions.lines == fleet.decisions.lines);
  }
}

}  // namespace
}  // namespace kvblocks::sim
