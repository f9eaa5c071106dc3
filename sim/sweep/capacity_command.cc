// kvsim capacity: the highest rate within limits, or the border of any option under any condition.

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/replay_input.h"
#include "sim/sweep/border_search.h"
#include "sim/sweep/capacity_search.h"
#include "sim/sweep/condition.h"
#include "sim/sweep/search_command.h"
#include "sim/sweep/sweep_table.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::sweep::v1;

constexpr const char* kCapacityFooter =
    R"(Raises the trace's own rate of arrivals until a limit of --slo is missed, says which one and what
was short. Without a percentile in --slo, --goodput=SHARE of requests must meet all limits.

With --largest or --smallest it searches another option: its range stands behind it, or in braces
inside its value, and is searched in whole numbers if both ends are whole.

Examples
  kvsim capacity trace.jsonl.gz --slo=ttft:2s@p99,tpot:50ms@p95
  kvsim capacity trace.jsonl.gz --slo=ttft:2s@p99,tpot:50ms@p95 --rate=40
                                          how many replicas 40 requests/s need
  kvsim capacity trace.jsonl.gz --slo=ttft:2s@p99 --rate=40 --devices=h100:2.5,h200:3.5
                                --tensor-parallels 1 2 4         which of them costs least
  kvsim capacity trace.jsonl.gz --slo=ttft:2s,tpot:50ms --goodput=0.99
  kvsim capacity trace.jsonl.gz --slo=ttft:2s@p99 --rate=40 --prefill-replicas=1
                                --decode-replicas=2    how many times 1 + 2 replicas
  kvsim capacity trace.jsonl.gz --slo=ttft:2s,tpot:50ms --goodput=0.95 --decode-replicas=2
                                --smallest prefill-replicas=1:8
  kvsim capacity trace.jsonl.gz --smallest num-blocks=500:50000 --where "hit-rate>=0.6"
  kvsim capacity trace.jsonl.gz --largest max-num-seqs=1:1024 --slo=tpot:50ms@p95
  kvsim capacity trace.jsonl.gz --smallest "tier=disk:4TiB:read={0.1:50}GB/s"
                                --baseline tier= --where "ttft-mean<=baseline"
                                          how fast a tier must be to pay off

Exit status: 0 done, 1 nothing meets the limits, 2 bad input or options, 4 internal check failed.)";

class CapacityCommand final : public Command {
 public:
  explicit CapacityCommand(OptionParser* program)
      : Command(program->AddCommand(
            "capacity", "Find the highest rate within limits, or the border of any option")),
        input_(options_, ReplayInput::Fleets::kTaken) {
    options_->Add({"--rate", "REQUESTS/S", "rate to serve: find the fewest replicas for it"}, 1e-9,
                  1e9, &rate_);
    options_->Add({"--devices", "DEVICE:PRICE,...",
                   "try each of them; with prices of one device for an hour, find the cheapest"},
                  &devices_);
    options_->AddList({"--tensor-parallels", "RANKS", "try each of them, with each device"}, 1,
                      1024, &tensor_parallels_);
    options_->Add({"--goodput", "SHARE", "of requests that must meet all limits of --slo"}, 1e-9,
                  1.0, &goodput_);
    options_->Add({"--tolerance", "SHARE", "of the number that is found [0.02]"}, 0.002, 1.0,
                  &tolerance_);
    const char* kBorder = "The border of an option";
    options_->Add({"--largest", "OPTION=FIRST:LAST",
                   "find the largest value with which all conditions hold", kBorder},
                  &largest_);
    options_->Add({"--smallest", "OPTION=FIRST:LAST",
                   "find the smallest value with which all conditions hold", kBorder},
                  &smallest_);
    options_->AddRepeated(
        {"--where", "CONDITION",
         "beside the percentiles of --slo: METRIC<=NUMBER or "
         "METRIC>=NUMBER, as docs/searching.md names metrics, or a multiple of the "
         "baseline's: ttft-mean<=0.9*baseline",
         kBorder},
        &where_);
    options_->AddRepeated({"--baseline", "OPTION=VALUE",
                           "how the replay differs that conditions compare with", kBorder},
                          &baseline_);
    options_->Add({"--prices", "DEVICE:PRICE,...",
                   "of one device for an hour, for cost-per-1m-tokens", kBorder},
                  &prices_);
    options_->Add({"--tier-prices", "TIER:PRICE,...",
                   "of a GiB of the tier for an hour, or PRICE/month; on top of --devices or "
                   "--prices",
                   kBorder},
                  &tier_prices_);
    search_.AddRunOptions(options_);
    search_.AddOutputOptions(
        options_, {.rows_help = "with --largest or --smallest, one row per value that was tried"});
    input_.AddOptions();
    options_->set_footer(kCapacityFooter);
  }

 private:
  absl::StatusOr<ExitStatus> Execute() override;
  absl::StatusOr<ExitStatus> SearchBorder();
  bool is_border() const { return !largest_.empty() || !smallest_.empty(); }
  // InvalidArgument if one of these is given.
  static absl::Status Refuse(std::initializer_list<std::pair<const char*, bool>> options,
                             const char* why) {
    for (const auto& [name, is_given] : options) {
      if (is_given) return InvalidArgument(name, why);
    }
    return absl::OkStatus();
  }

  ReplayInput input_;
  SearchOptions search_;
  std::string devices_, largest_, smallest_, prices_, tier_prices_;
  std::vector<std::string> where_, baseline_;
  std::vector<int64_t> tensor_parallels_;
  double rate_ = 0, goodput_ = 0, tolerance_ = 0.02;
};

absl::StatusOr<ExitStatus> CapacityCommand::Execute() {
  if (!is_border()) {
    KVBLOCKS_RETURN_IF_ERROR(Refuse({{"--where", !where_.empty()},
                                     {"--baseline", !baseline_.empty()},
                                     {"--prices", !prices_.empty()},
                                     {"--csv", !search_.csv().empty()}},
                                    " needs --largest or --smallest beside it"));
  }
  if (is_border()) return SearchBorder();
  KVBLOCKS_ASSIGN_OR_RETURN(auto asked, input_.Asked());
  CapacityOptions options;
  options.asked = std::move(asked);
  KVBLOCKS_ASSIGN_OR_RETURN(options.devices,
                            OfOption("--devices", ParseDevices(devices_, options.asked)));
  KVBLOCKS_ASSIGN_OR_RETURN(options.tier_prices,
                            OfOption("--tier-prices", ParseTierPrices(tier_prices_)));
  if (!options.tier_prices.empty() &&
      (options.devices.empty() || options.devices.front().second == 0)) {
    return absl::InvalidArgumentError(
        "--tier-prices: needs prices of devices, too, like --devices=h100:2.5");
  }
  options.tensor_parallels = tensor_parallels_;
  options.goodput = goodput_;
  options.target_rate = rate_;
  options.tolerance = tolerance_;
  // How many replicas serve the rate is what is sought.
  std::vector<::kvblocks::sweep::v1::Axis> tried;
  if (rate_ > 0) {
    tried.emplace_back().set_option("replicas");
    tried.back().add_values("2");
  }
  for (const absl::Status& status :
       {CheckSearchUses(options.asked, tried), search_.CheckOutputs(FilesOf(options.asked, {}))}) {
    if (!status.ok()) return status;
  }
  KVBLOCKS_RETURN_IF_ERROR(search_.Open("capacity", ""));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto report, FindCapacity(options, &search_.runner(),
                                                            &search_.traces(), &search_.hashes()));
  bool has_answer = false;
  for (const auto& candidate : report.candidates()) has_answer |= candidate.problem().empty();
  return search_.Print("capacity", report,
                       {.table = [&](bool color) { return FormatCapacity(report, color); }},
                       has_answer ? kDone : kMissed);
}

absl::StatusOr<ExitStatus> CapacityCommand::SearchBorder() {
  KVBLOCKS_RETURN_IF_ERROR(
      Refuse({{"--rate", rate_ > 0},
              {"--devices", !devices_.empty()},
              {"--tensor-parallels", !tensor_parallels_.empty()},
              {"--smallest", !largest_.empty() && !smallest_.empty()}},
             ": has no use with --largest or --smallest of another option; leave it out"));
  KVBLOCKS_ASSIGN_OR_RETURN(auto asked, input_.Asked());
  BorderOptions options;
  options.asked = std::move(asked);
  options.is_largest = !largest_.empty();
  options.tolerance = tolerance_;
  const char* flag = options.is_largest ? "--largest" : "--smallest";
  auto searched = ParseSearchedOption(options.is_largest ? largest_ : smallest_);
  if (!searched.ok()) {
    return InvalidArgument(flag, ": ", searched.status().message());
  }
  options.searched = *std::move(searched);
  KVBLOCKS_ASSIGN_OR_RETURN(const auto prices,
                            ParsePrices(prices_, tier_prices_, options.asked));
  KVBLOCKS_ASSIGN_OR_RETURN(options.conditions,
                            OfOption("--where", ParseConditions(where_, prices)));
  KVBLOCKS_RETURN_IF_ERROR(AddLimits(goodput_, &options));
  std::vector<pb::Axis> axes = {options.searched.Ends()};
  for (const std::string& text : baseline_) {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto setting, OfOption("--baseline", ParseSetting(text)));
    options.baseline.push_back(setting);
    axes.emplace_back().set_option(setting.option());
    axes.back().add_values(setting.value());
  }
  for (const absl::Status& status :
       {CheckBaseline(options), CheckSearchUses(options.asked, axes),
        search_.CheckOutputs(FilesOf(options.asked, axes))}) {
    if (!status.ok()) return status;
  }
  KVBLOCKS_RETURN_IF_ERROR(search_.Open("capacity", ""));
  KVBLOCKS_ASSIGN_OR_RETURN(
      auto metrics,
      FindSweepMetrics("hit-rate,ttft-mean,ttft-p99,tpot-p95,output-tokens-per-s,good-share", {}));
  for (const Condition& condition : options.conditions) {
    if (!condition.metric) continue;
    std::erase_if(metrics, [&](const SweepMetric& m) { return m.name == condition.metric->name; });
    metrics.insert(metrics.begin(), *condition.metric);
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto report,
                            FindBorder(options, &metrics, &search_.runner(), &search_.hashes()));
  return search_.Print("capacity", report,
                       {.table = [&](bool color) { return FormatBorder(report, metrics, color); },
                        .rows = [&] { return SweepCsv(report.tried()); }},
                       report.value().empty() ? kMissed : kDone);
}

}  // namespace

std::unique_ptr<Command> AddCapacityCommand(OptionParser* program) {
  return std::make_unique<CapacityCommand>(program);
}

}  // namespace kvblocks::sim
