// kvsim explain: a replay, and why its requests missed - all of them in sums, or one block by
// block.

#include <algorithm>
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
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_notes.h"
#include "sim/commands/replay_setup.h"
#include "sim/commands/report_output.h"
#include "sim/fleet/fleet_table.h"
#include "sim/report/explanation.pb.h"
#include "sim/report/human_table.h"
#include "sim/report/request_life.h"
#include "sim/report/tier_section.h"
#include "sim/simulation.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;
using ::kvblocks::config::v1::ReplayConfig;

constexpr int64_t kMaxTop = 1000;
// Removals from the cache that are remembered for one request: so many times the pool, within
// limits that keep the memory small (96 bytes each).
constexpr int64_t kHistoryPools = 4;
constexpr int64_t kMinHistory = 1 << 16;
constexpr int64_t kMaxHistory = 1 << 21;

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
  absl::Status Explain(const ReplayConfig& config, ReplaySetup& setup,
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

absl::Status ExplainCommand::Explain(const ReplayConfig& config, ReplaySetup& setup,
                                     const std::optional<RequestSelector>& selector,
                                     pb::Explanation* out) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto reader, OpenReplayTrace(config, setup.reader));
  WorstMisses worst(static_cast<size_t>(top_));
  std::optional<RequestLife> life;
  setup.metrics.admissions = &worst;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto tiers, MakeTiers(setup));
  if (selector) {
    setup.metrics.admissions = &life.emplace(*selector, tiers.get());
    setup.simulation.manager.lookup_history_blocks =
        std::clamp(kHistoryPools * setup.simulation.kv_cache.num_blocks, kMinHistory, kMaxHistory);
  }
  ReplayMetrics metrics(setup.metrics);
  std::vector<EngineObserver*> observers = {&metrics};
  if (life) observers.push_back(&*life);
  KVBLOCKS_ASSIGN_OR_RETURN(auto simulation,
                            MakeSimulation(setup, reader.get(), observers, tiers.get()));
  absl::Status ran = RunReplay(*simulation, metrics, config, setup, output_.quiet());
  if (!ran.ok()) return ran;
  PrintWarnings(*reader);
  if (life && !life->is_found()) return NoSuchRequest(*request_, *selector, *life);

  pb::Report report;
  metrics.Fill(simulation->result(), &report);
  DescribeReplay(config, setup, *reader, &report);
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
  if (tiers != nullptr) FillTiers(*tiers, replay->mutable_tiers());
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
  KVBLOCKS_ASSIGN_OR_RETURN(
      auto setup,
      MakeReplaySetup(config, IsFleet(config) ? SeveralRanks::kTaken : SeveralRanks::kRefused));
  std::optional<RequestSelector> selector;
  if (request_) {
    KVBLOCKS_ASSIGN_OR_RETURN(selector, OfOption("--request", RequestSelector::Parse(*request_)));
  }
  if (const auto fleet = MakeFleetOptions(config); !fleet.ok()) {
    return fleet.status();
  }
  KVBLOCKS_RETURN_IF_ERROR(input_.CheckUses(config));
  if (IsFleet(config)) {
    if (!selector) {
      return absl::InvalidArgumentError(
          "--replicas or --data-parallel above 1 needs --request, the one whose way is explained");
    }
    ::kvblocks::fleet::v1::RoutingExplanation routing;
    const absl::Status status = ExplainRouting(config, *selector, output_.quiet(), &routing);
    if (!status.ok()) return status;
    return output_.Print("explain", routing,
                         {.table = [&](bool color) { return FormatRouting(routing, color); }});
  }
  pb::Explanation explanation;
  KVBLOCKS_RETURN_IF_ERROR(Explain(config, setup, selector, &explanation));
  return output_.Print("explain", explanation, {.table = [&](bool color) {
                         return FormatExplanation(explanation, color);
                       }});
}

}  // namespace

std::unique_ptr<Command> AddExplainCommand(OptionParser* program) {
  return std::make_unique<ExplainCommand>(program);
}

}  // namespace kvblocks::sim
