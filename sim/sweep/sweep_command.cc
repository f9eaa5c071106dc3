// kvsim sweep: replays of one workload with many combinations of options, on all cores.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "google/protobuf/text_format.h"
#include "kvblocks/check.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/replay_input.h"
#include "sim/sweep/condition.h"
#include "sim/sweep/search_command.h"
#include "sim/sweep/sweep_metrics.h"
#include "sim/sweep/sweep_table.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::sweep::v1;
using ::kvblocks::config::v1::ReplayConfig;

constexpr const char* kSweepFooter =
    R"(Every point is the replay that kvsim replay does with the same options. The trace is decoded once.
A FILE.textproto in the place of the trace is a specification (message SweepSpec of
sim/sweep/sweep.proto); its results are kept in FILE.results.jsonl beside it.

Examples
  kvsim sweep --grid num-blocks=1000,2000,4000        the workload that comes with kvsim
  kvsim sweep trace.jsonl.gz --grid num-blocks=1000:16000:*2 --grid max-num-seqs=64,256
              --pareto=hit-rate,pool-gib --results=points.jsonl --html=sweep.html
  kvsim sweep --grid trace=a.jsonl.gz,b.jsonl.gz --grid device=h100,h200 --csv=sweep.csv
  kvsim sweep sweep.textproto                         goes on where it was interrupted
  kvsim sweep trace.jsonl.gz --grid speedup=1:8:*2 --print-spec > sweep.textproto

Exit status: 0 done, 1 some point has no figures, 2 bad input or options, 4 internal check failed.)";

bool IsSpecName(const std::string& path) {
  return absl::EndsWith(path, ".textproto") || absl::EndsWith(path, ".txtpb") ||
         absl::EndsWith(path, ".pbtxt");
}

class SweepCommand final : public Command {
 public:
  explicit SweepCommand(OptionParser* program)
      : Command(program->AddCommand("sweep", "Replay many combinations of options")),
        input_(options_, ReplayInput::Fleets::kTaken) {
    options_->Add({.name = "--spec",
                   .unit = "FILE",
                   .help = "specification of the sweep",
                   .file = FileUse::kRead},
                  &spec_);
    options_->AddRepeated(
        {.name = "--grid",
         .unit = "OPTION=VALUE,...",
         .help =
             "values of an option of a replay, or of trace; 64:512:*2 and 10:40:+10 are ranges; "
             "several options: all combinations"},
        &grid_);
    search_.AddRunOptions(options_);
    options_->Add({"--metrics", "NAME,...",
                   "columns of the table and the CSV, as docs/searching.md names them"},
                  &metrics_);
    options_->Add({"--pareto", "NAME,...",
                   "mark the points that no other one beats in these metrics; of one "
                   "metric: the best point"},
                  &pareto_);
    options_->AddRepeated({"--where", "CONDITION",
                           "only points that hold it are marked: METRIC<=NUMBER, "
                           "METRIC>=NUMBER, or slo, the percentiles of --slo"},
                          &where_);
    options_->Add(
        {"--prices", "DEVICE:PRICE,...", "of one device for an hour, for cost-per-1m-tokens"},
        &prices_);
    options_->Add({"--tier-prices", "TIER:PRICE,...",
                   "of a GiB of the tier for an hour, or PRICE/month; on top of --prices"},
                  &tier_prices_);
    options_->AddFlag({.name = "--print-spec",
                       .help = "print the specification instead of replaying, for kvsim point"},
                      &print_spec_);
    const char* kOutput = "Output";
    options_->Add({"--rows", "N", "of the table [200]", kOutput}, 1, kMostSweepPoints, &rows_);
    search_.AddOutputOptions(options_, {.rows_help = "one row per point", .has_page = true});
    input_.AddOptions();
    options_->set_footer(kSweepFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override;

 private:
  absl::StatusOr<pb::SweepSpec> MakeSpec();

  ReplayInput input_;
  SearchOptions search_;
  std::string spec_, metrics_, pareto_, prices_, tier_prices_;
  std::vector<std::string> grid_, where_;
  int64_t rows_ = 200;
  bool print_spec_ = false;
};

absl::StatusOr<pb::SweepSpec> SweepCommand::MakeSpec() {
  KVBLOCKS_ASSIGN_OR_RETURN(auto asked, input_.Asked());
  if (IsSpecName(asked.trace())) {
    if (!spec_.empty()) {
      return InvalidArgument("--spec: ", asked.trace(), " is a specification already");
    }
    spec_ = asked.trace();
    asked.clear_trace();
  }
  pb::SweepSpec spec;
  if (!spec_.empty()) {
    KVBLOCKS_ASSIGN_OR_RETURN(spec, ReadSweepSpec(spec_));
  }
  if (asked.has_trace()) spec.clear_traces();
  if (asked.has_kv_cache_config()) spec.mutable_config()->clear_kv_cache_config();
  spec.mutable_config()->MergeFrom(asked);
  for (const std::string& text : grid_) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto axis, OfOption("--grid", ParseAxis(text)));
    *spec.add_grid() = std::move(axis);
  }
  if (spec.grid_size() + spec.list_size() == 0 && spec.traces_size() < 2) {
    return absl::InvalidArgumentError(
        "nothing to sweep over: give --grid OPTION=VALUE,... or a specification");
  }
  return spec;
}

absl::StatusOr<ExitStatus> SweepCommand::Execute() {
  KVBLOCKS_ASSIGN_OR_RETURN(auto spec, MakeSpec());
  if (print_spec_) {
    std::string text;
    google::protobuf::TextFormat::PrintToString(spec, &text);
    return WriteStdout(absl::StrCat("# proto-file: sim/sweep/sweep.proto\n"
                                    "# proto-message: kvblocks.sweep.v1.SweepSpec\n",
                                    text))
               ? kDone
               : kBadInput;
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto prices,
                            ParsePrices(prices_, tier_prices_, spec.config()));
  std::string names = metrics_;
  if (names.empty()) {
    names = "hit-rate,ttft-mean,ttft-p99,tpot-mean,output-tokens-per-s,good-share,preemptions,"
            "imbalance,missed-hits";
    if (!prices.devices.empty()) absl::StrAppend(&names, ",cost-per-1m-tokens");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto metrics, OfOption("--metrics", FindSweepMetrics(names, prices)));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto front,
                            OfOption("--pareto", FindSweepMetrics(pareto_, prices)));
  KVBLOCKS_ASSIGN_OR_RETURN(auto conditions, OfOption("--where", ParseConditions(where_, prices)));
  if (!conditions.empty() && front.empty()) {
    return absl::InvalidArgumentError("--where needs --pareto, the points that it is about");
  }
  for (const Condition& condition : conditions) {
    if (!condition.is_of_baseline) continue;
    return InvalidArgument("--where: got \"", condition.text,
                           "\", expected a number: a sweep has no baseline");
  }
  for (const SweepMetric& metric : front) {
    const bool is_shown =
        std::any_of(metrics.begin(), metrics.end(),
                    [&](const SweepMetric& other) { return other.name == metric.name; });
    if (!is_shown) metrics.push_back(metric);
  }
  const std::string results_file =
      spec_.empty() ? "" : absl::StrCat(spec_.substr(0, spec_.rfind('.')), ".results.jsonl");
  std::vector<RunFile> files = FilesOf(spec);
  if (!results_file.empty() && !search_.keeps_results()) {
    files.push_back({"the specification's results", results_file, FileUse::kWritten});
  }
  KVBLOCKS_RETURN_IF_ERROR(search_.CheckOutputs(files));
  KVBLOCKS_ASSIGN_OR_RETURN(auto points, ExpandSweep(spec, &search_.hashes()));
  std::vector<const ReplayConfig*> configs;
  for (const PlannedPoint& point : points) configs.push_back(&point.config);
  KVBLOCKS_RETURN_IF_ERROR(CheckOptionUses(configs, spec.config()));
  KVBLOCKS_RETURN_IF_ERROR(search_.Open("sweep", results_file));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto results, search_.runner().Run(points));
  for (const Condition& condition : conditions) {
    const bool has_figure = std::any_of(
        results.begin(), results.end(),
        [&](const pb::PointResult& result) { return Holds(condition, result, {}).has_value(); });
    if (has_figure) continue;
    return InvalidArgument("--where: got \"", condition.text, "\", but no point has such a figure");
  }
  if (metrics_.empty()) DropEmptyMetrics(results, &metrics);
  std::vector<bool> is_candidate;
  for (const pb::PointResult& result : results) {
    is_candidate.push_back(std::all_of(
        conditions.begin(), conditions.end(),
        [&](const Condition& condition) { return Holds(condition, result, {}).value_or(false); }));
  }
  pb::SweepReport report =
      MakeSweepReport(results, metrics, front, ParetoFront(results, front, is_candidate));
  for (const Condition& condition : conditions) report.add_conditions(condition.text);
  const bool has_problem =
      std::any_of(results.begin(), results.end(),
                  [](const pb::PointResult& result) { return !result.problem().empty(); });
  const pb::ShownMetrics shown = DescribeMetrics(metrics);
  return search_.Print(
      "sweep", report,
      {.table = [&](bool color) { return FormatSweep(report, metrics, rows_, color); },
       .rows = [&] { return SweepCsv(report); },
       .page_parts = {{"metrics", &shown}}},
      has_problem ? kMissed : kDone);
}

// kvsim point: one point of a sweep, for programs that distribute points.
constexpr const char* kPointFooter =
    R"(The unit of work for many machines: points are independent, read one trace and print one line.

Examples
  kvsim point --spec=sweep.textproto --list | wc -l        how many there are
  kvsim point --spec=sweep.textproto --index=7             replays number 7, prints a line of JSON
  seq 0 99 | parallel 'kvsim point --spec=sweep.textproto --index={}' >> sweep.results.jsonl
  kvsim sweep sweep.textproto                              reads the lines, replays what is missing

Exit status: 0 done, 1 the point has no figures (its line says why), 2 bad input or options,
4 internal check failed.)";

class PointCommand final : public Command {
 public:
  explicit PointCommand(OptionParser* program)
      : Command(program->AddCommand("point", "Replay one point of a sweep")) {
    options_->Add({.name = "--spec",
                   .unit = "FILE",
                   .help = "specification of the sweep, as kvsim sweep reads it",
                   .is_required = true},
                  &spec_);
    options_->Add({"--index", "N", "number of the point, from 0"}, 0, kMostSweepPoints, &index_);
    options_->AddFlag(
        {.name = "--list", .help = "print number and name of each point instead, one per line"},
        &list_);
    options_->set_footer(kPointFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override;

 private:
  std::string spec_;
  int64_t index_ = -1;
  bool list_ = false;
};

absl::StatusOr<ExitStatus> PointCommand::Execute() {
  if (list_ == (index_ >= 0)) {
    return absl::InvalidArgumentError("expected --index=N or --list");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto spec, ReadSweepSpec(spec_));
  ContentHashes hashes;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto points, ExpandSweep(spec, &hashes));
  if (list_) {
    std::string text;
    for (size_t i = 0; i < points.size(); ++i) {
      absl::StrAppend(&text, i, " ", points[i].name, "\n");
    }
    return WriteStdout(text) ? kDone : kBadInput;
  }
  if (index_ >= static_cast<int64_t>(points.size())) {
    return InvalidArgument("--index: got ", index_, ", expected 0 to ", points.size() - 1,
                           ", the points of ", spec_);
  }
  DecodedTraces traces;
  const pb::PointResult result = RunPoint(points[static_cast<size_t>(index_)], &traces);
  KVBLOCKS_ASSIGN_OR_RETURN(const auto line, ResultLine(result));
  if (!WriteStdout(line)) return kBadInput;
  return result.problem().empty() ? kDone : kMissed;
}

}  // namespace

std::unique_ptr<Command> AddSweepCommand(OptionParser* program) {
  return std::make_unique<SweepCommand>(program);
}

std::unique_ptr<Command> AddPointCommand(OptionParser* program) {
  return std::make_unique<PointCommand>(program);
}

}  // namespace kvblocks::sim
