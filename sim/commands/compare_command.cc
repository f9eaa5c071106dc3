// kvsim compare: what differs between two runs, and whether it may.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/commands/commands.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/report_output.h"
#include "sim/report/human_table.h"
#include "sim/report/report_comparison.h"
#include "sim/report/result_file.h"
#include "sim/report/step_rows.h"
#include "sim/trace/byte_sink.h"
#include "sim/trace/measurement.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

constexpr const char* kFooter =
    R"(A and B are reports of kvsim replay --json, or files of kvsim replay --steps: the content decides,
and compressed files are unpacked. Of reports it prints the options that differ and every metric
that does, with absolute and relative change. Of step files it prints the first step at which the
schedules diverge, both states side by side: before it the two runs scheduled the same tokens of the
same requests in the same blocks.

Without a tolerance nothing is judged. With --tolerance=0 the reports must be equal except for the
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
      : Command(program->AddCommand("compare", "Print what differs between two runs")) {
    options_->Add(
        {.name = "A", .help = "report or step file; - is standard input", .is_required = true,
         .file = FileUse::kRead},
        &a_);
    options_->Add({.name = "B", .help = "report or step file", .file = FileUse::kRead}, &b_);
    options_->Add(
        {.name = "--measured",
         .unit = "FILE",
         .help = "a real run instead of B, to put the report A beside it: AIPerf's "
                 "profile_export.jsonl, vllm bench serve --save-detailed, or a request log",
         .file = FileUse::kRead},
        &measured_);
    options_->AddRepeated(
        {"--tolerance", "[NAME:]LIMIT", "how much metrics may change; may be given several times"},
        &tolerances_);
    options_->Add({.name = "--steps-a",
                   .unit = "FILE",
                   .help = "steps of A, to find where the schedules part",
                   .file = FileUse::kRead},
                  &steps_a_);
    options_->Add(
        {.name = "--steps-b", .unit = "FILE", .help = "steps of B", .file = FileUse::kRead},
        &steps_b_);
    options_->AddFlag({.name = "--same-schedule", .help = "the schedules may not differ"},
                      &same_schedule_);
    options_->AddFlag(
        {.name = "--all", .help = "list metrics that are equal and all points of series, too"},
        &all_);
    output_.AddFiles(options_, "Options", {.has_page = true});
    output_.AddTerminal(options_, "Options", "print nothing; the exit status says it");
    options_->set_footer(kFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override;

 private:
  absl::Status Compare(pb::Comparison* out);
  absl::Status CompareFiles(ResultFile& a, ResultFile& b, pb::Comparison* out);
  absl::Status CompareStepsOf(StepReader& a, StepReader& b, bool judged, pb::Comparison* out);
  absl::StatusOr<ResultFile> OpenSteps(const std::string& option, const std::string& path);

  absl::Status CompareWithMeasured(pb::Comparison* out);

  std::string a_, b_, measured_, steps_a_, steps_b_;
  std::vector<std::string> tolerances_;
  bool same_schedule_ = false, all_ = false;
  ReportOutput output_;
  ResultFile files_[2];  // A and B
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
  ProgressLine progress(output_.quiet());
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
  KVBLOCKS_ASSIGN_OR_RETURN(options.tolerances, ToleranceSet::Parse(tolerances_));
  return CompareReports(*a.report, *b.report, options, out);
}

// The measured run is what is compared with, so that changes read as errors of the replay.
absl::Status CompareCommand::CompareWithMeasured(pb::Comparison* out) {
  if (!b_.empty() || !steps_a_.empty() || !steps_b_.empty() || same_schedule_) {
    return absl::InvalidArgumentError(
        "--measured stands for B: expected one report next to it, and neither B, --steps-a, "
        "--steps-b nor --same-schedule");
  }
  if (!output_.html().empty()) {
    return absl::InvalidArgumentError(
        "--html is for two reports, and --measured has no series to draw");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto a, OpenResultFile(a_));
  if (a.report == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("A: got the steps ", a.file, ", expected a report next to --measured"));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto measurement, ReadMeasurement(measured_, {}));
  const pb::Report measured = MeasuredReport(measurement);
  out->set_schema_version(1);
  out->set_a(measurement.file);
  out->set_b(a.file);
  ReportComparisonOptions options;
  options.all = all_;
  KVBLOCKS_ASSIGN_OR_RETURN(options.tolerances, ToleranceSet::Parse(tolerances_));
  absl::Status status = CompareReports(measured, CutToMeasured(*a.report, measured), options, out);
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
  auto& [a, b] = files_;
  KVBLOCKS_ASSIGN_OR_RETURN(a, OpenResultFile(a_));
  KVBLOCKS_ASSIGN_OR_RETURN(b, OpenResultFile(b_));
  if (!output_.html().empty() && a.report == nullptr) {
    return absl::InvalidArgumentError("--html is for two reports, and A and B are steps");
  }
  out->set_schema_version(1);
  out->set_a(a.file);
  out->set_b(b.file);
  KVBLOCKS_RETURN_IF_ERROR(CompareFiles(a, b, out));
  if (!steps_a_.empty()) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto steps_a, OpenSteps("--steps-a", steps_a_));
    KVBLOCKS_ASSIGN_OR_RETURN(auto steps_b, OpenSteps("--steps-b", steps_b_));
    KVBLOCKS_RETURN_IF_ERROR(CompareStepsOf(*steps_a.steps, *steps_b.steps, same_schedule_, out));
  } else if (same_schedule_ && !out->has_schedule()) {
    return absl::InvalidArgumentError("--same-schedule needs --steps-a and --steps-b");
  }
  const bool parts = out->has_schedule() && !out->schedule().same();
  const bool differs_in_time = out->has_schedule() && out->schedule().has_first_difference();
  out->set_passed(out->metrics_exceeded() == 0 && !(parts && out->schedule().judged()));
  out->set_same(out->metrics_changed() == 0 && out->configuration_size() == 0 && !parts &&
                !differs_in_time);
  return absl::OkStatus();
}

absl::StatusOr<ExitStatus> CompareCommand::Execute() {
  KVBLOCKS_RETURN_IF_ERROR(output_.Check({}));
  pb::Comparison comparison;
  KVBLOCKS_RETURN_IF_ERROR(Compare(&comparison));
  const auto& [a, b] = files_;
  PageParts parts;
  pb::Facts facts_a, facts_b;
  if (!output_.html().empty()) {
    facts_a = FactsOf(*a.report);
    facts_b = FactsOf(*b.report);
    parts = {{"a", a.report.get()},
             {"b", b.report.get()},
             {"facts_a", &facts_a},
             {"facts_b", &facts_b}};
  }
  const ExitStatus printed = output_.Print(
      "compare", comparison,
      {.table = [&](bool color) { return FormatComparison(comparison, color); },
       .page_parts = parts});
  return printed == kDone && !comparison.passed() ? kMissed : printed;
}

}  // namespace

std::unique_ptr<Command> AddCompareCommand(OptionParser* program) {
  return std::make_unique<CompareCommand>(program);
}

}  // namespace kvblocks::sim
