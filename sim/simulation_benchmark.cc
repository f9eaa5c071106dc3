// What a replay costs: a step's visit of a running request, and whole traces.
//
// Whole traces need a folder of them: KVBLOCKS_SHARED names the folder that holds traces/.

#include <cstdlib>
#include <string>

#include "benchmark/benchmark.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_spec.h"
#include "sim/cost/step_time_model.h"
#include "sim/simulation.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

KvCacheGroup FullGroup(int64_t block_size) {
  return {.spec = *FullAttentionSpec::Create(
              {.block_size = block_size, .num_kv_heads = 8, .head_size = 128}),
          .layer_names = {"full"}};
}

KvCacheGroup WindowGroup(int64_t block_size, int64_t window) {
  return {.spec = *SlidingWindowSpec::Create({.block_size = block_size,
                                              .num_kv_heads = 8,
                                              .head_size = 128,
                                              .sliding_window = window}),
          .layer_names = {"window"}};
}

// One request after the other, all at time 0.
class SameLengthsReader final : public TraceReader {
 public:
  SameLengthsReader(int64_t count, int64_t input, int64_t output)
      : count_(count), input_(input), output_(output) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override {
    if (next_ == count_) return false;
    out = TraceRequest();
    out.row = next_++;
    out.id = std::to_string(out.row);
    out.input_length = input_;
    out.output_length = output_;
    return true;
  }
  const TraceInfo& info() const override { return info_; }
  ReadProgress progress() const override { return {}; }
  absl::Status Restart() override {
    next_ = 0;
    return absl::OkStatus();
  }
  const TraceReaderCounters& counters() const override { return counters_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }

 private:
  int64_t count_, input_, output_;
  int64_t next_ = 0;
  TraceInfo info_;
  TraceReaderCounters counters_;
  std::vector<std::string> warnings_;
};

SimulationResult RunOrDie(const SimulationConfig& config, TraceReader* reader) {
  const auto step_time = MakeFixedStepTime(20 * kMillisecond);
  const auto simulation = Simulation::Create(config, reader, step_time->get(), {});
  KVBLOCKS_CHECK(simulation.ok(), simulation.status().ToString());
  KVBLOCKS_CHECK_OK((*simulation)->Run());
  return (*simulation)->result();
}

SimulationConfig Config(std::vector<KvCacheGroup> groups, int64_t num_blocks) {
  SimulationConfig config;
  config.kv_cache.num_blocks = num_blocks;
  config.kv_cache.groups = std::move(groups);
  config.manager.max_model_len = 1 << 20;
  config.check_invariants = false;
  return config;
}

void DecodeVisits(benchmark::State& state, std::vector<KvCacheGroup> groups) {
  const int64_t num_running = state.range(0);
  int64_t visits = 0;
  for (auto _ : state) {
    SimulationConfig config = Config(groups, 1 << 18);
    config.scheduler.max_num_seqs = num_running;
    SameLengthsReader reader(num_running, 16, 2000);
    visits += RunOrDie(config, &reader).scheduler.num_output_tokens;
  }
  state.counters["visits"] =
      benchmark::Counter(static_cast<double>(visits), benchmark::Counter::kIsRate);
  state.counters["s/visit"] = benchmark::Counter(
      static_cast<double>(visits), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_DecodeVisitFull(benchmark::State& state) { DecodeVisits(state, {FullGroup(16)}); }
BENCHMARK(BM_DecodeVisitFull)->Arg(16)->Arg(256)->Arg(1024)->Unit(benchmark::kMillisecond);

void BM_DecodeVisitFullAndWindow(benchmark::State& state) {
  DecodeVisits(state, {FullGroup(16), WindowGroup(16, 128)});
}
BENCHMARK(BM_DecodeVisitFullAndWindow)->Arg(256)->Unit(benchmark::kMillisecond);

void BM_ConversationTrace(benchmark::State& state) {
  const char* shared = std::getenv("KVBLOCKS_SHARED");
  if (shared == nullptr) {
    state.SkipWithError("set KVBLOCKS_SHARED to the folder that holds traces/");
    return;
  }
  const std::string path = std::string(shared) + "/traces/mooncake/conversation_trace.jsonl.gz";
  const int64_t block_size = state.range(0);
  SimulationResult result;
  for (auto _ : state) {
    auto reader = OpenTrace(path, {});
    if (!reader.ok()) {
      state.SkipWithError(reader.status().ToString().c_str());
      return;
    }
    result = RunOrDie(Config({FullGroup(block_size)}, state.range(1) / block_size), reader->get());
  }
  state.counters["requests"] = static_cast<double>(result.num_finished);
  state.counters["rejected"] = static_cast<double>(result.num_rejected);
  state.counters["steps"] = static_cast<double>(result.scheduler.num_steps);
  state.counters["tokens"] = static_cast<double>(result.scheduler.num_output_tokens);
  state.counters["preemptions"] = static_cast<double>(result.scheduler.num_preemptions);
  state.counters["hits"] = static_cast<double>(result.prefix_cache.hits);
  state.counters["s/visit"] = benchmark::Counter(
      static_cast<double>(result.scheduler.num_output_tokens),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
// Block size and pool size in tokens.
BENCHMARK(BM_ConversationTrace)
    ->Args({512, 4 << 20})
    ->Args({512, 64 << 20})
    ->Args({16, 4 << 20})
    ->Args({16, 64 << 20})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvblocks::sim

BENCHMARK_MAIN();
