#include "kvblocks/sim/commands/split_replay.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/checks/status_text.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/report/metrics.h"
#include "kvblocks/sim/split/split_fleet.h"
#include "kvblocks/sim/split/split_metrics.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

absl::Status CheckSplitReport(const ReplayConfig& asked) {
  const std::pair<const char*, bool> without_use[] = {{"--warmup", asked.has_warmup()},
                                                      {"--cooldown", asked.has_cooldown()},
                                                      {"--tick", asked.has_tick()},
                                                      {"--top-prefixes", asked.has_top_prefixes()}};
  for (const auto& [name, is_given] : without_use) {
    if (!is_given) continue;
    return InvalidArgument(name, ": its section is not in the report of --prefill-replicas and "
                                 "--decode-replicas; leave it out");
  }
  if (asked.has_lookahead_hashes() && asked.lookahead_hashes()) {
    return InvalidArgument("--lookahead-hashes: engines that send or fetch KV have none, expected "
                           "--no-lookahead-hashes or nothing");
  }
  return absl::OkStatus();
}

ReplayConfig OfSplitReplica(ReplayConfig config) {
  config.set_lookahead_hashes(false);
  return config;
}

std::vector<std::string> SplitReplicaNames(const SplitPlan& plan) {
  std::vector<std::string> names;
  for (int64_t r = 0; r < plan.num_prefill; ++r) names.push_back(absl::StrCat("prefill ", r));
  for (int64_t r = 0; r < plan.num_decode; ++r) names.push_back(absl::StrCat("decode ", r));
  return names;
}

absl::Status ReplaySplit(const ReplayConfig& config, const ReplaySetup& setup, const SplitPlan& plan,
                         const SplitOutputs& outputs, ::kvblocks::split::v1::SplitReport* report) {
  const auto reader = OpenReplayTrace(config, setup.reader);
  if (!reader.ok()) return reader.status();
  if (absl::Status status = ReplaySplit(reader->get(), setup, plan, outputs, report); !status.ok()) {
    return status;
  }
  PrintWarnings(**reader);
  return absl::OkStatus();
}

absl::Status ReplaySplit(TraceReader* reader, const ReplaySetup& setup, const SplitPlan& plan,
                         const SplitOutputs& outputs, ::kvblocks::split::v1::SplitReport* report) {
  if (absl::Status status = RefuseTiers(setup); !status.ok()) return status;
  const ReplicaSetup replica = {
      .config = ConfigFor(setup, *reader), .step_time = setup.step_time.get(), .observers = {}};
  SplitMetrics metrics(setup.metrics.objectives, setup.metrics.latency.client_rtt);
  metrics.set_rows(outputs.rows);
  std::vector<ReplicaSetup> prefill(static_cast<size_t>(plan.num_prefill), replica);
  std::vector<ReplicaSetup> decode(static_cast<size_t>(plan.num_decode), replica);
  std::vector<std::unique_ptr<ReplayMetrics>> of_replicas;  // what exports are told by
  for (size_t r = 0; outputs.exports != nullptr && r < prefill.size() + decode.size(); ++r) {
    auto& observers = r < prefill.size() ? prefill[r].observers : decode[r - prefill.size()].observers;
    ReplayMetricsOptions measured = setup.metrics;
    std::vector<EngineObserver*> exports;
    outputs.exports->Attach(r, setup, &measured, &exports);
    observers.push_back(of_replicas.emplace_back(std::make_unique<ReplayMetrics>(measured)).get());
    observers.insert(observers.end(), exports.begin(), exports.end());
  }
  auto fleet =
      SplitFleet::Create(plan.options, std::move(prefill), std::move(decode), reader, &metrics);
  if (!fleet.ok()) return InOptionWords(fleet.status());
  ProgressLine progress(outputs.quiet);
  if (progress.is_shown()) {
    (*fleet)->set_progress([&](const SimulationProgress& p) {
      progress.Update(p, 0, 0);
      return true;
    });
  }
  if (absl::Status status = (*fleet)->Run(); !status.ok()) return status;
  progress.Clear();
  const SplitResult& result = (*fleet)->result();
  if (result.num_arrived > 0 && result.num_rejected == result.num_arrived) {
    return FailedPrecondition("every request was rejected: none fits a pool of ",
                              setup.simulation.kv_cache.num_blocks,
                              " blocks; raise --num-blocks or --max-model-len");
  }
  metrics.Fill(plan.options, result, report);
  report->set_outcome("complete");
  *report->mutable_config() = setup.config;
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
