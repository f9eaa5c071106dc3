#include "sim/commands/replay_notes.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/report/human_table.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

std::string BaseName(const std::string& path) {
  if (path.empty()) return "example";
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// The smallest --num-blocks that makes a pool of `num_blocks` block ids. They are the same but in
// the native layout, where the option stands for memory.
int64_t SmallestOption(ReplayConfig config, const ReplaySetup& setup, int64_t num_blocks) {
  if (!setup.simulation.kv_cache.native) return num_blocks;
  const auto suffices = [&](int64_t option) {
    config.set_num_blocks(option);
    const auto planned = MakeReplaySetup(config, SeveralRanks::kTaken);
    return planned.ok() && planned->simulation.kv_cache.num_blocks >= num_blocks;
  };
  int64_t most = num_blocks;
  while (most < kMaxNumBlocks && !suffices(most)) most = std::min(2 * most, kMaxNumBlocks);
  int64_t low = 1, count = most - low;
  while (count > 0) {
    const int64_t half = count / 2;
    if (suffices(low + half)) {
      count = half;
    } else {
      low += half + 1;
      count -= half + 1;
    }
  }
  return low;
}

// In words, where more arrives than is served.
void AddOverload(const ReplayConfig& config, ::kvblocks::report::v1::Report* report) {
  constexpr double kLonger = 1.1, kLongQueue = 1000;  // ms
  const auto& workload = report->workload();
  const double arrivals = workload.last_arrival_s() - workload.first_arrival_s();
  const double duration = report->throughput().duration_s();
  const double queueing = report->latency().queueing().mean_ms();
  if (config.concurrency() > 0 || !report->setup().latency_is_meaningful() || arrivals <= 0 ||
      duration < kLonger * arrivals || queueing < kLongQueue) {
    return;
  }
  report->add_notes(absl::StrCat("overload: arrivals of ", Span(arrivals), " took ",
                                 Span(duration), "; a request waited ", Span(queueing / 1e3),
                                 " on average before it ran"));
}

}  // namespace

void DescribeReplay(const ReplayConfig& config, const ReplaySetup& setup,
                    const TraceReader& reader, ::kvblocks::report::v1::Report* report) {
  report->set_outcome("complete");
  *report->mutable_config() = setup.config;
  report->mutable_config()->set_model(setup.model);
  report->mutable_config()->set_device(setup.device);
  auto* workload = report->mutable_workload();
  workload->set_name(BaseName(config.trace()));
  workload->set_bad_rows(reader.counters().bad_rows);
  auto* described = report->mutable_setup();
  described->set_latency_is_meaningful(setup.latency_is_meaningful);
  for (const TimePart& part : setup.step_time->parts()) {
    auto* described_part = described->add_time_parts();
    described_part->set_part(part.part);
    described_part->set_source(part.source);
  }
  described->set_num_blocks_source(setup.num_blocks_source);
  described->set_devices(std::max<int64_t>(config.tensor_parallel(), 1) *
                         config.pipeline_parallel());
  const bool is_chosen = config.max_num_seqs() == 0 || config.max_num_batched_tokens() == 0;
  described->set_limits_source(
      is_chosen ? absl::StrCat("chosen as its ", config.entry_point() == "offline"
                                                     ? "offline entry point"
                                                     : "server",
                               " does on ", setup.device)
                : "given");
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
  AddOverload(config, report);
  if (setup.beside_model_bytes) {
    const int64_t bytes = described->num_blocks() * described->block_bytes() +
                          described->num_chunks() * described->chunk_bytes();
    if (bytes > *setup.beside_model_bytes) {
      report->add_notes(absl::StrFormat(
          "the pool takes %.1f GB of each device, but beside the model %s has room for %.1f GB",
          static_cast<double>(bytes) / 1e9, setup.device,
          static_cast<double>(std::max<int64_t>(*setup.beside_model_bytes, 0)) / 1e9));
    }
  }
  const TraceInfo& trace = reader.info();
  if (trace.block_tokens == 0) {
    report->add_notes(
        "no content identity in this trace; cross-request hits are 0 by construction");
  }
  if (const auto links = trace.notes.find(kTurnLinksNote); links != trace.notes.end()) {
    report->add_notes(links->second);
  }
  if (trace.pseudo_tokens) {
    report->add_notes("pseudo-tokens: lengths come from text, not from a tokenizer");
  }
  const int64_t block_tokens = described->hit_unit_tokens();
  if (trace.block_tokens > 1 && trace.block_tokens < block_tokens && config.prefix_caching()) {
    report->add_notes(absl::StrCat(
        "a hit advances by ", block_tokens, " tokens, and the trace has an id per ",
        trace.block_tokens,
        ": shorter shared prefixes are no hits; a smaller --block-size finds them"));
  }
  if (trace.block_tokens > block_tokens && config.prefix_caching()) {
    report->add_notes(absl::StrCat("two prompts that differ inside a trace block of ",
                                   trace.block_tokens,
                                   " tokens count as different from its start: hits are a lower "
                                   "bound"));
  }
  if (config.num_blocks() == 0 && config.kv_cache_config().num_blocks() == 0) {
    report->add_notes(
        "the pool size counts activations as measured on one device and version; compare it with "
        "the "
        "engine's log");
  }
  if (config.max_encoder_tokens() > 0) {
    report->add_notes("step times leave out the encoder, and attention to what it made");
  } else if (workload->encoder_tokens() > 0) {
    report->add_notes(absl::StrCat("the trace has encoders' inputs of ", workload->encoder_tokens(),
                                   " tokens, and the model no cross attention: they are left out"));
  }
  if (!setup.note.empty()) report->add_notes(setup.note);
  if (workload->bad_rows() > 0) {
    report->add_notes(absl::StrCat(workload->bad_rows(), " bad rows were skipped"));
  }
  if (config.count() == "vllm-legacy") {
    report->add_notes(absl::StrCat("counters as old engines had them, every attempt and resume: ",
                                   report->counters().hit_tokens(), " hits of ",
                                   report->counters().queried_tokens(), " queried tokens"));
  }
}

void NoteStepsOutside(::kvblocks::report::v1::Report* report) {
  const int64_t outside = report->setup().steps_outside_tables();
  if (outside == 0) return;
  report->add_notes(absl::StrCat(
      outside, " of ", report->totals().steps(),
      " steps have more tokens, requests or context than the kernel tables were measured for"));
}

absl::Status CheckSomethingRan(const SimulationResult& result,
                               const ReplayConfig& config, const ReplaySetup& setup) {
  if (result.num_rejected == 0 || result.num_rejected < result.num_arrived) {
    return absl::OkStatus();
  }
  std::string text = absl::StrCat("all ", result.num_rejected, " requests were rejected");
  const int64_t too_big = result.scheduler.num_too_big;
  if (too_big > 0) {
    absl::StrAppend(&text, ": ", too_big, " need more than the pool's ",
                    setup.simulation.kv_cache.num_blocks,
                    " blocks; the smallest pool that takes them all is --num-blocks=",
                    SmallestOption(config, setup, result.scheduler.num_blocks_for_too_big));
  }
  if (const int64_t others = result.num_rejected - too_big; others > 0) {
    absl::StrAppend(&text, too_big > 0 ? "; " : ": ", others,
                    " have no prompt, or one that does not fit --max-model-len=",
                    config.max_model_len());
    if (config.max_encoder_tokens() > 0) {
      absl::StrAppend(&text, ", or an input of the encoder above --max-encoder-tokens=",
                      config.max_encoder_tokens());
    }
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace kvblocks::sim
