// kvsim convert: a trace in another form.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/commands.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/trace/byte_sink.h"
#include "kvblocks/sim/trace/convert.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kConvertFooter =
    R"(OUT is compressed if its name ends in .gz or .zst. Reading it gives the same requests, apart
from what the format cannot hold, which is listed.

Examples
  kvsim convert trace.jsonl.gz trace.kvt.zst
  kvsim convert trace.kvt.zst trace.jsonl --to=mooncake
  kvsim convert unordered.jsonl ordered.jsonl.gz --to=mooncake --sort
  kvsim convert trace.jsonl.gz trace.oracleGeneral --to=oracle)";

class ConvertCommand final : public Command {
 public:
  explicit ConvertCommand(OptionParser* program)
      : options_(program->AddCommand("convert", "Write a trace in another form")) {
    options_->Add({.name = "IN", .help = "trace file; - is standard input", .is_required = true,
                   .file = FileUse::kRead},
                  &in_);
    options_->Add(
        {.name = "OUT", .help = "file to write; - is standard output", .is_required = true,
         .file = FileUse::kWritten}, &out_);
    options_->Add({.name = "--to",
                   .unit = "native|mooncake|csv|oracle",
                   .help = "form to write; oracle is one access per block of a prompt, for "
                           "libCacheSim [native]"},
                  &to_);
    options_->AddFlag(
        {.name = "--sort", .help = "accept rows in any order; holds the trace in memory"}, &sort_);
    options_->AddFlag({.name = "--quiet", .help = "say nothing about what was written"}, &quiet_);
    BindOptions(kWorkloadGroup, options_, &given_);
    options_->set_footer(kConvertFooter);
  }

  const OptionParser& options() const override { return *options_; }

  ExitStatus Run() override {
    const auto format = ParseTraceFormat(to_);
    if (!format.ok()) {
      return Fail("convert",
                  absl::InvalidArgumentError(absl::StrCat("--to: ", format.status().message())));
    }
    const auto config = EffectiveConfig({}, given_);
    if (!config.ok()) return Fail("convert", config.status());
    auto reader = MakeReaderOptions(*config);
    if (!reader.ok()) return Fail("convert", reader.status());
    if (sort_ && (given_.has_reorder() || given_.require_sorted())) {
      return Fail("convert", absl::InvalidArgumentError(absl::StrCat(
                                 given_.has_reorder() ? "--reorder" : "--require-sorted",
                                 ": got it beside --sort, which accepts rows in any order")));
    }
    ConvertOptions options;
    options.reader = *reader;
    options.sort = sort_;
    ProgressLine progress(quiet_);
    options.wrap = [&](std::unique_ptr<TraceReader> in) {
      return WithProgress(std::move(in), &progress);
    };
    const auto report = ConvertTrace(in_, out_, *format, options);
    if (IsReaderGone(report.status())) return kDone;
    if (!report.ok()) return Fail("convert", report.status());
    for (const std::string& warning : report->warnings) {
      std::fprintf(stderr, "%s\n", warning.c_str());
    }
    if (quiet_) return kDone;
    for (const std::string& loss : report->losses) {
      std::fprintf(stderr, "kvsim convert: not written: %s\n", loss.c_str());
    }
    std::fprintf(stderr, "%s requests written to %s\n",
                 WithThousands(report->num_requests).c_str(), out_.c_str());
    return kDone;
  }

 private:
  OptionParser* options_;
  ::kvblocks::config::v1::ReplayConfig given_;
  std::string in_, out_, to_ = "native";
  bool sort_ = false, quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> AddConvertCommand(OptionParser* program) {
  return std::make_unique<ConvertCommand>(program);
}

}  // namespace kvblocks::sim
