// kvsim explain: a replay, and why its requests missed - all of them in sums, or one block by
// block.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/commands/commands.h"
#include "sim/commands/fleet_input.h"
#include "sim/commands/fleet_replay.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/report_output.h"
#include "sim/report/explanation.pb.h"
#include "sim/report/human_table.h"
#include "sim/report/request_life.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;
using ::kvblocks::config::v1::ReplayConfig;

constexpr int64_t kMaxTop = 1000;
constexpr const char* kExplainFooter =
    R"(Replays the trace with the options of kvsim replay, and says why tokens of prompts were not found
in the prefix cache. Without --request: sums by cause over all requests, as in every replay report,
and the requests that lost most to evictions. With --request: the life of that request, and for
each look-up what became of every block:

  first use         nobody computed it before: no cache could help
  evicted           computed before and gone; when it was used last, and since when it is gone: so
                    many blocks ago, roughly the most by which the pool was too small to keep it
  not yet computed  another request is about to compute it
  last token        cached, but the last token must be computed
  short             less than one block shared with earlier prompts: try a smaller --block-size
  salt/adapter      cached under another salt or adapter only
  draft drop        cached, but dropped for the drafter
  group veto        cached in some KV-cache groups only; which group lacks which block

With --tier these are the fates on the device, and beside them stands what was loaded from each tier
and why it had no more.

Examples
  kvsim explain trace.jsonl.gz --num-blocks=10000 --top=20
  kvsim explain trace.jsonl.gz --num-blocks=10000 --request=4711
  kvsim explain trace.jsonl.gz --request=row:12 --json | jq .request.admissions[0].runs
  kvsim explain trace.jsonl.gz --replicas=4 --router=prefix --request=4711
                                                  why it went to which replica
  kvsim explain --num-blocks=2000                 the workload that comes with kvsim

Exit status: 0 done, 2 bad input or options, or no such request, 3 no progress, 4 internal check
failed.)";

class ExplainCommand final : public Command {
 public:
  explicit ExplainCommand(OptionParser* program)
      : Command(program->AddCommand("explain", "Say why requests missed the prefix cache")),
        input_(options_, ReplayInput::Fleets::kTaken) {
    options_->Add({"--request", "ID", "one request: its id, row:N (from 0) or line:N (from 1)"},
                  &request_);
    options_->Add({"--top", "N", "requests listed without --request [10]"}, 0, kMaxTop, &top_);
    output_.AddJson(options_, "Output");
    output_.AddTerminal(options_, "Output", "no progress line");
    input_.AddOptions();
    options_->set_footer(kExplainFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override;

 private:
  absl::Status Explain(const ReplayConfig& config, FleetReplay& fleet,
                       const std::optional<RequestSelector>& selector, pb::Explanation* out);

  ReplayInput input_;
  std::optional<std::string> request_;
  int64_t top_ = 10;
  ReportOutput output_;
};

absl::Status NoSuchRequest(const std::string& text, const RequestSelector& selector,
                           const RequestLife& life) {
  const RequestLife::Seen& seen = life.seen();
  std::string message = absl::StrCat(
      "--request: no request \"", text, "\" among the ", seen.requests, " that came: rows ",
      seen.first_row, " to ", seen.last_row, ", lines ", seen.first_line, " to ", seen.last_line);
  if (seen.requests == 0) message = "--request: the trace has no requests, or none was selected";
  const std::string suggestion =
      selector.id().empty() ? std::string() : SuggestName(selector.id(), life.ids());
  if (!suggestion.empty()) absl::StrAppend(&message, "; ", suggestion);
  return absl::InvalidArgumentError(message);
}

absl::Status ExplainCommand::Explain(const ReplayConfig& config, FleetReplay& fleet,
                                     const std::optional<RequestSelector>& selector,
                                     pb::Explanation* out) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto reader, OpenReplayTrace(config, fleet.setup().reader));
  WorstMisses worst(static_cast<size_t>(top_));
  std::optional<RequestLife> life;
  if (selector) life.emplace(*selector);
  ProgressLine progress(output_.quiet());
  KVBLOCKS_RETURN_IF_ERROR(fleet.Run(reader.get(), {.misses = &worst,
                                                    .life = life ? &*life : nullptr,
                                                    .progress = &progress}));
  PrintWarnings(*reader);
  if (life && !life->is_found()) return NoSuchRequest(*request_, *selector, *life);

  pb::Report report;
  fleet.Fill(*reader, &report);
  out->set_schema_version(1);
  // What ran, and where the prompt tokens went; replay has the rest.
  pb::Report* replay = out->mutable_replay();
  replay->set_schema_version(report.schema_version());
  replay->set_outcome(report.outcome());
  *replay->mutable_config() = report.config();
  *replay->mutable_workload() = report.workload();
  *replay->mutable_setup() = report.setup();
  *replay->mutable_whole_run() = report.whole_run();
  *replay->mutable_prompt_tokens() = report.prompt_tokens();
  *replay->mutable_first_admission_misses() = report.first_admission_misses();
  *replay->mutable_resume_misses() = report.resume_misses();
  *replay->mutable_groups() = report.groups();
  if (report.has_tiers()) *replay->mutable_tiers() = report.tiers();
  *replay->mutable_notes() = report.notes();
  if (life) {
    life->Fill(out);
  } else {
    worst.Fill(out);
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitStatus> ExplainCommand::Execute() {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto config, input_.Configure());
  KVBLOCKS_ASSIGN_OR_RETURN(const auto fleet, FleetReplay::Create(config));
  std::optional<RequestSelector> selector;
  if (request_) {
    KVBLOCKS_ASSIGN_OR_RETURN(selector, OfOption("--request", RequestSelector::Parse(*request_)));
  }
  // A file can have those of a fleet for one replica, too.
  KVBLOCKS_RETURN_IF_ERROR(MakeFleetOptions(config).status());
  KVBLOCKS_RETURN_IF_ERROR(input_.CheckUses(config));
  if (fleet->is_fleet()) {
    if (!selector) {
      return absl::InvalidArgumentError(
          "--replicas or --data-parallel above 1 needs --request, the one whose way is explained");
    }
    pb::RoutingExplanation routing;
    KVBLOCKS_RETURN_IF_ERROR(
        ExplainRouting(config, *fleet, *selector, output_.quiet(), &routing));
    return output_.Print("explain", routing,
                         {.table = [&](bool color) { return FormatRouting(routing, color); }});
  }
  pb::Explanation explanation;
  KVBLOCKS_RETURN_IF_ERROR(Explain(config, *fleet, selector, &explanation));
  return output_.Print("explain", explanation, {.table = [&](bool color) {
                         return FormatExplanation(explanation, color);
                       }});
}

}  // namespace

std::unique_ptr<Command> AddExplainCommand(OptionParser* program) {
  return std::make_unique<ExplainCommand>(program);
}

}  // namespace kvblocks::sim
