// kvsim curve: how many blocks of a workload pools of every size hit.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/commands.h"
#include "sim/commands/curve_run.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/report_output.h"
#include "sim/curve/curve_table.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr int64_t kMostBlocks = int64_t{1} << 31;

constexpr const char* kCurveFooter =
    R"(One pass over the trace gives the hits of pools of every size, in usable blocks: --num-blocks
of a replay counts the null block, too.

  --mode=order      requests run one after the other. Depends on the trace and the block size alone.
                    Belady's bound is the most that any eviction policy could hit.
  --mode=schedule   requests overlap as one replay schedules them, with all options of a replay.
                    The report says for which pools this is exact; --refine replays some sizes.

Models with windows, states or several KV-cache groups have no such pass: their sizes are replayed,
on all cores.

Examples
  kvsim curve                                     the workload that comes with kvsim
  kvsim curve trace.jsonl.gz --model=llama-3.1-70b --device=h200 --tensor-parallel=4
  kvsim curve trace.jsonl.gz --blocks=ids --sizes 1000 10000 100000
  kvsim curve trace.jsonl.gz --block-sizes 16 64 256 --what-if=shuffled
  kvsim curve trace.jsonl.gz --mode=schedule --time=fixed --refine=3
  kvsim curve trace.jsonl.gz --csv=curve.csv --html=curve.html

Exit status: 0 done, 2 bad input or options, 3 no request can run, 4 internal check failed.)";

// Of the options about model, device and time: whether it says what the cache is made of or how
// much memory it gets.
bool IsOfPoolSize(std::string_view field) {
  constexpr std::string_view kFields[] = {
      "model",  "device", "catalogue", "tensor_parallel", "decode_context_parallel",
      "kv_cache_dtype", "weight_dtype", "memory_utilization", "activation_gb", "graph_gb",
      "draft_model"};
  return std::ranges::find(kFields, field) != std::end(kFields);
}

class CurveCommand final : public Command {
 public:
  explicit CurveCommand(OptionParser* program)
      : Command(program->AddCommand("curve", "Print the hit rate of every pool size")),
        input_(options_) {
    options_->Add({"--mode", "order|schedule",
                   "requests one after the other, from one pass; or as one replay "
                   "schedules them [order]"},
                  &curve_.mode);
    options_->Add({"--blocks", "engine|prompt|ids",
                   "what counts: what an engine's pool holds, outputs included; full "
                   "blocks of prompts; or one block per content id, as papers count "
                   "[engine]"},
                  &curve_.blocks);
    options_->AddList({"--sizes", "BLOCKS", "pools in the table, null block not counted [chosen]"},
                      1, kMostBlocks, &curve_.sizes);
    options_->Add({"--points", "N", "further sizes in JSON and CSV, evenly by ratio [100]"}, 0,
                  100'000, &curve_.num_points);
    options_->AddFlag(
        {"--bounds", "", "Belady's bound beside the curve; --no-bounds leaves it out"},
        [this](bool value) { curve_.bounds = value; });
    options_->Add({"--refine", "N",
                   "replay the N sizes where the curve bends most, and print the difference [0]"},
                  0, 1000, &curve_.refine);
    options_->Add({"--sample-paths", "SHARE",
                   "estimate the curve from this share of the paths, for more than 100 "
                   "million blocks; reads the trace twice [all]"},
                  1e-9, 0.999999, &curve_.sample_paths);
    options_
        ->Add({"--hot", "PATHS", "most frequent paths that are always in the sample [64]"}, 0,
              1'000'000, &curve_.hot)
        .needs = "--sample-paths";
    options_
        ->AddList({"--tiers", "BLOCKS",
                   "second tiers of so many blocks behind each pool of --sizes, in place of "
                   "the curve in CSV"},
                  1, kMostBlocks, &curve_.tiers)
        .needs = "--sizes";
    options_->Add({"--threads", "N", "0: one per core [0]"}, 0, 1024, &curve_.threads);
    options_->BeginGroup("What if");
    options_->AddList({"--block-sizes", "TOKENS", "the same workload with these block sizes"}, 1,
                      1 << 24, &curve_.block_sizes);
    options_->AddRepeated(
        {"--what-if", "without-salts|per-tenant|per-session|shuffled|drop-last-hit",
         "all tenants share; nobody else's blocks, of tenants or sessions; sessions in random "
         "order: what locality is worth; a drafter that gives the last block back; several are "
         "several rows"},
        &curve_.what_if);
    options_->BeginGroup("Output");
    output_.AddFiles(options_, {.rows_help = "one row per size", .has_page = true});
    output_.AddTerminal(options_, "neither table nor progress");
    input_.AddOptions();
    options_->set_footer(kCurveFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override;

 private:
  ReplayInput input_;
  CurveOptions curve_;
  ReportOutput output_;
};

absl::StatusOr<ExitStatus> CurveCommand::Execute() {
  KVBLOCKS_RETURN_IF_ERROR(CheckCurveOptions(curve_, input_.given()));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto config, input_.Configure());
  KVBLOCKS_RETURN_IF_ERROR(output_.Check(FilesOf(config)));
  // Pools of all sizes are asked about, that of the device among them.
  auto used = config;
  used.set_num_blocks(0);
  KVBLOCKS_RETURN_IF_ERROR(input_.CheckUses(used));
  pb::CurveReport report;
  ProgressLine progress(output_.quiet());
  KVBLOCKS_RETURN_IF_ERROR(RunCurve(config, curve_, &progress, &report));
  return output_.Print("curve", report,
                       {.table = [&](bool color) { return FormatCurve(report, color); },
                        .rows = [&] { return CurveCsv(report); }});
}

}  // namespace

absl::Status CheckCurveOptions(const CurveOptions& options, const ReplayConfig& given) {
  const bool is_schedule = options.mode == "schedule", is_ids = options.blocks == "ids";
  const bool has_variants = !options.what_if.empty() || !options.block_sizes.empty();
  const bool has_policy = !given.eviction_policy().empty() && given.eviction_policy() != "lru";
  const std::pair<bool, std::string> rules[] = {
      {options.sample_paths > 0 && (is_schedule || has_variants || !options.tiers.empty()),
       "--sample-paths: set with --mode=schedule, --what-if, --block-sizes or --tiers, which need "
       "every path"},
      {is_schedule && (has_variants || options.blocks != "engine"),
       absl::StrCat(options.blocks != "engine"    ? "--blocks"
                    : options.block_sizes.empty() ? "--what-if"
                                                  : "--block-sizes",
                    ": set for --mode=schedule, expected --mode=order")},
      {is_ids && given.has_block_size(),
       "--block-size: set for --blocks=ids, whose blocks are as long as the trace says"},
      {is_ids && !options.block_sizes.empty(),
       "--block-sizes: set for --blocks=ids, whose blocks are as long as the trace says"},
      {!options.tiers.empty() && is_schedule,
       "--tiers: set for --mode=schedule, expected --mode=order"},
      {has_policy, absl::StrCat("--eviction-policy: got ", given.eviction_policy(),
                                ", expected lru: one pass gives all sizes of no other; kvsim "
                                "replay takes one size at a time")},
      {!given.retain().empty(),
       absl::StrCat("--retain: got ", given.retain(),
                    ", expected nothing: one pass gives all sizes of a pool that retains nothing; "
                    "kvsim replay takes one size at a time")},
      {!given.tier().empty(), absl::StrCat("--tier: got ", given.tier(),
                                           ", expected nothing: --tiers gives the hits of second "
                                           "tiers, kvsim replay their times")},
      {!is_schedule && options.refine > 0,
       "--refine: set for --mode=order, expected --mode=schedule"}};
  for (const auto& [is_bad, text] : rules) {
    if (is_bad) return absl::InvalidArgumentError(text);
  }
  if (is_schedule) return absl::OkStatus();
  // Requests that run one after the other have neither schedule nor time.
  const auto* reflection = given.GetReflection();
  for (const ReplayOption& option : ReplayOptions()) {
    const std::string_view group = option.section;
    const std::string_view field = option.name();
    constexpr std::string_view kOfTime[] = {"acceptance", "seed",        "lookahead_tokens",
                                            "watermark",  "speedup",     "spread",
                                            "rebase",     "concurrency", "start_jitter"};
    const bool is_of_schedule =
        (group == "Scheduler" && field != "engine" && field != "max_model_len") ||
        group == "Measurements" || std::ranges::count(kOfTime, field) > 0 ||
        (group == "Model, device and time" && !IsOfPoolSize(field));
    if (!is_of_schedule || !reflection->HasField(given, option.field)) continue;
    return InvalidArgument(FlagName(field),
                           ": requests that run one after the other have no schedule and no clock, "
                           "expected --mode=schedule");
  }
  return absl::OkStatus();
}

std::unique_ptr<Command> AddCurveCommand(OptionParser* program) {
  return std::make_unique<CurveCommand>(program);
}

}  // namespace kvblocks::sim
