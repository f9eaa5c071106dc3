// kvsim validate: everything that is wrong with a trace, in one run.

#include <string>

#include "CLI/CLI.hpp"
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

constexpr const char* kFooter =
    R"(The whole file is read by the rules of a replay, and what a replay would refuse is an error. After a
bad row the next one is looked at; only a damaged stream ends the reading.
  error    the row, or all from there on, cannot be used (replay: --on-bad-row=skip leaves rows out)
  warning  can be used and is probably a mistake
  note     allowed, and worth knowing: times that go backwards, fields that are not read, ...
Messages are FILE:LINE: SEVERITY: WHAT: got VALUE, expected EXPECTATION (what to do). In native files
LINE is the number of the record.

Examples
  kvsim validate trace.jsonl.gz
  kvsim validate trace.jsonl.gz --strict --quiet && kvsim replay trace.jsonl.gz
  kvsim validate trace.jsonl.gz --require-sorted --ids-are-unique
  kvsim validate trace.jsonl.gz --json | jq '.counts[] | {kind, count}'

Exit status: 0 good (warnings are allowed unless --strict), 2 bad, or not to be read at all.)";

constexpr const char* kReaderOptions[] = {"trace_format",   "trace_block_size", "reorder",
                                          "require_sorted", "ids_are_unique",   "zstd_window_log"};

class ValidateCommand final : public Command {
 public:
  explicit ValidateCommand(CLI::App* parent)
      : app_(parent->add_subcommand("validate", "List everything that is wrong with a trace")) {
    app_->add_option("TRACE", trace_,
                     "trace file; - is standard input; without it the example workload")
        ->type_name("");
    app_->add_flag("--strict", strict_, "warnings make the trace bad, too");
    app_->add_option("--max-messages", max_messages_,
                     "most messages of each kind; all are counted [20]")
        ->type_name("N");
    app_->add_flag("--json", json_, "print JSON instead of the table");
    app_->add_flag("--quiet", quiet_, "print nothing; the exit status says it");
    app_->add_option("--color", color_, "labels in bold [auto]")
        ->type_name("auto|always|never")
        ->check(CLI::IsMember({"auto", "always", "never"}).description(""));
    for (const char* field : kReaderOptions) BindOption(field, app_, &given_);
    app_->footer(kFooter);
  }

  CLI::App* app() const override { return app_; }

  ExitStatus Run() override {
    if (max_messages_ < 0) {
      return Fail("validate", absl::InvalidArgumentError(absl::StrCat(
                                  "--max-messages: got ", max_messages_, ", expected 0 or more")));
    }
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
  CLI::App* app_;
  ::kvblocks::config::v1::ReplayConfig given_;
  std::string trace_, color_ = "auto";
  int64_t max_messages_ = 20;
  bool strict_ = false, json_ = false, quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> AddValidateCommand(CLI::App* parent) {
  return std::make_unique<ValidateCommand>(parent);
}

}  // namespace kvblocks::sim
