#include "examples/engine/serve_command.h"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "checks/json_writer.h"
#include "checks/status_macros.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_parser.h"
#include "sim/commands/output.h"
#include "sim/commands/replay_exports.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_notes.h"
#include "sim/commands/replay_setup.h"
#include "sim/commands/report_output.h"
#include "sim/report/human_table.h"
#include "sim/report/metrics.h"
#include "sim/report/request_rows.h"
#include "sim/report/tier_section.h"
#include "sim/serve/tokenizer.h"
#include "sim/trace/byte_sink.h"
#include "sim/trace/convert.h"

namespace kvblocks::engine {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

constexpr const char* kPython = "python3";
constexpr const char* kFooter =
    R"(The options are those of kvsim replay. --kv-cache-dtype=float32 makes the cache exact. Steps
take what they take on this machine; in between the clock jumps to the next arrival.

Examples
  engine serve prompts.jsonl --model=FOLDER/config.json --num-blocks=2000 --answers=answers.jsonl
  engine serve --prompt-text="Once upon a time" --model=FOLDER/config.json --num-blocks=2000 --quiet
  engine serve prompts.jsonl --model=FOLDER/config.json --num-blocks=2000 --steps=steps.csv
  kvsim replay answers.jsonl --model=FOLDER/config.json --num-blocks=2000 \
      --time=recorded --step-times=steps.csv --steps=predicted.csv
  kvsim compare steps.csv predicted.csv)";

// The times of each request that ended with all its output, as the JSONL log that kvsim calibrate
// takes for a measured run (docs/traces.md): in the order of the trace, which is how it finds the
// request of each line. Held in memory until Text is asked for: about 200 bytes a request.
class RequestLog final : public sim::RequestRowSink {
 public:
  void OnRow(const sim::RequestRow& row) override {
    if (!row.latency || !row.request->is_completed()) return;
    const auto seconds = [](sim::SimTime time) {
      return static_cast<double>(time) / static_cast<double>(sim::kSecond);
    };
    JsonWriter json;
    json.BeginObject().Key("request_id").Value(row.request->spec.id);
    json.Key("input_toks").Value(row.request->num_prompt);
    json.Key("output_toks").Value(row.progress->num_outputs);
    json.Key("arrival_time").Value(seconds(row.request->arrival));
    json.Key("queued_ts").Value(seconds(row.request->arrival));
    json.Key("scheduled_ts").Value(seconds(row.progress->first_scheduled));
    json.Key("first_token_ts").Value(seconds(row.progress->first_output));
    json.Key("last_token_ts").Value(seconds(row.progress->last_output));
    lines_[row.request->spec.row] = json.EndObject().text() + "\n";
  }
  std::string Text() const {
    std::string text;
    for (const auto& [row, line] : lines_) text += line;
    return text;
  }

 private:
  std::map<int64_t, std::string> lines_;  // by row of the trace
};

class ServeCommand {
 public:
  ServeCommand(sim::OptionParser* options, ServeFunction serve)
      : serve_(std::move(serve)), input_(options) {
    const char* const kModel = "Model";
    const char* const kText = "Text";
    const auto number = [&](const char* name, const char* unit, const char* group, const char* help,
                            auto low, decltype(low) high, decltype(low)* value,
                            const char* needs = "") {
      options->Add({.name = name, .unit = unit, .help = help, .group = group, .needs = needs}, low,
                   high, value);
    };
    const auto file = [&](const char* name, const char* group, sim::FileUse use, const char* help,
                          std::string* path) {
      options->Add({.name = name, .unit = "FILE", .help = help, .group = group, .file = use}, path);
    };
    using enum sim::FileUse;
    number("--temperature", "T", kModel, "of sampling; 0: the likeliest token [0]", 0.0, 100.0,
           &temperature_);
    number("--sampling-seed", "N", kModel, "of sampling [0]", int64_t{0}, INT64_MAX, &seed_,
           "--temperature");
    number("--threads", "N", kModel, "of matrix products and attention; 0: one per processor [0]",
           int64_t{0}, 1024, &threads_);
    file("--requests", kModel, kRead,
         "what single requests ask of attention: JSON lines with a request_id and documents, mask, "
         "chunks or keep",
         &requests_);
    number("--blend-ratio", "R", kModel,
           "of the tokens of blended chunks, to be computed again [0.16]", 0.0, 1.0, &blend_ratio_,
           "--requests");
    options->AddRepeated({.name = "--prompt-text",
                          .unit = "TEXT",
                          .help = "a prompt, in place of a trace; may be given several times",
                          .group = kText},
                         &prompts_);
    number("--max-tokens", "N", kText, "of each answer to it [16]", int64_t{1},
           sim::kMaxTraceLength, &max_tokens_, "--prompt-text");
    file("--text", kText, kWritten,
         "the answers as text, a JSON line each; - is standard output, also without it for prompts "
         "that are text",
         &text_);
    file("--tokenizer", kText, kRead,
         "a Hugging Face tokenizer.json [the one beside the config.json; if there is none a byte "
         "is a token]",
         &tokenizer_);
    options->Add({.name = "--python",
                  .unit = "PROGRAM",
                  .help = "that has the package tokenizers [python3]",
                  .group = kText},
                 &python_);
    file("--answers", kModel, kWritten,
         "the requests with their output tokens, as a trace in Mooncake's form", &answers_);
    file("--request-log", kModel, kWritten,
         "the times of each request, which kvsim calibrate takes as --measured", &request_log_);
    options->BeginGroup("Output");
    output_.AddFiles(options, {.has_page = true});
    exports_.AddOptions(options);
    output_.AddTerminal(options, "no table");
    input_.AddOptions();
    options->set_footer(kFooter);
  }

  absl::StatusOr<sim::ExitStatus> Execute();

 private:
  absl::StatusOr<std::unique_ptr<sim::Tokenizer>> MakeTokenizer(const std::string& model) const;
  absl::StatusOr<std::unique_ptr<sim::TraceReader>> OpenPrompts(sim::Tokenizer& tokenizer) const;
  absl::Status WriteAnswers(const Served& served) const;
  absl::Status WriteTexts(const Served& served, sim::Tokenizer& tokenizer) const;

  const ServeFunction serve_;
  sim::ReplayInput input_;
  sim::ReplayExports exports_;
  sim::ReportOutput output_;
  double temperature_ = 0, blend_ratio_ = 0.16;
  int64_t seed_ = 0, threads_ = 0, max_tokens_ = 16;
  std::string requests_, answers_, request_log_, text_, tokenizer_, python_ = kPython;
  std::vector<std::string> prompts_;
};

// Options of a replay's clock, which has no say here.
absl::Status CheckNoClock(const ReplayConfig& given) {
  for (const char* field :
       {"time", "step_time", "step_times", "kernel_tables", "compute_efficiency",
        "memory_efficiency", "fixed_time", "time_per_sequence", "time_per_layer", "prefill_factor",
        "expert_prefill_factor", "prefill_time_per_layer", "calibration", "draft_time"}) {
    if (!given.GetReflection()->HasField(given, given.GetDescriptor()->FindFieldByName(field))) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--", absl::StrReplaceAll(field, {{"_", "-"}}),
                     ": got a value, expected none: steps take what they take on this machine"));
  }
  return absl::OkStatus();
}

absl::Status ServeCommand::WriteAnswers(const Served& served) const {
  if (answers_.empty()) return absl::OkStatus();
  KVBLOCKS_ASSIGN_OR_RETURN(auto sink, sim::OpenByteSink(answers_));
  const auto writer = sim::MakeTraceWriter(std::move(sink), sim::TraceFormat::kMooncake);
  KVBLOCKS_RETURN_IF_ERROR(writer->Begin(served.trace->info()));
  for (const sim::TraceRequest& request : served.requests) {
    KVBLOCKS_RETURN_IF_ERROR(writer->Write(request));
  }
  return sim::UnlessReaderGone(writer->Finish());
}

absl::StatusOr<std::unique_ptr<sim::Tokenizer>> ServeCommand::MakeTokenizer(
    const std::string& model) const {
  if (prompts_.empty() && text_.empty()) {
    if (tokenizer_.empty() && python_ == kPython) return nullptr;
    return absl::InvalidArgumentError(absl::StrCat(
        tokenizer_.empty() ? "--python" : "--tokenizer",
        ": has no use here, expected --prompt-text or --text with it: nothing else is text"));
  }
  absl::string_view folder = model;
  const bool is_folder = absl::ConsumeSuffix(&folder, "config.json");
  const std::string beside = absl::StrCat(folder, "tokenizer.json");
  if (tokenizer_.empty() && !(is_folder && std::filesystem::exists(beside))) {
    return std::make_unique<sim::ByteTokenizer>();
  }
  return sim::MakeHfTokenizer(tokenizer_.empty() ? beside : tokenizer_, python_);
}

// All at once, as a trace.
absl::StatusOr<std::unique_ptr<sim::TraceReader>> ServeCommand::OpenPrompts(
    sim::Tokenizer& tokenizer) const {
  std::string trace;
  for (const std::string& prompt : prompts_) {
    KVBLOCKS_ASSIGN_OR_RETURN(
        const sim::Encoding encoding,
        tokenizer.Encode(prompt, /*adds_special=*/true, /*with_pieces=*/false));
    if (encoding.tokens.empty()) {
      return absl::InvalidArgumentError("--prompt-text: got a text without a token");
    }
    absl::StrAppend(&trace, R"({"timestamp": 0, "block_size": 1, "input_length": )",
                    encoding.tokens.size(), R"(, "output_length": )", max_tokens_,
                    R"(, "hash_ids": [)", absl::StrJoin(encoding.tokens, ", "), "]}\n");
  }
  return sim::OpenTraceString(std::move(trace), "--prompt-text", {});
}

absl::Status ServeCommand::WriteTexts(const Served& served, sim::Tokenizer& tokenizer) const {
  std::string text;
  for (const sim::TraceRequest& request : served.requests) {
    const std::vector<TokenId> tokens(request.output_ids.begin(), request.output_ids.end());
    KVBLOCKS_ASSIGN_OR_RETURN(const std::string answer, tokenizer.Decode(tokens));
    JsonWriter json;
    json.BeginObject().Key("request_id").Value(request.id).Key("text").Value(answer);
    absl::StrAppend(&text, json.EndObject().text(), "\n");
  }
  return sim::UnlessReaderGone(sim::WriteFile(text_.empty() ? "-" : text_, text));
}

absl::StatusOr<sim::ExitStatus> ServeCommand::Execute() {
  KVBLOCKS_ASSIGN_OR_RETURN(const ReplayConfig config, input_.Configure());
  KVBLOCKS_RETURN_IF_ERROR(CheckNoClock(input_.given()));
  if (config.num_blocks() == 0 && config.kv_memory() == 0) {
    return absl::InvalidArgumentError(
        "--num-blocks: got 0, expected the size of a pool in this machine's memory, or "
        "--kv-memory");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto setup, sim::MakeReplaySetup(config));
  setup.note.clear();  // what the clock of a replay leaves out
  KVBLOCKS_RETURN_IF_ERROR(input_.CheckUses(config));
  if (setup.tiers) {
    if (setup.tiers->load_if_faster) {
      return absl::InvalidArgumentError(
          "--load-if: got faster, expected always: what computing would take is not known here");
    }
    setup.tiers->step_time = nullptr;
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const auto tiers, sim::MakeTiers(setup));
  KVBLOCKS_RETURN_IF_ERROR(output_.Check({}));
  KVBLOCKS_RETURN_IF_ERROR(exports_.Check());
  KVBLOCKS_ASSIGN_OR_RETURN(const auto hardware, sim::FindModelOnDevice(setup.config));
  KVBLOCKS_ASSIGN_OR_RETURN(const Plan plan, sim::PlanPool(setup.config, hardware));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto tokenizer, MakeTokenizer(config.model()));
  if (!prompts_.empty() && input_.given().has_trace()) {
    return absl::InvalidArgumentError(
        "--prompt-text: got it and a trace, expected one of them: where prompts come from");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(auto reader, prompts_.empty()
                                             ? sim::OpenReplayTrace(config, setup.reader)
                                             : OpenPrompts(*tokenizer));

  sim::ReplayMetricsOptions measured = setup.metrics;
  RequestLog log;
  measured.rows = &log;
  std::vector<sim::EngineObserver*> observers;
  KVBLOCKS_RETURN_IF_ERROR(exports_.Open());
  exports_.Attach(0, setup, &measured, &observers);
  sim::ReplayMetrics metrics(measured);
  observers.insert(observers.begin(), &metrics);
  ToServe to_serve{.model_name = config.model(),
                   .facts = &hardware.model,
                   .plan = &plan,
                   .config = sim::ConfigFor(setup, *reader),
                   .options = {.threads = static_cast<int>(threads_),
                               .temperature = static_cast<float>(temperature_),
                               .seed = static_cast<uint64_t>(seed_),
                               .blend_ratio = blend_ratio_},
                   .observers = observers,
                   .tiers = tiers.get()};
  if (!requests_.empty()) {
    KVBLOCKS_ASSIGN_OR_RETURN(to_serve.options.requests, ReadRequestAttentions(requests_));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const Served served, serve_(to_serve, std::move(reader)));
  KVBLOCKS_RETURN_IF_ERROR(exports_.Close());
  KVBLOCKS_RETURN_IF_ERROR(WriteAnswers(served));
  if (tokenizer != nullptr) KVBLOCKS_RETURN_IF_ERROR(WriteTexts(served, *tokenizer));
  if (!request_log_.empty()) {
    KVBLOCKS_RETURN_IF_ERROR(sim::WriteFile(request_log_, log.Text()));
  }
  KVBLOCKS_RETURN_IF_ERROR(sim::CheckSomethingRan(served.result, config, setup));
  ::kvblocks::report::v1::Report report;
  metrics.Fill(served.result, &report);
  if (tiers != nullptr) sim::FillTiers(*tiers, report.mutable_tiers());
  sim::DescribeReplay(config, setup, *served.trace, &report);
  sim::PrintWarnings(*served.trace);
  return output_.Print("serve", report,
                       {.table = [&](bool color) { return sim::FormatReport(report, color); }});
}

}  // namespace

int ServeMain(int argc, char** argv, const char* name, const char* about, ServeFunction serve) {
  sim::OptionParser program(name, about);
  sim::OptionParser* const options =
      program.AddCommand("serve", "Serve a trace with a model and report what happened");
  ServeCommand command(options, std::move(serve));
  std::string text;
  switch (program.Parse(argc, argv, &text)) {
    case sim::ParseOutcome::kHelp:
      return sim::WriteStdout(text) ? sim::kDone : sim::kBadInput;
    case sim::ParseOutcome::kRefused:
      std::fprintf(stderr, "%s", text.c_str());
      return sim::kBadInput;
    case sim::ParseOutcome::kParsed:
      break;
  }
  const auto status = command.Execute();
  if (status.ok()) return *status;
  std::fprintf(stderr, "%s: %s\n", name, std::string(status.status().message()).c_str());
  return sim::IsNoProgress(status.status()) ? sim::kNoProgress : sim::kBadInput;
}

}  // namespace kvblocks::engine
