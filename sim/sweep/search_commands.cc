// kvsim tune and kvsim capacity: searches whose points are replays.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/commands/split_input.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/text_page.h"
#include "kvblocks/sim/sweep/capacity_search.h"
#include "kvblocks/sim/sweep/search_command.h"
#include "kvblocks/sim/sweep/split_search.h"
#include "kvblocks/sim/sweep/sweep_commands.h"
#include "kvblocks/sim/sweep/sweep_table.h"
#include "kvblocks/sim/sweep/tune_search.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::sweep::v1;

constexpr const char* kTuneFooter =
    R"(One option after the other is set to its best value while the others stay, until a round changes
none: a local optimum. Where --num-blocks is among them, the curve says where to begin.
With percentiles in --slo only points that meet them can win.

Examples
  kvsim tune trace.jsonl.gz --over max-num-seqs=8:1024:*2 --over max-num-batched-tokens=512:16384:*2
             --objective=output-tokens-per-s --slo=ttft:2s@p99,tpot:50ms@p95
  kvsim tune trace.jsonl.gz --over num-blocks=1000:32000:*2 --over block-size=16,32,64
             --objective=ttft-p99 --results=tuned.jsonl
  kvsim tune trace.jsonl.gz --over device=h100,h200 --over tensor-parallel=1,2,4
             --objective=cost-per-1m-tokens --prices=h100:2.5,h200:3.5 --slo=tpot:50ms@p95

Exit status: 0 done, 1 no point meets --slo, 2 bad input or options, 3 no point has the objective,
4 internal check failed.)";

class TuneCommand final : public Command {
 public:
  explicit TuneCommand(OptionParser* program)
      : options_(program->AddCommand("tune", "Search options for the best value of a metric")),
        input_(options_, ReplayInput::Fleets::kTaken) {
    options_->AddRepeated({.name = "--over",
                           .unit = "OPTION=VALUE,...",
                           .help = "option to choose, and its values; 64:512:*2 is a range"},
                          &over_);
    options_->Add({.name = "--objective",
                   .unit = "NAME",
                   .help = "metric to make best, as docs/searching.md names them "
                           "[output-tokens-per-s]"},
                  &objective_);
    options_->Add({.name = "--prices",
                   .unit = "DEVICE:PRICE,...",
                   .help = "of one device for an hour, for cost-per-1m-tokens"},
                  &prices_);
    search_.AddRunOptions(options_);
    search_.AddOutputOptions(options_, {.rows_help = "one row per point that was tried"});
    input_.AddOptions();
    options_->set_footer(kTuneFooter);
  }

  const OptionParser& options() const override { return *options_; }
  ExitStatus Run() override {
    const auto status = Search();
    return status.ok() ? *status : Fail("tune", status.status());
  }

 private:
  absl::StatusOr<ExitStatus> Search();

  OptionParser* options_;
  ReplayInput input_;
  SearchOptions search_;
  std::vector<std::string> over_;
  std::string objective_ = "output-tokens-per-s", prices_;
};

std::string TuneTable(const TuneOptions& tune, const TuneResult& result,
                      const std::vector<SweepMetric>& metrics, const pb::TuneReport& report,
                      bool color) {
  TextPage page(color);
  page.Text("workload", report.evaluated().workload());
  page.Text(
      "objective",
      absl::StrCat(
          tune.objective.larger_is_better ? "most " : "least ", tune.objective.name,
          tune.asked.slo().empty() ? "" : absl::StrCat(" where ", tune.asked.slo(), " is met")));
  page.Text("points", absl::StrCat(WithThousands(report.evaluated().rows_size()),
                                   " were tried, one option at a time"));
  for (size_t i = 0; i < result.steps.size(); ++i) {
    page.Text(i == 0 ? "search" : "", result.steps[i]);
  }
  std::vector<std::string> flags, figures;
  for (const pb::Setting& setting : report.best().settings()) {
    flags.push_back(absl::StrCat(FlagName(setting.option()), "=", setting.value()));
  }
  for (const SweepMetric& metric : metrics) {
    figures.push_back(absl::StrCat(metric.name, " ", MetricCell(metric, report.best())));
  }
  page.Text("best", absl::StrJoin(flags, " "));
  page.Text("", absl::StrJoin(figures, ", "));
  if (!result.is_feasible)
    page.Text("note", "no point that was tried meets --slo; this is nearest");
  for (const std::string& note : report.evaluated().notes()) page.Text("note", note);
  page.Text(
      "note",
      "no neighbouring value of one option is better; that two changed together might be is not "
      "ruled out (kvsim sweep tries all)");
  return page.Take();
}

absl::StatusOr<ExitStatus> TuneCommand::Search() {
  TuneOptions tune;
  auto asked = input_.Asked();
  if (!asked.ok()) return asked.status();
  tune.asked = *std::move(asked);
  for (const std::string& text : over_) {
    auto axis = ParseAxis(text);
    if (!axis.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--over: ", axis.status().message()));
    }
    tune.axes.push_back(*std::move(axis));
  }
  const auto prices = ParsePrices(prices_, tune.asked);
  if (!prices.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--prices: ", prices.status().message()));
  }
  auto objective = FindSweepMetric(objective_, *prices);
  if (!objective.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--objective: ", objective.status().message()));
  }
  tune.objective = *std::move(objective);
  for (const absl::Status& status : {CheckSearchUses(tune.asked, tune.axes),
                                     search_.CheckOutputs(FilesOf(tune.asked, tune.axes))}) {
    if (!status.ok()) return status;
  }
  if (absl::Status status = search_.Open("tune", ""); !status.ok()) return status;
  ProgressLine progress(search_.quiet());
  const auto result = Tune(tune, &search_.runner(), &search_.hashes(), &progress);
  if (!result.ok()) return result.status();

  auto metrics = FindSweepMetrics("hit-rate,ttft-p99,tpot-p95,output-tokens-per-s,good-share", {});
  if (!metrics.ok()) return metrics.status();
  std::erase_if(*metrics, [&](const SweepMetric& m) { return m.name == tune.objective.name; });
  metrics->insert(metrics->begin(), tune.objective);
  pb::TuneReport report;
  report.set_schema_version(1);
  report.set_objective(tune.objective.name);
  *report.mutable_evaluated() = MakeSweepReport(result->evaluated, *metrics, {});
  *report.mutable_best() = report.evaluated().rows(static_cast<int>(result->best));
  for (const std::string& step : result->steps) report.add_steps(step);
  return search_.Print("tune", report,
                       {.table = [&](bool color) { return TuneTable(tune, *result, *metrics, report,
                                                                    color); },
                        .rows = [&] { return SweepCsv(report.evaluated()); }},
                       result->is_feasible ? kDone : kMissed);
}

constexpr const char* kCapacityFooter =
    R"(Raises the trace's own rate of arrivals until a limit of --slo is missed, says which one and what
was short. Without a percentile in --slo, --goodput=SHARE of requests must meet all limits.

Examples
  kvsim capacity trace.jsonl.gz --slo=ttft:2s@p99,tpot:50ms@p95
  kvsim capacity trace.jsonl.gz --slo=ttft:2s@p99,tpot:50ms@p95 --rate=40
                                          how many replicas 40 requests/s need
  kvsim capacity trace.jsonl.gz --slo=ttft:2s@p99 --rate=40 --devices=h100:2.5,h200:3.5
                                --tensor-parallels 1 2 4         which of them costs least
  kvsim capacity trace.jsonl.gz --slo=ttft:2s,tpot:50ms --goodput=0.99
  kvsim capacity trace.jsonl.gz --slo=ttft:2s,tpot:50ms --split-replicas=4
                                          which of 1 + 3, 2 + 2, 3 + 1 for prefill and decode

Exit status: 0 done, 1 nothing meets the limits, 2 bad input or options, 4 internal check failed.)";

class CapacityCommand final : public Command {
 public:
  explicit CapacityCommand(OptionParser* program)
      : options_(program->AddCommand("capacity", "Find the highest rate within limits on latency")),
        input_(options_, ReplayInput::Fleets::kTaken) {
    options_->Add({.name = "--rate",
                   .unit = "REQUESTS/S",
                   .help = "rate to serve: find the fewest replicas for it"},
                  [this](const std::string& text) { return SetNumber(text, 1e-9, 1e9, &rate_); });
    options_->Add(
        {.name = "--devices",
         .unit = "DEVICE:PRICE,...",
         .help = "try each of them; with prices of one device for an hour, find the cheapest"},
        &devices_);
    options_->AddList({.name = "--tensor-parallels",
                       .unit = "RANKS",
                       .help = "try each of them, with each device"},
                      1, 1024, &tensor_parallels_);
    options_->Add({.name = "--goodput",
                   .unit = "SHARE",
                   .help = "of requests that must meet all limits of --slo"},
                  [this](const std::string& text) { return SetNumber(text, 1e-9, 1, &goodput_); });
    options_->Add(
        {.name = "--tolerance", .unit = "SHARE", .help = "of the rate that is found [0.02]"},
        [this](const std::string& text) { return SetNumber(text, 0.002, 1, &tolerance_); });
    search_.AddRunOptions(options_);
    search_.AddOutputOptions(options_, {});
    options_->Add({.name = "--split-replicas",
                   .unit = "N",
                   .help = "try each division of N replicas into prefill and decode at the trace's "
                           "rate; with --goodput: find the fewest, up to N",
                   .group = "Prefill and decode replicas"},
                  2, kMostSplitReplicas, &split_replicas_);
    split_.AddOptions(options_, /*with_replicas=*/false);
    input_.AddOptions();
    options_->set_footer(kCapacityFooter);
  }

  const OptionParser& options() const override { return *options_; }
  ExitStatus Run() override {
    const auto status = Search();
    return status.ok() ? *status : Fail("capacity", status.status());
  }

 private:
  static std::string SetNumber(const std::string& text, double low, double high, double* value) {
    double number;
    if (absl::SimpleAtod(text, &number) && number >= low && number <= high) {
      *value = number;
      return "";
    }
    return absl::StrCat("got \"", text, "\", expected a number from ", low, " to ", high);
  }
  absl::StatusOr<ExitStatus> Search();
  absl::StatusOr<ExitStatus> SearchSplit();

  OptionParser* options_;
  ReplayInput input_;
  SplitInput split_;
  int64_t split_replicas_ = 0;
  SearchOptions search_;
  std::string devices_;
  std::vector<int64_t> tensor_parallels_;
  static constexpr double kTolerance = 0.02;
  double rate_ = 0, goodput_ = 0, tolerance_ = kTolerance;
};

absl::StatusOr<ExitStatus> CapacityCommand::SearchSplit() {
  const std::pair<const char*, bool> without_use[] = {{"--rate", rate_ > 0},
                                                      {"--devices", !devices_.empty()},
                                                      {"--tensor-parallels", !tensor_parallels_.empty()},
                                                      {"--tolerance", tolerance_ != kTolerance},
                                                      {"--results", search_.keeps_results()}};
  for (const auto& [name, is_given] : without_use) {
    if (!is_given) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": has no use with --split-replicas; leave it out"));
  }
  const auto config = input_.Configure();
  if (!config.ok()) return config.status();
  if (absl::Status status = input_.CheckUses(*config); !status.ok()) return status;
  if (absl::Status status = search_.CheckOutputs(FilesOf(*config)); !status.ok()) return status;
  const auto report =
      FindSplit({.config = *config, .most_replicas = split_replicas_, .goodput = goodput_}, split_,
                search_.num_threads(), search_.quiet(), &search_.traces());
  if (!report.ok()) return report.status();
  const bool is_found = report->has_best_split();
  return search_.Print("capacity", *report,
                       {.table = [&](bool color) { return FormatSplitSearch(*report, color); }},
                       is_found ? kDone : kMissed);
}

absl::StatusOr<ExitStatus> CapacityCommand::Search() {
  if (split_replicas_ > 0) return SearchSplit();
  if (absl::Status status = split_.RefuseOptions("--split-replicas"); !status.ok()) return status;
  auto asked = input_.Asked();
  if (!asked.ok()) return asked.status();
  CapacityOptions options;
  options.asked = *std::move(asked);
  auto devices = ParseDevices(devices_, options.asked);
  if (!devices.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--devices: ", devices.status().message()));
  }
  options.devices = *std::move(devices);
  options.tensor_parallels = tensor_parallels_;
  options.goodput = goodput_;
  options.target_rate = rate_;
  options.tolerance = tolerance_;
  for (const absl::Status& status :
       {CheckSearchUses(options.asked, {}), search_.CheckOutputs(FilesOf(options.asked, {}))}) {
    if (!status.ok()) return status;
  }
  if (absl::Status status = search_.Open("capacity", ""); !status.ok()) return status;
  const auto report =
      FindCapacity(options, &search_.runner(), &search_.traces(), &search_.hashes());
  if (!report.ok()) return report.status();
  bool has_answer = false;
  for (const auto& candidate : report->candidates()) has_answer |= candidate.problem().empty();
  return search_.Print("capacity", *report,
                       {.table = [&](bool color) { return FormatCapacity(*report, color); }},
                       has_answer ? kDone : kMissed);
}

}  // namespace

std::unique_ptr<Command> AddTuneCommand(OptionParser* program) {
  return std::make_unique<TuneCommand>(program);
}

std::unique_ptr<Command> AddCapacityCommand(OptionParser* program) {
  return std::make_unique<CapacityCommand>(program);
}

}  // namespace kvblocks::sim
