// kvsim replay: a trace through scheduler and block pool, and what came of it.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "google/protobuf/text_format.h"
#include "sim/commands/commands.h"
#include "sim/commands/event_export.h"
#include "sim/commands/fleet_input.h"
#include "sim/commands/fleet_replay.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_exports.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/report_output.h"
#include "sim/curve/possible_pools.h"
#include "sim/report/human_table.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kReplayFooter =
    R"(Times need a unit (20ms, 1.5s, 2min). Defaults are in brackets. Outputs whose names end in .gz or
.zst are compressed.

Examples
  kvsim replay trace.jsonl.gz --model=llama-3.1-70b --device=h200 --tensor-parallel=4
  kvsim replay trace.jsonl.gz --replicas=4 --router=prefix --slo=ttft:2s:p99 --json > report.json

Exit status: 0 done, 1 a percentile of --slo missed, 2 bad input or options, 3 no progress,
4 internal check failed.)";

class ReplayCommand final : public Command {
 public:
  explicit ReplayCommand(OptionParser* program)
      : Command(program->AddCommand("replay", "Replay a trace and report what happened")),
        input_(options_, ReplayInput::Fleets::kTaken) {
    options_->AddFlag(
        {"--print-config", "", "print the effective configuration instead of replaying"},
        &print_config_);
    options_->BeginGroup("Output");
    output_.AddFiles(options_, {.rows_help = "one row per request", .has_page = true});
    exports_.AddOptions(options_);
    events_.AddOptions(options_);
    output_.AddTerminal(options_, "neither table nor progress");
    options_->ShowOnly({"TRACE", "--config", "--json", "--html", "--csv"});
    input_.AddOptions(/*is_replay=*/true);
    options_->set_footer(kReplayFooter);
  }

 private:
  absl::StatusOr<ExitStatus> Execute() override;
  absl::Status Replay(const ReplayConfig& config, FleetReplay& replay,
                      FleetReplay::Listeners listeners);
  ExitStatus PrintConfig(const ReplayConfig& config) const;

  ReplayInput input_;
  ReplayExports exports_;
  EventExport events_;
  ReportOutput output_;
  std::unique_ptr<TraceReader> reader_;
  bool print_config_ = false;
};

// With all outputs that are no report.
absl::Status ReplayCommand::Replay(const ReplayConfig& config, FleetReplay& replay,
                                   FleetReplay::Listeners listeners) {
  KVBLOCKS_ASSIGN_OR_RETURN(reader_, OpenReplayTrace(config, replay.setup().reader));
  const std::vector<std::string> names = replay.Names();
  std::optional<CsvRequestSink> rows;
  if (!output_.csv().empty()) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto sink, OpenByteSink(output_.csv()));
    listeners.rows = &rows.emplace(std::move(sink), replay.RowColumns());
  }
  KVBLOCKS_RETURN_IF_ERROR(exports_.Open(names));
  if (exports_.is_asked_for()) listeners.exports = &exports_;
  if (events_.is_asked_for()) {
    KVBLOCKS_RETURN_IF_ERROR(events_.Open(names.size()));
    listeners.events = &events_;
  }
  ProgressLine progress(output_.quiet());
  listeners.progress = &progress;
  KVBLOCKS_RETURN_IF_ERROR(replay.Run(reader_.get(), listeners));
  if (rows) KVBLOCKS_RETURN_IF_ERROR(UnlessReaderGone(rows->Close()));
  KVBLOCKS_RETURN_IF_ERROR(exports_.Close());
  return events_.Close();
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

absl::StatusOr<ExitStatus> ReplayCommand::Execute() {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto config, input_.Configure());
  KVBLOCKS_ASSIGN_OR_RETURN(const auto replay, FleetReplay::Create(config));
  KVBLOCKS_RETURN_IF_ERROR(input_.CheckUses(config));
  // A file can have those of a fleet for one replica, too.
  KVBLOCKS_RETURN_IF_ERROR(MakeFleetOptions(config).status());
  if (print_config_) return PrintConfig(config);
  KVBLOCKS_RETURN_IF_ERROR(output_.Check(FilesOf(config)));
  KVBLOCKS_RETURN_IF_ERROR(events_.Check());
  KVBLOCKS_RETURN_IF_ERROR(exports_.Check());
  std::optional<PossiblePoolsObserver> pools;
  FleetReplay::Listeners listeners;
  if (!replay->is_fleet()) {
    listeners.of_the_only = {
        &pools.emplace(replay->setup().simulation, replay->setup().block_bytes)};
  }
  KVBLOCKS_RETURN_IF_ERROR(Replay(config, *replay, listeners));
  ::kvblocks::report::v1::Report report;
  replay->Fill(*reader_, &report);
  if (pools) pools->Fill(report.mutable_possible_pools());
  PrintWarnings(*reader_);
  const auto facts = FactsOf(report);
  const ExitStatus status =
      output_.Print("replay", report,
                    {.table = [&](bool color) { return FormatReport(report, color); },
                     .page_parts = {{"facts", &facts}}});
  if (status != kDone) return status;
  return report.has_goodput() && !report.goodput().met() ? kMissed : kDone;
}

}  // namespace

std::unique_ptr<Command> AddReplayCommand(OptionParser* program) {
  return std::make_unique<ReplayCommand>(program);
}

}  // namespace kvblocks::sim
