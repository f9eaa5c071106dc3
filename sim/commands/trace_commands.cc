// kvsim stats, validate and convert: what a trace holds, what is wrong with it, and the trace in
// another form.

#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "sim/commands/commands.h"
#include "sim/commands/example_trace.h"
#include "sim/commands/option_table.h"
#include "sim/commands/output.h"
#include "sim/commands/progress_line.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/report_output.h"
#include "sim/report/human_table.h"
#include "sim/report/report.pb.h"
#include "sim/report/validation_report.h"
#include "sim/trace/convert.h"
#include "sim/trace/trace_facts.h"
#include "sim/trace/validation.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

// A command about one trace, with the options of its reader.
class TraceCommand : public Command {
 protected:
  TraceCommand(OptionParser* options, const char* quiet_help) : Command(options) {
    options_->Add({.name = "TRACE",
                   .help = "trace file; - is standard input; without it the example workload",
                   .file = FileUse::kRead},
                  &trace_);
    output_.AddFiles(options_, "Options", {});
    output_.AddTerminal(options_, "Options", quiet_help);
  }

  std::string trace_;
  ::kvblocks::config::v1::ReplayConfig given_;
  ReportOutput output_;
};

constexpr int64_t kMaxBlockSize = 1 << 24;

constexpr const char* kStatsFooter =
    R"(Hits are those of an infinite cache, in arrival order: the most that any pool can reach.

Examples
  kvsim stats trace.jsonl.gz
  kvsim stats trace.jsonl.gz --block-size 16 128 --json | jq .engine
  zcat trace.jsonl.gz | kvsim stats -)";

void FillLengths(const LengthFacts& facts, pb::TraceFacts::Lengths* out) {
  out->set_total(facts.total);
  out->set_mean(facts.mean);
  out->set_median(facts.median);
  out->set_p90(facts.p90);
  out->set_p99(facts.p99);
  out->set_max(facts.max);
}

pb::TraceFacts FactsReport(const TraceFacts& facts) {
  pb::TraceFacts out;
  out.set_schema_version(1);
  out.set_name(facts.info.name);
  out.set_format(facts.info.format);
  out.set_content_block_tokens(facts.info.block_tokens);
  out.set_requests(facts.requests);
  FillLengths(facts.input, out.mutable_input());
  FillLengths(facts.output, out.mutable_output());
  out.set_first_arrival_s(static_cast<double>(facts.first_arrival_ns) / 1e9);
  out.set_last_arrival_s(static_cast<double>(facts.last_arrival_ns) / 1e9);
  out.set_distinct_timestamps(facts.distinct_timestamps);
  out.set_gap_cv(facts.gap_cv);
  out.set_closed_loop_requests(facts.closed_loop_requests);
  out.set_sessions(facts.sessions);
  out.set_block_refs(facts.block_refs);
  out.set_distinct_paths(facts.distinct_paths);
  out.set_paths_used_once(facts.paths_used_once);
  out.set_most_refs(facts.most_refs);
  out.set_prefix_hits(facts.prefix_hits);
  out.set_full_block_refs(facts.full_block_refs);
  out.set_full_block_hits(facts.full_block_hits);
  out.set_hottest_id(facts.hottest_id);
  out.set_hottest_uses(facts.hottest_uses);
  out.set_shared_tokens(facts.shared_tokens);
  out.set_requests_with_hit(facts.requests_with_hit);
  out.set_mean_of_ratios(facts.mean_of_ratios);
  out.set_second_half_input(facts.second_half_input);
  out.set_second_half_shared(facts.second_half_shared);
  for (const EngineFacts& engine : facts.engine) {
    auto* e = out.add_engine();
    e->set_block_tokens(engine.block_tokens);
    e->set_full_blocks(engine.full_blocks);
    e->set_hit_blocks(engine.hit_blocks);
    e->set_hit_tokens(engine.hit_tokens);
    if (facts.input.total > 0) {
      e->set_token_hit_rate(static_cast<double>(engine.hit_tokens) /
                            static_cast<double>(facts.input.total));
    }
  }
  return out;
}

class StatsCommand final : public TraceCommand {
 public:
  explicit StatsCommand(OptionParser* program)
      : TraceCommand(program->AddCommand("stats", "Print what a trace holds"),
                     "neither table nor progress") {
    options_->AddList(
        {"--block-size", "TOKENS ...", "engine block sizes to state hits for [16 64 512 1024]"}, 1,
        kMaxBlockSize, &block_sizes_);
    BindOptions(kWorkloadGroup, options_, &given_);
    options_->set_footer(kStatsFooter);
  }

 private:
  absl::StatusOr<ExitStatus> Execute() override {
    KVBLOCKS_RETURN_IF_ERROR(output_.Check({}));
    KVBLOCKS_ASSIGN_OR_RETURN(const auto options, ReaderOptionsOf(given_));
    KVBLOCKS_ASSIGN_OR_RETURN(
        auto reader, trace_.empty() ? OpenTraceString(ExampleTrace(), "example", options)
                                    : OpenTrace(trace_, options));
    ProgressLine progress(output_.quiet());
    reader = WithProgress(std::move(reader), &progress);
    KVBLOCKS_ASSIGN_OR_RETURN(
        const auto facts,
        ComputeTraceFacts(*reader,
                          block_sizes_.empty() ? DefaultEngineBlockSizes() : block_sizes_));
    PrintWarnings(*reader);
    return output_.Print("stats", FactsReport(facts),
                         {.table = [&](bool) { return FormatTraceFacts(facts); }});
  }

  std::vector<int64_t> block_sizes_;
};

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

class ValidateCommand final : public TraceCommand {
 public:
  explicit ValidateCommand(OptionParser* program)
      : TraceCommand(program->AddCommand("validate", "List everything that is wrong with a trace"),
                     "print nothing; the exit status says it") {
    options_->AddFlag({.name = "--strict", .help = "warnings make the trace bad, too"}, &strict_);
    options_->Add({"--max-messages", "N", "most messages of each kind; all are counted [20]"}, 0,
                  std::numeric_limits<int64_t>::max(), &max_messages_);
    for (const char* field : kReaderOptions) BindOption(field, options_, &given_);
    options_->set_footer(kValidateFooter);
  }

 private:
  absl::StatusOr<ExitStatus> Execute() override {
    KVBLOCKS_RETURN_IF_ERROR(output_.Check({}));
    ProgressLine progress(output_.quiet());
    ValidationOptions options;
    KVBLOCKS_ASSIGN_OR_RETURN(options.reader, ReaderOptionsOf(given_));
    options.max_messages = max_messages_;
    if (progress.is_shown()) {
      options.progress = [&](const ReadProgress& read, int64_t rows, int64_t errors) {
        progress.UpdateReading(read, rows, errors);
      };
    }
    KVBLOCKS_ASSIGN_OR_RETURN(const auto validation,
                              trace_.empty()
                                  ? ValidateTraceString(ExampleTrace(), "example", options)
                                  : ValidateTrace(trace_, options));
    progress.Clear();
    const ExitStatus printed =
        output_.Print("validate", ToProto(validation, strict_), {.table = [&](bool color) {
                        return FormatValidation(validation, strict_, color);
                      }});
    return IsGood(validation, strict_) ? printed : kBadInput;
  }

  int64_t max_messages_ = 20;
  bool strict_ = false;
};

constexpr const char* kConvertFooter =
    R"(OUT is compressed if its name ends in .gz or .zst. Reading it gives the same requests except for
what the format cannot hold, which is listed.

Examples
  kvsim convert trace.jsonl.gz trace.kvt.zst
  kvsim convert trace.kvt.zst trace.jsonl --to=mooncake
  kvsim convert unordered.jsonl ordered.jsonl.gz --to=mooncake --sort
  kvsim convert trace.jsonl.gz trace.oracleGeneral --to=oracle)";

class ConvertCommand final : public Command {
 public:
  explicit ConvertCommand(OptionParser* program)
      : Command(program->AddCommand("convert", "Write a trace in another form")) {
    options_->Add({.name = "IN", .help = "trace file; - is standard input", .is_required = true,
                   .file = FileUse::kRead},
                  &in_);
    options_->Add(
        {.name = "OUT", .help = "file to write; - is standard output", .is_required = true,
         .file = FileUse::kWritten}, &out_);
    options_->Add({"--to", "native|mooncake|csv|oracle",
                   "form to write; oracle is one access per block of a prompt, for "
                   "libCacheSim [native]"},
                  &to_);
    options_->AddFlag(
        {.name = "--sort", .help = "accept rows in any order; holds the trace in memory"}, &sort_);
    options_->AddFlag({.name = "--quiet", .help = "say nothing about what was written"}, &quiet_);
    BindOptions(kWorkloadGroup, options_, &given_);
    options_->set_footer(kConvertFooter);
  }

  absl::StatusOr<ExitStatus> Execute() override {
    KVBLOCKS_ASSIGN_OR_RETURN(const auto format, OfOption("--to", ParseTraceFormat(to_)));
    if (sort_ && (given_.has_reorder() || given_.require_sorted())) {
      return absl::InvalidArgumentError(
          absl::StrCat(given_.has_reorder() ? "--reorder" : "--require-sorted",
                       ": got it beside --sort, which accepts rows in any order"));
    }
    ConvertOptions options;
    KVBLOCKS_ASSIGN_OR_RETURN(options.reader, ReaderOptionsOf(given_));
    options.sort = sort_;
    ProgressLine progress(quiet_);
    options.wrap = [&](std::unique_ptr<TraceReader> in) {
      return WithProgress(std::move(in), &progress);
    };
    const auto report = ConvertTrace(in_, out_, format, options);
    if (IsReaderGone(report.status())) return kDone;
    if (!report.ok()) return report.status();
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
  ::kvblocks::config::v1::ReplayConfig given_;
  std::string in_, out_, to_ = "native";
  bool sort_ = false, quiet_ = false;
};

}  // namespace

std::unique_ptr<Command> AddStatsCommand(OptionParser* program) {
  return std::make_unique<StatsCommand>(program);
}

std::unique_ptr<Command> AddValidateCommand(OptionParser* program) {
  return std::make_unique<ValidateCommand>(program);
}

std::unique_ptr<Command> AddConvertCommand(OptionParser* program) {
  return std::make_unique<ConvertCommand>(program);
}

}  // namespace kvblocks::sim
