// kvsim curve: how many blocks of a workload pools of every size hit.

#include <memory>
#include <string>

#include "kvblocks/sim/commands/commands.h"
#include "kvblocks/sim/commands/curve_options.h"
#include "kvblocks/sim/commands/curve_run.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/commands/replay_input.h"
#include "kvblocks/sim/commands/report_output.h"
#include "kvblocks/sim/curve/curve_table.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr const char* kCurveFooter =
    R"(One pass over the trace gives the hits of pools of every size, in usable blocks: --num-blocks
of a replay counts the null block, too.

  --mode=order      requests run one after the other. Depends on the trace and the block size alone.
                    Belady's bound is the most that any eviction policy could hit.
  --mode=schedule   requests overlap as one replay schedules them, with all options of a replay.
                    The report says for which pools this is exact; --refine replays some sizes.

Models with windows, states or several KV-cache groups have no such pass: their sizes are replayed,
on all cores.

Examples
  kvsim curve                                     the workload that comes with kvsim
  kvsim curve trace.jsonl.gz --model=llama-3.1-70b --device=h200 --tensor-parallel=4
  kvsim curve trace.jsonl.gz --blocks=ids --sizes 1000 10000 100000
  kvsim curve trace.jsonl.gz --block-sizes 16 64 256 --what-if=shuffled
  kvsim curve trace.jsonl.gz --mode=schedule --time=fixed --refine=3
  kvsim curve trace.jsonl.gz --csv=curve.csv --html=curve.html

Exit status: 0 done, 2 bad input or options, 3 no request can run, 4 internal check failed.)";

class CurveCommand final : public Command {
 public:
  explicit CurveCommand(OptionParser* program)
      : options_(program->AddCommand("curve", "Print the hit rate of every pool size")),
        input_(options_) {
    AddCurveOptions(options_, &curve_);
    const char* kOutput = "Output";
    output_.AddFiles(options_, kOutput, {.rows_help = "one row per size", .has_page = true});
    output_.AddTerminal(options_, kOutput, "neither table nor progress");
    input_.AddOptions();
    options_->set_footer(kCurveFooter);
  }

  const OptionParser& options() const override { return *options_; }
  ExitStatus Run() override;

 private:
  OptionParser* options_;
  ReplayInput input_;
  CurveOptions curve_;
  ReportOutput output_;
};

ExitStatus CurveCommand::Run() {
  if (absl::Status status = ParseSampleShare(&curve_); !status.ok()) return Fail("curve", status);
  if (absl::Status status = CheckCurveOptions(curve_, input_.given()); !status.ok()) {
    return Fail("curve", status);
  }
  const auto config = input_.Configure();
  if (!config.ok()) return Fail("curve", config.status());
  if (absl::Status status = output_.Check(FilesOf(*config)); !status.ok()) {
    return Fail("curve", status);
  }
  // Pools of all sizes are asked about, that of the device among them.
  auto used = *config;
  used.set_num_blocks(0);
  if (absl::Status status = input_.CheckUses(used); !status.ok()) return Fail("curve", status);
  pb::CurveReport report;
  ProgressLine progress(output_.quiet());
  if (absl::Status status = RunCurve(*config, curve_, &progress, &report); !status.ok()) {
    return Fail("curve", status);
  }
  return output_.Print("curve", report,
                       {.table = [&](bool color) { return FormatCurve(report, color); },
                        .rows = [&] { return CurveCsv(report); }});
}

}  // namespace

std::unique_ptr<Command> AddCurveCommand(OptionParser* program) {
  return std::make_unique<CurveCommand>(program);
}

}  // namespace kvblocks::sim
