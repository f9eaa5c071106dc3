#include "kvblocks/sim/commands/curve_replays.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/checks/checked_int64.h"
#include "kvblocks/sim/commands/curve_points.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/curve/curve_table.h"
#include "kvblocks/sim/curve/schedule_curve.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/run_in_parallel.h"
#include "kvblocks/sim/simulation.h"
#include "kvblocks/sim/trace/byte_source.h"

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
absl::Status ReplayOne(ReplayConfig config, int64_t num_blocks, const std::string& tier,
                       pb::CurveReplay* out) {
  out->set_num_blocks(num_blocks);
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
  auto reader = OpenReplayTrace(config, setup->reader);
  if (!reader.ok()) return reader.status();
  HitCounter counter;
  const auto tiers = MakeTiers(*setup);
  if (!tiers.ok()) return tiers.status();
  auto simulation = MakeSimulation(*setup, reader->get(), {&counter}, tiers->get());
  if (!simulation.ok()) return simulation.status();
  const absl::Status status = (*simulation)->Run();
  if (*tiers != nullptr) counter.hit_tokens += (*tiers)->load_totals().num_loaded_tokens;
  if (!status.ok() && !IsNoProgress(status)) return status;
  if (!status.ok()) out->set_problem("no progress");
  const SimulationResult& result = (*simulation)->result();
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

}  // namespace

absl::Status ReplaySizes(const ReplayConfig& config, const std::vector<int64_t>& sizes,
                         int num_threads, ProgressLine* progress,
                         std::vector<pb::CurveReplay>* out) {
  out->assign(sizes.size(), {});
  std::vector<absl::Status> statuses(sizes.size());
  std::vector<std::function<void()>> tasks;
  for (size_t i = 0; i < sizes.size(); ++i) {
    tasks.push_back([&, i] { statuses[i] = ReplayOne(config, sizes[i], "", &(*out)[i]); });
  }
  RunInParallel(num_threads, tasks, [&](int64_t num_done) {
    progress->UpdateCount(num_done, static_cast<int64_t>(tasks.size()), "replays");
  });
  progress->Clear();
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Every pool with every second tier, written through and on eviction. Transfers are free, so that only
// sizes count.
absl::Status ReplayTiers(const ReplayConfig& config, const CurveOptions& options, int num_threads,
                         ProgressLine* progress, pb::CurveReport* report) {
  struct Wanted {
    int64_t first;
    std::string tier;
    pb::CurveReplay replay;
    absl::Status status;
  };
  std::vector<Wanted> wanted;
  for (const int64_t first : Ascending(options.sizes)) {
    for (const int64_t second : Ascending(options.tiers)) {
      AddTierSizes(first, second, report);
      const CheckedInt64 bytes = CheckedInt64(second) * report->block_bytes();
      if (bytes.overflowed() || *bytes.value() > Link::kMaxBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--tiers: got ", second, ", expected at most ", Link::kMaxBytes / report->block_bytes()));
      }
      const std::string tier = absl::StrCat("second:", *bytes.value(), "B:read=free");
      wanted.push_back({.first = first, .tier = tier, .replay = {}, .status = {}});
      wanted.push_back({.first = first,
                        .tier = absl::StrCat(tier, ":store=on-evict:exclusive"),
                        .replay = {},
                        .status = {}});
    }
  }
  std::vector<std::function<void()>> tasks;
  for (Wanted& one : wanted) {
    tasks.push_back([&] { one.status = ReplayOne(config, one.first, one.tier, &one.replay); });
  }
  RunInParallel(num_threads, tasks, [&](int64_t num_done) {
    progress->UpdateCount(num_done, static_cast<int64_t>(tasks.size()), "replays");
  });
  progress->Clear();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].status.ok()) return wanted[i].status;
    pb::CurveTiers* tiers = report->mutable_tiers(static_cast<int>(i / 2));
    const pb::CurveReplay& replay = wanted[i].replay;
    if (!replay.problem().empty()) tiers->set_problem(replay.problem());
    if (i % 2 == 0) tiers->set_inclusive_hit_rate(replay.hit_rate());
    if (i % 2 == 1) tiers->set_exclusive_hit_rate(replay.hit_rate());
    for (const pb::CurveReplay& alone : report->replays()) {
      if (alone.num_blocks() == wanted[i].first) tiers->set_first_hit_rate(alone.hit_rate());
    }
  }
  return absl::OkStatus();
}

absl::Status RunCurveOfReplays(const ReplayConfig& config, const CurveOptions& options,
                               const CurveSetup& setup, ProgressLine* progress,
                               pb::CurveReport* report) {
  if (!options.what_if.empty() || !options.block_sizes.empty() || options.refine > 0 ||
      options.sample_paths > 0 || options.blocks != "engine") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model: ", setup.replay.model,
        " has windows, states or several KV-cache groups, whose sizes are replayed one by one; "
        "--what-if, --block-sizes, --refine, --sample-paths and --blocks need a model of "
        "full attention"));
  }
  if (!CanBeReadAgain(config.trace())) {
    return absl::InvalidArgumentError(
        "TRACE: standard input and pipes can be read once, and every size reads the trace; name a "
        "file");
  }
  std::vector<int64_t> sizes = options.sizes;
  if (sizes.empty()) {
    if (setup.device_blocks == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--sizes: none given, and ", setup.replay.device, " does not hold ", setup.replay.model));
    }
    for (const int64_t eighths : {1, 2, 4, 8, 16, 32}) {
      sizes.push_back(std::max<int64_t>(setup.device_blocks * eighths / 8, 1));
    }
  }
  if (setup.asked_blocks > 0) sizes.push_back(setup.asked_blocks);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  std::vector<pb::CurveReplay> replays;
  if (absl::Status status = ReplaySizes(config, sizes, setup.num_threads, progress, &replays);
      !status.ok()) {
    return status;
  }
  report->set_mode("replays");
  report->set_exactness(
      absl::StrCat("windows, states or several groups decide together what is hit, so no single "
                   "pass is exact; ",
                   sizes.size(), " sizes were replayed, each exactly"));
  for (const pb::CurveReplay& replay : replays) {
    *report->add_replays() = replay;
    report->set_requests(std::max(report->requests(), replay.requests()));
    report->set_prompt_tokens(std::max(report->prompt_tokens(), replay.prompt_tokens()));
  }
  if (absl::Status status = ReplayTiers(config, options, setup.num_threads, progress, report);
      !status.ok()) {
    return status;
  }
  if (report->requests() == 0) {
    return absl::FailedPreconditionError("none of these pools admitted a request; see --sizes");
  }
  if (setup.device_blocks > 0) {
    report->add_sentences(absl::StrCat(setup.replay.device, " holds ",
                                       WithThousands(setup.device_blocks), " blocks."));
  }
  return absl::OkStatus();
}

absl::Status RunScheduleCurve(const ReplayConfig& config, const CurveOptions& options,
                              CurveSetup& setup, const OrderRun& order, ProgressLine* progress,
                              pb::CurveReport* report) {
  ReplaySetup& replay = setup.replay;
  const FreeOrder free_order = replay.simulation.manager.free_order;
  // What the replay itself does with freed blocks makes no difference; this takes fewest blocks.
  replay.simulation.manager.free_order = FreeOrder::kUnhashedFirst;
  replay.simulation.manager.watermark = 0;
  int64_t num_blocks =
      order.num_distinct + order.num_distinct / 16 + 4 * order.smallest_pool + kSparePool;
  while (true) {
    num_blocks = std::min(num_blocks, kMaxNumBlocks);
    replay.simulation.kv_cache.num_blocks = num_blocks;
    auto reader = OpenReplayTrace(config, replay.reader);
    if (!reader.ok()) return reader.status();
    ScheduleCurve curve({.free_order = free_order,
                         .has_fixed_step_time = config.time() == "fixed" &&
                                                replay.simulation.host_time_per_request == 0});
    auto simulation = MakeSimulation(replay, reader->get(), {&curve});
    if (!simulation.ok()) return simulation.status();
    if (progress->is_shown()) {
      (*simulation)->set_progress([&](const SimulationProgress& p) {
        progress->Update(p, 0, 0);
        return true;
      });
    }
    if (absl::Status status = (*simulation)->Run(); !status.ok()) return status;
    progress->Clear();
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
    report->set_possible_hits(hits.max_hits());
    report->set_possible_hit_tokens(hits.max_hits() * report->block_tokens());
    report->set_full_pool(std::max(hits.SmallestPool(hits.max_hits()), smallest));
    report->set_exactness(
        doubts.empty()
            ? absl::StrCat("as one replay schedules requests, exact for pools of ",
                           WithThousands(smallest), " blocks or more")
            : absl::StrCat("same-schedule approximation, for pools of ", WithThousands(smallest),
                           " blocks or more: ", absl::StrJoin(doubts, "; ")));
    AddPoints(
        ChooseSizes(options, setup.asked_blocks, *report),
        [&](int64_t size) { return hits.Hits(size); }, {}, 1, progress, report);
    const auto smallest_pool = [&](int64_t wanted) {
      return wanted == 0 ? 0 : std::max(hits.SmallestPool(wanted), smallest);
    };
    AddAnswers(hits.max_hits(), setup.block_tokens, replay.block_bytes, setup.device_blocks,
               smallest_pool, report->mutable_answers());
    if (options.refine == 0) return absl::OkStatus();
    std::vector<pb::CurveReplay> replays;
    if (absl::Status status = ReplaySizes(config, SizesOfMostBend(*report, options.refine),
                                          setup.num_threads, progress, &replays);
        !status.ok()) {
      return status;
    }
    for (pb::CurveReplay& one : replays) {
      one.set_curve_hit_tokens(hits.Hits(one.num_blocks()) * setup.block_tokens);
      *report->add_replays() = one;
    }
    return absl::OkStatus();
  }
}

}  // namespace kvblocks::sim
