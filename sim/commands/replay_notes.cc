#include "kvblocks/sim/commands/replay_notes.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

std::string BaseName(const std::string& path) {
  if (path.empty()) return "example";
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

}  // namespace

void DescribeReplay(const ::kvblocks::config::v1::ReplayConfig& config, const ReplaySetup& setup,
                    const TraceReader& reader, ::kvblocks::report::v1::Report* report) {
  report->set_outcome("complete");
  *report->mutable_config() = config;
  report->mutable_config()->set_model(setup.model);
  report->mutable_config()->set_device(setup.device);
  auto* workload = report->mutable_workload();
  workload->set_name(BaseName(config.trace()));
  workload->set_bad_rows(reader.counters().bad_rows);
  auto* described = report->mutable_setup();
  described->set_latency_is_meaningful(setup.latency_is_meaningful);
  described->set_num_blocks_source(setup.num_blocks_source);
  described->set_block_bytes(setup.block_bytes);
  described->set_plan(setup.plan);
  described->set_layout(setup.layout);
  described->set_chunk_bytes(setup.chunk_bytes);
  if (const auto& native = setup.simulation.kv_cache.native) {
    described->set_num_chunks(native->num_chunks);
  }

  if (workload->requests_arrived() == 0) {
    report->add_notes("the trace has no requests, or none was selected");
    return;
  }
  const TraceInfo& trace = reader.info();
  if (trace.block_tokens == 0) {
    report->add_notes(
        "no content identity in this trace; cross-request hits are 0 by construction");
  }
  if (trace.pseudo_tokens) {
    report->add_notes("pseudo-tokens: lengths come from text, not from a tokenizer");
  }
  const int64_t block_tokens = described->block_tokens();
  if (trace.block_tokens > block_tokens && config.prefix_caching()) {
    report->add_notes(absl::StrCat("two prompts that differ inside a trace block of ",
                                   trace.block_tokens,
                                   " tokens count as different from its start: hits are a lower "
                                   "bound"));
  }
  if (config.num_blocks() == 0) {
    report->add_notes(
        "the pool size counts estimated activations and graphs; compare it with the engine's log");
  }
  if (workload->bad_rows() > 0) {
    report->add_notes(absl::StrCat(workload->bad_rows(), " bad rows were skipped"));
  }
  if (config.count() == "vllm-legacy") {
    report->add_notes(absl::StrCat("counters as old engines had them, every attempt and resume: ",
                                   report->counters().hit_tokens(), " hits of ",
                                   report->counters().queried_tokens(), " queried tokens"));
  }
}

}  // namespace kvblocks::sim
