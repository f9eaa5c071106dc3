// What a step's metadata costs on the host: batches of decodes, of prefills, and their split plans.
//
//   bazel run -c opt //attention:metadata_benchmark

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "checks/ceil_div.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kBlockSize = 16;

struct Batch {
  Batch(int64_t num_reqs, int64_t seq_len, int64_t scheduled) {
    const int64_t per_request = CeilDiv(seq_len, kBlockSize);
    num_blocks = 1 + num_reqs * per_request;
    tables.resize(static_cast<size_t>(num_reqs));
    for (int64_t k = 0; k < per_request; ++k) {  // blocks of a request are scattered, as in use
      for (int64_t i = 0; i < num_reqs; ++i) {
        tables[static_cast<size_t>(i)].push_back(static_cast<int32_t>(1 + k * num_reqs + i));
      }
    }
    spans.assign(tables.begin(), tables.end());
    requests.assign(static_cast<size_t>(num_reqs), {.num_computed_tokens = seq_len - scheduled,
                                                    .num_scheduled_tokens = scheduled});
  }

  int64_t num_blocks;
  std::vector<std::vector<int32_t>> tables;
  std::vector<absl::Span<const int32_t>> spans;
  std::vector<RequestInput> requests;
};

void Build(benchmark::State& state, int64_t scheduled) {
  const int64_t num_reqs = state.range(0), seq_len = state.range(1);
  const Batch batch(num_reqs, seq_len, scheduled);
  auto builder = AttentionMetadataBuilder::Create({.groups = {{.num_blocks = batch.num_blocks}},
                                                   .max_num_reqs = num_reqs,
                                                   .max_num_tokens = num_reqs * scheduled,
                                                   .max_seq_len = seq_len});
  for (auto _ : state) {
    const absl::Status status =
        builder->Build({.requests = batch.requests, .block_ids = batch.spans});
    if (!status.ok()) state.SkipWithError("the batch was refused");
    benchmark::DoNotOptimize(builder->metadata().num_decodes);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * num_reqs);
  state.counters["per_request"] = benchmark::Counter(
      static_cast<double>(num_reqs),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_BuildDecodes(benchmark::State& state) { Build(state, 1); }
BENCHMARK(BM_BuildDecodes)->ArgNames({"reqs", "len"})->ArgsProduct({{64, 256}, {16, 1024, 8192}});

void BM_BuildPrefills(benchmark::State& state) { Build(state, 512); }
BENCHMARK(BM_BuildPrefills)->ArgNames({"reqs", "len"})->Args({16, 1024});

void BM_PlanDecodes(benchmark::State& state) {
  const int64_t num_reqs = state.range(0);
  std::vector<int32_t> lens;
  for (int64_t i = 0; i < num_reqs; ++i) lens.push_back(static_cast<int32_t>(1 + i * 977 % 8192));
  SplitPlanner planner(num_reqs, 132);
  for (auto _ : state) {
    const absl::Status status = planner.Plan({.seq_lens = lens, .num_parts = 132});
    if (!status.ok()) state.SkipWithError("the batch was refused");
    benchmark::DoNotOptimize(planner.plan().ranges.data());
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * num_reqs);
}
BENCHMARK(BM_PlanDecodes)->ArgName("reqs")->Arg(64)->Arg(256);

}  // namespace
}  // namespace kvblocks::attention

BENCHMARK_MAIN();
