// Replicas that run by themselves past requests sent ahead: as if they met at each arrival, the same with
// any number of threads, and told in order of time.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kvblocks/sim/fleet/fleet.h"
#include "kvblocks/sim/fleet/fleet_metrics.h"
#include "kvblocks/sim/testing/draw.h"
#include "kvblocks/sim/testing/replay.h"
#include "rapidcheck/gtest.h"

namespace kvblocks::sim {
namespace {

// All that a fleet's observer is told, in the order in which it is told.
class ToldLines final : public FleetObserver {
 public:
  void OnRouted(const RoutingRecord& record, SimTime now) override {
    std::string line = absl::StrCat(record.request.spec.id, " to ", record.replica, " held ",
                                    absl::StrJoin(record.held_tokens, ","), " loads");
    for (const ReplicaLoad& load : record.loads) {
      absl::StrAppend(&line, " ", load.num_requests, "/", load.num_tokens, "/",
                      load.num_waiting_tokens);
    }
    Add(line, now);
    is_sent[record.request.spec.id] = true;
  }
  void OnFound(const SimRequest& request, int32_t replica, int64_t, int64_t num_hit_tokens,
               SimTime now) override {
    Add(absl::StrCat(request.spec.id, " at ", replica, " found ", num_hit_tokens), now);
    is_in_order &= is_sent[request.spec.id];
  }
  void OnApart() override { ++num_apart; }
  void OnTogether() override { --num_apart; }

  std::vector<std::string> Sorted() const {
    std::vector<std::string> sorted = lines;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

  std::vector<std::string> lines;
  bool is_in_order = true;
  int num_apart = 0;

 private:
  void Add(const std::string& line, SimTime now) {
    lines.push_back(absl::StrCat(now, " ", line));
    is_in_order &= now >= last_;
    last_ = now;
  }
  SimTime last_ = 0;
  std::map<std::string, bool> is_sent;
};

struct AheadRun {
  AheadRun(Replay& workload, const FleetOptions& options, size_t count)
      : watches(count), metrics(count) {
    const auto one_second = MakeFixedStepTime(kSecond);
    std::vector<ReplicaSetup> setups;
    for (size_t r = 0; r < count; ++r) {
      setups.push_back(
          {workload.config, one_second->get(), {&watches[r], metrics.of_replica(r)}});
    }
    const auto reader = workload.MakeReader();
    auto fleet = Fleet::Create(options, std::move(setups), reader.get(), {&told, &metrics});
    status = fleet.ok() ? (*fleet)->Run() : fleet.status();
    if (!status.ok()) return;
    result = (*fleet)->result();
    ::kvblocks::fleet::v1::FleetReport filled;
    metrics.Fill(options, result, &filled);
    filled.clear_scaling();
    report = filled.SerializeAsString();
  }

  // What replicas did, and what they and the fleet say of it.
  void ExpectAs(const AheadRun& other) const {
    RC_ASSERT(status.code() == other.status.code());
    for (size_t r = 0; r < watches.size(); ++r) {
      RC_ASSERT(watches[r].lines == other.watches[r].lines);
      RC_ASSERT(watches[r].token_times == other.watches[r].token_times);
      RC_ASSERT(watches[r].ends == other.watches[r].ends);
      RC_ASSERT(watches[r].rejections == other.watches[r].rejections);
    }
    // What comes in several rounds of one instant is told in replica order where all is told at once.
    RC_ASSERT(told.Sorted() == other.told.Sorted());
    RC_ASSERT(report == other.report);
    RC_ASSERT(result.replicas == other.result.replicas);
    RC_ASSERT(result.end_time == other.result.end_time);
    RC_ASSERT(result.num_skipped == other.result.num_skipped);
  }

  std::vector<Replay> watches;
  FleetMetrics metrics;
  ToldLines told;
  absl::Status status;
  FleetResult result;
  std::string report;
};

void FillAhead(Draw& draw, Replay& workload) {
  const bool has_sessions = draw.OneIn(2), waits = draw.OneIn(3), gives_up = draw.OneIn(2);
  const int64_t count = draw(1, 70);
  double at = 0;
  for (int64_t i = 0; i < count; ++i) {
    ReplayRequest request{.id = std::to_string(i), .prompt = draw(0, 30), .output = draw(0, 8)};
    if (draw.OneIn(2)) at += static_cast<double>(draw(0, 4)) / 2;
    request.at = at;
    const int64_t document = draw(0, 2);
    for (int64_t t = 0; t < request.prompt; ++t) {
      request.content.push_back(t < 5 ? t : 1000 * document + t);
    }
    if (has_sessions && !draw.OneIn(8)) request.session = static_cast<uint64_t>(draw(1, 9));
    // Sessions that end take other turns along: few of them, so that there is something before.
    if (gives_up && draw.OneIn(request.session == 0 ? 4 : 60)) {
      request.abort_after = static_cast<double>(draw(1, 40)) / 4;
    }
    if (waits && i > 10 && draw.OneIn(10)) {
      request.waits_for = {draw(0, i - 1)};
      request.think = static_cast<double>(draw(0, 8)) / 4;
    }
    workload.Add(request);
  }
  SimulationConfig& config = workload.config;
  config.kv_cache.num_blocks = draw(8, 40);
  const int64_t block_size = draw(1, 4);
  config.kv_cache.groups = {FullGroup(block_size)};
  if (draw.OneIn(3)) config.kv_cache.groups.push_back(WindowGroup(block_size, draw(2, 9)));
  config.manager.max_model_len = draw(8, 60);
  config.manager.enable_caching = !draw.OneIn(5);
  config.scheduler.async = draw.OneIn(2);
  config.scheduler.max_num_batched_tokens = draw(5, 40);
  config.scheduler.max_num_seqs = draw(1, 6);
  config.zero_output = static_cast<ZeroOutput>(draw(0, 2));
  if (draw.OneIn(4)) config.max_queue_time = draw(1, 20) * kSecond;
  if (draw.OneIn(3)) config.empty_step_time = draw(1, 3) * kSecond;
}

// SM-98: one clock, whatever the number of threads.
RC_GTEST_PROP(FleetAheadProperty, SM98ThreadsAndLookingAheadChangeNothing, (uint64_t first_seed)) {
  for (uint64_t seed = first_seed; seed - first_seed < 2; ++seed) {
    Draw draw(seed);
    Replay workload;
    FillAhead(draw, workload);
    const RouterKind kinds[] = {RouterKind::kRoundRobin, RouterKind::kRandom, RouterKind::kSession};
    FleetOptions options;
    options.router = {.kind = kinds[draw(0, 2)], .seed = 7, .session_factor = 0};
    const auto count = static_cast<size_t>(draw(1, 4));

    const AheadRun one(workload, options, count);
    RC_ASSERT(one.status.ok());
    RC_ASSERT(one.told.is_in_order);
    RC_ASSERT(one.told.num_apart == 0);
    for (const int num_threads : {2, 3}) {
      options.num_threads = num_threads;
      const AheadRun several(workload, options, count);
      several.ExpectAs(one);
      RC_ASSERT(several.told.lines == one.told.lines);
      RC_ASSERT(several.result == one.result);
    }
    // With a plan of which nothing ever happens they meet at each arrival.
    options.num_threads = 1;
    options.scaling.schedule = {
        {.time = kMaxSimTime / 2, .action = ScaleAction::kCrash, .replica = 0}};
    const AheadRun met(workload, options, count);
    RC_ASSERT(met.result.num_sent_ahead == 0);
    met.ExpectAs(one);
  }
}

}  // namespace
}  // namespace kvblocks::sim
