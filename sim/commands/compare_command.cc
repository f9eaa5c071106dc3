// kvsim compare: what differs between two runs, and whether it may.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/commands.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/commands/report_output.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/report_comparison.h"
#include "kvblocks/sim/report/report_json.h"
#include "kvblocks/sim/report/result_file.h"
#include "kvblocks/sim/report/step_rows.h"
#include "kvblocks/sim/trace/byte_sink.h"
#include "kvblocks/sim/trace/measurement.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr const char* kFooter =
    R"(A and B are reports of kvsim replay --json, or files of kvsim replay --steps: the content decides,
and compressed files are unpacked. Of reports it prints the options that differ and every metric
that does, with absolute and relative change. Of step files it prints the first step at which the
schedules part, both states side by side: before it the two runs scheduled the same tokens of the
same requests in the same blocks.

Without a tolerance nothing is judged. With --tolerance=0 the reports must be equal, apart from the
configuration. Names are parts of metric names: token_hit_rate is that of whole_run and of
after_warmup, whole_run.token_hit_rate one of them, latency.ttft all its figures. The most specific
tolerance counts. Metrics that only one report has exceed any tolerance but inf; texts only 0.

Examples
  kvsim replay --num-blocks=2000 --json --steps=a.csv.gz > a.json
  kvsim replay --num-blocks=1500 --json --steps=b.csv.gz > b.json
  kvsim compare a.json b.json --steps-a=a.csv.gz --steps-b=b.csv.gz
  kvsim compare a.csv.gz b.csv.gz
  kvsim compare old.json new.json --tolerance=1% --tolerance=token_hit_rate:0 --tolerance=series:inf
  kvsim compare replay.json --measured=profile_export.jsonl --tolerance=mean_ms:5%
  kvsim compare old.json new.json --tolerance=preemption.preemptions:abs:5
  kvsim compare a.json b.json --json | jq '.changes[] | select(.relative > 0.05) | .name'

Exit status: 0 no tolerance exceeded; 1 one is, or step files or --same-schedule differ; 2 bad
files or options.)";

class CompareCommand final : public Command {
 public:
  explicit CompareCommand(OptionParser* program)
      : options_(program->AddCommand("compare", "Print what differs between two runs")) {
    options_->Add(
        {.name = "A", .help = "report or step file; - is standard input", .is_required = true,
         .file = FileUse::kRead},
        &a_);
    options_->Add({.name = "B", .help = "report or step file", .file = FileUse::kRead}, &b_);
    options_->Add({.name = "--measured",
                   .unit = "FILE",
                   .help = "a real run instead of B, to put the report A beside it: AIPerf's "
                           "profile_export.jsonl, vllm bench serve --save-detailed, or a request log",
                   .file = FileUse::kRead},
                  &measured_);
    options_->AddRepeated({.name = "--tolerance",
                           .unit = "[NAME:]LIMIT",
                           .help = "how much metrics may change; may be given several times"},
                          &tolerances_);
    options_->Add({.name = "--steps-a",
                   .unit = "FILE",
                   .help = "steps of A, to find where the schedules part",
                   .file = FileUse::kRead},
                  &steps_a_);
    options_->Add({.name = "--steps-b", .unit = "FILE", .help = "steps of B", .file = FileUse::kRead}, &steps_b_);
    options_->AddFlag({.name = "--same-schedule", .help = "the schedules may not differ"},
                      &same_schedule_);
    options_->AddFlag(
        {.name = "--all", .help = "list metrics that are equal and all points of series, too"},
        &all_);
    options_->AddFlag({.name = "--json", .help = "print JSON instead of the table"}, &json_);
    options_->Add({.name = "--html",
                   .unit = "FILE",
                   .help = "a page with the charts of both reports over each other",
                   .file = FileUse::kWritten},
                  &html_);
    options_->AddFlag({.name = "--quiet", .help = "print nothing; the exit status says it"},
                      &quiet_);
    options_->Add(
        {.name = "--color", .unit = "auto|always|never", .help = "headings in bold [auto]"},
        &color_);
    options_->set_footer(kFooter);
  }

  const OptionParser& options() const override { return *options_; }
  ExitStatus Run() override;

 private:
  absl::Status Compare(pb::Comparison* out);
  absl::Status CompareFiles(ResultFile& a, ResultFile& b, pb::Comparison* out);
  absl::Status CompareStepsOf(StepReader& a, StepReader& b, bool judged, pb::Comparison* out);
  absl::Status CheckPage(const ResultFile& a) const;
  absl::StatusOr<ResultFile> OpenSteps(const std::string& option, const std::string& path);

  absl::Status CompareWithMeasured(pb::Comparison* out);

  OptionParser* options_;
  std::string a_, b_, measured_, steps_a_, steps_b_, html_, color_ = "auto";
  std::vector<std::string> tolerances_;
  bool same_schedule_ = false, all_ = false, json_ = false, quiet_ = false;
};

absl::StatusOr<ResultFile> CompareCommand::OpenSteps(const std::string& option,
                                                     const std::string& path) {
  auto file = OpenResultFile(path);
  if (file.ok() && file->steps == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": got the report ", path,
                                                   ", expected a file of kvsim replay --steps"));
  }
  return file;
}

absl::Status CompareCommand::CompareStepsOf(StepReader& a, StepReader& b, bool judged,
                                            pb::Comparison* out) {
  ProgressLine progress(quiet_);
  auto schedule = CompareSteps(a, b, [&](int64_t equal_steps) {
    progress.UpdateReading({a.source().bytes_read(), a.source().bytes_total()}, equal_steps, 0,
                           "steps");
  });
  progress.Clear();
  if (!schedule.ok()) return schedule.status();
  schedule->set_judged(judged);
  *out->mutable_schedule() = *std::move(schedule);
  return absl::OkStatus();
}

absl::Status CompareCommand::CompareFiles(ResultFile& a, ResultFile& b, pb::Comparison* out) {
  if ((a.steps == nullptr) != (b.steps == nullptr)) {
    const auto kind = [](const ResultFile& file) { return file.steps ? "steps" : "a report"; };
    return absl::InvalidArgumentError(absl::StrCat(
        a.file, " is ", kind(a), " and ", b.file, " is ", kind(b),
        ", expected two of a kind (--steps-a and --steps-b take the steps of two reports)"));
  }
  if (a.steps != nullptr) {
    if (!tolerances_.empty() || !steps_a_.empty() || !steps_b_.empty()) {
      return absl::InvalidArgumentError(
          "--tolerance, --steps-a and --steps-b are for two reports, and A and B are steps");
    }
    return CompareStepsOf(*a.steps, *b.steps, true, out);
  }
  ReportComparisonOptions options;
  options.all = all_;
  auto tolerances = ToleranceSet::Parse(tolerances_);
  if (!tolerances.ok()) return tolerances.status();
  options.tolerances = *std::move(tolerances);
  return CompareReports(*a.report, *b.report, options, out);
}

absl::Status CompareCommand::CheckPage(const ResultFile& a) const {
  if (html_.empty()) return absl::OkStatus();
  if (a.report == nullptr) {
    return absl::InvalidArgumentError("--html is for two reports, and A and B are steps");
  }
  if (IsStandardOutput(html_) && !quiet_) {
    return absl::InvalidArgumentError(
        "--html and the comparison both want standard output; write one of them to a file, or add "
        "--quiet");
  }
  return absl::OkStatus();
}

// The measured run is what is compared with, so that changes read as errors of the replay.
absl::Status CompareCommand::CompareWithMeasured(pb::Comparison* out) {
  if (!b_.empty() || !steps_a_.empty() || !steps_b_.empty() || same_schedule_) {
    return absl::InvalidArgumentError(
        "--measured stands for B: expected one report next to it, and neither B, --steps-a, "
        "--steps-b nor --same-schedule");
  }
  if (!html_.empty()) {
    return absl::InvalidArgumentError(
        "--html is for two reports, and --measured has no series to draw");
  }
  auto a = OpenResultFile(a_);
  if (!a.ok()) return a.status();
  if (a->report == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("A: got the steps ", a->file, ", expected a report next to --measured"));
  }
  const auto measurement = ReadMeasurement(measured_, {});
  if (!measurement.ok()) return measurement.status();
  const pb::Report measured = MeasuredReport(*measurement);
  out->set_schema_version(1);
  out->set_a(measurement->file);
  out->set_b(a->file);
  ReportComparisonOptions options;
  options.all = all_;
  auto tolerances = ToleranceSet::Parse(tolerances_);
  if (!tolerances.ok()) return tolerances.status();
  options.tolerances = *std::move(tolerances);
  absl::Status status = CompareReports(measured, CutToMeasured(*a->report, measured), options, out);
  out->set_passed(out->metrics_exceeded() == 0);
  out->set_same(out->metrics_changed() == 0);
  return status;
}

absl::Status CompareCommand::Compare(pb::Comparison* out) {
  if (!measured_.empty()) return CompareWithMeasured(out);
  if (b_.empty()) {
    return absl::InvalidArgumentError("B is missing, expected a second file or --measured=FILE");
  }
  if ((a_ == "-") + (b_ == "-") + (steps_a_ == "-") + (steps_b_ == "-") > 1) {
    return absl::InvalidArgumentError("standard input is given twice, expected at most once");
  }
  if (steps_a_.empty() != steps_b_.empty()) {
    return absl::InvalidArgumentError(
        "--steps-a and --steps-b go together; one of them is missing");
  }
  auto a = OpenResultFile(a_);
  if (!a.ok()) return a.status();
  auto b = OpenResultFile(b_);
  if (!b.ok()) return b.status();
  if (absl::Status status = CheckPage(*a); !status.ok()) return status;
  out->set_schema_version(1);
  out->set_a(a->file);
  out->set_b(b->file);
  if (absl::Status status = CompareFiles(*a, *b, out); !status.ok()) return status;
  if (!steps_a_.empty()) {
    auto steps_a = OpenSteps("--steps-a", steps_a_);
    if (!steps_a.ok()) return steps_a.status();
    auto steps_b = OpenSteps("--steps-b", steps_b_);
    if (!steps_b.ok()) return steps_b.status();
    if (absl::Status status = CompareStepsOf(*steps_a->steps, *steps_b->steps, same_schedule_, out);
        !status.ok()) {
      return status;
    }
  } else if (same_schedule_ && !out->has_schedule()) {
    return absl::InvalidArgumentError("--same-schedule needs --steps-a and --steps-b");
  }
  const bool parts = out->has_schedule() && !out->schedule().same();
  const bool differs_in_time = out->has_schedule() && out->schedule().has_first_difference();
  out->set_passed(out->metrics_exceeded() == 0 && !(parts && out->schedule().judged()));
  out->set_same(out->metrics_changed() == 0 && out->configuration_size() == 0 && !parts &&
                !differs_in_time);
  if (html_.empty()) return absl::OkStatus();
  return WritePage(html_, *out, {{"a", a->report.get()}, {"b", b->report.get()}});
}

ExitStatus CompareCommand::Run() {
  pb::Comparison comparison;
  if (absl::Status status = Compare(&comparison); !status.ok()) return Fail("compare", status);
  const ExitStatus exit_status = comparison.passed() ? kDone : kMissed;
  if (quiet_) return exit_status;
  std::string text;
  if (json_) {
    const auto json = ToJson(comparison);
    if (!json.ok()) return Fail("compare", json.status());
    text = *json;
  } else {
    text = FormatComparison(comparison, UseColor(color_));
  }
  return WriteStdout(text) ? exit_status : kBadInput;
}

}  // namespace

std::unique_ptr<Command> AddCompareCommand(OptionParser* program) {
  return std::make_unique<CompareCommand>(program);
}

}  // namespace kvblocks::sim
