// kvsim stats: what a trace holds, and how much of it any cache could serve.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/commands.h"
#include "kvblocks/sim/commands/example_trace.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/output.h"
#include "kvblocks/sim/commands/progress_line.h"
#include "kvblocks/sim/commands/replay_setup.h"
#include "kvblocks/sim/report/report.pb.h"
#include "kvblocks/sim/report/report_json.h"
#include "kvblocks/sim/trace/trace_facts.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::report::v1;

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

pb::TraceFacts ToProto(const TraceFacts& facts) {
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

class StatsCommand final : public Command {
 public:
  explicit StatsCommand(OptionParser* program)
      : options_(program->AddCommand("stats", "Print what a trace holds")) {
    options_->Add({.name = "TRACE",
                   .help = "trace file; - is standard input; without it the example workload",
                   .file = FileUse::kRead},
                  &trace_);
    options_->AddList({.name = "--block-size",
                       .unit = "TOKENS ...",
                       .help = "engine block sizes to state hits for [16 64 512 1024]"},
                      1, kMaxBlockSize, &block_sizes_);
    options_->AddFlag({.name = "--json", .help = "print JSON instead of the table"}, &json_);
    BindOptions(kWorkloadGroup, options_, &given_);
    options_->set_footer(kStatsFooter);
  }

  const OptionParser& options() const override { return *options_; }

  ExitStatus Run() override {
    const auto config = EffectiveConfig({}, given_);
    if (!config.ok()) return Fail("stats", config.status());
    const auto options = MakeReaderOptions(*config);
    if (!options.ok()) return Fail("stats", options.status());
    auto reader = trace_.empty() ? OpenTraceString(ExampleTrace(), "example", *options)
                                 : OpenTrace(trace_, *options);
    if (!reader.ok()) return Fail("stats", reader.status());
    ProgressLine progress(/*quiet=*/false);
    *reader = WithProgress(*std::move(reader), &progress);
    const auto facts = ComputeTraceFacts(
        **reader, block_sizes_.empty() ? DefaultEngineBlockSizes() : block_sizes_);
    if (!facts.ok()) return Fail("stats", facts.status());
    PrintWarnings(**reader);
    std::string text = FormatTraceFacts(*facts);
    if (json_) {
      const auto json = ToJson(ToProto(*facts));
      if (!json.ok()) return Fail("stats", json.status());
      text = *json;
    }
    return WriteStdout(text) ? kDone : kBadInput;
  }

 private:
  OptionParser* options_;
  ::kvblocks::config::v1::ReplayConfig given_;
  std::string trace_;
  std::vector<int64_t> block_sizes_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> AddStatsCommand(OptionParser* program) {
  return std::make_unique<StatsCommand>(program);
}

}  // namespace kvblocks::sim
