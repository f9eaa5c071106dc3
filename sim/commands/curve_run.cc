#include "kvblocks/sim/commands/curve_run.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/commands/curve_points.h"
#include "kvblocks/sim/commands/curve_replays.h"
#include "kvblocks/sim/commands/curve_sampled.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/curve/curve_table.h"
#include "kvblocks/sim/curve/possible_pools.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/run_in_parallel.h"
#include "kvblocks/sim/trace/byte_source.h"
#include "kvblocks/sim/trace/turn_links.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::report::v1;
using ::kvblocks::config::v1::ReplayConfig;

namespace {

// A pool that stands for any: only its blocks' bytes count.
constexpr int64_t kAnyPool = 1 << 20;

OrderRunOptions MakeRunOptions(const CurveOptions& options, const CurveSetup& setup) {
  OrderRunOptions run = OrderRunOptionsOf(setup.replay.simulation);
  run.blocks.counted = options.counted();
  run.with_bound = options.bounds && options.mode == "order";
  return run;
}

void Describe(const ReplayConfig& config, const CurveOptions& options, const CurveSetup& setup,
              const TraceInfo& info, pb::CurveReport* report) {
  report->set_schema_version(1);
  report->set_trace(info.name);
  report->set_format(info.format);
  report->set_mode(options.mode);
  report->set_counted_blocks(options.blocks);
  report->set_free_order(config.free_order());
  report->set_block_tokens(setup.block_tokens);
  report->set_model(setup.replay.model);
  report->set_tensor_parallel(config.tensor_parallel());
  report->set_block_bytes(setup.replay.block_bytes);
  report->set_device(setup.replay.device);
  report->set_device_blocks(setup.device_blocks);
}

void FillSums(const OrderRun& run, pb::CurveReport* report) {
  report->set_requests(run.num_requests);
  report->set_left_out(run.num_left_out);
  report->set_prompt_tokens(run.num_prompt_tokens);
  report->set_prompt_blocks(run.num_prompt_blocks);
  report->set_block_references(run.num_references);
  report->set_distinct_blocks(run.num_distinct);
  report->set_smallest_pool(run.smallest_pool);
  report->set_possible_hits(run.curve.max_hits());
  report->set_possible_hit_tokens(run.curve.max_hits() * report->block_tokens());
  report->set_full_pool(std::max(run.curve.SmallestPool(run.curve.max_hits()), run.smallest_pool));
  report->set_requests_with_possible_hit(run.num_requests_with_hit);
}

struct Variant {
  std::string name;
  OrderRunOptions options;
  bool is_shuffled = false;
  bool has_loss = false;
};

std::vector<Variant> VariantsOf(const CurveOptions& options, const OrderRunOptions& base) {
  std::vector<Variant> variants;
  for (const int64_t size : options.block_sizes) {
    Variant& variant =
        variants.emplace_back(Variant{absl::StrCat("blocks of ", size), base, false, true});
    variant.options.blocks.block_tokens = size;
  }
  for (const std::string& what_if : options.what_if) {
    Variant& variant = variants.emplace_back(Variant{what_if, base, what_if == "shuffled", false});
    RequestBlocksOptions& blocks = variant.options.blocks;
    if (what_if == "without-salts") blocks.sharing = ContentSharing::kWithoutSalts;
    if (what_if == "per-tenant") blocks.sharing = ContentSharing::kPerTenant;
    if (what_if == "per-session") blocks.sharing = ContentSharing::kPerSession;
    if (what_if == "drop-last-hit") {
      blocks.drops_last_hit = true;
      blocks.hash_lookahead_tokens = 0;
    }
  }
  for (Variant& variant : variants) variant.options.with_bound = false;
  return variants;
}

// All variants over one decoded trace, side by side.
absl::Status AddVariants(const TraceInfo& info, const std::vector<TraceRequest>& requests,
                         const std::vector<Variant>& variants, const CurveSetup& setup,
                         ProgressLine* progress, pb::CurveReport* report) {
  std::vector<absl::StatusOr<OrderRun>> runs(variants.size());
  std::vector<RoundingLoss> losses(variants.size());
  std::vector<std::function<void()>> tasks;
  for (size_t i = 0; i < variants.size(); ++i) {
    tasks.push_back([&, i] {
      const Variant& variant = variants[i];
      runs[i] =
          RunOrder(info, variant.is_shuffled ? ShuffledFeedFrom(&requests, 1) : FeedFrom(&requests),
                   variant.options);
      if (variant.has_loss) {
        losses[i] = LossByRounding(info, requests, variant.options.blocks.block_tokens);
      }
    });
  }
  RunInParallel(setup.num_threads, tasks, [&](int64_t num_done) {
    progress->UpdateCount(num_done, static_cast<int64_t>(tasks.size()), "what-ifs");
  });
  progress->Clear();
  for (size_t i = 0; i < variants.size(); ++i) {
    if (!runs[i].ok()) return runs[i].status();
    const OrderRun& run = *runs[i];
    const int64_t block_tokens = variants[i].options.blocks.block_tokens;
    // Bytes grow with the tokens: a block of full attention has a row per token.
    const int64_t bytes = setup.replay.block_bytes * block_tokens / setup.block_tokens;
    pb::CurveVariant* out = report->add_variants();
    out->set_name(variants[i].name);
    out->set_block_tokens(block_tokens);
    out->set_prompt_blocks(run.num_prompt_blocks);
    out->set_possible_hits(run.curve.max_hits());
    out->set_possible_hit_tokens(run.curve.max_hits() * block_tokens);
    out->set_full_pool(run.curve.SmallestPool(run.curve.max_hits()));
    const auto smallest_pool = [&](int64_t hits) {
      return hits == 0 ? 0 : std::max(run.curve.SmallestPool(hits), run.smallest_pool);
    };
    AddAnswers(run.curve.max_hits(), block_tokens, bytes, 0, smallest_pool, out->mutable_answers());
    if (variants[i].has_loss && losses[i].shared_tokens > 0) {
      out->set_note(absl::StrCat("whole blocks lose ", WithThousands(losses[i].lost_tokens), " of ",
                                 WithThousands(losses[i].shared_tokens), " shared tokens, ",
                                 WithThousands(losses[i].short_tokens), " of them in ",
                                 WithThousands(losses[i].short_requests),
                                 " prompts that share less than one block"));
    }
    if (variants[i].options.blocks.drops_last_hit) {
      out->set_note("second copies of the blocks that are computed again are left out");
    }
  }
  return absl::OkStatus();
}

void AddNotes(const ReplayConfig& config, const CurveSetup& setup, const TraceReader& reader,
              const OrderRunOptions& run, pb::CurveReport* report) {
  const TraceInfo& info = reader.info();
  if (info.block_tokens == 0) {
    report->add_notes(
        "no content identity in this trace; cross-request hits are 0 by construction");
  }
  if (const auto links = info.notes.find(kTurnLinksNote); links != info.notes.end()) {
    report->add_notes(links->second);
  }
  if (info.block_tokens > setup.block_tokens) {
    report->add_notes(absl::StrCat("two prompts that differ inside a trace block of ",
                                   info.block_tokens,
                                   " tokens count as different from its start: hits are a lower "
                                   "bound"));
  }
  if (std::any_of(report->points().begin(), report->points().end(),
                  [](const auto& point) { return point.is_row() && point.too_small_for_some(); })) {
    report->add_notes(absl::StrCat("* below ", WithThousands(report->smallest_pool()),
                                   report->mode() == "schedule"
                                       ? " blocks requests wait or are preempted, which this curve "
                                         "does not have: replay these sizes"
                                       : " blocks a pool rejects the largest requests; the curve "
                                         "takes them all"));
  }
  if (report->left_out() > 0) {
    report->add_notes(absl::StrCat(WithThousands(report->left_out()),
                                   " requests never run, whatever the pool, and are left out"));
  }
  if (run.blocks.drops_last_hit) {
    report->add_notes(
        "the drafter gives the last block found back; that this leaves a second copy "
        "of it is left out");
  }
  if (config.num_draft_tokens() > 0 && report->mode() == "order") {
    report->add_notes("slots that the drafter writes ahead are left out");
  }
  if (setup.device_blocks == 0) {
    report->add_notes(absl::StrCat(setup.replay.device,
                                   " does not hold the model with room for a cache; see --device "
                                   "and --tensor-parallel"));
  }
}

void AddTiers(const CurveOptions& options, const HitCurve& curve, pb::CurveReport* report) {
  const auto rate = [&](int64_t hits) {
    pb::CurvePoint point;
    FillPoint(hits, *report, &point);
    return point.hit_rate();
  };
  for (const int64_t first : Ascending(options.sizes)) {
    for (const int64_t second : Ascending(options.tiers)) {
      pb::CurveTiers* tiers = AddTierSizes(first, second, report);
      tiers->set_first_hits(curve.Hits(first));
      // What is written through is in the second tier, too.
      tiers->set_inclusive_hits(curve.Hits(std::max(first, second)));
      tiers->set_exclusive_hits(curve.Hits(first + second));
      tiers->set_first_hit_rate(rate(tiers->first_hits()));
      tiers->set_inclusive_hit_rate(rate(tiers->inclusive_hits()));
      tiers->set_exclusive_hit_rate(rate(tiers->exclusive_hits()));
    }
  }
}

}  // namespace

absl::StatusOr<CurveSetup> MakeCurveSetup(const ReplayConfig& asked, const CurveOptions& options,
                                          const TraceInfo& info) {
  CurveSetup setup;
  ReplayConfig config = asked;
  if (HasCrossAttention(config)) {
    return absl::InvalidArgumentError(
        "--kv-cache-config: got groups of cross attention, expected none: with them engines cache no "
        "prefixes, and no pool hits anything");
  }
  if (!config.prefix_caching()) {
    return absl::InvalidArgumentError(
        "--no-prefix-caching: without a prefix cache no pool hits anything");
  }
  if (options.blocks == "ids") {
    if (info.block_tokens < 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--blocks: got ids, expected engine or prompt: the trace has ",
          info.block_tokens == 0 ? "lengths only" : "token ids", ", no ids of blocks"));
    }
    config.set_block_size(info.block_tokens);
  }
  if (config.num_blocks() > 0) setup.asked_blocks = config.num_blocks() - 1;
  config.set_num_blocks(0);
  auto fitted = config.kv_cache_config().has_num_blocks()
                    ? absl::StatusOr<ReplaySetup>(absl::NotFoundError(""))
                    : MakeReplaySetup(config);
  if (fitted.ok()) {
    setup.replay = *std::move(fitted);
    setup.device_blocks = setup.replay.simulation.kv_cache.num_blocks - 1;
  } else {
    config.set_num_blocks(kAnyPool);
    auto any = MakeReplaySetup(config);
    if (!any.ok()) return any.status();
    setup.replay = *std::move(any);
  }
  const KvCacheConfig& kv_cache = setup.replay.simulation.kv_cache;
  setup.has_one_pass = HasOnePass(kv_cache);
  setup.block_tokens = kv_cache.groups[0].spec.block_size();
  const unsigned cores = std::thread::hardware_concurrency();
  setup.num_threads = options.threads > 0 ? static_cast<int>(options.threads)
                                          : static_cast<int>(std::max(cores, 1u));
  return setup;
}

absl::Status RunCurve(const ReplayConfig& config, const CurveOptions& options,
                      ProgressLine* progress, pb::CurveReport* report) {
  if (!CanBeReadAgain(config.trace()) && (options.mode == "schedule" || options.sample_paths > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("TRACE: ", config.trace() == "-" ? "standard input" : "a pipe or device",
                     " can be read once, and ",
                     options.mode == "schedule" ? "--mode=schedule" : "--sample-paths",
                     " reads the trace twice; name a file"));
  }
  const auto reader_options = MakeReaderOptions(config);
  if (!reader_options.ok()) return reader_options.status();
  auto reader = OpenReplayTrace(config, *reader_options);
  if (!reader.ok()) return reader.status();
  const TraceInfo& info = (*reader)->info();
  auto setup = MakeCurveSetup(config, options, info);
  if (!setup.ok()) return setup.status();
  Describe(config, options, *setup, info, report);
  if (!setup->has_one_pass) return RunCurveOfReplays(config, options, *setup, progress, report);

  const OrderRunOptions run_options = MakeRunOptions(options, *setup);
  if (options.sample_paths > 0) {
    if (absl::Status status =
            RunSampledCurve(options, *setup, run_options.blocks, reader->get(), progress, report);
        !status.ok()) {
      return status;
    }
    AddSentences(report);
    AddNotes(config, *setup, **reader, run_options, report);
    return absl::OkStatus();
  }
  const std::vector<Variant> variants = VariantsOf(options, run_options);
  int64_t num_rows = 0;
  RequestFeed feed = FeedFrom(reader->get(), [&] {
    if ((++num_rows & 255) == 0) progress->UpdateReading((*reader)->progress(), num_rows, 0);
  });
  std::vector<TraceRequest> requests;
  if (!variants.empty()) {
    auto all = ReadAll(feed, reader->get());
    if (!all.ok()) return all.status();
    requests = *std::move(all);
    feed = FeedFrom(&requests);
  }
  auto run = RunOrder(info, feed, run_options);
  if (!run.ok()) return run.status();
  progress->Clear();
  FillSums(*run, report);
  if (run->num_requests == 0) {
    return absl::FailedPreconditionError(
        run->num_left_out == 0
            ? "the trace has no requests, or none was selected"
            : absl::StrCat("none of the ", run->num_left_out, " requests can run"));
  }
  PrintWarnings(**reader);
  if (options.mode == "schedule") {
    if (absl::Status status = RunScheduleCurve(config, options, *setup, *run, progress, report);
        !status.ok()) {
      return status;
    }
  } else {
    report->set_exactness(run_options.blocks.drops_last_hit
                              ? "requests one after the other, an approximation"
                              : absl::StrCat("requests one after the other, exact for pools of ",
                                             WithThousands(run->smallest_pool), " blocks or more"));
    AddPoints(
        ChooseSizes(options, setup->asked_blocks, *report),
        [&](int64_t size) { return run->curve.Hits(size); },
        {run->bound.get(), run->static_bound.get()}, setup->num_threads, progress, report);
    const auto smallest_pool = [&](int64_t hits) {
      return hits == 0 ? 0 : std::max(run->curve.SmallestPool(hits), run->smallest_pool);
    };
    AddAnswers(run->curve.max_hits(), setup->block_tokens, setup->replay.block_bytes,
               setup->device_blocks, smallest_pool, report->mutable_answers());
    AddTiers(options, run->curve, report);
  }
  if (absl::Status status = AddVariants(info, requests, variants, *setup, progress, report); !status.ok()) {
    return status;
  }
  AddSentences(report);
  AddNotes(config, *setup, **reader, run_options, report);
  if (options.mode == "order" && run->num_without_arrival > 0) {
    report->add_notes(absl::StrCat(
        WithThousands(run->num_without_arrival),
        " requests wait for others and have no time of their own: they stand where the trace has "
        "them, perhaps session by session; --what-if=shuffled or --mode=schedule mixes sessions"));
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
