// A curve from its options: order mode, what-ifs and notes.

#include "sim/commands/curve_run.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/replay_input.h"
#include "sim/curve/curve_table.h"
#include "sim/curve/possible_pools.h"
#include "sim/report/human_table.h"
#include "sim/run_in_parallel.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::report::v1;
namespace {

// Any pool will do: only its blocks' bytes count.
constexpr int64_t kAnyPool = 1 << 20;

OrderRunOptions MakeRunOptions(const CurveRun& run) {
  OrderRunOptions order = OrderRunOptionsOf(run.replay.simulation);
  const std::string& blocks = run.options.blocks;
  order.blocks.counted = blocks == "ids"      ? CountedBlocks::kIds
                         : blocks == "prompt" ? CountedBlocks::kPrompt
                                              : CountedBlocks::kEngine;
  order.with_bound = run.options.bounds && run.options.mode == "order";
  return order;
}

void Describe(const CurveRun& run, const TraceInfo& info) {
  pb::CurveReport* report = run.report;
  report->set_schema_version(1);
  report->set_trace(info.name);
  report->set_format(info.format);
  report->set_mode(run.options.mode);
  report->set_counted_blocks(run.options.blocks);
  report->set_free_order(run.config.free_order());
  report->set_block_tokens(run.block_tokens);
  report->set_model(run.replay.model);
  report->set_tensor_parallel(run.config.tensor_parallel());
  report->set_block_bytes(run.replay.block_bytes);
  report->set_device(run.replay.device);
  report->set_device_blocks(run.device_blocks);
}

void FillSums(const OrderRun& run, pb::CurveReport* report) {
  report->set_requests(run.num_requests);
  report->set_left_out(run.num_left_out);
  report->set_prompt_tokens(run.num_prompt_tokens);
  report->set_prompt_blocks(run.num_prompt_blocks);
  report->set_block_references(run.num_references);
  report->set_distinct_blocks(run.num_distinct);
  report->set_smallest_pool(run.smallest_pool);
  SetPossible(run.curve.max_hits(),
              std::max(run.curve.SmallestPool(run.curve.max_hits()), run.smallest_pool), report);
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
absl::Status AddVariants(const CurveRun& run, const TraceInfo& info,
                         const std::vector<TraceRequest>& requests,
                         const std::vector<Variant>& variants) {
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
  run.InParallel(tasks, "what-ifs");
  for (size_t i = 0; i < variants.size(); ++i) {
    if (!runs[i].ok()) return runs[i].status();
    const OrderRun& order = *runs[i];
    const int64_t block_tokens = variants[i].options.blocks.block_tokens;
    // Bytes grow with the tokens: a block of full attention has a row per token.
    const int64_t bytes = run.replay.block_bytes * block_tokens / run.block_tokens;
    pb::CurveVariant* out = run.report->add_variants();
    out->set_name(variants[i].name);
    out->set_block_tokens(block_tokens);
    out->set_prompt_blocks(order.num_prompt_blocks);
    out->set_possible_hits(order.curve.max_hits());
    out->set_possible_hit_tokens(order.curve.max_hits() * block_tokens);
    out->set_full_pool(order.curve.SmallestPool(order.curve.max_hits()));
    AddAnswers(order.curve.max_hits(), block_tokens, bytes, 0,
               SmallestPoolOf(order.curve, order.smallest_pool), out->mutable_answers());
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

void AddNotes(const CurveRun& run, const TraceReader& reader, const OrderRunOptions& order) {
  pb::CurveReport* report = run.report;
  const auto note = [report](bool is_true, const auto&... parts) {
    if (is_true) report->add_notes(absl::StrCat(parts...));
  };
  const TraceInfo& info = reader.info();
  note(info.block_tokens == 0,
       "no content identity in this trace; cross-request hits are 0 by construction");
  const auto links = info.notes.find(kTurnLinksNote);
  note(links != info.notes.end(), links != info.notes.end() ? links->second : "");
  note(info.block_tokens > run.block_tokens, "two prompts that differ inside a trace block of ",
       info.block_tokens, " tokens count as different from its start: hits are a lower bound");
  note(std::ranges::any_of(
           report->points(),
           [](const auto& point) { return point.is_row() && point.too_small_for_some(); }),
       "* below ", WithThousands(report->smallest_pool()),
       report->mode() == "schedule"
           ? " blocks requests wait or are preempted, which this curve does not have: replay these "
             "sizes"
           : " blocks a pool rejects the largest requests; the curve takes them all");
  note(report->left_out() > 0, WithThousands(report->left_out()),
       " requests never run, whatever the pool, and are left out");
  note(order.blocks.drops_last_hit,
       "the drafter gives the last block found back; that this leaves a second copy of it is left "
       "out");
  note(run.config.num_draft_tokens() > 0 && report->mode() == "order",
       "lookahead slots of the drafter are left out");
  note(run.device_blocks == 0, run.replay.device,
       " does not hold the model with room for a cache; see --device and --tensor-parallel");
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

// Beside each point.
void AddBounds(const CurveRun& run, const OrderRun& order) {
  if (order.bound == nullptr) return;
  std::vector<std::function<void()>> tasks;
  for (pb::CurvePoint& point : *run.report->mutable_points()) {
    point.set_static_hits(order.static_bound->Hits(point.num_blocks()));
    tasks.push_back([&point, bound = order.bound.get()] {
      const int64_t most = bound->Hits(point.num_blocks(), Bypass::kNo);
      point.set_belady_hits(most);
      point.set_belady_bypass_hits(bound->Hits(point.num_blocks(), Bypass::kYes));
      if (most == 0) return;
      point.set_lru_share_of_belady(static_cast<double>(point.hits()) /
                                    static_cast<double>(most));
    });
  }
  run.InParallel(tasks, "bounds");
}

absl::Status SetUp(const TraceInfo& info, CurveRun* run) {
  ReplayConfig config = run->config;
  if (HasCrossAttention(config)) {
    return InvalidArgument(
        "--kv-cache-config: got groups of cross attention, expected none: with them engines cache "
        "no prefixes, and no pool hits anything");
  }
  if (!config.prefix_caching()) {
    return InvalidArgument("--no-prefix-caching: without a prefix cache no pool hits anything");
  }
  if (run->options.blocks == "ids") {
    if (info.block_tokens < 2) {
      return InvalidArgument("--blocks: got ids, expected engine or prompt: the trace has ",
                             info.block_tokens == 0 ? "lengths only" : "token ids",
                             ", no ids of blocks");
    }
    config.set_block_size(info.block_tokens);
  }
  if (config.num_blocks() > 0) run->asked_blocks = config.num_blocks() - 1;
  config.set_num_blocks(0);
  auto fitted = config.kv_cache_config().has_num_blocks()
                    ? absl::StatusOr<ReplaySetup>(absl::NotFoundError(""))
                    : MakeReplaySetup(config);
  if (fitted.ok()) {
    run->replay = *std::move(fitted);
    run->device_blocks = run->replay.simulation.kv_cache.num_blocks - 1;
  } else {
    config.set_num_blocks(kAnyPool);
    KVBLOCKS_ASSIGN_OR_RETURN(run->replay, MakeReplaySetup(config));
  }
  const KvCacheConfig& kv_cache = run->replay.simulation.kv_cache;
  run->has_one_pass = HasOnePass(kv_cache);
  run->block_tokens = kv_cache.groups[0].spec.block_size();
  run->num_threads = run->options.threads > 0
                         ? static_cast<int>(run->options.threads)
                         : static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  return absl::OkStatus();
}

}  // namespace

void CurveRun::InParallel(const std::vector<std::function<void()>>& tasks,
                          const char* noun) const {
  if (tasks.empty()) return;
  RunInParallel(num_threads, tasks, [&](int64_t num_done) {
    progress->UpdateCount(num_done, static_cast<int64_t>(tasks.size()), noun);
  });
  progress->Clear();
}

absl::Status RunCurve(const ReplayConfig& config, const CurveOptions& options,
                      ProgressLine* progress, pb::CurveReport* report) {
  if (!CanBeReadAgain(config.trace()) && (options.mode == "schedule" || options.sample_paths > 0)) {
    return InvalidArgument("TRACE: ", config.trace() == "-" ? "standard input" : "a pipe or device",
                           " can be read once, and ",
                           options.mode == "schedule" ? "--mode=schedule" : "--sample-paths",
                           " reads the trace twice; name a file");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto reader_options, MakeReaderOptions(config));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto reader, OpenReplayTrace(config, reader_options));
  const TraceInfo& info = reader->info();
  CurveRun run{.config = config, .options = options, .progress = progress, .report = report};
  KVBLOCKS_RETURN_IF_ERROR(SetUp(info, &run));
  Describe(run, info);
  if (!run.has_one_pass) return RunCurveOfReplays(run);

  const OrderRunOptions run_options = MakeRunOptions(run);
  if (options.sample_paths > 0) {
    KVBLOCKS_RETURN_IF_ERROR(RunSampledCurve(run, run_options.blocks, reader.get()));
    AddSentences(report);
    AddNotes(run, *reader, run_options);
    return absl::OkStatus();
  }
  const std::vector<Variant> variants = VariantsOf(options, run_options);
  int64_t num_rows = 0;
  RequestFeed feed = FeedFrom(reader.get(), [&] {
    if ((++num_rows & 255) == 0) progress->UpdateReading(reader->progress(), num_rows, 0);
  });
  std::vector<TraceRequest> requests;
  if (!variants.empty()) {
    KVBLOCKS_ASSIGN_OR_RETURN(requests, ReadAll(feed, reader.get()));
    feed = FeedFrom(&requests);
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const OrderRun order, RunOrder(info, feed, run_options));
  progress->Clear();
  FillSums(order, report);
  if (order.num_requests == 0) {
    return FailedPrecondition(
        order.num_left_out == 0
            ? "the trace has no requests, or none was selected"
            : absl::StrCat("none of the ", order.num_left_out, " requests can run"));
  }
  PrintWarnings(*reader);
  if (options.mode == "schedule") {
    KVBLOCKS_RETURN_IF_ERROR(RunScheduleCurve(run, order));
  } else {
    report->set_exactness(
        run_options.blocks.drops_last_hit
            ? "requests one after the other, an approximation"
            : absl::StrCat("requests one after the other, exact for pools of ",
                           WithThousands(order.smallest_pool), " blocks or more"));
    AddPoints(ChooseSizes(options, run.asked_blocks, *report),
              [&](int64_t size) { return order.curve.Hits(size); }, report);
    AddBounds(run, order);
    AddAnswers(order.curve.max_hits(), run.block_tokens, run.replay.block_bytes, run.device_blocks,
               SmallestPoolOf(order.curve, order.smallest_pool), report->mutable_answers());
    AddTiers(options, order.curve, report);
  }
  KVBLOCKS_RETURN_IF_ERROR(AddVariants(run, info, requests, variants));
  AddSentences(report);
  AddNotes(run, *reader, run_options);
  if (options.mode == "order" && order.num_without_arrival > 0) {
    report->add_notes(absl::StrCat(
        WithThousands(order.num_without_arrival),
        " requests wait for others and have no time of their own: they stand where the trace has "
        "them, perhaps session by session; --what-if=shuffled or --mode=schedule mixes sessions"));
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
