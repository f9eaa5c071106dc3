// kvsim disaggregate: a trace through replicas that compute prompts and replicas that decode.

#include "kvblocks/sim/split/split_command.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/checks/status_text.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/commands/report_output.h"
#include "kvblocks/sim/split/split_fleet.h"
#include "kvblocks/sim/split/split_metrics.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

constexpr const char* kFooter = R"(All replicas are alike. Loads of the same kind share nothing but the link. Options of kvsim replay mean
what they mean there.

Examples
  kvsim disaggregate trace.jsonl.gz --prefill-replicas=2 --decode-replicas=2
  kvsim disaggregate trace.jsonl.gz --prefill-replicas=3 --slo=ttft:2s,tpot:50ms --json
  kvsim disaggregate trace.jsonl.gz --local-tokens=512 --link-bandwidth=25

Exit status: 0 done, 1 a percentile of --slo missed, 2 bad input or options, 3 no progress,
4 internal check failed.)";

// One of some names, which are the help's, too.
template <typename Value>
OptionParser::Setter OneOf(std::vector<std::pair<const char*, Value>> names, Value* value) {
  return [names = std::move(names), value](const std::string& text) {
    std::string expected;
    for (const auto& [name, meaning] : names) {
      if (text == name) {
        *value = meaning;
        return std::string();
      }
      absl::StrAppend(&expected, expected.empty() ? "" : ", ", name);
    }
    return absl::StrCat("got ", text, ", expected one of ", expected);
  };
}

OptionParser::Setter OfRouter(RouterKind* kind) {
  return OneOf<RouterKind>({{"round-robin", RouterKind::kRoundRobin},
                            {"random", RouterKind::kRandom},
                            {"least-requests", RouterKind::kLeastRequests},
                            {"least-tokens", RouterKind::kLeastTokens},
                            {"two-choices", RouterKind::kTwoChoices},
                            {"session", RouterKind::kSession}},
                           kind);
}

class DisaggregateCommand final : public Command {
 public:
  explicit DisaggregateCommand(OptionParser* program)
      : options_(program->AddCommand("disaggregate",
                                     "Replay a trace with prefill and decode on replicas of their own")),
        input_(options_) {
    AddOwn("Prefill and decode apart");
    const char* kOutput = "Output";
    output_.AddFiles(options_, kOutput, {});
    output_.AddTerminal(options_, kOutput, "neither table nor progress");
    input_.AddOptions();
    options_->set_footer(kFooter);
  }

  const OptionParser& options() const override { return *options_; }
  ExitStatus Run() override;

 private:
  void AddOwn(const char* group);
  absl::Status Check();
  absl::Status Replay(const ReplayConfig& config, ReplaySetup& setup,
                      ::kvblocks::split::v1::SplitReport* report);

  OptionParser* options_;
  ReplayInput input_;
  ReportOutput output_;
  SplitOptions split_;
  int64_t num_prefill_ = 1, num_decode_ = 1, link_gigabytes_ = 50;
};

void DisaggregateCommand::AddOwn(const char* group) {
  const auto most = static_cast<int64_t>(SplitFleet::kMostReplicas);
  options_->Add({.name = "--prefill-replicas", .unit = "N", .help = "that compute prompts [1]", .group = group},
                1, most, &num_prefill_);
  options_->Add({.name = "--decode-replicas", .unit = "N", .help = "that decode [1]", .group = group}, 1,
                most, &num_decode_);
  const char* kRouters = "round-robin|random|least-requests|least-tokens|two-choices|session";
  options_->Add({.name = "--prefill-router", .unit = kRouters, .help = "[least-tokens]", .group = group},
                OfRouter(&split_.prefill_router.kind));
  options_->Add({.name = "--decode-router", .unit = kRouters, .help = "[least-tokens]", .group = group},
                OfRouter(&split_.decode_router.kind));
  options_->Add({.name = "--first-token",
                 .unit = "prefill|decode",
                 .help = "whose token the client gets first [prefill]",
                 .group = group},
                OneOf<FirstToken>({{"prefill", FirstToken::kPrefill}, {"decode", FirstToken::kDecode}},
                                  &split_.first_token));
  options_->Add({.name = "--link-bandwidth",
                 .unit = "GB/S",
                 .help = "10^9 bytes per second, of each device's link [50]",
                 .group = group},
                1, 1'000'000, &link_gigabytes_);
  options_->Add({.name = "--link-latency",
                 .unit = "TIME",
                 .help = "of each transfer, beside its bytes [0s]",
                 .group = group},
                [this](const std::string& text) -> std::string {
                  const auto time = ParseDuration(text);
                  if (!time.ok()) return std::string(time.status().message());
                  split_.link.latency = *time;
                  return "";
                });
  options_->Add({.name = "--link-sharing",
                 .unit = "equal|fifo",
                 .help = "transfers get equal parts, or go one after the other [equal]",
                 .group = group},
                OneOf<LinkSharing>({{"equal", LinkSharing::kEqualParts}, {"fifo", LinkSharing::kFifo}},
                                   &split_.link.sharing));
  options_->Add({.name = "--link-scope",
                 .unit = "shared|decode",
                 .help = "one link for all transfers, or one into each decode replica [shared]",
                 .group = group},
                OneOf<LinkScope>(
                    {{"shared", LinkScope::kShared}, {"decode", LinkScope::kPerDecodeReplica}},
                    &split_.scope));
  options_->Add({.name = "--transfer",
                 .unit = "missing|all",
                 .help = "what travels: what the decode replica lacks, or the whole prompt [missing]",
                 .group = group},
                OneOf<bool>({{"missing", false}, {"all", true}}, &split_.charges_hits));
  options_->Add({.name = "--local-tokens",
                 .unit = "N",
                 .help = "prompts of which the decode replica lacks at most so many tokens are computed "
                         "there [0]",
                 .group = group},
                0, int64_t{1} << 40, &split_.max_local_tokens);
}

// What only the report of one replica has.
absl::Status DisaggregateCommand::Check() {
  const auto asked = input_.Asked();
  if (!asked.ok()) return asked.status();
  const std::pair<const char*, bool> without_use[] = {{"--warmup", asked->has_warmup()},
                                                      {"--cooldown", asked->has_cooldown()},
                                                      {"--tick", asked->has_tick()},
                                                      {"--top-prefixes", asked->has_top_prefixes()}};
  for (const auto& [name, is_given] : without_use) {
    if (is_given) {
      return InvalidArgument(name, ": its section is not in the report of kvsim disaggregate; leave it "
                                   "out");
    }
  }
  return absl::OkStatus();
}

absl::Status DisaggregateCommand::Replay(const ReplayConfig& config, ReplaySetup& setup,
                                         ::kvblocks::split::v1::SplitReport* report) {
  if (setup.block_bytes == 0) {
    return InvalidArgument("the native layout has no blocks of one size to transfer; choose another "
                           "--layout");
  }
  const auto& groups = setup.simulation.kv_cache.groups;
  split_.bytes_per_token = setup.block_bytes / groups.front().spec.block_size();
  split_.link.bytes_per_second = link_gigabytes_ * 1'000'000'000;
  const auto reader = OpenReplayTrace(config, setup.reader);
  if (!reader.ok()) return reader.status();
  const SplitReplica replica = {
      .config = setup.simulation, .step_time = setup.step_time.get(), .observers = {}};
  SplitMetrics metrics(setup.metrics.objectives, setup.metrics.latency.client_rtt);
  auto fleet = SplitFleet::Create(
      split_, std::vector<SplitReplica>(static_cast<size_t>(num_prefill_), replica),
      std::vector<SplitReplica>(static_cast<size_t>(num_decode_), replica), reader->get(), &metrics);
  if (!fleet.ok()) return fleet.status();
  ProgressLine progress(output_.quiet());
  if (progress.is_shown()) {
    (*fleet)->set_progress([&](const SimulationProgress& p) {
      progress.Update(p, 0, 0);
      return true;
    });
  }
  if (absl::Status status = (*fleet)->Run(); !status.ok()) return status;
  progress.Clear();
  const SplitResult& result = (*fleet)->result();
  if (result.num_arrived > 0 && result.num_rejected == result.num_arrived) {
    return FailedPrecondition("every request was rejected: none fits a pool of ",
                              setup.simulation.kv_cache.num_blocks,
                              " blocks; raise --num-blocks or --max-model-len");
  }
  metrics.Fill(split_, result, report);
  report->set_outcome("complete");
  *report->mutable_config() = setup.config;
  for (const std::string& warning : (*reader)->warnings()) {
    std::fprintf(stderr, "%s\n", warning.c_str());
  }
  return absl::OkStatus();
}

ExitStatus DisaggregateCommand::Run() {
  constexpr const char* kName = "disaggregate";
  if (absl::Status status = Check(); !status.ok()) return Fail(kName, status);
  const auto config = input_.Configure();
  if (!config.ok()) return Fail(kName, config.status());
  auto setup = MakeReplaySetup(*config);
  if (!setup.ok()) return Fail(kName, setup.status());
  if (absl::Status status = RefuseTiers(*setup); !status.ok()) return Fail(kName, status);
  if (absl::Status status = output_.Check(config->trace(), {}); !status.ok()) {
    return Fail(kName, status);
  }
  ::kvblocks::split::v1::SplitReport report;
  if (absl::Status status = Replay(*config, *setup, &report); !status.ok()) {
    return Fail(kName, status);
  }
  const ExitStatus status = output_.Print(
      kName, report, {.table = [&](bool color) { return FormatSplit(report, color); }});
  if (status != kDone) return status;
  return report.has_goodput() && !report.goodput().met() ? kMissed : kDone;
}

}  // namespace

std::unique_ptr<Command> AddDisaggregateCommand(OptionParser* program) {
  return std::make_unique<DisaggregateCommand>(program);
}

}  // namespace kvblocks::sim
