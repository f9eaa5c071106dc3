// kvsim calibrate: constants of the clock from what a server did.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/calibration.h"
#include "sim/commands/commands.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_setup.h"
#include "sim/trace/byte_sink.h"
#include "sim/trace/byte_source.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kCalibrateFooter =
    R"(TRACE is the workload that the server ran; without it the measured file is one of lengths (no prefix
shared). Rows of both belong together by position. Options say model, device, pool and scheduler as
the server had them. Half of the requests are fitted on, the other half judges the fit.

Examples
  kvsim calibrate --measured=profile_export.jsonl --model=qwen3-32b --device=h100 --tensor-parallel=2
  kvsim calibrate trace.jsonl --measured=bench.json --device=rtx-4090 --output=mine.textproto
  kvsim replay other.jsonl --config=mine.textproto

Exit status: 0 done, 2 bad input or options, 3 no progress.)";

class CalibrateCommand final : public Command {
 public:
  explicit CalibrateCommand(OptionParser* program)
      : Command(program->AddCommand("calibrate", "Fit the clock's constants to a measured run")),
        input_(options_) {
    options_
        ->Add({"--measured", "FILE",
               "what the server did: AIPerf's profile_export.jsonl, a result of vllm bench "
               "serve --save-detailed, or a request log"},
              &measured_)
        .file = FileUse::kRead;
    options_->Add({"--fit", "NAMES",
                   "constants to fit, with commas between them; without it those of the clock"},
                  &fit_);
    options_
        ->Add({"--output", "FILE", "write the configuration with the constants, for --config"},
              &output_)
        .file = FileUse::kWritten;
    input_.AddOptions();
    options_->set_footer(kCalibrateFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override;

 private:
  ReplayInput input_;
  std::string measured_, fit_, output_;
};

std::string ErrorTable(const std::string& title, const std::vector<MetricError>& errors) {
  std::string text = absl::StrFormat("%-24s %14s %9s %8s %8s %8s\n", title, "measured, ms", "mean",
                                     "p50", "p90", "p99");
  for (const MetricError& error : errors) {
    if (error.metric == "duration") {
      absl::StrAppendFormat(&text, "  %-22s %14.1f %+8.1f%%\n", error.metric, error.measured_ms,
                            error.mean_percent);
      continue;
    }
    absl::StrAppendFormat(&text, "  %-22s %14.1f %+8.1f%% %+7.1f%% %+7.1f%% %+7.1f%%\n",
                          error.metric, error.measured_ms, error.mean_percent, error.p50_percent,
                          error.p90_percent, error.p99_percent);
  }
  return text;
}

// Only what was fitted: pool, model and workload are the user's to say again.
std::string ConstantsText(const CalibrationResult& result) {
  std::string text =
      "# proto-file: sim/config.proto\n"
      "# proto-message: kvblocks.config.v1.ReplayConfig\n";
  const auto hardware = FindModelOnDevice(result.config);
  const bool has_experts = hardware.ok() && hardware->model.experts;
  for (const FittedConstant& constant : result.constants) {
    const bool is_time = constant.field.find("time") != std::string::npos;
    const char* quote = is_time ? "\"" : "";
    absl::StrAppend(&text, constant.field, ": ", quote, constant.after, quote, "\n");
    if (constant.field == "prefill_factor" && has_experts) {
      absl::StrAppend(&text, "expert_prefill_factor: ", constant.after, "\n");
    }
  }
  std::string name;
  for (const char c : result.config.calibration()) {
    if (c == '"' || c == '\\') name += '\\';
    name += c;
  }
  absl::StrAppend(&text, "calibration: \"", name, "\"\n");
  return text;
}

std::string ResultText(const CalibrationResult& result) {
  std::string text = absl::StrFormat("%-24s %14s %14s   %s\n", "constant", "start", "fitted",
                                     "10 % more: TTFT, TPOT, duration");
  for (const FittedConstant& constant : result.constants) {
    absl::StrAppendFormat(&text, "  %-22s %14s %14s   %+.1f%%, %+.1f%%, %+.1f%%%s\n",
                          constant.field, constant.before, constant.after, constant.ttft_percent,
                          constant.tpot_percent, constant.duration_percent,
                          constant.is_identified ? "" : "   not identified by this run");
  }
  absl::StrAppend(
      &text, "\n", ErrorTable("before the fit", result.before), "\n",
      ErrorTable(absl::StrCat("fitted, ", result.num_fitted, " requests"), result.fitted), "\n",
      ErrorTable(absl::StrCat("held out, ", result.num_held_out, " requests"), result.held_out),
      "\n", ErrorTable("all requests", result.all), "\n",
      absl::StrFormat("%d replays; time source: %s\n", static_cast<int>(result.num_replays),
                      result.time_source));
  return text;
}

absl::StatusOr<ExitStatus> CalibrateCommand::Execute() {
  KVBLOCKS_ASSIGN_OR_RETURN(auto config, input_.Configure());
  if (measured_.empty()) {
    return InvalidArgument("--measured=FILE is missing");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto reader, MakeReaderOptions(config));
  TraceReaderOptions options = reader;
  options.format = "auto";
  const std::string& trace = config.trace().empty() ? measured_ : config.trace();
  if (!CanBeReadAgain(trace)) {
    return InvalidArgument(trace, ": can be read once, and is replayed often; name a file");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto measurement, ReadMeasurement(measured_, options));
  if (config.trace().empty()) config.set_trace(measured_);
  KVBLOCKS_RETURN_IF_ERROR(input_.CheckUses(config));
  std::vector<RunFile> files = FilesOf(config);
  files.insert(files.end(), options_->files().begin(), options_->files().end());
  KVBLOCKS_RETURN_IF_ERROR(CheckRunFiles(files));
  std::vector<std::string> fields;
  if (!fit_.empty()) fields = absl::StrSplit(fit_, ',');
  ProgressLine progress(/*quiet=*/false);
  KVBLOCKS_ASSIGN_OR_RETURN(
      const auto result, Calibrate(config, measurement, fields, [&](int64_t done, int64_t most) {
        progress.UpdateCount(done, most, "replays at most");
      }));
  progress.Clear();
  const std::string text = ResultText(result), constants = ConstantsText(result);
  if (output_.empty()) return WriteStdout(absl::StrCat(text, "\n", constants)) ? kDone : kBadInput;
  KVBLOCKS_RETURN_IF_ERROR(WriteFile(output_, constants));
  return IsStandardOutput(output_) || WriteStdout(text) ? kDone : kBadInput;
}

}  // namespace

std::unique_ptr<Command> AddCalibrateCommand(OptionParser* program) {
  return std::make_unique<CalibrateCommand>(program);
}

}  // namespace kvblocks::sim
