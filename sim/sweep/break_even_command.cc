// kvsim break-even: the bandwidth below which a tier makes latency worse.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/sweep/break_even_search.h"
#include "kvblocks/sim/sweep/search_command.h"
#include "kvblocks/sim/sweep/sweep_commands.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kBreakEvenFooter =
    R"(Replays the trace without tiers, with those of --tier, and with other bandwidths of one of them, and
says below which bandwidth the metric is worse than without tiers. Its write bandwidth changes with the
read bandwidth, unless --tier gives a write= of its own.

Examples
  kvsim break-even trace.jsonl.gz --tier=disk:4TiB:read=6GB/s:latency=100us
  kvsim break-even trace.jsonl.gz --tier=host:64GiB:read=50GB/s,disk:4TiB:read=6GB/s --of=disk
                                  --metric=ttft-p90 --tolerance=0.02

Exit status: 0 done, 1 it is worse at every bandwidth that was tried, 2 bad input or options,
3 no progress, 4 internal check failed.)";

class BreakEvenCommand final : public Command {
 public:
  explicit BreakEvenCommand(OptionParser* program)
      : options_(program->AddCommand("break-even",
                                     "Find the bandwidth that makes a tier worth it")),
        input_(options_) {
    options_->Add({.name = "--of",
                   .unit = "NAME",
                   .help = "the tier of --tier whose bandwidth is sought [the only one]"},
                  &search_.tier);
    options_->Add({.name = "--metric",
                   .unit = "NAME",
                   .help = "what must not become worse, as docs/searching.md names it [ttft-mean]"},
                  &search_.metric);
    options_->Add(
        {.name = "--tolerance", .unit = "SHARE", .help = "of the bandwidth that is found [0.05]"},
        [this](const std::string& text) -> std::string {
          double number;
          if (absl::SimpleAtod(text, &number) && number >= 0.002 && number <= 1) {
            search_.tolerance = number;
            return "";
          }
          return absl::StrCat("got \"", text, "\", expected a number from 0.002 to 1");
        });
    run_.AddRunOptions(options_);
    run_.AddOutputOptions(options_, {.rows_help = "one row per replay"});
    input_.AddOptions();
    options_->set_footer(kBreakEvenFooter);
  }

  const OptionParser& options() const override { return *options_; }
  ExitStatus Run() override {
    const auto status = Search();
    return status.ok() ? *status : Fail("break-even", status.status());
  }

 private:
  absl::StatusOr<ExitStatus> Search() {
    auto asked = input_.Asked();
    if (!asked.ok()) return asked.status();
    search_.asked = *std::move(asked);
    for (const absl::Status& status :
         {CheckSearchUses(search_.asked, {}), run_.CheckOutputs(FilesOf(search_.asked, {}))}) {
      if (!status.ok()) return status;
    }
    if (absl::Status status = run_.Open("break-even", ""); !status.ok()) return status;
    const auto report = FindBreakEven(search_, &run_.runner(), &run_.hashes());
    if (!report.ok()) return report.status();
    return run_.Print("break-even", *report,
                      {.table = [&](bool color) { return FormatBreakEven(*report, color); },
                       .rows = [&] { return BreakEvenCsv(*report); }},
                      report->break_even_bytes_per_s() > 0 ? kDone : kMissed);
  }

  OptionParser* options_;
  ReplayInput input_;
  SearchOptions run_;
  BreakEvenOptions search_;
};

}  // namespace

std::unique_ptr<Command> AddBreakEvenCommand(OptionParser* program) {
  return std::make_unique<BreakEvenCommand>(program);
}

}  // namespace kvblocks::sim
