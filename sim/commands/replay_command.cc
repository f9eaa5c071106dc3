// kvsim replay: a trace through scheduler and block pool, and what came of it.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "sim/commands/commands.h"
#include "sim/commands/event_export.h"
#include "sim/commands/fleet_replay.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_exports.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_notes.h"
#include "sim/commands/replay_setup.h"
#include "sim/commands/report_output.h"
#include "sim/curve/possible_pools.h"
#include "sim/fleet/fleet_table.h"
#include "sim/report/human_table.h"
#include "sim/report/tier_section.h"
#include "sim/simulation.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

constexpr const char* kReplayFooter = R"(Times need a unit (20ms, 1.5s, 2min). Defaults are in brackets. Outputs whose names end in .gz or
.zst are compressed.

Examples
  kvsim replay trace.jsonl.gz --model=llama-3.1-70b --device=h200 --tensor-parallel=4
  kvsim replay trace.jsonl.gz --replicas=4 --router=prefix --slo=ttft:2s:p99 --json > report.json

Exit status: 0 done, 1 a percentile of --slo missed, 2 bad input or options, 3 no progress,
4 internal check failed.)";

class ReplayCommand final : public Command {
 public:
  explicit ReplayCommand(OptionParser* program)
      : options_(program->AddCommand("replay", "Replay a trace and report what happened")),
        input_(options_, ReplayInput::Fleets::kTaken) {
    options_->AddFlag({.name = "--print-config",
                       .help = "print the effective configuration instead of replaying"},
                      &print_config_);
    const char* kOutput = "Output";
    output_.AddFiles(options_, kOutput, {.rows_help = "one row per request", .has_page = true});
    exports_.AddOptions(options_, kOutput);
    events_.AddOptions(options_, kOutput);
    output_.AddTerminal(options_, kOutput, "neither table nor progress");
    options_->ShowOnly({"TRACE", "--config", "--json", "--html", "--csv"});
    input_.AddOptions(/*is_replay=*/true);
    options_->set_footer(kReplayFooter);
  }

  const OptionParser& options() const override { return *options_; }
  ExitStatus Run() override;

 private:
  absl::Status CheckOutputs(const ReplayConfig& config);
  absl::Status ReplayFleet(const ReplayConfig& config, FleetReplay& fleet,
                           ::kvblocks::fleet::v1::FleetReport* report);
  ExitStatus RunFleet(const ReplayConfig& config);
  ExitStatus PrintConfig(const ReplayConfig& config) const;
  absl::Status Replay(const ReplayConfig& config, ReplaySetup& setup,
                      ::kvblocks::report::v1::Report* report);
  // `row_columns`: behind those of one replica.
  absl::Status OpenOutputs(const std::vector<std::string>& replicas,
                           const std::string& row_columns);
  absl::Status CloseOutputs();
  template <typename AnyReport>
  ExitStatus Print(const AnyReport& report,
                   std::string (*format)(const AnyReport& report, bool color));

  OptionParser* options_;
  ReplayInput input_;
  ReplayExports exports_;
  EventExport events_;
  ReportOutput output_;
  std::unique_ptr<CsvRequestSink> rows_;
  bool print_config_ = false;
};

absl::Status ReplayCommand::CheckOutputs(const ReplayConfig& config) {
  if (absl::Status status = output_.Check(FilesOf(config)); !status.ok()) return status;
  if (absl::Status status = events_.Check(); !status.ok()) return status;
  return exports_.Check();
}

absl::Status ReplayCommand::OpenOutputs(const std::vector<std::string>& replicas,
                                        const std::string& row_columns) {
  if (!output_.csv().empty()) {
    auto sink = OpenByteSink(output_.csv());
    if (!sink.ok()) return sink.status();
    rows_ = std::make_unique<CsvRequestSink>(*std::move(sink), row_columns);
  }
  if (absl::Status status = exports_.Open(replicas); !status.ok()) return status;
  return events_.is_asked_for() ? events_.Open(replicas.size()) : absl::OkStatus();
}

absl::Status ReplayCommand::CloseOutputs() {
  if (rows_ != nullptr) {
    if (absl::Status status = UnlessReaderGone(rows_->Close()); !status.ok()) return status;
  }
  if (absl::Status status = exports_.Close(); !status.ok()) return status;
  return events_.Close();
}

absl::Status ReplayCommand::ReplayFleet(const ReplayConfig& config, FleetReplay& fleet,
                                        ::kvblocks::fleet::v1::FleetReport* report) {
  auto reader = OpenReplayTrace(config, fleet.setup().reader);
  if (!reader.ok()) return reader.status();
  if (absl::Status status = OpenOutputs(fleet.Names(), fleet.RowColumns()); !status.ok()) {
    return status;
  }
  ProgressLine progress(output_.quiet());
  const FleetReplay::Listeners listeners = {
      .rows = rows_.get(),
      .events = events_.is_asked_for() ? &events_ : nullptr,
      .exports = exports_.is_asked_for() ? &exports_ : nullptr,
      .progress = &progress};
  if (absl::Status status = fleet.Run(reader->get(), listeners); !status.ok()) return status;
  if (absl::Status status = CloseOutputs(); !status.ok()) return status;
  fleet.Fill(**reader, report);
  PrintWarnings(**reader);
  return absl::OkStatus();
}

ExitStatus ReplayCommand::RunFleet(const ReplayConfig& config) {
  const auto fleet = FleetReplay::Create(config);
  if (!fleet.ok()) return Fail("replay", fleet.status());
  if (absl::Status status = input_.CheckUses(config); !status.ok()) return Fail("replay", status);
  if (print_config_) return PrintConfig(config);
  if (absl::Status status = CheckOutputs(config); !status.ok()) return Fail("replay", status);
  ::kvblocks::fleet::v1::FleetReport report;
  if (absl::Status status = ReplayFleet(config, **fleet, &report); !status.ok()) {
    return Fail("replay", status);
  }
  return Print(report, FormatFleet);
}

absl::Status ReplayCommand::Replay(const ReplayConfig& config, ReplaySetup& setup,
                                   ::kvblocks::report::v1::Report* report) {
  auto reader = OpenReplayTrace(config, setup.reader);
  if (!reader.ok()) return reader.status();
  if (absl::Status status = OpenOutputs({"0"}, ""); !status.ok()) return status;
  setup.metrics.rows = rows_.get();
  std::vector<EngineObserver*> exports;
  exports_.Attach(0, setup, &setup.metrics, &exports);
  if (events_.is_asked_for()) {
    setup.simulation.manager.enable_events = true;
    exports.push_back(events_.of_replica(0));
  }
  ReplayMetrics metrics(setup.metrics);
  PossiblePoolsObserver pools(setup.simulation, setup.block_bytes);
  std::vector<EngineObserver*> observers = {&metrics, &pools};
  observers.insert(observers.end(), exports.begin(), exports.end());
  const auto tiers = MakeTiers(setup);
  if (!tiers.ok()) return tiers.status();
  auto simulation = MakeSimulation(setup, reader->get(), observers, tiers->get());
  if (!simulation.ok()) return simulation.status();
  absl::Status ran = RunReplay(**simulation, metrics, config, setup, output_.quiet());
  if (!ran.ok()) return ran;
  if (absl::Status status = CloseOutputs(); !status.ok()) return status;
  metrics.Fill((*simulation)->result(), report);
  pools.Fill(report->mutable_possible_pools());
  if (*tiers != nullptr) FillTiers(**tiers, report->mutable_tiers());
  DescribeReplay(config, setup, **reader, report);
  PrintWarnings(**reader);
  return absl::OkStatus();
}

template <typename AnyReport>
ExitStatus ReplayCommand::Print(const AnyReport& report,
                                std::string (*format)(const AnyReport& report, bool color)) {
  const ExitStatus status =
      output_.Print("replay", report, {.table = [&](bool color) { return format(report, color); }});
  if (status != kDone) return status;
  return report.has_goodput() && !report.goodput().met() ? kMissed : kDone;
}

ExitStatus ReplayCommand::PrintConfig(const ReplayConfig& config) const {
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  return WriteStdout(absl::StrCat("# proto-file: sim/config.proto\n"
                                  "# proto-message: kvblocks.config.v1.ReplayConfig\n",
                                  text))
             ? kDone
             : kBadInput;
}

ExitStatus ReplayCommand::Run() {
  auto config = input_.Configure();
  if (!config.ok()) return Fail("replay", config.status());
  if (IsFleet(*config)) return RunFleet(*config);
  auto setup = MakeReplaySetup(*config);
  if (!setup.ok()) return Fail("replay", setup.status());
  if (absl::Status status = input_.CheckUses(*config); !status.ok()) return Fail("replay", status);
  if (const auto fleet = MakeFleetOptions(*config); !fleet.ok()) {
    return Fail("replay", fleet.status());
  }
  if (print_config_) return PrintConfig(*config);
  if (absl::Status status = CheckOutputs(*config); !status.ok()) return Fail("replay", status);
  ::kvblocks::report::v1::Report report;
  if (absl::Status status = Replay(*config, *setup, &report); !status.ok()) {
    return Fail("replay", status);
  }
  return Print(report, FormatReport);
}

}  // namespace

std::unique_ptr<Command> AddReplayCommand(OptionParser* program) {
  return std::make_unique<ReplayCommand>(program);
}

}  // namespace kvblocks::sim
