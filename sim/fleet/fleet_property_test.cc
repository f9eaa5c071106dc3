// Fleets against naive engines on one event list, and a fleet of one against a simulation: random
// workloads, configurations and routers.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "sim/fleet/fleet.h"
#include "sim/fleet/testing/naive_fleet.h"
#include "sim/gen/philox.h"
#include "sim/testing/draw.h"
#include "sim/testing/naive_engine.h"
#include "sim/testing/replay.h"

namespace kvblocks::sim {
namespace {

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

// Seconds that ranks take for steps that they take together.
int64_t PassTime(int64_t own_tokens, const StepPeers& peers) {
  return 1 + std::max(own_tokens, peers.padded_tokens) / 3 + peers.num_tokens / 8 +
         peers.num_decode_tokens / 5;
}

class PassClock final : public StepTimeModel {
 public:
  absl::StatusOr<SimTime> StepTimeAmong(absl::Span<const SequenceWork> work, const Decodes& decodes,
                                        const StepPeers& peers) const override {
    if (peers.num_tokens == 0) return kSecond;  // alone
    int64_t own = decodes.num_sequences;
    for (const SequenceWork& sequence : work) own += sequence.num_new;
    return PassTime(own, peers) * kSecond;
  }
  bool adds_up_decodes() const override { return true; }
  std::string_view source() const override { return "test"; }
};

struct RealFleet {
  explicit RealFleet(size_t count) : watches(count) {}

  absl::Status Run(const FleetOptions& options, const SimulationConfig& config,
                   TraceReader* reader) {
    const PassClock clock;
    std::vector<ReplicaSetup> setups;
    ends.counts_lost = options.scaling.fails_lost;
    for (Replay& watch : watches) setups.push_back({config, &clock, {&watch, &ends}});
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
  router.kind = static_cast<RouterKind>(draw(0, 9));
  router.stats_interval = draw(0, 4) * kSecond;
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

// Of replicas that follow each other, some are ranks of one.
std::vector<RankGroup> DrawRanks(Draw& draw, int32_t num_replicas) {
  std::vector<RankGroup> ranks;
  for (int32_t first = 0; first + 2 <= num_replicas;) {
    const auto count = static_cast<int32_t>(draw(1, num_replicas - first));
    if (count >= 2)
      ranks.push_back({.first = first, .count = count, .is_lockstep = !draw.OneIn(4)});
    first += count;
  }
  return ranks;
}

enum class Replicas { kStay, kComeAndGo, kStepTogether };

void CompareWithNaive(uint64_t seed, Replicas replicas) {
  const bool scales = replicas == Replicas::kComeAndGo;
  Draw draw(seed);
  NaiveOptions o;
  o.async = draw.OneIn(2);
  o.block_size = draw(1, 4);
  o.num_blocks = draw(8, 24);
  o.max_num_batched_tokens = draw(4, 30);
  o.max_num_seqs = draw(2, 6);
  o.max_len = draw(12, 50);
  o.reserve_full_isl = draw.OneIn(2);
  o.append_all = draw.OneIn(3);

  FleetOptions options{.router = DrawRouter(draw), .queue = DrawQueue(draw)};
  if (draw.OneIn(2)) options.router_delay = draw(0, 3) * kSecond;
  if (draw.OneIn(2)) options.event_delay = draw(0, 4) * kSecond;

  int64_t num_replicas = draw(1, 4);
  options.num_live = static_cast<int32_t>(num_replicas);
  if (scales) {
    options.scaling = DrawScaling(draw, num_replicas, draw(5, 50));
    num_replicas = *Scaler::NumReplicas(options.scaling, options.num_live);
  }
  if (replicas == Replicas::kStepTogether) {
    num_replicas = draw(2, 5);
    options.num_live = static_cast<int32_t>(num_replicas);
    options.ranks = DrawRanks(draw, options.num_live);
    if (draw.OneIn(2)) options.router.kind = RouterKind::kDataParallel;
    options.lockstep = {.sync_interval = draw(1, 6), .graph_tokens = draw(0, 12)};
    if (draw.OneIn(2)) o.prefill_schedule_interval = draw(2, 4);
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
    r.TakeTokens(/*document=*/draw(0, 3));
    workload.Add(r.ForReplay());
    naive.push_back(r);
  }
  RealFleet real(static_cast<size_t>(num_replicas));
  const auto reader = workload.MakeReader();
  const absl::Status status = real.Run(options, o.ForReplay(), reader.get());
  if (!status.ok()) RC_LOG() << status.ToString() << "\n";
  NaiveFleet expected(o, options, num_replicas, PassTime);
  expected.Run(std::move(naive));
  RC_ASSERT(status.ok() == !expected.has_held());
  RC_ASSERT(real.result.scaling.num_lost == expected.num_lost);
  RC_ASSERT(real.decisions.lines == expected.decisions);
  for (size_t r = 0; r < real.watches.size(); ++r) {
    RC_ASSERT(real.watches[r].lines == expected.engines[r].lines());
    RC_ASSERT(real.watches[r].token_times == expected.engines[r].token_times());
    RC_ASSERT(real.watches[r].free_queue == expected.engines[r].free_queue());
  }
  for (const NaiveLockstep& group : expected.groups) {
    for (size_t i = 0; i < group.count; ++i) {
      const LockstepTotals& totals = real.result.lockstep[group.first + i];
      RC_ASSERT(totals.num_dummies == group.dummies[i]);
      RC_ASSERT(totals.lost_time == group.lost[i] * kSecond);
    }
  }
}

// SM-98 to SM-101: who waits at the router, is turned away or gives up there, which replica each
// request goes to and why, and every schedule to the last block id.
RC_GTEST_PROP(FleetProperty, AgreesWithNaiveEnginesOnOneEventList, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed)
    CompareWithNaive(seed, Replicas::kStay);
}

// D-6: the same with data-parallel ranks, of which those that share experts step together.
RC_GTEST_PROP(FleetProperty, AgreesWithNaiveEnginesThatStepTogether, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed) {
    CompareWithNaive(seed, Replicas::kStepTogether);
  }
}

// SM-102: the same with replicas that start, stop and crash.
RC_GTEST_PROP(FleetProperty, AgreesWithNaiveEnginesThatComeAndGo, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 10; ++seed)
    CompareWithNaive(seed, Replicas::kComeAndGo);
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
    if (single.config.zero_output == ZeroOutput::kSkip)
      single.config.zero_output = ZeroOutput::kOne;
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
