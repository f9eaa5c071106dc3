#include "kvblocks/sim/sweep/point_runner.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/sim/commands/fleet_replay.h"
#include "kvblocks/sim/commands/replay_notes.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/fleet/fleet_table.h"
#include "kvblocks/sim/report/metrics.h"
#include "kvblocks/sim/report/tier_section.h"
#include "kvblocks/sim/run_in_parallel.h"
#include "kvblocks/sim/simulation.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;
using ::kvblocks::report::v1::Report;

namespace {

pb::Pressure PressureOf(const Report& report) {
  constexpr double kSomebody = 0.5, kFull = 0.95, kPoolFull = 0.9;
  pb::Pressure pressure;
  const auto most_seqs = static_cast<double>(report.config().max_num_seqs());
  double waiting = 0, seqs_full = 0, pool_full = 0;
  for (const auto& point : report.series().points()) {
    if (point.waiting() < kSomebody) continue;
    waiting += 1;
    if (point.running() >= kFull * most_seqs) seqs_full += 1;
    if (point.usage() >= kPoolFull) pool_full += 1;
  }
  const auto all = static_cast<double>(std::max(report.series().points_size(), 1));
  pressure.set_waiting_share(waiting / all);
  pressure.set_seqs_full_share(seqs_full / all);
  pressure.set_pool_full_share(pool_full / all);
  return pressure;
}

// What is for charts of one run, and most of its bytes.
void Shorten(Report* report) {
  report->clear_series();
  report->clear_hit_prefix_length();
  report->clear_first_missing_block();
  report->clear_hit_groups();
  auto* latency = report->mutable_latency();
  for (auto* distribution :
       {latency->mutable_queueing(), latency->mutable_ttft(), latency->mutable_prefill(),
        latency->mutable_e2e(), latency->mutable_tpot(), latency->mutable_itl(),
        latency->mutable_normalized()}) {
    distribution->clear_quantiles_ms();
  }
}

absl::Status ReplayFleetPoint(const PlannedPoint& planned, DecodedTraces* traces,
                              pb::PointResult* result) {
  auto fleet = FleetReplay::Create(planned.config);
  if (!fleet.ok()) return fleet.status();
  const auto trace = traces->Get(planned.config);
  if (!trace.ok()) return trace.status();
  DecodedReader reader(trace->get(), (*fleet)->setup().reader.speedup);
  if (absl::Status status = (*fleet)->Run(&reader, {}); !status.ok()) return status;
  ::kvblocks::fleet::v1::FleetReport* report = result->mutable_fleet();
  (*fleet)->Fill(reader, report);
  for (Report& one : *report->mutable_reports()) {
    const bool is_alike = !one.has_config();
    if (is_alike) *one.mutable_config() = report->config();
    *result->add_pressures() = PressureOf(one);
    if (is_alike) one.clear_config();
    Shorten(&one);
  }
  report->clear_decision_series();
  for (auto* distribution :
       {report->mutable_latency()->mutable_queueing(), report->mutable_latency()->mutable_ttft(),
        report->mutable_latency()->mutable_tpot(), report->mutable_latency()->mutable_e2e()}) {
    distribution->clear_quantiles_ms();
  }
  *result->mutable_report() = FleetSummary(*report);
  return absl::OkStatus();
}

absl::Status ReplayPoint(const PlannedPoint& planned, DecodedTraces* traces,
                         pb::PointResult* result) {
  if (!planned.status.ok()) return planned.status;
  if (IsFleet(planned.config)) return ReplayFleetPoint(planned, traces, result);
  if (const auto fleet = MakeFleetOptions(planned.config); !fleet.ok()) return fleet.status();
  auto setup = MakeReplaySetup(planned.config);
  if (!setup.ok()) return setup.status();
  const auto trace = traces->Get(planned.config);
  if (!trace.ok()) return trace.status();
  DecodedReader reader(trace->get(), setup->reader.speedup, planned.point.replicas(),
                       planned.point.replica());
  ReplayMetrics metrics(setup->metrics);
  const auto tiers = MakeTiers(*setup);
  if (!tiers.ok()) return tiers.status();
  auto simulation = MakeSimulation(*setup, &reader, {&metrics}, tiers->get());
  if (!simulation.ok()) return simulation.status();
  if (absl::Status status = (*simulation)->Run(); !status.ok()) return status;
  if (absl::Status status = CheckSomethingRan((*simulation)->result(), planned.config, *setup);
      !status.ok()) {
    return status;
  }
  Report* report = result->mutable_report();
  metrics.Fill((*simulation)->result(), report);
  if (*tiers != nullptr) FillTiers(**tiers, report->mutable_tiers());
  DescribeReplay(planned.config, *setup, reader, report);
  *result->mutable_pressure() = PressureOf(*report);
  Shorten(report);
  return absl::OkStatus();
}

// In no unit; for the order, and for how much is left. Each request costs, and each block of it;
// a pool of few blocks has preemptions, and exact steps look at everybody each time.
double EstimateCost(const PlannedPoint& planned) {
  const ReplayConfig& config = planned.config;
  const auto block = static_cast<double>(std::max<int64_t>(config.block_size(), 1));
  double cost = 1 + 16 / (config.block_size() == 0 ? 16.0 : block);
  if (config.num_blocks() > 0) cost *= 1 + 2000 / static_cast<double>(config.num_blocks());
  if (config.exact_steps()) cost *= 10;
  if (config.check_invariants()) cost *= 100;
  if (config.limit() > 0) cost *= static_cast<double>(config.limit()) / 1e5;
  if (planned.point.replicas() > 0) cost /= static_cast<double>(planned.point.replicas());
  return cost;
}

}  // namespace

pb::PointResult RunPoint(const PlannedPoint& planned, DecodedTraces* traces) {
  pb::PointResult result;
  result.set_name(planned.name);
  for (const pb::Setting& setting : planned.settings) *result.add_settings() = setting;
  result.set_replicas(planned.point.replicas());
  result.set_replica(planned.point.replica());
  if (absl::Status status = ReplayPoint(planned, traces, &result); !status.ok()) {
    result.clear_report();
    result.clear_pressure();
    result.clear_fleet();
    result.clear_pressures();
    result.set_problem(std::string(status.message()));
    if (result.problem().empty()) result.set_problem("failed without a message");
  }
  return result;
}

PointRunner::PointRunner(DecodedTraces* traces, ResultLog* log, int num_threads,
                         ProgressLine* progress)
    : traces_(traces), log_(log), num_threads_(num_threads), progress_(progress) {
  if (num_threads_ == 0) {
    num_threads_ = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  }
}

absl::StatusOr<std::vector<pb::PointResult>> PointRunner::Run(
    const std::vector<PlannedPoint>& points) {
  std::vector<const PlannedPoint*> to_run;
  absl::flat_hash_map<std::string, bool> is_known;
  double cost = 0;
  for (const PlannedPoint& point : points) {
    if (!is_known.emplace(point.name, true).second || log_->Find(point.name) != nullptr) {
      ++num_reused_;
      continue;
    }
    to_run.push_back(&point);
    cost += EstimateCost(point);
  }
  std::stable_sort(to_run.begin(), to_run.end(), [](const PlannedPoint* a, const PlannedPoint* b) {
    return EstimateCost(*a) > EstimateCost(*b);
  });
  std::mutex mutex;
  absl::Status written;
  double done_cost = 0;
  int64_t num_done = 0, num_problems = 0;
  std::vector<std::function<void()>> tasks;
  for (const PlannedPoint* point : to_run) {
    tasks.push_back([&, point] {
      {
        const std::lock_guard lock(mutex);
        if (!written.ok()) return;  // nothing that is replayed now could be kept
      }
      const pb::PointResult result = RunPoint(*point, traces_);
      const absl::Status appended = log_->Append(result);
      const std::lock_guard lock(mutex);
      if (!appended.ok()) written = appended;
      ++num_done;
      num_problems += !result.problem().empty();
      done_cost += EstimateCost(*point);
      if (progress_ != nullptr) {
        progress_->UpdatePoints(num_done, static_cast<int64_t>(tasks.size()), num_problems,
                                done_cost / cost);
      }
    });
  }
  RunInParallel(num_threads_, tasks);
  if (progress_ != nullptr) progress_->Clear();
  if (!written.ok()) return written;
  num_run_ += static_cast<int64_t>(tasks.size());
  std::vector<pb::PointResult> results;
  results.reserve(points.size());
  for (const PlannedPoint& point : points) {
    results.push_back(*log_->Find(point.name));
    // A finished point may have been asked for in other words.
    results.back().clear_settings();
    for (const pb::Setting& setting : point.settings) *results.back().add_settings() = setting;
  }
  return results;
}

}  // namespace kvblocks::sim
