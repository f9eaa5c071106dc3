// kvsim explain: a replay, and why its requests missed - all of them in sums, or one block by
// block.

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/commands.h"
#include "sim/commands/fleet_input.h"
#include "sim/commands/fleet_replay.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/report_output.h"
#include "sim/fleet/fleet.h"
#include "sim/report/explanation.pb.h"
#include "sim/report/human_table.h"
#include "sim/report/request_life.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;
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
    options_->BeginGroup("Output");
    output_.AddJson(options_);
    output_.AddTerminal(options_, "no progress line");
    input_.AddOptions();
    options_->set_footer(kExplainFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override;

 private:
  // The whole trace; the reader, for what it knows.
  absl::StatusOr<std::unique_ptr<TraceReader>> Run(const ReplayConfig& config, FleetReplay& replay,
                                                   FleetReplay::Listeners listeners);
  absl::Status Explain(const ReplayConfig& config, FleetReplay& replay,
                       const std::optional<RequestSelector>& selector, pb::Explanation* out);
  absl::Status ExplainRouting(const ReplayConfig& config, FleetReplay& replay,
                              const RequestSelector& selector, pb::RoutingExplanation* out);

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
  return InvalidArgument(message);
}

// Keeps one decision of a router.
class RoutingLife final : public FleetObserver {
 public:
  RoutingLife(const RequestSelector& selector, pb::RoutingExplanation* out)
      : selector_(selector), out_(out) {
    out_->set_found_tokens(-1);
  }

  void OnRouted(const RoutingRecord& record, SimTime now) override {
    if (is_found_ || !selector_.Matches(record.request.spec)) return;
    is_found_ = true;
    row_ = record.request.spec.row;
    out_->set_request(record.request.spec.id);
    out_->set_sent_s(Seconds(now));
    out_->set_chosen(record.replica);
    out_->set_waited_s(Seconds(record.waited));
    for (size_t r = 0; r < record.loads.size(); ++r) {
      auto* candidate = out_->add_candidates();
      candidate->set_replica(static_cast<int32_t>(r));
      candidate->set_is_full(!record.has_room.empty() && record.has_room[r] == 0);
      candidate->set_requests(record.loads[r].num_requests);
      candidate->set_tokens(record.loads[r].num_tokens);
      candidate->set_waiting_prompt_tokens(record.loads[r].num_waiting_tokens);
      candidate->set_claimed_tokens(record.claimed_tokens.empty() ? -1 : record.claimed_tokens[r]);
      candidate->set_held_tokens(record.held_tokens.empty() ? 0 : record.held_tokens[r]);
      if (!record.scores.empty()) {
        candidate->set_score(static_cast<double>(record.scores[r]) / kMillion);
      }
    }
  }
  void OnEndedAtRouter(const SimRequest& request, SimTime now) override {
    if (is_found_ || !selector_.Matches(request.spec)) return;
    is_found_ = true;
    out_->set_request(request.spec.id);
    out_->set_chosen(-1);
    out_->set_sent_s(Seconds(now));
    out_->set_refused(request.finish_reason == FinishReason::kRejected
                          ? request.finish_text
                          : "it gave up in the router's queue");
  }
  void OnFound(const SimRequest& request, int32_t, int64_t, int64_t num_hit_tokens,
               SimTime) override {
    if (is_found_ && request.spec.row == row_) out_->set_found_tokens(num_hit_tokens);
  }
  bool is_found() const { return is_found_; }

 private:
  const RequestSelector& selector_;
  pb::RoutingExplanation* const out_;
  bool is_found_ = false;
  int64_t row_ = -1;
};

absl::StatusOr<std::unique_ptr<TraceReader>> ExplainCommand::Run(
    const ReplayConfig& config, FleetReplay& replay, FleetReplay::Listeners listeners) {
  KVBLOCKS_ASSIGN_OR_RETURN(auto reader, OpenReplayTrace(config, replay.setup().reader));
  ProgressLine progress(output_.quiet());
  listeners.progress = &progress;
  KVBLOCKS_RETURN_IF_ERROR(replay.Run(reader.get(), listeners));
  PrintWarnings(*reader);
  return reader;
}

absl::Status ExplainCommand::ExplainRouting(const ReplayConfig& config, FleetReplay& replay,
                                            const RequestSelector& selector,
                                            pb::RoutingExplanation* out) {
  if (IsSplit(config)) {
    return InvalidArgument(
        "--prefill-replicas and --decode-replicas: kvsim explain has no words for requests that "
        "are handed over; leave them out");
  }
  RoutingLife life(selector, out);
  KVBLOCKS_RETURN_IF_ERROR(Run(config, replay, {.observers = {&life}}).status());
  out->set_router(std::string(RouterName(replay.options().router.kind)));
  if (life.is_found()) return absl::OkStatus();
  return absl::NotFoundError(
      "--request: no such request was sent to a replica; it needs an id of the trace, row:N or "
      "line:N");
}

absl::Status ExplainCommand::Explain(const ReplayConfig& config, FleetReplay& replay,
                                     const std::optional<RequestSelector>& selector,
                                     pb::Explanation* out) {
  WorstMisses worst(static_cast<size_t>(top_));
  std::optional<RequestLife> life;
  if (selector) life.emplace(*selector);
  KVBLOCKS_ASSIGN_OR_RETURN(
      const auto reader,
      Run(config, replay, {.misses = &worst, .life = life ? &*life : nullptr}));
  if (life && !life->is_found()) return NoSuchRequest(*request_, *selector, *life);

  pb::Report report;
  replay.Fill(*reader, &report);
  out->set_schema_version(1);
  // What ran, and where the prompt tokens went; replay has the rest.
  pb::Report* shown = out->mutable_replay();
  shown->set_schema_version(report.schema_version());
  shown->set_outcome(report.outcome());
  *shown->mutable_config() = report.config();
  *shown->mutable_workload() = report.workload();
  *shown->mutable_setup() = report.setup();
  *shown->mutable_whole_run() = report.whole_run();
  *shown->mutable_prompt_tokens() = report.prompt_tokens();
  *shown->mutable_first_admission_misses() = report.first_admission_misses();
  *shown->mutable_resume_misses() = report.resume_misses();
  *shown->mutable_groups() = report.groups();
  if (report.has_tiers()) *shown->mutable_tiers() = report.tiers();
  *shown->mutable_notes() = report.notes();
  if (life) {
    life->Fill(out);
  } else {
    worst.Fill(out);
  }
  return absl::OkStatus();
}

absl::StatusOr<ExitStatus> ExplainCommand::Execute() {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto config, input_.Configure());
  KVBLOCKS_ASSIGN_OR_RETURN(const auto replay, FleetReplay::Create(config));
  std::optional<RequestSelector> selector;
  if (request_) {
    KVBLOCKS_ASSIGN_OR_RETURN(selector, OfOption("--request", RequestSelector::Parse(*request_)));
  }
  // A file can have those of a fleet for one replica, too.
  KVBLOCKS_RETURN_IF_ERROR(MakeFleetOptions(config).status());
  KVBLOCKS_RETURN_IF_ERROR(input_.CheckUses(config));
  if (replay->is_fleet()) {
    if (!selector) {
      return InvalidArgument(
          "--replicas or --data-parallel above 1 needs --request, the one whose way is explained");
    }
    pb::RoutingExplanation routing;
    KVBLOCKS_RETURN_IF_ERROR(ExplainRouting(config, *replay, *selector, &routing));
    return output_.Print("explain", routing,
                         {.table = [&](bool color) { return FormatRouting(routing, color); }});
  }
  pb::Explanation explanation;
  KVBLOCKS_RETURN_IF_ERROR(Explain(config, *replay, selector, &explanation));
  return output_.Print("explain", explanation, {.table = [&](bool color) {
                         return FormatExplanation(explanation, color);
                       }});
}

}  // namespace

std::unique_ptr<Command> AddExplainCommand(OptionParser* program) {
  return std::make_unique<ExplainCommand>(program);
}

}  // namespace kvblocks::sim
