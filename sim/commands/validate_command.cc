// kvsim validate: everything that is wrong with a trace, in one run.

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/commands.h"
#include "kvblocks/sim/commands/example_trace.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/report/report_json.h"
#include "kvblocks/sim/report/validation_report.h"
#include "kvblocks/sim/trace/validation.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kValidateFooter =
    R"(The whole file is read by the rules of a replay, and what a replay would refuse is an error. After a
bad row the next one is looked at; only a damaged stream ends the reading.
  error    the row, or all from there on, cannot be used (replay: --on-bad-row=skip leaves rows out)
  warning  can be used and is probably a mistake
  note     allowed, and worth knowing: times that go backwards, fields that are not read, ...
Messages are FILE:LINE: SEVERITY: WHAT: got VALUE, expected EXPECTATION (what to do); after LINE
comes the COLUMN where a line is no JSON. In native files LINE is the number of the record.

Examples
  kvsim validate trace.jsonl.gz
  kvsim validate trace.jsonl.gz --strict --quiet && kvsim replay trace.jsonl.gz
  kvsim validate trace.jsonl.gz --require-sorted --ids-are-unique
  kvsim validate trace.jsonl.gz --json | jq '.counts[] | {kind, count}'

Exit status: 0 good (warnings are allowed unless --strict), 2 bad, or not to be read at all.)";

constexpr const char* kReaderOptions[] = {
    "trace_format", "trace_block_size", "fields",         "closed_loop",    "sharegpt",
    "rag_order",    "bytes_per_token",  "rag_lengths",    "model_filter",   "log_type",
    "reorder",      "require_sorted",   "ids_are_unique", "zstd_window_log"};

class ValidateCommand final : public Command {
 public:
  explicit ValidateCommand(OptionParser* program)
      : options_(program->AddCommand("validate", "List everything that is wrong with a trace")) {
    options_->Add({.name = "TRACE",
                   .help = "trace file; - is standard input; without it the example workload",
                   .file = FileUse::kRead},
                  &trace_);
    options_->AddFlag({.name = "--strict", .help = "warnings make the trace bad, too"}, &strict_);
    options_->Add({.name = "--max-messages",
                   .unit = "N",
                   .help = "most messages of each kind; all are counted [20]"},
                  0, std::numeric_limits<int64_t>::max(), &max_messages_);
    options_->AddFlag({.name = "--json", .help = "print JSON instead of the table"}, &json_);
    options_->AddFlag({.name = "--quiet", .help = "print nothing; the exit status says it"},
                      &quiet_);
    options_->Add({.name = "--color", .unit = "auto|always|never", .help = "labels in bold [auto]"},
                  &color_);
    for (const char* field : kReaderOptions) BindOption(field, options_, &given_);
    options_->set_footer(kValidateFooter);
  }

  const OptionParser& options() const override { return *options_; }

  ExitStatus Run() override {
    const auto config = EffectiveConfig({}, given_);
    if (!config.ok()) return Fail("validate", config.status());
    const auto reader = MakeReaderOptions(*config);
    if (!reader.ok()) return Fail("validate", reader.status());
    ProgressLine progress(quiet_);
    ValidationOptions options;
    options.reader = *reader;
    options.max_messages = max_messages_;
    if (progress.is_shown()) {
      options.progress = [&](const ReadProgress& read, int64_t rows, int64_t errors) {
        progress.UpdateReading(read, rows, errors);
      };
    }
    const auto validation = trace_.empty() ? ValidateTraceString(ExampleTrace(), "example", options)
                                           : ValidateTrace(trace_, options);
    progress.Clear();
    if (!validation.ok()) return Fail("validate", validation.status());
    const ExitStatus status = IsGood(*validation, strict_) ? kDone : kBadInput;
    if (quiet_) return status;
    std::string text;
    if (json_) {
      const auto json = ToJson(ToProto(*validation, strict_));
      if (!json.ok()) return Fail("validate", json.status());
      text = *json;
    } else {
      text = FormatValidation(*validation, strict_, UseColor(color_));
    }
    return WriteStdout(text) ? status : kBadInput;
  }

 private:
  OptionParser* options_;
  ::kvblocks::config::v1::ReplayConfig given_;
  std::string trace_, color_ = "auto";
  int64_t max_messages_ = 20;
  bool strict_ = false, json_ = false, quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> AddValidateCommand(OptionParser* program) {
  return std::make_unique<ValidateCommand>(program);
}

}  // namespace kvblocks::sim
