#include "kvblocks/sim/commands/fleet_replay.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/commands/replay_notes.h"
#include "kvblocks/sim/fleet/fleet_metrics.h"
#include "kvblocks/sim/report/metrics.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

// What a replay of several replicas is made from, and the observers that it feeds.
struct FleetRun {
  absl::Status Run(const ReplayConfig& config, ReplaySetup& setup, const FleetInput& input,
                   std::vector<FleetObserver*> observers, bool quiet) {
    const auto configured = input.Configure();
    if (!configured.ok()) return configured.status();
    if (absl::Status status = RefuseTiers(setup); !status.ok()) return status;
    options = *configured;
    auto opened = OpenReplayTrace(config, setup.reader);
    if (!opened.ok()) return opened.status();
    reader = *std::move(opened);
    // Those that start later are made beforehand, too.
    const auto needed = Scaler::NumReplicas(options.scaling, options.num_live);
    if (!needed.ok()) return needed.status();
    const auto count = static_cast<size_t>(*needed);
    metrics = std::make_unique<FleetMetrics>(count);
    observers.push_back(metrics.get());
    std::vector<ReplicaSetup> replicas;
    const SimulationConfig simulation = ConfigFor(setup, *reader);
    for (size_t r = 0; r < count; ++r) {
      of_replicas.push_back(std::make_unique<ReplayMetrics>(setup.metrics));
      replicas.push_back({simulation,
                          setup.step_time.get(),
                          {of_replicas.back().get(), metrics->of_replica(r)}});
    }
    auto fleet = Fleet::Create(options, std::move(replicas), reader.get(), std::move(observers));
    if (!fleet.ok()) return InOptionWords(fleet.status());
    ProgressLine progress(quiet);
    if (progress.is_shown()) {
      (*fleet)->set_progress([&](const SimulationProgress& p) {
        progress.Update(p, metrics->num_hit_tokens(), metrics->num_queried_tokens());
        return true;
      });
    }
    if (absl::Status status = (*fleet)->Run(); !status.ok()) return status;
    progress.Clear();
    result = (*fleet)->result();
    for (const std::string& warning : reader->warnings()) {
      std::fprintf(stderr, "%s\n", warning.c_str());
    }
    // Of all together: nothing ran if no replica ran anything.
    SimulationResult all;
    for (const SimulationResult& one : result.replicas) {
      all.num_arrived += one.num_arrived;
      all.num_rejected += one.num_rejected;
      all.scheduler.num_too_big += one.scheduler.num_too_big;
      all.scheduler.num_blocks_for_too_big = std::max(all.scheduler.num_blocks_for_too_big,
                                                      one.scheduler.num_blocks_for_too_big);
    }
    return CheckSomethingRan(all, config, setup);
  }

  FleetOptions options;
  std::unique_ptr<TraceReader> reader;
  std::unique_ptr<FleetMetrics> metrics;
  std::vector<std::unique_ptr<ReplayMetrics>> of_replicas;
  FleetResult result;
};

// Keeps one decision.
class RoutingLife final : public FleetObserver {
 public:
  RoutingLife(const RequestSelector& selector, ::kvblocks::fleet::v1::RoutingExplanation* out)
      : selector_(selector), out_(out) {
    out_->set_found_tokens(-1);
  }

  void OnRouted(const RoutingRecord& record, SimTime now) override {
    if (is_found_ || !selector_.Matches(record.request.spec)) return;
    is_found_ = true;
    row_ = record.request.spec.row;
    out_->set_request(record.request.spec.id);
    out_->set_sent_s(Seconds(now));
    out_->set_chosen(record.replica);
    for (size_t r = 0; r < record.loads.size(); ++r) {
      auto* candidate = out_->add_candidates();
      candidate->set_replica(static_cast<int32_t>(r));
      candidate->set_requests(record.loads[r].num_requests);
      candidate->set_tokens(record.loads[r].num_tokens);
      candidate->set_waiting_prompt_tokens(record.loads[r].num_waiting_tokens);
      candidate->set_claimed_tokens(record.claimed_tokens.empty() ? -1 : record.claimed_tokens[r]);
      candidate->set_held_tokens(record.held_tokens.empty() ? 0 : record.held_tokens[r]);
      if (!record.scores.empty()) {
        candidate->set_score(static_cast<double>(record.scores[r]) / kMillion);
      }
    }
  }
  void OnFound(const SimRequest& request, int32_t, int64_t, int64_t num_hit_tokens,
               SimTime) override {
    if (is_found_ && request.spec.row == row_) out_->set_found_tokens(num_hit_tokens);
  }
  bool is_found() const { return is_found_; }

 private:
  const RequestSelector& selector_;
  ::kvblocks::fleet::v1::RoutingExplanation* const out_;
  bool is_found_ = false;
  int64_t row_ = -1;
};

}  // namespace

absl::Status ReplayFleet(const ReplayConfig& config, ReplaySetup& setup, const FleetInput& input,
                         bool quiet, ::kvblocks::fleet::v1::FleetReport* report) {
  FleetRun run;
  if (absl::Status status = run.Run(config, setup, input, {}, quiet); !status.ok()) return status;
  report->set_outcome("complete");
  run.metrics->Fill(run.options, run.result, report);
  for (size_t r = 0; r < run.result.replicas.size(); ++r) {
    auto* one = report->add_reports();
    run.of_replicas[r]->Fill(run.result.replicas[r], one);
    DescribeReplay(config, setup, *run.reader, one);
    if (r == 0) *report->mutable_config() = one->config();
    one->clear_config();
    // One that got nothing has nothing to say of the trace.
    if (r > 0 && run.result.replicas[r].num_arrived == 0) continue;
    // What holds for one replica and what holds for the trace; said once.
    for (const std::string& note : one->notes()) {
      if (std::find(report->notes().begin(), report->notes().end(), note) == report->notes().end()) {
        report->add_notes(note);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ExplainRouting(const ReplayConfig& config, ReplaySetup& setup,
                            const FleetInput& input, const RequestSelector& selector, bool quiet,
                            ::kvblocks::fleet::v1::RoutingExplanation* out) {
  FleetRun run;
  RoutingLife life(selector, out);
  if (absl::Status status = run.Run(config, setup, input, {&life}, quiet); !status.ok()) {
    return status;
  }
  out->set_router(std::string(RouterName(run.options.router.kind)));
  if (life.is_found()) return absl::OkStatus();
  return absl::NotFoundError(
      "--request: no such request was sent to a replica; it needs an id of the trace, row:N or "
      "line:N");
}

}  // namespace kvblocks::sim
