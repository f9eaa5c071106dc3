#include "kvblocks/sim/commands/curve_options.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "kvblocks/sim/commands/option_table.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMostBlocks = int64_t{1} << 31;

constexpr std::string_view kWhatIfs[] = {"without-salts", "per-tenant", "per-session", "shuffled",
                                         "drop-last-hit"};

OptionParser::Setter OneOf(const std::vector<std::string>& choices, std::string* value) {
  return [choices, value](const std::string& text) -> std::string {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      std::string expected;
      for (const std::string& choice : choices) {
        absl::StrAppend(&expected, expected.empty() ? "" : ", ", choice);
      }
      return absl::StrCat("got ", text, ", expected one of ", expected);
    }
    *value = text;
    return "";
  };
}

// Of the options about model, device and time: whether it says what the cache is made of or how much
// memory it gets.
bool IsOfPoolSize(std::string_view field) {
  constexpr std::string_view kFields[] = {
      "model",  "device", "catalogue", "tensor_parallel", "decode_context_parallel",
      "kv_cache_dtype", "memory_utilization", "activation_gb", "graph_gb", "draft_model"};
  return std::find(std::begin(kFields), std::end(kFields), field) != std::end(kFields);
}

}  // namespace

void AddCurveOptions(OptionParser* options, CurveOptions* out) {
  options->Add({.name = "--mode",
                .unit = "order|schedule",
                .help = "requests one after the other, from one pass; or as one replay schedules "
                        "them [order]"},
               OneOf({"order", "schedule"}, &out->mode));
  options->Add(
      {.name = "--blocks",
       .unit = "engine|prompt|ids",
       .help = "what counts: what an engine's pool holds, outputs included; full blocks of "
               "prompts; or one block per content id, as papers count [engine]"},
      OneOf({"engine", "prompt", "ids"}, &out->blocks));
  options->AddList({.name = "--sizes",
                    .unit = "BLOCKS",
                    .help = "pools in the table, null block not counted [chosen]"},
                   1, kMostBlocks, &out->sizes);
  options->Add({.name = "--points",
                .unit = "N",
                .help = "further sizes in JSON and CSV, evenly by ratio [100]"},
               0, 100'000, &out->num_points);
  options->AddFlag(
      {.name = "--bounds", .help = "Belady's bound beside the curve; --no-bounds leaves it out"},
      [out](bool value) { out->bounds = value; });
  options->Add({.name = "--refine",
                .unit = "N",
                .help = "replay the N sizes where the curve bends most, and print the difference "
                        "[0]"},
               0, 1000, &out->refine);
  options->Add(
      {.name = "--sample-paths",
       .unit = "SHARE",
       .help = "estimate the curve from this share of the paths, for more than 100 million "
               "blocks; reads the trace twice [all]"},
      &out->sample_text);
  options->Add({.name = "--hot",
                .unit = "PATHS",
                .help = "most frequent paths that are always in the sample [64]",
                .needs = "--sample-paths"},
               0, 1'000'000, &out->hot);
  options->AddList({.name = "--tiers",
                    .unit = "BLOCKS",
                    .help = "second tiers of so many blocks behind each pool of --sizes, in place of the curve in CSV",
                    .needs = "--sizes"},
                   1, kMostBlocks, &out->tiers);
  options->Add({.name = "--threads", .unit = "N", .help = "0: one per core [0]"}, 0, 1024,
               &out->threads);
  const char* kWhatIf = "What if";
  options->AddList({.name = "--block-sizes",
                    .unit = "TOKENS",
                    .help = "the same workload with these block sizes",
                    .group = kWhatIf},
                   1, 1 << 24, &out->block_sizes);
  options->AddRepeated(
      {.name = "--what-if",
       .unit = "CHANGE",
       .help =
           "without-salts (all tenants share), per-tenant or per-session (nobody else's "
           "blocks), shuffled (sessions in random order: what locality is worth), drop-last-hit "
           "(a drafter that gives the last block back); several are several rows",
       .group = kWhatIf},
      &out->what_if);
}

absl::Status ParseSampleShare(CurveOptions* options) {
  if (options->sample_text.empty()) return absl::OkStatus();
  double share = 0;
  if (!absl::SimpleAtod(options->sample_text, &share) || !(share > 0 && share < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("--sample-paths: got ", options->sample_text,
                                                   ", expected a share between 0 and 1"));
  }
  options->sample_paths = share;
  return absl::OkStatus();
}

absl::Status CheckCurveOptions(const CurveOptions& options,
                               const ::kvblocks::config::v1::ReplayConfig& given) {
  for (const std::string& what_if : options.what_if) {
    if (std::find(std::begin(kWhatIfs), std::end(kWhatIfs), what_if) != std::end(kWhatIfs))
      continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--what-if: got ", what_if,
        ", expected without-salts, per-tenant, per-session, shuffled or drop-last-hit"));
  }
  if (options.sample_paths > 0 && (options.mode == "schedule" || !options.what_if.empty() ||
                                   !options.block_sizes.empty() || !options.tiers.empty())) {
    return absl::InvalidArgumentError(
        "--sample-paths: set with --mode=schedule, --what-if, --block-sizes or --tiers, which need "
        "every path");
  }
  const bool has_variants = !options.what_if.empty() || !options.block_sizes.empty();
  if (options.mode == "schedule" && (has_variants || options.blocks != "engine")) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.blocks != "engine"    ? "--blocks"
                     : options.block_sizes.empty() ? "--what-if"
                                                   : "--block-sizes",
                     ": set for --mode=schedule, expected --mode=order"));
  }
  if (options.blocks == "ids" && given.has_block_size()) {
    return absl::InvalidArgumentError(
        "--block-size: set for --blocks=ids, whose blocks are as long as the trace says");
  }
  if (options.blocks == "ids" && !options.block_sizes.empty()) {
    return absl::InvalidArgumentError(
        "--block-sizes: set for --blocks=ids, whose blocks are as long as the trace says");
  }
  if (!options.tiers.empty() && options.mode == "schedule") {
    return absl::InvalidArgumentError("--tiers: set for --mode=schedule, expected --mode=order");
  }
  if (!given.eviction_policy().empty() && given.eviction_policy() != "lru") {
    return absl::InvalidArgumentError(
        absl::StrCat("--eviction-policy: got ", given.eviction_policy(),
                     ", expected lru: one pass gives all sizes of no other; kvsim replay takes one "
                     "size at a time"));
  }
  if (!given.retain().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--retain: got ", given.retain(),
                     ", expected nothing: one pass gives all sizes of a pool that retains nothing; "
                     "kvsim replay takes one size at a time"));
  }
  if (!given.tier().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tier: got ", given.tier(),
                     ", expected nothing: --tiers gives the hits of second tiers, kvsim replay their "
                     "times"));
  }
  if (options.mode == "schedule") return absl::OkStatus();
  if (options.refine > 0) {
    return absl::InvalidArgumentError("--refine: set for --mode=order, expected --mode=schedule");
  }
  // Requests that run one after the other have neither schedule nor time.
  const auto* reflection = given.GetReflection();
  for (const ReplayOption& option : ReplayOptions()) {
    const std::string_view group = option.section;
    const std::string_view field = option.name();
    const bool is_of_schedule =
        (group == "Scheduler" && field != "engine" && field != "max_model_len") ||
        group == "Measurements" || field == "acceptance" || field == "seed" ||
        field == "lookahead_tokens" || field == "watermark" || field == "speedup" ||
        field == "spread" || field == "rebase" || field == "concurrency" ||
        field == "start_jitter" ||
        (group == "Model, device and time" && !IsOfPoolSize(field));
    if (!is_of_schedule || !reflection->HasField(given, option.field)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(FlagName(field),
                     ": requests that run one after the other have no schedule and no clock, "
                     "expected --mode=schedule"));
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
