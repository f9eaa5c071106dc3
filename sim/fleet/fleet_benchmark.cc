// What a fleet costs beside its replicas: the conversation trace through 16 of them, and the same
// 16 shares of it one after the other. KVBLOCKS_SHARED names the folder that holds traces/.

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_spec.h"
#include "sim/fleet/fleet.h"
#include "sim/simulation.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kReplicas = 16;
constexpr int64_t kBlockTokens = 512;

SimulationConfig Config() {
  SimulationConfig config;
  config.kv_cache.num_blocks = (4 << 20) / kBlockTokens;
  config.kv_cache.groups = {
      {.spec = *FullAttentionSpec::Create(
           {.block_size = kBlockTokens, .num_kv_heads = 8, .head_size = 128}),
       .layer_names = {"full"}}};
  config.manager.max_model_len = 1 << 20;
  config.check_invariants = false;
  return config;
}

// All requests of the trace, read beforehand.
const std::vector<TraceRequest>* Conversations(TraceInfo* info) {
  static std::vector<TraceRequest> requests;
  static TraceInfo trace;
  if (requests.empty()) {
    const char* shared = std::getenv("KVBLOCKS_SHARED");
    if (shared == nullptr) return nullptr;
    auto reader =
        OpenTrace(std::string(shared) + "/traces/mooncake/conversation_trace.jsonl.gz", {});
    if (!reader.ok()) return nullptr;
    trace = (*reader)->info();
    TraceRequest request;
    while (true) {
      const auto more = (*reader)->Next(request);
      KVBLOCKS_CHECK(more.ok(), more.status().ToString());
      if (!*more) break;
      requests.push_back(request);
    }
  }
  *info = trace;
  return &requests;
}

// Every `step`-th request from `first` on.
class ShareReader final : public TraceReader {
 public:
  ShareReader(const TraceInfo& info, const std::vector<TraceRequest>* requests, size_t first,
              size_t step)
      : info_(info), requests_(requests), next_(first), step_(step) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override {
    if (next_ >= requests_->size()) return false;
    out = (*requests_)[next_];
    next_ += step_;
    return true;
  }
  const TraceInfo& info() const override { return info_; }
  ReadProgress progress() const override { return {}; }
  absl::Status Restart() override { return absl::UnimplementedError("read once"); }
  const TraceReaderCounters& counters() const override { return counters_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }

 private:
  TraceInfo info_;
  const std::vector<TraceRequest>* requests_;
  size_t next_, step_;
  TraceReaderCounters counters_;
  std::vector<std::string> warnings_;
};

void BM_SharesOneByOne(benchmark::State& state) {
  TraceInfo info;
  const auto* requests = Conversations(&info);
  if (requests == nullptr) {
    state.SkipWithError("set KVBLOCKS_SHARED to the folder that holds traces/");
    return;
  }
  const auto step_time = MakeFixedStepTime(20 * kMillisecond);
  int64_t steps = 0;
  for (auto _ : state) {
    steps = 0;
    for (size_t r = 0; r < kReplicas; ++r) {
      ShareReader reader(info, requests, r, kReplicas);
      auto simulation = Simulation::Create(Config(), &reader, step_time->get(), {});
      KVBLOCKS_CHECK(simulation.ok() && (*simulation)->Run().ok(), "a share did not run");
      steps += (*simulation)->result().scheduler.num_steps;
    }
  }
  state.counters["steps"] = static_cast<double>(steps);
}
BENCHMARK(BM_SharesOneByOne)->Unit(benchmark::kMillisecond);

void BM_Fleet(benchmark::State& state, RouterKind kind) {
  TraceInfo info;
  const auto* requests = Conversations(&info);
  if (requests == nullptr) {
    state.SkipWithError("set KVBLOCKS_SHARED to the folder that holds traces/");
    return;
  }
  const auto step_time = MakeFixedStepTime(20 * kMillisecond);
  int64_t steps = 0, hits = 0;
  for (auto _ : state) {
    ShareReader reader(info, requests, 0, 1);
    std::vector<ReplicaSetup> replicas(kReplicas, {Config(), step_time->get(), {}});
    auto fleet = Fleet::Create({.router = {.kind = kind}}, std::move(replicas), &reader, {});
    KVBLOCKS_CHECK(fleet.ok() && (*fleet)->Run().ok(), "the fleet did not run");
    steps = hits = 0;
    for (const SimulationResult& one : (*fleet)->result().replicas) {
      steps += one.scheduler.num_steps;
      hits += one.prefix_cache.hits;
    }
  }
  state.counters["steps"] = static_cast<double>(steps);
  state.counters["hits"] = static_cast<double>(hits);
}
BENCHMARK_CAPTURE(BM_Fleet, RoundRobin, RouterKind::kRoundRobin)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Fleet, LeastTokens, RouterKind::kLeastTokens)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Fleet, Prefix, RouterKind::kPrefix)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Fleet, Oracle, RouterKind::kOracle)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvblocks::sim

BENCHMARK_MAIN();
