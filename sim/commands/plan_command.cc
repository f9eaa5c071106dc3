// kvsim plan: what a model's layers store, how they share a pool, and how much it holds.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/commands.h"
#include "kvblocks/sim/commands/model_plan.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/plan_report.h"
#include "kvblocks/sim/commands/report_output.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/report_json.h"
#include "kvblocks/sim/trace/byte_sink.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

constexpr int64_t kMaxLen = int64_t{1} << 31;  // tokens

constexpr const char* kPlanFooter =
    R"(Two plans side by side: "upstream" as vLLM makes it, "exact" with the same memory and less
waste (tight bounds for windows, tokens in flight reserved once, pages of different sizes in
chunks). kvsim replay runs on either: --plan=upstream, --plan=exact.

Examples
  kvsim plan --model=gemma-3-27b --device=h200 --tensor-parallel=2 --max-model-len=131072
  kvsim plan --model=deepseek-v4-flash --device=h200 --tp=8 --kv-cache-dtype=fp8
  kvsim plan --model=path/to/config.json --device=h100
  kvsim plan --model=gpt-oss-120b --device=h100 --tp=2 --json | jq .plans
  kvsim plan --model=gemma-3-27b --device=h100 --requests=50 --len=32768

Exit status: 0 the longest request, and the --requests asked about, fit under both plans; 1 not
under one of them; 2 bad input.)";

// Rows of the replay command that matter to a plan.
constexpr const char* kFields[] = {"model",
                                   "device",
                                   "catalogue",
                                   "tensor_parallel",
                                   "pipeline_parallel",
                                   "data_parallel",
                                   "expert_parallel",
                                   "decode_context_parallel",
                                   "kv_cache_dtype",
                                   "block_size",
                                   "max_num_batched_tokens",
                                   "async",
                                   "hybrid",
                                   "layout",
                                   "typical_len",
                                   "prefix_caching",
                                   "engine",
                                   "entry_point",
                                   "num_draft_tokens",
                                   "drafter",
                                   "lookahead_hashes",
                                   "num_blocks",
                                   "kv_memory",
                                   "memory_utilization",
                                   "activation_gb",
                                   "graph_gb"};

template <typename Map>
std::string Names(const Map& entries) {
  std::string names;
  for (const auto& [name, facts] : entries) absl::StrAppend(&names, name, "\n");
  return names;
}

class PlanCommand final : public Command {
 public:
  explicit PlanCommand(OptionParser* program)
      : options_(program->AddCommand("plan", "Show what a model's cache stores and holds")) {
    for (const char* field : kFields) BindOption(field, options_, &given_);
    options_->Add({.name = "--max-model-len",
                   .unit = "TOKENS",
                   .help = "longest request, output included; 0: the model's own limit [0]"},
                  0, kMaxLen, &max_model_len_);
    options_->AddList(
        {.name = "--lengths",
         .unit = "TOKENS ...",
         .help = "lengths to state concurrency for [8192 32768 131072 and the longest]"},
        1, kMaxLen, &questions_.lengths);
    options_->Add({.name = "--requests",
                   .unit = "N",
                   .help = "whether so many requests of --len tokens fit at once; 0: not asked [0]"},
                  0, kMaxLen, &questions_.requests);
    options_->Add({.name = "--len",
                   .unit = "TOKENS",
                   .help = "their length, output included; 0: the longest [0]",
                   .needs = "--requests"},
                  0, kMaxLen, &questions_.length);
    options_->AddFlag(
        {.name = "--list-models", .help = "print the names of the catalogue's models"},
        &list_models_);
    options_->AddFlag({.name = "--list-devices", .help = "print the names of its devices"},
                      &list_devices_);
    options_->AddFlag({.name = "--json", .help = "print JSON instead of the table"}, &json_);
    options_->Add({.name = "--html",
                   .unit = "FILE",
                   .help = "a page of charts and tables for a browser, too; - is standard output, "
                           "without a table",
                   .file = FileUse::kWritten},
                  &html_);
    options_->Add(
        {.name = "--color", .unit = "auto|always|never", .help = "headings in bold [auto]"},
        &color_);
    options_->set_footer(kPlanFooter);
  }

  const OptionParser& options() const override { return *options_; }

  ExitStatus Run() override {
    auto config = EffectiveConfig({}, given_);
    if (!config.ok()) return Fail("plan", config.status());
    if (list_models_ || list_devices_) {
      const auto catalogue = LoadCatalogue(*config);
      if (!catalogue.ok()) return Fail("plan", catalogue.status());
      return WriteStdout(list_models_ ? Names(catalogue->models()) : Names(catalogue->devices()))
                 ? kDone
                 : kBadInput;
    }
    if (json_ && IsStandardOutput(html_)) {
      return Fail("plan", absl::InvalidArgumentError(
                              "--json and --html both want standard output; write the page to a "
                              "file"));
    }
    config->set_max_model_len(max_model_len_);
    const auto report = MakePlanReport(*config, questions_);
    if (!report.ok()) return Fail("plan", report.status());
    std::string text = FormatPlan(*report, UseColor(color_));
    if (json_) {
      const auto json = ToJson(*report);
      if (!json.ok()) return Fail("plan", json.status());
      text = *json;
    }
    if (!html_.empty()) {
      if (absl::Status status = WritePage(html_, *report); !status.ok()) {
        return Fail("plan", status);
      }
    }
    if (!IsStandardOutput(html_) && !WriteStdout(text)) return kBadInput;
    return Fits(*report, "upstream") && Fits(*report, "exact") ? kDone : kMissed;
  }

 private:
  OptionParser* options_;
  ReplayConfig given_;
  int64_t max_model_len_ = 0;
  PlanQuestions questions_;
  std::string color_ = "auto", html_;
  bool json_ = false, list_models_ = false, list_devices_ = false;
};

}  // namespace

std::unique_ptr<Command> AddPlanCommand(OptionParser* program) {
  return std::make_unique<PlanCommand>(program);
}

}  // namespace kvblocks::sim
