// Replays of one workload with pools of several sizes, side by side.

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/checked_int64.h"
#include "checks/status_macros.h"
#include "sim/commands/curve_run.h"
#include "sim/commands/replay_input.h"
#include "sim/curve/schedule_curve.h"
#include "sim/report/human_table.h"
#include "sim/simulation.h"
#include "sim/trace/byte_source.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::report::v1;
using ::kvblocks::config::v1::ReplayConfig;

namespace {

// The rest of a pool that never evicts, beside the blocks that stay cached.
constexpr int64_t kSparePool = 4096;

// Hits of first admissions.
class HitCounter final : public EngineObserver {
 public:
  bool NeedsEveryRecord() const override { return false; }
  void OnAdmission(const AdmissionRecord& record, SimTime) override {
    if (record.is_resume) return;
    ++requests;
    hit_tokens += record.num_hit_tokens;
    queried_tokens += record.num_queried_tokens;
  }
  int64_t requests = 0;
  int64_t hit_tokens = 0;
  int64_t queried_tokens = 0;
};

// With `tier` behind the device, whose loads count as hits.
absl::Status ReplayOne(ReplayConfig config, const std::string& tier, pb::CurveReplay* out) {
  const int64_t num_blocks = out->num_blocks();
  config.set_num_blocks(num_blocks + 1);
  if (!tier.empty()) {
    config.set_tier(tier);
    config.set_lookahead_hashes(false);  // engines have none then
  }
  auto setup = MakeReplaySetup(config);
  if (!setup.ok()) {
    out->set_problem(std::string(setup.status().message()));
    return absl::OkStatus();
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto reader, OpenReplayTrace(config, setup->reader));
  HitCounter counter;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto tiers, MakeTiers(*setup));
  KVBLOCKS_ASSIGN_OR_RETURN(auto simulation,
                            MakeSimulation(*setup, reader.get(), {&counter}, tiers.get()));
  const absl::Status status = simulation->Run();
  if (tiers != nullptr) counter.hit_tokens += tiers->load_totals().num_loaded_tokens;
  if (!status.ok() && !IsNoProgress(status)) return status;
  if (!status.ok()) out->set_problem("no progress");
  const SimulationResult& result = simulation->result();
  out->set_gib(static_cast<double>(num_blocks) * static_cast<double>(setup->block_bytes) /
               1073741824.0);
  out->set_requests(counter.requests);
  out->set_hit_tokens(counter.hit_tokens);
  out->set_prompt_tokens(counter.queried_tokens);
  out->set_hit_rate(counter.queried_tokens == 0 ? 0.0
                                                : static_cast<double>(counter.hit_tokens) /
                                                      static_cast<double>(counter.queried_tokens));
  out->set_preemptions(result.scheduler.num_preemptions);
  out->set_rejected(result.num_rejected);
  return absl::OkStatus();
}

// The sizes between which a curve bends most: where its slope over the logarithm of the size
// changes most from one point to the next.
std::vector<int64_t> SizesOfMostBend(const pb::CurveReport& report, int64_t count) {
  struct Bend {
    double change;
    int64_t num_blocks;
  };
  std::vector<Bend> bends;
  for (int i = 1; i + 1 < report.points_size(); ++i) {
    const auto slope = [&](int a, int b) {
      const double width = std::log(static_cast<double>(report.points(b).num_blocks()) /
                                    static_cast<double>(report.points(a).num_blocks()));
      return (report.points(b).hit_rate() - report.points(a).hit_rate()) / width;
    };
    if (report.points(i).too_small_for_some()) continue;
    bends.push_back({std::abs(slope(i, i + 1) - slope(i - 1, i)), report.points(i).num_blocks()});
  }
  std::stable_sort(bends.begin(), bends.end(),
                   [](const Bend& a, const Bend& b) { return a.change > b.change; });
  std::vector<int64_t> sizes;
  for (const Bend& bend : bends) {
    if (static_cast<int64_t>(sizes.size()) == count) break;
    sizes.push_back(bend.num_blocks);
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

struct WantedReplay {
  pb::CurveReplay replay = {};  // at first its size alone
  std::string tier = {};
  absl::Status status = {};
};

WantedReplay Want(int64_t num_blocks, const std::string& tier) {
  WantedReplay wanted{.tier = tier};
  wanted.replay.set_num_blocks(num_blocks);
  return wanted;
}

// As `kvsim replay --num-blocks` would. What ends one early is in its `problem`; other errors are
// returned.
absl::Status ReplayAll(const CurveRun& run, std::vector<WantedReplay>* wanted) {
  std::vector<std::function<void()>> tasks;
  for (WantedReplay& one : *wanted) {
    tasks.push_back([&] { one.status = ReplayOne(run.config, one.tier, &one.replay); });
  }
  run.InParallel(tasks, "replays");
  for (const WantedReplay& one : *wanted) KVBLOCKS_RETURN_IF_ERROR(one.status);
  return absl::OkStatus();
}

absl::Status ReplaySizes(const CurveRun& run, const std::vector<int64_t>& sizes) {
  std::vector<WantedReplay> wanted;
  for (const int64_t size : sizes) wanted.push_back(Want(size, ""));
  KVBLOCKS_RETURN_IF_ERROR(ReplayAll(run, &wanted));
  for (WantedReplay& one : wanted) *run.report->add_replays() = std::move(one.replay);
  return absl::OkStatus();
}

// Every pool with every second tier, written through and on eviction. Transfers are free, so that
// only sizes count.
absl::Status ReplayTiers(const CurveRun& run) {
  pb::CurveReport* report = run.report;
  std::vector<WantedReplay> wanted;
  for (const int64_t first : Ascending(run.options.sizes)) {
    for (const int64_t second : Ascending(run.options.tiers)) {
      AddTierSizes(first, second, report);
      const CheckedInt64 bytes = CheckedInt64(second) * report->block_bytes();
      if (bytes.overflowed() || *bytes.value() > Link::kMaxBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("--tiers: got ", second, ", expected at most ",
                         Link::kMaxBytes / report->block_bytes()));
      }
      const std::string tier = absl::StrCat("second:", *bytes.value(), "B:read=free");
      wanted.push_back(Want(first, tier));
      wanted.push_back(Want(first, absl::StrCat(tier, ":store=on-evict:exclusive")));
    }
  }
  KVBLOCKS_RETURN_IF_ERROR(ReplayAll(run, &wanted));
  for (size_t i = 0; i < wanted.size(); ++i) {
    pb::CurveTiers* tiers = report->mutable_tiers(static_cast<int>(i / 2));
    const pb::CurveReplay& replay = wanted[i].replay;
    if (!replay.problem().empty()) tiers->set_problem(replay.problem());
    if (i % 2 == 0) tiers->set_inclusive_hit_rate(replay.hit_rate());
    if (i % 2 == 1) tiers->set_exclusive_hit_rate(replay.hit_rate());
    for (const pb::CurveReplay& alone : report->replays()) {
      if (alone.num_blocks() == replay.num_blocks()) tiers->set_first_hit_rate(alone.hit_rate());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCurveOfReplays(const CurveRun& run) {
  const CurveOptions& options = run.options;
  pb::CurveReport* report = run.report;
  if (!options.what_if.empty() || !options.block_sizes.empty() || options.refine > 0 ||
      options.sample_paths > 0 || options.blocks != "engine") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model: ", run.replay.model,
        " has windows, states or several KV-cache groups, whose sizes are replayed one by one; "
        "--what-if, --block-sizes, --refine, --sample-paths and --blocks need a model of "
        "full attention"));
  }
  if (!CanBeReadAgain(run.config.trace())) {
    return absl::InvalidArgumentError(
        "TRACE: standard input and pipes can be read once, and every size reads the trace; name a "
        "file");
  }
  std::vector<int64_t> sizes = options.sizes;
  if (sizes.empty()) {
    if (run.device_blocks == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--sizes: none given, and ", run.replay.device, " does not hold ", run.replay.model));
    }
    for (const int64_t eighths : {1, 2, 4, 8, 16, 32}) {
      sizes.push_back(std::max<int64_t>(run.device_blocks * eighths / 8, 1));
    }
  }
  if (run.asked_blocks > 0) sizes.push_back(run.asked_blocks);
  KVBLOCKS_RETURN_IF_ERROR(ReplaySizes(run, Ascending(std::move(sizes))));
  report->set_mode("replays");
  report->set_exactness(
      absl::StrCat("windows, states or several groups decide together what is hit, so no single "
                   "pass is exact; ",
                   report->replays_size(), " sizes were replayed, each exactly"));
  for (const pb::CurveReplay& replay : report->replays()) {
    report->set_requests(std::max(report->requests(), replay.requests()));
    report->set_prompt_tokens(std::max(report->prompt_tokens(), replay.prompt_tokens()));
  }
  KVBLOCKS_RETURN_IF_ERROR(ReplayTiers(run));
  if (report->requests() == 0) {
    return absl::FailedPreconditionError("none of these pools admitted a request; see --sizes");
  }
  if (run.device_blocks > 0) {
    report->add_sentences(absl::StrCat(run.replay.device, " holds ",
                                       WithThousands(run.device_blocks), " blocks."));
  }
  return absl::OkStatus();
}

absl::Status RunScheduleCurve(CurveRun& run, const OrderRun& order) {
  const ReplayConfig& config = run.config;
  pb::CurveReport* report = run.report;
  ReplaySetup& replay = run.replay;
  const FreeOrder free_order = replay.simulation.manager.free_order;
  // What the replay itself does with freed blocks makes no difference; this takes fewest blocks.
  replay.simulation.manager.free_order = FreeOrder::kUnhashedFirst;
  replay.simulation.manager.watermark = 0;
  int64_t num_blocks =
      order.num_distinct + order.num_distinct / 16 + 4 * order.smallest_pool + kSparePool;
  while (true) {
    num_blocks = std::min(num_blocks, kMaxNumBlocks);
    replay.simulation.kv_cache.num_blocks = num_blocks;
    KVBLOCKS_ASSIGN_OR_RETURN(const auto reader, OpenReplayTrace(config, replay.reader));
    ScheduleCurve curve({.free_order = free_order,
                         .has_fixed_step_time = config.time() == "fixed" &&
                                                replay.simulation.host_time_per_request == 0});
    KVBLOCKS_ASSIGN_OR_RETURN(const auto simulation,
                              MakeSimulation(replay, reader.get(), {&curve}));
    if (run.progress->is_shown()) {
      simulation->set_progress([&](const SimulationProgress& p) {
        run.progress->Update(p, 0, 0);
        return true;
      });
    }
    KVBLOCKS_RETURN_IF_ERROR(simulation->Run());
    run.progress->Clear();
    if (curve.was_pool_too_small() && num_blocks < kMaxNumBlocks) {
      num_blocks *= 2;
      continue;
    }
    std::vector<std::string> doubts = curve.Doubts();
    if (config.watermark() > 0) doubts.push_back("--watermark keeps a share of each pool free");
    const int64_t smallest = std::max(curve.peak_referenced(), order.smallest_pool);
    report->set_smallest_pool(smallest);
    report->set_requests(curve.num_requests());
    report->set_prompt_tokens(curve.num_prompt_tokens());
    report->set_prompt_blocks(curve.num_prompt_blocks());
    const HitCurve hits = curve.Finish();
    SetPossible(hits.max_hits(), std::max(hits.SmallestPool(hits.max_hits()), smallest), report);
    report->set_exactness(absl::StrCat(
        doubts.empty() ? "as one replay schedules requests, exact for pools of "
                       : "same-schedule approximation, for pools of ",
        WithThousands(smallest), " blocks or more", doubts.empty() ? "" : ": ",
        absl::StrJoin(doubts, "; ")));
    AddPoints(ChooseSizes(run.options, run.asked_blocks, *report),
              [&](int64_t size) { return hits.Hits(size); }, report);
    AddAnswers(hits.max_hits(), run.block_tokens, replay.block_bytes, run.device_blocks,
               SmallestPoolOf(hits, smallest), report->mutable_answers());
    if (run.options.refine == 0) return absl::OkStatus();
    KVBLOCKS_RETURN_IF_ERROR(ReplaySizes(run, SizesOfMostBend(*report, run.options.refine)));
    for (pb::CurveReplay& one : *report->mutable_replays()) {
      one.set_curve_hit_tokens(hits.Hits(one.num_blocks()) * run.block_tokens);
    }
    return absl::OkStatus();
  }
}

}  // namespace kvblocks::sim
